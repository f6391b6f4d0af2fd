// SPDX-License-Identifier: Apache-2.0
// DeduplicatedList: the distinct keys of short lists, and those of long lists
// in groups.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <set>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/keys/grouped_keys.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

TEST(AListNumbersItsDistinctKeysInOrderOfFirstOccurrence) {
  const std::vector<int64_t> keys = {7, INT64_MIN, 7, 0, -1, INT64_MIN, 7};
  const DeduplicatedList list(keys.data(), keys.size(), SerialFor);
  const std::vector<int64_t> distinct(list.distinct(),
                                      list.distinct() + list.size());
  EXPECT_TRUE((distinct == std::vector<int64_t>{7, INT64_MIN, 0, -1}));
  const std::vector<uint16_t> position(list.position(),
                                       list.position() + list.n());
  EXPECT_TRUE((position == std::vector<uint16_t>{0, 1, 0, 2, 3, 1, 0}));
  uint64_t stripes = 0;
  for (const int64_t key : keys) stripes |= 1ull << StripeOf(MixKey(key));
  EXPECT_EQ(list.stripes(), stripes);
  EXPECT_TRUE(list.IsOf(keys.data(), keys.size()));
  EXPECT_TRUE(!list.IsOf(keys.data(), keys.size() - 1));
  EXPECT_TRUE(!list.IsOf(keys.data() + 1, keys.size()));
}

TEST(TheLongestListMayHaveOnlyDistinctKeys) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i < DeduplicatedList::kShort; ++i) keys.push_back(3 * i);
  const DeduplicatedList list(keys.data(), keys.size(), SerialFor);
  EXPECT_EQ(list.size(), DeduplicatedList::kShort);
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), list.distinct()));
  EXPECT_EQ(list.position()[DeduplicatedList::kShort - 1],
            DeduplicatedList::kShort - 1);
}

TEST(ALongListHasItsKeysInAGroupForEachStripe) {
  std::mt19937_64 random(5);
  std::vector<int64_t> keys(3 * DeduplicatedList::kShort,
                            42);  // One is frequent.
  for (size_t i = 0; i < keys.size(); i += 2) {
    keys[i] = static_cast<int64_t>(random() % 9000) - 10;
  }
  Threads threads(4);
  const DeduplicatedList list(keys.data(), keys.size(), threads.parallel());
  EXPECT_EQ(list.stripes(), kAllStripes);
  const GroupedKeys& groups = *list.groups();
  std::vector<int> found(keys.size());  // By occurrence.
  uint32_t first = 0;
  for (int g = 0; g < kStripes; ++g) {
    EXPECT_EQ(groups.first(g), first);
    first += groups.size(g);
    const auto distinct = groups.distinct().From(groups.partition().begin[g]);
    uint32_t j = 0;
    int64_t last_first = -1;
    for (uint32_t u = 0; u < groups.size(g); ++u) {
      EXPECT_EQ(StripeOf(MixKey(distinct.keys[u])), g);
      // In order of first occurrence, and each key's occurrences in order.
      EXPECT_TRUE(last_first < static_cast<int64_t>(distinct.grouped[j]));
      last_first = distinct.grouped[j];
      for (int64_t last = -1; j < distinct.end[u]; ++j) {
        EXPECT_TRUE(last < static_cast<int64_t>(distinct.grouped[j]));
        last = distinct.grouped[j];
        EXPECT_EQ(keys[distinct.grouped[j]], distinct.keys[u]);
        ++found[distinct.grouped[j]];
      }
    }
    EXPECT_EQ(j, groups.partition().size_of(g));
  }
  for (const int times : found) EXPECT_EQ(times, 1);
  EXPECT_EQ(list.size(), first);
  EXPECT_EQ(first, std::set<int64_t>(keys.begin(), keys.end()).size());
}

TEST(ALongListWithoutMemoryThrows) {
  int64_t failed = 0;
  for (bool listed = false; !listed; failed += !listed) {
    // Longer each time, so that no memory of the last one serves.
    const std::vector<int64_t> keys((failed + 3) * DeduplicatedList::kShort, 7);
    LimitAllocations(failed);
    try {
      const DeduplicatedList list(keys.data(), keys.size(), SerialFor);
      listed = true;
    } catch (const std::bad_alloc&) {
    }
    LimitAllocations(-1);
  }
  EXPECT_TRUE(failed > 1);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
