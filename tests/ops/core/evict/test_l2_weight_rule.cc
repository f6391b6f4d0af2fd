// SPDX-License-Identifier: Apache-2.0
// L2WeightRule: which values an eviction takes, and the counts of keys without
// a row, which have no value.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/core/evict/l2_weight_rule.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(EvictionByValueTakesRowsThatAreNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  const L2WeightRule rule(8.0f);
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    for (int at = 0; at < 3; ++at) {
      std::vector<float> row = {9.0f, -9.0f, 9.0f};
      EXPECT_TRUE(!rule.EvictsValue(row.data(), 3));
      row[at] = bad;
      EXPECT_TRUE(rule.EvictsValue(row.data(), 3));
    }
  }
  // The sum of these squares is far above the largest float.
  const std::vector<float> large(1000, -kLargest);
  EXPECT_TRUE(!rule.EvictsValue(large.data(), 1000));
}

// A stream of keys that occur once. Every 30th step also trains keys that get
// rows.
TEST_WITHOUT_TSAN(EvictionByValueKeepsTheLastCountsInProportionToTheRows) {
  constexpr int64_t kNew = 20000;
  for (const bool has_steps : {true, false}) {
    EmbeddingTable table(1, 0.0f, FilterSpec{3, 1});
    int64_t next = 0;
    const auto count_of = [&](int64_t key) {
      int64_t count;
      table.Frequencies(&key, 1, &count);
      return count;
    };
    for (int64_t step = 0; step < 60; ++step) {
      std::vector<int64_t> keys;
      for (int64_t i = 0; i < kNew; ++i) keys.push_back(++next);
      if (step % 30 == 29) {
        for (int64_t i = 0; i < 90000; ++i) keys.push_back(-1 - i / 3);
      }
      EXPECT_TRUE(ApplyOnes(&table, keys, has_steps ? step : -1));
      const int64_t before = table.total_count();
      const int64_t evicted =
          EvictSmaller(&table, 1e-9f, has_steps ? step : int64_t{-1});
      EXPECT_EQ(table.total_count(), before - evicted);
      const int64_t known = table.total_count() - table.size();
      const int64_t kept = std::max(kLeastCounts, kCountsPerRow * table.size());
      // Keys of one version go together. Without steps, that is what came
      // between two evictions; at first, all that came before the limit.
      EXPECT_TRUE(known <= (has_steps ? 1 : 2) * kept + kNew);
      // The limit was reached, after the beginning and after it rose.
      const bool is_full = (step >= 4 && step < 29) || step >= 40;
      EXPECT_TRUE(known >= kept || !is_full);
      EXPECT_EQ(count_of(next), 1);
      if (step >= 10) EXPECT_EQ(count_of(1), 0);
    }
    EXPECT_EQ(table.size(), 30000);
    EXPECT_EQ(count_of(-1), 6);
  }
}

TEST(CountsOfARunThatHadComeFurtherAreNotTheYoungestForEver) {
  EmbeddingTable table(1, 0.0f, FilterSpec{3, 1});
  std::vector<int64_t> keys(50000), freqs(50000, 1), versions(50000, 1000000);
  std::iota(keys.begin(), keys.end(), int64_t{1});
  EXPECT_TRUE(table.InsertFiltered(keys.data(), keys.size(), freqs.data(),
                                   versions.data(), false));
  int64_t next = 1000000;
  for (int64_t step = 0; step < 8; ++step) {
    std::vector<int64_t> fresh(20000);
    std::iota(fresh.begin(), fresh.end(), next);
    next += 20000;
    EXPECT_TRUE(ApplyOnes(&table, fresh, step));
    EvictSmaller(&table, 1e-9f, step);
  }
  int64_t counts[2];
  const int64_t first_and_last[2] = {1, next - 1};
  table.Frequencies(first_and_last, 2, counts);
  EXPECT_EQ(counts[0], 0);
  EXPECT_EQ(counts[1], 1);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
