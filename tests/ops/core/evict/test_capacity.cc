// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with a capacity: windows of all sizes, threads, erased keys.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

RowRules Keeping(int64_t max_rows, CapacitySpec::Policy policy) {
  RowRules rules;
  rules.capacity = {max_rows, policy, 10};
  return rules;
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

TEST(OldestRowsGoWhateverTheSizeOfAWindow) {
  // All stripes, several, one, and a part of one.
  for (const int64_t max_rows : {1, 64, 5000, 40000, 600000, 1500000}) {
    EmbeddingTable table(1, 0.0f, {}, Keeping(max_rows, CapacitySpec::kOldest));
    const int64_t step = max_rows / 3 + 1;
    for (int64_t version = 0; version < 9; ++version) {
      const auto keys = Range(version * step, (version + 1) * step);
      EXPECT_TRUE(ApplyOnes(&table, keys, version));
      EXPECT_TRUE(table.size() <= std::max(max_rows, step));
    }
    // A sixteenth of a window may be too many, and a window is not the table.
    EXPECT_TRUE(table.size() >= max_rows - max_rows / 8 - 1);
    std::vector<int64_t> versions(9 * step);
    const auto all = Range(0, 9 * step);
    table.Versions(all.data(), all.size(), versions.data());
    int64_t old = 0;
    for (int64_t i = 0; i < 5 * step; ++i) old += versions[i] >= 0;
    EXPECT_TRUE(old <= max_rows / 20);
    // The last step still owns all of its rows.
    for (int64_t i = 8 * step; i < 9 * step; ++i) EXPECT_EQ(versions[i], 8);
  }
}

TEST(EvictedAndErasedKeysAreCountedFromZeroUnderEveryFilter) {
  for (const FilterSpec& filter :
       {FilterSpec{}, FilterSpec{2, 1}, BloomFilter(2, 1, 20000, 0.01)}) {
    EmbeddingTable table(2, 0.0f, filter,
                         Keeping(1, CapacitySpec::kLeastCounted));
    EXPECT_TRUE(ApplyOnes(&table, {7, 7}, 0));
    EXPECT_TRUE(ApplyOnes(&table, {8, 8, 8}, 1));
    EXPECT_EQ(table.size(), 1);
    const int64_t keys[] = {7, 8, 9};
    int64_t counts[3];
    table.Frequencies(keys, 3, counts);
    EXPECT_EQ(counts[0], 0);
    EXPECT_EQ(counts[1], 3);
    EXPECT_EQ(table.EvictKeys(keys, 3, 5), 1u);
    table.Frequencies(keys, 3, counts);
    EXPECT_EQ(counts[1], 0);
    EXPECT_EQ(table.size(), 0);
  }
}

TEST(ThreadsShareAFullTable) {
  EmbeddingTable table(4, 0.0f, {}, Keeping(500, CapacitySpec::kLeastCounted));
  std::atomic<bool> is_running{true};
  std::thread reader([&] {
    const auto keys = Range(0, 3000);
    std::vector<float> values(keys.size() * 4);
    while (is_running) {
      table.Lookup(keys.data(), keys.size(), UnknownKey::kDefault,
                   values.data(), SerialFor);
    }
  });
  std::vector<std::thread> trainers;
  for (int t = 0; t < 3; ++t) {
    trainers.emplace_back([&table, t] {
      for (int64_t step = 0; step < 100; ++step) {
        const int64_t begin = (step * 37 + t * 911) % 2900;
        EXPECT_TRUE(ApplyOnes(&table, Range(begin, begin + 100), step));
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  is_running = false;
  reader.join();
  EXPECT_TRUE(ApplyOnes(&table, {1}, 100));
  EXPECT_TRUE(table.size() <= 500);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
