// SPDX-License-Identifier: Apache-2.0
// Hashes of keys: that they are those of every file, or secret. How far keys
// are from where a search begins: index/test_hash_index.cc,
// keys/test_deduplicator.cc.
#include <cstdint>
#include <limits>
#include <random>
#include <set>

#include "ops/core/base/key_hash.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(MixKeyIsABijection) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int64_t key = static_cast<int64_t>(random() >> (i % 64));
    EXPECT_EQ(UnmixKey(MixKey(key)), key);
  }
}

TEST(FloorModMatchesPython) {
  EXPECT_EQ(FloorMod(7, 5), 2);
  EXPECT_EQ(FloorMod(-7, 5), 3);
  EXPECT_EQ(FloorMod(-5, 5), 0);
  EXPECT_EQ(FloorMod(std::numeric_limits<int64_t>::min(), 1000), 192);
  EXPECT_EQ(FloorMod(std::numeric_limits<int64_t>::max(), 1000), 807);
}

TEST(FastRangeCoversTheRangeMonotonically) {
  EXPECT_EQ(FastRange(0, 7), 0u);
  EXPECT_EQ(FastRange(~uint64_t{0}, 7), 6u);
  uint64_t last = 0;
  for (uint64_t hash = 0; hash < 64; ++hash) {
    const uint64_t at = FastRange(hash << 58, 1000);
    EXPECT_TRUE(at >= last && at < 1000);
    last = at;
  }
}

TEST(TheSecretIsDrawnWhenTheLibraryIsLoaded) {
  EXPECT_TRUE(hash_secret.first != hash_secret.second);
  EXPECT_TRUE(hash_secret.first > UINT32_MAX);  // All but 1 of 2^32 draws.
}

TEST(TheHashOfAKeyIsAnotherOneWithEverySecret) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const WithSecret secret(seed);
    hashes.insert(HashKey(7));
  }
  EXPECT_EQ(hashes.size(), 1000u);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
