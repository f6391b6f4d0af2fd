// SPDX-License-Identifier: Apache-2.0
// Rows that are brought in ahead of the step: the step finds them in memory,
// memory stays bounded, and nothing else about the table changes.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/failing_new.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

constexpr uint32_t kBatches = 6;

bool BringInAhead(EmbeddingTable* table, const Keys& keys,
                  uint32_t batches = kBatches) {
  return table->BringInAhead({{keys.data(), keys.size()}}, batches);
}

Keys Range(int64_t begin, int64_t end) {
  Keys keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

Keys RandomKeys(std::mt19937_64* random, size_t n, int64_t most) {
  Keys keys(n);
  for (int64_t& key : keys) {
    key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(most));
  }
  return keys;
}

// Twins whose operations have rows brought in between them, some of batches
// that are trained later, some of others.
void CompareTwins(const FilterSpec& filter, Victims victims,
                  const ParallelFor& parallel) {
  constexpr int64_t kKeys = 3200;
  Twins twins(250, filter, {}, kStripes, victims, 11, parallel);
  twins.AddSlot({"Adagrad", 250, 0.125f});
  const AdagradLike update(0.1f);
  for (int o = 0; o < kOperations && testing::Failures() == 0; ++o) {
    const Twins::Step step = twins.RandomStep(kKeys);
    EXPECT_TRUE(BringInAhead(&twins.spilling, step.keys));
    twins.DoAny(kKeys, update);
    if (o % 3 != 0) continue;
    const StepBatch batch = step.batch(twins.NextVersion());
    for (EmbeddingTable* table : {&twins.memory, &twins.spilling}) {
      EXPECT_TRUE(table->Apply(batch, update, parallel));
    }
    if (o == kOperations / 2 / 3 * 3) twins.AddSlot({"Late", 3, -0.5f});
  }
  ExpectSameContents(twins.memory, twins.spilling);
  const TierCounts counts = twins.spilling.tier_counts();
  EXPECT_TRUE(counts.spills > counts.disk_rows);  // Rows have come back.
}

TEST(RowsBroughtInAheadGiveTheBitsOfATableInMemory) {
  CompareTwins({}, Victims::kLeastCounted, SerialFor);
  CompareTwins({3, 1, {}}, Victims::kOldest, SerialFor);
}

TEST(RowsBroughtInAheadGiveTheBitsOfATableInMemoryWithThreads) {
  Threads threads(3);
  CompareTwins(BloomFilter(3, 1, 5000, 0.01), Victims::kOldest,
               threads.parallel());
}

TEST(AStepFindsTheRowsOfItsBatchInMemory) {
  for (const Victims victims : {Victims::kLeastCounted, Victims::kOldest}) {
    const Folder folder;
    EmbeddingTable table(1000);
    OpenTier(&table, folder, kStripes, victims);
    EXPECT_TRUE(ApplyOnes(&table, Range(0, 6000)));
    std::mt19937_64 random(5);
    std::deque<Keys> ahead;
    const TierCounts before = table.tier_counts();
    for (int64_t step = 1; step <= 30; ++step) {
      ahead.push_back(RandomKeys(&random, 200, 6000));
      EXPECT_TRUE(BringInAhead(&table, ahead.back()));
      if (ahead.size() < kBatches) continue;
      EXPECT_TRUE(ApplyOnes(&table, ahead.front(), step));
      ahead.pop_front();
    }
    const TierCounts after = table.tier_counts();
    EXPECT_EQ(after.misses, before.misses);
    EXPECT_TRUE(after.hits - before.hits > 25 * 190);
    EXPECT_TRUE(after.bytes_read > before.bytes_read);
  }
}

