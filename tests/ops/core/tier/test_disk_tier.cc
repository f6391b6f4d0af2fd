// SPDX-License-Identifier: Apache-2.0
// A table with most of its rows on disk equals one with all rows in memory, bit
// for bit.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

// Runs operations on twins whose rows fill several segments.
void CompareTwins(int dim, const FilterSpec& filter, const RowRules& rules,
                  Victims victims, const RowUpdate& update, int operations,
                  const ParallelFor& parallel) {
  constexpr int64_t kKeys = 3200;
  // 2 %.
  Twins twins(dim, filter, rules, kStripes, victims, 11, parallel);
  if (update.slots() > 0) twins.AddSlot({"Adagrad", dim, 0.125f});
  for (int o = 0; o < operations; ++o) {
    twins.DoAny(kKeys, update);
    EXPECT_TRUE(InMemory(twins.spilling) <= kStripes);
    if (o == operations / 2) twins.AddSlot({"Late", 3, -0.5f});
    if (testing::Failures() > 0) return;
  }
  ExpectSameContents(twins.memory, twins.spilling);
  EXPECT_TRUE(twins.spilling.tier()->log()->counters().pages_read > 0);
}

TEST(EveryRuleGivesTheBitsOfATableInMemory) {
  const SgdEach each(0.1f);
  const AddSum sum;
  const AdagradLike adagrad(0.1f);
  for (const RowUpdate* update :
       std::vector<const RowUpdate*>{&each, &sum, &adagrad}) {
    CompareTwins(250, {}, {}, Victims::kLeastCounted, *update, kOperations,
                 SerialFor);
  }
}

TEST(EveryFilterGivesTheBitsOfATableInMemory) {
  for (const FilterSpec& filter :
       {FilterSpec{3, 1, {}}, BloomFilter(3, 1, 5000, 0.01)}) {
    CompareTwins(250, filter, {}, Victims::kOldest, AdagradLike(0.1f),
                 kOperations, SerialFor);
  }
}

TEST(PaddingAndFrozenKeysGiveTheBitsOfATableInMemory) {
  RowRules rules;
  rules.has_padding = true;
  rules.frozen_keys = {0, 1000003, -2000006};
  CompareTwins(250, {}, rules, Victims::kOldest, AdagradLike(0.1f), kOperations,
               SerialFor);
}

TEST(RowsOf16BitsGiveTheBitsOfATableInMemory) {
  for (const ValueSpec& value : {ValueSpec{ValueType::kBFloat16, 5, true},
                                 ValueSpec{ValueType::kHalf, 7, false}}) {
    RowRules rules;
    rules.value = value;
    CompareTwins(251, {}, rules, Victims::kLeastCounted, AdagradLike(0.1f),
                 kOperations, SerialFor);
  }
}

TEST_WITHOUT_TSAN(RowsAboveAPageGiveTheBitsOfATableInMemory) {
  CompareTwins(1100, {}, {}, Victims::kLeastCounted, AdagradLike(0.1f), 100,
               SerialFor);
}

TEST(SeveralThreadsGiveTheBitsOfATableInMemory) {
  Threads threads(3);
  CompareTwins(250, {2, 1, {}}, {}, Victims::kLeastCounted, AdagradLike(0.1f),
               kOperations, threads.parallel());
}

// ------------------------------------------------------------------- behaviour

TEST(AKeyThatIsNotAdmittedCostsNoRead) {
  const Folder folder;
  EmbeddingTable table(1000, 0, {3, 1, {}});
  OpenTier(&table, folder, kStripes);
  Keys known(8000), unknown(1000);
  std::iota(known.begin(), known.end(), 0);
  std::iota(unknown.begin(), unknown.end(), 100000);
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(ApplyOnes(&table, known));
  const auto reads = [&] { return table.tier()->log()->counters().pages_read; };
  const uint64_t before = reads();
  EXPECT_TRUE(ApplyOnes(&table, unknown));
  std::vector<float> out(1000 * 1000);
  table.Lookup(unknown.data(), unknown.size(), UnknownKey::kDefault, out.data(),
               SerialFor);
  EXPECT_EQ(reads(), before);
  // The first key is on disk, or its lookup reads nothing either.
  table.Lookup(known.data(), 1000, UnknownKey::kDefault, out.data(), SerialFor);
  EXPECT_TRUE(reads() > before);
}

TEST(ALookupLeavesRowsWhereTheyAre) {
  const Folder folder;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, 100);
  Keys keys(5000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  const int64_t spilled = table.tier()->spilled();
  EXPECT_TRUE(spilled >= 4900);
  std::vector<float> out(keys.size() * 1000);
  for (int round = 0; round < 3; ++round) {
    table.Lookup(keys.data(), keys.size(), UnknownKey::kDefault, out.data(),
                 SerialFor);
  }
  EXPECT_EQ(table.tier()->spilled(), spilled);
}

