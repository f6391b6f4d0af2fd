// SPDX-License-Identifier: Apache-2.0
// GlobalStepRule: what an eviction by steps takes, and the versions of what it
// leaves.
#include <cstdint>
#include <vector>

#include "ops/core/evict/global_step_rule.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(EvictionByVersionTreatsItsBoundsAsDocumented) {
  EmbeddingTable table(1, 0.0f, FilterSpec{2, 1});
  const std::vector<int64_t> keys = {kMin, -1, 0, kMax, 7};
  const std::vector<int64_t> versions = {0, -1, kMax, kMin, 5};
  const std::vector<int64_t> freqs = {1, 1, 5, 5, 5};
  EXPECT_TRUE(table.InsertFiltered(keys.data(), 5, freqs.data(),
                                   versions.data(), false));
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(EvictOlder(&table, 0, kMax), 0);  // Stamps only version -1.
  std::vector<int64_t> out(5);
  table.Versions(keys.data(), 5, out.data());
  EXPECT_TRUE(out == std::vector<int64_t>({0, kMax, kMax, kMin, 5}));
  EXPECT_EQ(EvictOlder(&table, 0, 6), 0);  // And later versions.
  table.Versions(keys.data(), 5, out.data());
  EXPECT_TRUE(out == std::vector<int64_t>({0, 6, 6, kMin, 5}));
  EXPECT_EQ(EvictOlder(&table, 6, 6), 2);
  table.Frequencies(keys.data(), 5, out.data());
  EXPECT_TRUE(out == std::vector<int64_t>({0, 1, 5, 5, 0}));
  EXPECT_EQ(EvictOlder(&table, kMax, kMax), 2);
  table.Frequencies(keys.data(), 5, out.data());
  EXPECT_TRUE(out == std::vector<int64_t>({0, 0, 0, 5, 0}));
}

TEST(EvictionCountsRowsAndKeysWithoutARow) {
  EmbeddingTable table(1, 0.0f, FilterSpec{2, 1});
  EXPECT_TRUE(ApplyOnes(&table, {1, 1, 2, 2, 3}, 0));
  EXPECT_TRUE(ApplyOnes(&table, {4, 4, 5}, 7));
  GlobalStepRule rule(1, 7);
  const Evicted evicted = table.Evict(&rule);
  EXPECT_EQ(evicted.keys, 3);
  EXPECT_EQ(evicted.rows, 2);
  EXPECT_EQ(evicted.rows_before, 3);
}

TEST(EntryKeptForAnEvictedKeyIsNotCountedAsEvictedAgain) {
  EmbeddingTable table(1, 0.0f, BloomFilter(2, 1, 20000, 0.01));
  const int64_t key = 7;
  EXPECT_TRUE(ApplyOnes(&table, {key}, 1));
  EXPECT_TRUE(ApplyOnes(&table, {key}, 1));
  EXPECT_EQ(EvictOlder(&table, 2, 12), 1);
  int64_t stamp = 0;
  table.Versions(&key, 1, &stamp);
  EXPECT_EQ(stamp, 12);
  EXPECT_EQ(table.total_count(), 1);
  EXPECT_EQ(EvictOlder(&table, 12, 22), 0);
  EXPECT_EQ(table.total_count(), 1);
  EXPECT_EQ(EvictOlder(&table, 13, 23), 0);
  EXPECT_EQ(table.total_count(), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
