// SPDX-License-Identifier: Apache-2.0
// Eviction, whatever its rule is: rows are reused, and erased keys are listed.
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(EvictedRowsAreReusedAndInitialized) {
  for (const FilterSpec& filter :
       {FilterSpec{}, FilterSpec{2, 1}, BloomFilter(2, 1, 20000, 0.01)}) {
    EmbeddingTable table(4, 0.0f, filter);
    EXPECT_TRUE(table.EnsureSlots({{"a", 4, 0.5f}}));
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 20000; ++key) keys.push_back(key / 2);
    EXPECT_TRUE(ApplyOnes(&table, keys, 0));
    EXPECT_EQ(table.size(), 10000);
    const std::vector<float> dirt(10000 * 4, 9.0f);
    std::vector<int64_t> distinct;
    for (int64_t key = 0; key < 10000; ++key) distinct.push_back(key);
    int64_t full = 0;
    for (int64_t round = 1; round <= 10; ++round) {
      EXPECT_EQ(table.SetSlot(0, distinct.data(), 10000, dirt.data()), 10000u);
      EXPECT_EQ(EvictOlder(&table, round - 1, round), 0);
      EXPECT_EQ(EvictOlder(&table, round, round), 10000);
      EXPECT_EQ(table.size(), 0);
      EXPECT_EQ(table.total_count(), 0);
      EXPECT_TRUE(ApplyOnes(&table, keys, round));
      EXPECT_EQ(table.size(), 10000);
      // With a Bloom filter the index has room for one more batch.
      if (round == 1) full = table.memory_bytes();
      EXPECT_EQ(table.memory_bytes(), full);
      const Contents contents(table);
      for (const auto& entry : contents.admitted) {
        EXPECT_EQ(entry.row[3], 2.0f);
        EXPECT_EQ(entry.row[7], 0.5f);
        EXPECT_EQ(entry.freq, 2);
        EXPECT_EQ(entry.version, round);
      }
    }
    // Rows are 2.0f four times: half the squared norm is 8.
    EXPECT_EQ(EvictSmaller(&table, 8.0f), 0);
    EXPECT_EQ(EvictSmaller(&table, std::nextafter(8.0f, 9.0f)), 10000);
    EXPECT_EQ(table.size(), 0);
  }
}

TEST(RepeatedlyErasedKeyIsListedOnce) {
  EmbeddingTable table(1);
  table.TrackChanges();
  for (int round = 0; round < 3000; ++round) {
    EXPECT_TRUE(ApplyOnes(&table, {1, 2, 3}, round));
    EXPECT_EQ(EvictOlder(&table, round + 1, round + 1), 3);
  }
  const Contents contents(table, Contents::Keys::kChanged);
  EXPECT_TRUE(contents.snapshot.erased() == std::vector<int64_t>({1, 2, 3}));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