TEST(AStepFindsRowsInMemoryThatWereNewWhenItsBatchWasOnTheWay) {
  const Folder folder;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, kStripes);
  // Fill memory and buffers with rows that are trained often.
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(ApplyOnes(&table, Range(0, 3000)));
  }
  const Keys fresh = Range(10000, 10300);
  for (int batch = 0; batch < 3; ++batch) {
    EXPECT_TRUE(BringInAhead(&table, fresh));
  }
  const int64_t misses = table.tier_counts().misses;
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(ApplyOnes(&table, fresh));
  EXPECT_EQ(table.tier_counts().misses, misses);
}

TEST(BatchesThatAreNeverTrainedStayWithinABoundOfMemory) {
  const Folder folder;
  constexpr int64_t kMemory = 640, kBatch = 300;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, kMemory);
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 8000), 3));
  EXPECT_TRUE(ApplyOnes(&memory, Range(0, 8000), 3));
  std::mt19937_64 random(5);
  int64_t most = 0;
  for (int batch = 0; batch < 40; ++batch) {
    EXPECT_TRUE(BringInAhead(&table, RandomKeys(&random, kBatch, 8000)));
    most = std::max(most, InMemory(table));
  }
  EXPECT_TRUE(most > kMemory);
  // Those on their way, and the last one before others leave.
  EXPECT_TRUE(most <= kMemory + (kBatches + 1) * kBatch);
  ExpectSameContents(memory, table);
  // The dataset has ended, and steps go on.
  for (uint32_t step = 0; step <= kBatches + 1; ++step) {
    EXPECT_TRUE(ApplyOnes(&table, {1, 2}, 4));
    EXPECT_TRUE(ApplyOnes(&memory, {1, 2}, 4));
  }
  EXPECT_TRUE(InMemory(table) <= kMemory);
  ExpectSameContents(memory, table);
}

TEST(KeysWithoutARowCostNoRead) {
  const Folder folder;
  EmbeddingTable table(1000, 0, {3, 1, {}});
  OpenTier(&table, folder, kStripes);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(ApplyOnes(&table, Range(0, 3000)));
  }
  EXPECT_TRUE(ApplyOnes(&table, Range(10000, 11000)));  // Not admitted.
  const TierCounts before = table.tier_counts();
  EXPECT_TRUE(BringInAhead(&table, Range(10000, 12000)));
  const TierCounts after = table.tier_counts();
  EXPECT_EQ(after.bytes_read, before.bytes_read);
  EXPECT_EQ(after.memory_rows, before.memory_rows);
  EXPECT_EQ(table.total_count(), 4000);
}

TEST(ATableInMemoryIsLeftAlone) {
  EmbeddingTable table(4);
  EXPECT_TRUE(ApplyOnes(&table, {1, 2, 3}));
  EXPECT_TRUE(BringInAhead(&table, {1, 2, 4}));
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.tier_counts().bytes_read, 0);
}

TEST(AnEmptiedTableHasNoRowsAhead) {
  const Folder folder;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, kStripes);
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 3000)));
  EXPECT_TRUE(BringInAhead(&table, Range(0, 500)));
  EXPECT_TRUE(InMemory(table) >= 500);
  table.Clear();
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 3000)));
  EXPECT_EQ(InMemory(table), int64_t{kStripes});
}

// --------------------------------------------------------------------- faults

TEST(AFailedReadIsLeftToTheStep) {
  const Folder folder;
  FaultyIo::Faults faults;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, 100, Victims::kLeastCounted, &faults);
  for (EmbeddingTable* each : {&table, &memory}) {
    EXPECT_TRUE(ApplyOnes(each, Range(0, 6000)));
  }
  faults.reads = 5;
  EXPECT_FALSE(BringInAhead(&table, Range(0, 500)));
  EXPECT_FALSE(ApplyOnes(&table, Range(0, 500)));
  faults.reads = -1;
  ExpectSameContents(memory, table);
  EXPECT_TRUE(BringInAhead(&table, Range(0, 500)));
  for (EmbeddingTable* each : {&table, &memory}) {
    EXPECT_TRUE(ApplyOnes(each, Range(0, 500)));
  }
  ExpectSameContents(memory, table);
}

