// SPDX-License-Identifier: Apache-2.0
// StripeSet: its walks over keys see each of them once, in the stripe of the
// key, under the locks that they promise.
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/stripes/stripe_set.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// More than two lock blocks; a key may occur several times. Every other key has
// an entry, whose count is its first position + 1.
constexpr size_t kKeys = 2 * kLockBlock + 77;

struct Filled {
  Filled() : store(1, 0.0f), stripes(&store, {}, {}) {
    std::mt19937_64 random(5);
    keys = {kMin, kMax, -1, 0};
    while (keys.size() < kKeys) {
      keys.push_back(static_cast<int64_t>(random() % 6000));
    }
    for (size_t i = 0; i < kKeys; ++i) {
      Stripe& stripe = stripes.Of(keys[i]);
      if (keys[i] % 2 != 0 || stripe.Find(keys[i]).found()) continue;
      StripeNeeds needs;
      needs.entries = 1;
      EXPECT_TRUE(stripe.MakeRoom(needs));
      stripe.Insert(keys[i]).count() = static_cast<uint32_t>(i + 1);
      stripe.AddToKeys(1);
    }
  }

  // Whether the entry is that of key i.
  bool IsOf(size_t i, EntryRef entry) const {
    if (keys[i] % 2 != 0) return !entry.found();
    return entry.found() && entry.key() == keys[i] && entry.count() > 0 &&
           keys[entry.count() - 1] == keys[i];
  }

  RowStore store;
  StripeSet stripes;
  std::vector<int64_t> keys;
};

// Whether a thread of its own could lock the stripe shared, or exclusively.
bool CanLock(const Stripe& stripe, bool is_shared) {
  bool can = false;
  std::thread([&] {
    SharedMutex& mutex = stripe.mutex();
    can = is_shared ? mutex.try_lock_shared() : mutex.try_lock();
    if (can) is_shared ? mutex.unlock_shared() : mutex.unlock();
  }).join();
  return can;
}

TEST(WalksFindTheEntryOfEachKeyInOrder) {
  const Filled filled;
  for (const size_t n : {size_t{0}, size_t{1}, kLockBlock, kKeys}) {
    size_t next = 0;
    const auto check = [&](size_t i, EntryRef entry) {
      EXPECT_EQ(i, next++);
      EXPECT_TRUE(filled.IsOf(i, entry));
    };
    filled.stripes.Inspect(filled.keys.data(), n, check);
    EXPECT_EQ(next, n);
    next = 0;
    const SharedLocks locks(filled.stripes, kAllStripes);
    filled.stripes.InspectLocked(filled.keys.data(), n, check);
    EXPECT_EQ(next, n);
    next = 0;
    filled.stripes.FindEach(filled.keys.data(), static_cast<uint32_t>(n),
                            check);
    EXPECT_EQ(next, n);
  }
}

TEST(ExclusiveWalkVisitsEachKeyOnceInItsLockedStripe) {
  Filled filled;
  std::vector<int> visits(kKeys);
  filled.stripes.VisitExclusively(
      filled.keys.data(), kKeys, [&](Stripe* stripe, size_t i) {
        ++visits[i];
        EXPECT_TRUE(stripe == &filled.stripes.Of(filled.keys[i]));
        if (i % 1000 == 0) EXPECT_TRUE(!CanLock(*stripe, /*is_shared=*/true));
      });
  EXPECT_TRUE(visits == std::vector<int>(kKeys, 1));
  for (const Stripe& stripe : filled.stripes) {
    EXPECT_TRUE(CanLock(stripe, /*is_shared=*/false));
  }
}

TEST(ExclusiveLocksAreTakenAllOrNoneIfOneIsNotFree) {
  const Filled filled;
  const uint64_t mask = 1u << 3 | 1u << 9 | 1u << 20;
  {
    const SharedLocks others(filled.stripes, 1u << 9);
    const ExclusiveLocks locks(filled.stripes, mask, std::try_to_lock);
    EXPECT_TRUE(!locks.owns_all());
    for (const int s : {3, 20}) {
      EXPECT_TRUE(CanLock(filled.stripes[s], /*is_shared=*/false));
    }
  }
  const ExclusiveLocks locks(filled.stripes, mask, std::try_to_lock);
  EXPECT_TRUE(locks.owns_all());
  for (const int s : {3, 9, 20}) {
    EXPECT_TRUE(!CanLock(filled.stripes[s], /*is_shared=*/true));
  }
  EXPECT_TRUE(CanLock(filled.stripes[4], /*is_shared=*/false));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
