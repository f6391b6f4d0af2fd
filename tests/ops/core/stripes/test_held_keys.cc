// SPDX-License-Identifier: Apache-2.0
// HeldKeys and KeyHolders: which keys the running steps hold.
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/stripes/held_keys.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// Lists one array for all stripes, as a small step does, or a part of it for
// each, as a large one does.
class Holder : public KeyHolder {
 public:
  Holder(std::vector<int64_t> keys, bool is_divided)
      : keys_(std::move(keys)), is_divided_(is_divided), of_stripe_(kStripes) {
    for (const int64_t key : keys_) {
      of_stripe_[static_cast<size_t>(StripeOf(MixKey(key)))].push_back(key);
    }
  }
  Keys KeysIn(int stripe) const override {
    const std::vector<int64_t>& keys =
        is_divided_ ? of_stripe_[static_cast<size_t>(stripe)] : keys_;
    return {keys.data(), static_cast<uint32_t>(keys.size())};
  }

 private:
  const std::vector<int64_t> keys_;
  const bool is_divided_;
  std::vector<std::vector<int64_t>> of_stripe_;
};

TEST(SetOfHeldKeysHasTheseKeysAndNoOthers) {
  // The last set has more keys than bits, so that only the keys decide.
  for (const int64_t n : {0, 1, 100, 40000}) {
    std::mt19937_64 random(static_cast<uint64_t>(n));
    std::set<int64_t> keys;
    if (n > 1) keys = {kMin, -1, 0, kMax};
    while (static_cast<int64_t>(keys.size()) < n) {
      keys.insert(static_cast<int64_t>(random()));
    }
    const HeldKeys held({keys.begin(), keys.end()});
    EXPECT_EQ(held.size(), keys.size());
    for (const int64_t key : keys) {
      EXPECT_TRUE(held.Contains(key));
      for (const int64_t other : {key ^ 1, ~key}) {
        EXPECT_EQ(held.Contains(other), keys.count(other) > 0);
      }
    }
  }
}

TEST(HeldKeysOfStripesAreThoseOfAllHoldersInThem) {
  const Holder small({kMin, 3, 5, kMax}, /*is_divided=*/false);
  std::vector<int64_t> many;
  for (int64_t key = 100; key < 1100; ++key) many.push_back(key);
  const Holder large(many, /*is_divided=*/true);
  KeyHolders holders;
  EXPECT_EQ(holders.KeysIn(kAllStripes).size(), 0u);
  holders.Add(&small);
  holders.Add(&large);
  EXPECT_EQ(holders.KeysIn(kAllStripes).size(), 1004u);
  EXPECT_EQ(holders.KeysIn(0).size(), 0u);
  const int stripe = StripeOf(MixKey(5));
  const HeldKeys in_stripe = holders.KeysIn(uint64_t{1} << stripe);
  EXPECT_TRUE(in_stripe.Contains(5));
  for (const int64_t key : many) {
    EXPECT_EQ(in_stripe.Contains(key), StripeOf(MixKey(key)) == stripe);
  }
  holders.Remove(&small);
  EXPECT_EQ(holders.KeysIn(kAllStripes).size(), 1000u);
  EXPECT_TRUE(!holders.KeysIn(kAllStripes).Contains(5));
  holders.Remove(&large);
  EXPECT_EQ(holders.KeysIn(kAllStripes).size(), 0u);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
