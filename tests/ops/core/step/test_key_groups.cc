// SPDX-License-Identifier: Apache-2.0
// KeyGroups: no matter what sorts and deduplicates the keys, each distinct key
// is in one group, with its occurrences in the order of the batch.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/key_groups.h"
#include "tests/ops/core/step/phases.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

std::vector<int64_t> RandomKeys(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> keys;
  for (size_t i = 0; i < n; ++i) {
    // One key is frequent.
    keys.push_back(i % 3 == 0 ? -1 : static_cast<int64_t>(random() % (n + 1)));
  }
  return keys;
}

void ExpectGroups(const KeyGroups& groups, const StepBatch& batch,
                  bool has_occurrences) {
  const auto key_at = [&](size_t i) {
    return i < batch.n ? batch.keys[i] : batch.counted_keys[i - batch.n];
  };
  std::map<int64_t, std::vector<uint32_t>> occurrences;
  std::map<int64_t, uint64_t> counts;
  for (size_t i = 0; i < groups.n(); ++i) {
    occurrences[key_at(i)].push_back(static_cast<uint32_t>(i));
    counts[key_at(i)] += batch.counts == nullptr ? 1 : batch.counts[i];
  }
  EXPECT_EQ(groups.n(), batch.n + batch.n_counted);
  uint32_t begin = 0;
  size_t distinct = 0;
  for (int g = 0; g < groups.size(); ++g) {
    const KeyGroup& group = groups[g];
    EXPECT_EQ(group.begin, begin);
    begin += group.n;
    distinct += group.size;
    uint32_t at = 0, last_first = 0;
    for (uint32_t u = 0; u < group.size; ++u) {
      const int64_t key = group.keys[u];
      const std::vector<uint32_t>& expected = occurrences[key];
      EXPECT_TRUE(u == 0 || expected[0] > last_first);
      last_first = expected[0];
      EXPECT_EQ(group.end[u] - at, expected.size());
      EXPECT_EQ(group.Count(u), counts[key]);
      EXPECT_TRUE((group.stripes >> StripeOf(MixKey(key)) & 1) != 0);
      if (has_occurrences) {
        EXPECT_TRUE(
            std::equal(expected.begin(), expected.end(), group.grouped + at));
      }
      at = group.end[u];
    }
    EXPECT_EQ(at, group.n);
  }
  EXPECT_EQ(begin, groups.n());
  EXPECT_EQ(distinct, occurrences.size());
}

TEST(KeysOfWhichNothingIsKnownAreSorted) {
  for (const size_t n : {1, 70, 3700, 3800, 20000, 700000}) {
    const std::vector<int64_t> keys = RandomKeys(n, n);
    const std::vector<int64_t> counted = RandomKeys(n / 10, n + 1);
    std::vector<uint32_t> counts(n + n / 10);
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = static_cast<uint32_t>(i % 5);
    }
    StepBatch batch = {keys.data(),    nullptr,        keys.size(),
                       counted.data(), counted.size(), 0};
    for (const uint32_t* of :
         {static_cast<uint32_t*>(nullptr), counts.data()}) {
      batch.counts = of;
      const GroupedBatch grouped(batch, nullptr);
      // 4096 occurrences are one group.
      EXPECT_EQ(grouped.groups->size(), n <= 3700 ? 1 : kStripes);
      EXPECT_TRUE(grouped.groups->positions() == nullptr);
      ExpectGroups(*grouped.groups, batch, true);
    }
  }
}

TEST(TheCountsOfAKeyDoNotOverflow) {
  const std::vector<int64_t> keys(3, 7);
  const std::vector<uint32_t> counts(3, UINT32_MAX);
  StepBatch batch = {keys.data(), nullptr, keys.size(), nullptr, 0, 0};
  batch.counts = counts.data();
  const GroupedBatch grouped(batch, nullptr);
  EXPECT_EQ((*grouped.groups)[0].Count(0), uint64_t{UINT32_MAX});
}

TEST(TheKeysOfAShortListAreOneGroupOfWhichOccurrencesAreGroupedOnDemand) {
  for (const size_t n : {size_t{1}, size_t{300}, DeduplicatedList::kShort}) {
    const std::vector<int64_t> keys = RandomKeys(n, n);
    const DeduplicatedList list(keys.data(), n, SerialFor);
    const StepBatch batch = {keys.data(), nullptr, n, nullptr, 0, 0};
    for (const bool group_occurrences : {false, true}) {
      const GroupedBatch grouped(batch, &list, group_occurrences);
      EXPECT_EQ(grouped.groups->size(), 1);
      EXPECT_EQ(grouped.groups->blocks(), 0);
      EXPECT_TRUE(grouped.groups->positions() == list.position());
      ExpectGroups(*grouped.groups, batch, group_occurrences);
    }
  }
}

TEST(TheGroupsOfALongListAreTakenOver) {
  const size_t n = 3 * DeduplicatedList::kShort;
  const std::vector<int64_t> keys = RandomKeys(n, n);
  const DeduplicatedList list(keys.data(), n, SerialFor);
  const StepBatch batch = {keys.data(), nullptr, n, nullptr, 0, 0};
  const GroupedBatch grouped(batch, &list);
  const KeyGroups& groups = *grouped.groups;
  EXPECT_EQ(groups.size(), kStripes);
  EXPECT_EQ(groups.blocks(), 0);
  EXPECT_TRUE(groups.positions() == nullptr);
  ExpectGroups(groups, batch, true);
  uint32_t first = 0;
  for (int g = 0; g < kStripes; ++g) {
    EXPECT_EQ(groups[g].first, first);
    first += groups[g].size;
  }
}

TEST(AHolderHasTheKeysOfAStripeOnceTheyAreListed) {
  for (const size_t n : {300, 30000}) {
    const std::vector<int64_t> keys = RandomKeys(n, n);
    const StepBatch batch = {keys.data(), nullptr, n, nullptr, 0, 0};
    const auto unlisted = KeyGroups::Of(batch, nullptr);
    const GroupedBatch grouped(batch, nullptr);
    for (int s = 0; s < kStripes; ++s) {
      EXPECT_EQ(unlisted->KeysIn(s).n, 0u);
    }
    for (const int64_t key : keys) {
      const KeyHolder::Keys held =
          grouped.groups->KeysIn(StripeOf(MixKey(key)));
      EXPECT_TRUE(std::find(held.keys, held.keys + held.n, key) !=
                  held.keys + held.n);
    }
  }
}

TEST(ABatchOfTooManyOccurrencesCannotBeNumbered) {
  StepBatch batch = {};
  EXPECT_TRUE(KeyGroups::CanNumber(batch));
  batch.n = batch.n_counted = (size_t{1} << 30) - 1;
  EXPECT_TRUE(KeyGroups::CanNumber(batch));
  batch.n += 2;
  EXPECT_TRUE(!KeyGroups::CanNumber(batch));
  batch.n = batch.n_counted = size_t{1} << 63;  // Their sum is 0.
  EXPECT_TRUE(!KeyGroups::CanNumber(batch));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