TEST(ALookupReadsTheRowsOfItsKeysWhateverIsWrittenToThemLater) {
  constexpr int kDim = 250;
  const Folder folder;
  EmbeddingTable table(kDim);
  OpenTier(&table, folder, 100);
  Keys known(5000);
  std::iota(known.begin(), known.end(), 0);
  std::vector<float> values;
  for (const int64_t key : known) {
    values.insert(values.end(), kDim, static_cast<float>(key));
  }
  const std::vector<int64_t> freqs(known.size(), 1);
  EXPECT_TRUE(table.Insert(
      {known.data(), known.size(), values.data(), {}, freqs.data(), nullptr}));
  EXPECT_TRUE(table.tier()->spilled() >= 4900);
  for (const size_t n : {size_t{50}, DeduplicatedList::kShort + size_t{1}}) {
    Keys keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = known[i % known.size()];
    const auto list =
        std::make_shared<DeduplicatedList>(keys.data(), n, SerialFor);
    std::fill(keys.begin(), keys.end(), 1 << 20);  // Has no row.
    std::vector<float> out(n * kDim);
    table.LookupListed(list, UnknownKey::kDefault, out.data(), SerialFor);
    for (size_t i = 0; i < n; ++i) {
      const auto key = static_cast<float>(known[i % known.size()]);
      EXPECT_EQ(std::count(&out[i * kDim], &out[i * kDim] + kDim, key), kDim);
    }
  }
}

// The rows of the next batch are being read then.
TEST(AReaderOfEntriesMayEndBeforeThem) {
  const Folder folder;
  EmbeddingTable table(16, 0.5f);
  OpenTier(&table, folder, 640);
  Keys keys(20000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  const Snapshot snapshot(table);
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (const size_t batches : {0, 1, 2, 10}) {
      EntryReader reader(snapshot, true, 500, 0);
      for (size_t b = 0; b < batches; ++b) EXPECT_EQ(reader.Next().n, 500u);
    }
  }
}

TEST(TheLeastCountedOrTheOldestRowsAreSpilled) {
  for (const Victims victims : {Victims::kLeastCounted, Victims::kOldest}) {
    const Folder folder;
    EmbeddingTable table(8);
    OpenTier(&table, folder, 64 * 20, victims);
    Keys hot(64 * 4), cold(64 * 100);
    std::iota(hot.begin(), hot.end(), 1000000);
    std::iota(cold.begin(), cold.end(), 0);
    for (int64_t step = 0; step < 50; ++step) {
      EXPECT_TRUE(ApplyOnes(&table, hot, 2 * step));
      const Keys part(cold.begin() + step * 128,
                      cold.begin() + (step + 1) * 128);
      EXPECT_TRUE(ApplyOnes(&table, part, 2 * step + 1));
    }
    // The hot keys need no read.
    const uint64_t before = table.tier()->log()->counters().rows;
    EXPECT_TRUE(ApplyOnes(&table, hot, 100));
    EXPECT_TRUE(before <=
                table.tier()->log()->counters().rows + hot.size() / 8);
  }
}

TEST(AReservedStepIsAppliedWhateverOthersDoMeanwhile) {
  const Folder folder;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, 64);
  Keys keys(4000);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> ones(500 * 1000, 1.0f);
  const AddSum sum;
  for (EmbeddingTable* each : {&table, &memory}) {
    EXPECT_TRUE(ApplyOnes(each, keys));
    TrainingStep step({each->parts()},
                      {{keys.data(), nullptr, 500, nullptr, 0, 1}});
    EXPECT_TRUE(step.Reserve(SerialFor).ok());
    for (int other = 0; other < 4; ++other) {
      EXPECT_TRUE(ApplyOnes(each, Keys(keys.begin() + other * 1000,
                                       keys.begin() + (other + 1) * 1000)));
    }
    const TrainingStep::Gradients gradients = {ones.data(), &sum, 7};
    EXPECT_TRUE(step.Apply(&gradients, SerialFor).ok());
  }
  EXPECT_TRUE(InMemory(table) <= 64);
  ExpectSameContents(memory, table);
  // One that is never applied changes nothing.
  {
    TrainingStep step({table.parts()},
                      {{keys.data(), nullptr, 500, nullptr, 0, 1}});
    EXPECT_TRUE(step.Reserve(SerialFor).ok());
  }
  ExpectSameContents(memory, table);
}