TEST(AFullDiskBringsInNothingMore) {
  const Folder folder;
  FaultyIo::Faults faults;
  faults.error = ENOSPC;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, 100, Victims::kLeastCounted, &faults);
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 6000)));
  faults.writes = 0;
  std::mt19937_64 random(5);
  for (int batch = 0; batch < 40; ++batch) {
    BringInAhead(&table, RandomKeys(&random, 300, 6000));
  }
  // The buffers took some, and then one batch stayed.
  EXPECT_TRUE(InMemory(table) <= 100 + (kBatches + 1) * 300);
  EXPECT_EQ(table.size(), 6000);
  faults.writes = -1;
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 6000)));
}

TEST(WithoutMemoryNothingIsLost) {
  const Folder folder;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, kStripes);
  for (EmbeddingTable* each : {&table, &memory}) {
    EXPECT_TRUE(ApplyOnes(each, Range(0, 5000)));
  }
  std::mt19937_64 random(5);
  int refusals = 0;
  for (const bool is_new : {true, false}) {
    bool is_done = false;
    for (int64_t n = 0; !is_done && testing::Failures() == 0; ++n) {
      const Keys keys = RandomKeys(&random, 300, 5000);
      const std::vector<KeySpan> lists = {{keys.data(), keys.size()}};
      news_left = is_new ? n : -1;
      LimitAllocations(is_new ? -1 : n);
      is_done = table.BringInAhead(lists, kBatches);
      news_left = -1;
      LimitAllocations(-1);
      refusals += !is_done;
    }
    ExpectSameContents(memory, table);
  }
  EXPECT_TRUE(refusals > 3);
}

// -------------------------------------------------------------------- threads

TEST(DatasetsRunBesideStepsLookupsSavesAndEvictions) {
  CountingTable counting;
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {  // A dataset and its steps, each.
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::deque<Keys> ahead;
      for (int step = 0; step < kOperations; ++step) {
        ahead.push_back(CountingTable::RandomKeys(&random, 300));
        EXPECT_TRUE(BringInAhead(&counting.table(), ahead.back(), 4));
        if (ahead.size() < 3) continue;
        counting.Train(ahead.front(), step);
        ahead.pop_front();
      }
      --running;
    });
  }
  threads.emplace_back([&] {  // A dataset that nobody reads, and lookups.
    std::mt19937_64 random(3);
    while (running > 0) {
      const Keys keys = CountingTable::RandomKeys(&random, 500);
      EXPECT_TRUE(BringInAhead(&counting.table(), keys, 4));
      counting.Lookup(keys);
    }
  });
  while (running > 0) counting.EvictAndSave();
  for (std::thread& thread : threads) thread.join();
  counting.CheckCounts();
}

TEST(DatasetsRunWhileRowsAreErasedAndTheTableIsEmptied) {
  const Folder folder;
  constexpr int kDim = 250;
  constexpr int64_t kKeys = 2000;
  EmbeddingTable table(kDim);
  OpenTier(&table, folder, kStripes);
  std::atomic<bool> done{false};
  std::thread dataset([&] {
    std::mt19937_64 random(3);
    while (!done) {
      EXPECT_TRUE(BringInAhead(&table, RandomKeys(&random, 400, kKeys), 4));
    }
  });
  std::mt19937_64 random(4);
  for (int o = 0; o < kOperations; ++o) {
    EXPECT_TRUE(ApplyOnes(&table, RandomKeys(&random, 400, kKeys), o));
    const Keys erased = RandomKeys(&random, 100, kKeys);
    table.Erase(erased.data(), erased.size());
    if (o % 10 == 9) EvictOlder(&table, o - 5, o);
    if (o % 50 == 49) table.Clear();
    const Contents contents(table);
    for (const Contents::Entry& entry : contents.admitted) {
      CountingTable::CheckRow(entry.row);
      EXPECT_EQ(entry.row[0], static_cast<float>(entry.freq));
    }
  }
  done = true;
  dataset.join();
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