TEST(AReservationDoesNotTellRowsThatMayGoToTheDisk) {
  const Folder folder;
  EmbeddingTable table(4), memory(4);
  OpenTier(&table, folder, 8 * kStripes);
  const Keys keys = {1, 2, 3};
  const std::vector<float> grads(keys.size() * 4, 1.0f);
  const StepBatch batch = {
      keys.data(), grads.data(), keys.size(), nullptr, 0, 2};
  TrainingStep step({table.parts(), memory.parts()}, {batch, batch});
  EXPECT_TRUE(step.Reserve(SerialFor).ok());
  EXPECT_TRUE(step.HintsForLookup(0, 0) == nullptr);
  EXPECT_TRUE(step.HintsForLookup(1, 0) != nullptr);
}

TEST(ALimitInBytesFollowsTheWidthOfRows) {
  const Folder folder;
  EmbeddingTable table(100);
  DiskError error;
  EXPECT_TRUE(
      table.OpenTier({{{folder.path()}}, 0, Victims::kOldest, 64 * 40 * 400},
                     std::make_unique<DiskIo>(), &error));
  Keys keys(10000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_EQ(InMemory(table), 64 * 40);
  EXPECT_TRUE(table.EnsureSlots({{"Adagrad", 100, 0.1f}}));
  EXPECT_TRUE(ApplyOnes(&table, {1}));
  EXPECT_EQ(InMemory(table), 64 * 20);
}

TEST(ALimitBelowOneRowAStripeIsOne) {
  const Folder folder;
  EmbeddingTable table(10);
  OpenTier(&table, folder, 0);
  Keys keys(10000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_EQ(InMemory(table), int64_t{kStripes});
}

TEST(CountsSayWhereRowsAreAndWhatTheDiskDid) {
  const Folder folder;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, kStripes);
  Keys keys(5000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  const TierCounts first = table.tier_counts();
  EXPECT_EQ(first.memory_rows, int64_t{kStripes});
  EXPECT_EQ(first.disk_rows, 5000 - kStripes);
  EXPECT_EQ(first.spills, 5000 - kStripes);
  EXPECT_EQ(first.hits + first.misses + first.bytes_read, 0);
  EXPECT_TRUE(first.bytes_written >= (5000 - 5 * 256) * int64_t{4096});
  EXPECT_TRUE(first.file_bytes >= first.bytes_written);
  keys.resize(1000);
  keys.push_back(70000);  // Without a row.
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  const TierCounts counts = table.tier_counts();
  EXPECT_EQ(counts.hits + counts.misses, 1000);
  EXPECT_TRUE(counts.misses >= 1000 - kStripes);
  EXPECT_EQ(counts.spills, 5000 - kStripes + counts.misses + 1);
  EXPECT_TRUE(counts.bytes_read >= 700 * int64_t{4096});
  EXPECT_TRUE(counts.read_ns > 0);
  EXPECT_TRUE(table.memory_bytes() >= counts.buffer_bytes);
  EXPECT_EQ(memory.tier_counts().memory_rows, memory.size());
}

TEST(FilesStayBelowTwiceTheRows) {
  const Folder folder;
  EmbeddingTable table(250);  // A page has four rows, so there are 98 segments.
  OpenTier(&table, folder, kStripes);
  Keys keys(100000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  std::mt19937_64 random(1);
  for (int step = 0; step < kOperations / 6; ++step) {
    std::shuffle(keys.begin(), keys.end(), random);
    EXPECT_TRUE(ApplyOnes(&table, Keys(keys.begin(), keys.begin() + 10000)));
    const TierCounts counts = table.tier_counts();
    EXPECT_TRUE(counts.file_bytes <= 2 * 1024 * counts.disk_rows);
  }
}

TEST(AnEvictionReadsEachSegmentOnce) {
  const Folder folder;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, kStripes);
  Keys keys(5000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&table, Keys(keys.begin(), keys.begin() + 2000)));
  const TierCounts before = table.tier_counts();
  L2WeightRule rule(600, 1);  // Half the sum of ones is smaller.
  const Evicted evicted = table.Evict(&rule);
  EXPECT_EQ(evicted.keys, 3000);
  EXPECT_EQ(evicted.rows, 3000);
  EXPECT_EQ(evicted.rows_before, 5000);
  EXPECT_EQ(table.size(), 2000);
  EXPECT_TRUE(table.tier_counts().bytes_read - before.bytes_read <=
              before.file_bytes);
}

TEST(StepsLookupsSavesAndEvictionsRunAtOnce) {
  CountingTable counting;
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int step = 0; step < kOperations / 5; ++step) {
        counting.Train(CountingTable::RandomKeys(&random, 300), step);
      }
      --running;
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(3);
    while (running > 0) {
      counting.Lookup(CountingTable::RandomKeys(&random, 500));
    }
  });
  while (running > 0) counting.EvictAndSave();
  for (std::thread& thread : threads) thread.join();
  counting.CheckCounts();
  EXPECT_TRUE(InMemory(counting.table()) <= CountingTable::kMemoryRows);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
