// SPDX-License-Identifier: Apache-2.0
// The generations of a Bloom filter: a table under eviction forgets keys that
// no longer occur, in bounded memory and at its error rate, and no others.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/bloom_generations.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/snapshot.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kNewKeys = 20;  // A step. About ten times slower there.
constexpr double kGrowth = 1.3;
#else
constexpr int64_t kNewKeys = 500;
// A stripe of the index grows by 30 % when it holds more keys than ever before,
// by chance. All of them may, if they hold few keys.
constexpr double kGrowth = 1.05;
#endif
constexpr int64_t kLife = 100;  // Steps to live.
constexpr int64_t kSaves = 10;  // Steps from one eviction to the next.
constexpr int64_t kSteps = 12 * kLife;

int64_t CountOf(const EmbeddingTable& table, int64_t key) {
  int64_t count;
  table.Frequencies(&key, 1, &count);
  return count;
}

bool OwnsRow(const EmbeddingTable& table, int64_t key) {
  bool owns;
  table.Contains(&key, 1, &owns);
  return owns;
}

// Key i of a stream; no two are equal.
int64_t StreamKey(int64_t i) { return static_cast<int64_t>(MixKey(i)); }

// The share of new keys that the table would admit at their first occurrence.
double FalsePositiveRate(const EmbeddingTable& table, int64_t seed) {
  constexpr int64_t kSamples = 50000;
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < kSamples; ++i) {
    keys.push_back(StreamKey((seed + 1) * int64_t{1000000007} + i));
  }
  std::unique_ptr<bool[]> admits(new bool[keys.size()]);
  EXPECT_TRUE(table.Admits(keys.data(), keys.size(), admits.get()));
  return static_cast<double>(
             std::count(admits.get(), admits.get() + keys.size(), true)) /
         kSamples;
}

// ----------------------------------------------------------- when it rotates

TEST(CountIsKeptForStepsToLiveAndForgottenHalfALifetimeLater) {
  // Evictions at any interval, also a longer one than a lifetime.
  for (const int64_t interval : {1, 7, 50, 60, 100, 101, 250}) {
    EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 1000, 0.001));
    EXPECT_TRUE(ApplyOnes(&table, {1}, 0));
    for (int64_t step = interval; step < 700; step += interval) {
      EvictOlder(&table, step - kLife, step);
      if (step <= kLife) EXPECT_EQ(CountOf(table, 1), 1);
      if (step > kLife + kLife / 2 + interval) EXPECT_EQ(CountOf(table, 1), 0);
      EXPECT_EQ(table.total_count(), 0);
    }
  }
}

TEST(KeyThatOccursOnceALifetimeIsAdmittedInTime) {
  for (const int64_t interval : {1, 30, 100, 170}) {
    EmbeddingTable table(1, 0.0f, BloomFilter(5, 1, 1000, 0.001));
    int64_t occurrences = 0;
    for (int64_t step = 0; occurrences < 5; ++step) {
      if (step % interval == 0) EvictOlder(&table, step - kLife, step);
      if (step % kLife != 0) continue;
      EXPECT_EQ(CountOf(table, 1), occurrences);
      EXPECT_FALSE(OwnsRow(table, 1));
      EXPECT_TRUE(ApplyOnes(&table, {1}, step));
      ++occurrences;
    }
    EXPECT_TRUE(OwnsRow(table, 1));
  }
}

TEST(TableWithoutEvictionForgetsNothing) {
  EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 100, 0.01));
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 500; ++i) keys.push_back(StreamKey(step * 500 + i));
    EXPECT_TRUE(ApplyOnes(&table, keys, step));
  }
  for (int64_t i = 0; i < 5000; ++i)
    EXPECT_TRUE(CountOf(table, StreamKey(i)) > 0);
}

TEST_WITHOUT_TSAN(
    EvictionByValueForgetsAKeyAfterAsManyOthersAsTheFilterIsMadeFor) {
  constexpr int64_t kElements = 20000;
  EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, kElements, 0.001));
  int64_t next = 0;
  for (int64_t step = 0; step < 400; ++step) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 500; ++i) keys.push_back(StreamKey(next++));
    EXPECT_TRUE(ApplyOnes(&table, keys, step));
    EXPECT_EQ(EvictSmaller(&table, 1e-9f, step), 0);
    int known = 0;
    for (int64_t i = 0; i < 500; ++i) known += CountOf(table, StreamKey(i)) > 0;
    if (next <= kElements) EXPECT_EQ(known, 500);
    // Three generations of half the keys, with an error of a step each. Other
    // keys may share all cells of a few.
    if (next > kElements * 3 / 2 + 1500) EXPECT_TRUE(known <= 5);
  }
}

// ------------------------------------------------------------- evicted keys

TEST(EvictedKeyCountsFromZeroWhileItsCellsStay) {
  EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 1000, 0.01));
  EXPECT_TRUE(ApplyOnes(&table, {5, 5}, 1));
  EXPECT_TRUE(ApplyOnes(&table, {5}, 2));
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(EvictOlder(&table, 3, 13), 1);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.total_count(), 1);
  EXPECT_EQ(CountOf(table, 5), 0);
  EXPECT_TRUE(ApplyOnes(&table, {5, 5}, 13));
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(CountOf(table, 5), 2);
  EXPECT_TRUE(ApplyOnes(&table, {5}, 14));
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(CountOf(table, 5), 3);
}

TEST(EvictedKeyKeepsNoEntryIfNoCellCountsIt) {
  EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 1000, 0.01));
  // Admitted in its first batch, so its cells were never raised.
  EXPECT_TRUE(ApplyOnes(&table, {5, 5, 5}, 1));
  // Admitted so long ago that the generation is forgotten.
  EXPECT_TRUE(ApplyOnes(&table, {6}, 1));
  EXPECT_TRUE(ApplyOnes(&table, {6, 6}, 2));
  for (int64_t step = 10; step < 300; step += 10) {
    EXPECT_TRUE(ApplyOnes(&table, {6}, step));
    EXPECT_EQ(EvictOlder(&table, step - kLife, step), step == 110);
    EXPECT_EQ(table.total_count(), step < 110 ? 2 : 1);
  }
  EXPECT_EQ(EvictOlder(&table, 291, 291 + kLife), 1);
  EXPECT_EQ(table.total_count(), 0);
}

TEST_WITHOUT_TSAN(EntryOfAnEvictedKeyOutlivesItsCells) {
  // At every moment after its eviction, the key needs three occurrences again.
  for (const int64_t interval : {1, 10, 60, 100, 250}) {
    for (int64_t back = 1; back < 4 * kLife; back += 13) {
      EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 1000, 0.001));
      EXPECT_TRUE(ApplyOnes(&table, {5}, 0));
      EXPECT_TRUE(ApplyOnes(&table, {5, 5}, 1));
      int64_t evicted_at = 0;
      for (int64_t step = 1; evicted_at == 0 || step < evicted_at + back;
           ++step) {
        if (step % interval != 0) continue;
        if (EvictOlder(&table, step - kLife, step) == 1) evicted_at = step;
      }
      EXPECT_EQ(CountOf(table, 5), 0);
      EXPECT_TRUE(ApplyOnes(&table, {5, 5}, evicted_at + back));
      EXPECT_FALSE(OwnsRow(table, 5));
      EXPECT_TRUE(ApplyOnes(&table, {5}, evicted_at + back));
      EXPECT_TRUE(OwnsRow(table, 5));
    }
  }
}

TEST_WITHOUT_TSAN(KeyEvictedByValueCountsFromZeroUntilTheFilterForgotIt) {
  // With steps, and without them: every version is -1.
  for (const bool has_steps : {true, false}) {
    EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 10000, 0.001));
    EXPECT_TRUE(ApplyOnes(&table, {5, 5}, has_steps ? 0 : -1));
    EXPECT_TRUE(ApplyOnes(&table, {5}, has_steps ? 0 : -1));
    EXPECT_EQ(EvictSmaller(&table, 100.0f, has_steps ? 1 : -1), 1);
    int64_t next = 0;
    for (int64_t step = 1; step < 100; ++step) {
      EXPECT_EQ(CountOf(table, 5), 0);
      EXPECT_EQ(table.total_count(), next <= 10000 ? 1 : table.total_count());
      std::vector<int64_t> keys;
      for (int i = 0; i < 500; ++i) keys.push_back(StreamKey(next++));
      EXPECT_TRUE(ApplyOnes(&table, keys, has_steps ? step : -1));
      EXPECT_EQ(EvictSmaller(&table, 100.0f, has_steps ? step : -1), 0);
    }
    EXPECT_EQ(table.total_count(), 0);
  }
}

// -------------------------------------------------------------------- churn

// `again`: every key occurs a second time, two steps later, and is admitted.
struct Churn {
  bool again;
  FilterSpec filter;
  bool by_value;
};

// Bounds that hold after the second of twelve lifetimes. New keys come at a
// constant rate; a lifetime brings kNewKeys * kLife of them, the number that
// the filter is made for.
void CheckChurn(const Churn& churn) {
  constexpr int64_t kPerLife = kNewKeys * kLife;
  EmbeddingTable table(4, 0.0f, churn.filter);
  int64_t bytes = 0;
  double worst = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < kNewKeys; ++i) {
      keys.push_back(StreamKey(step * kNewKeys + i));
      if (churn.again && step >= 2) {
        keys.push_back(StreamKey((step - 2) * kNewKeys + i));
      }
    }
    EXPECT_TRUE(ApplyOnes(&table, keys, step));
    if (step % kSaves != kSaves - 1) continue;
    // Evicts all rows.
    if (churn.by_value) {
      EvictSmaller(&table, 100.0f, step + 1);
    } else {
      EvictOlder(&table, step + 1 - kLife, step + 1);
    }
    if (step % kLife == kLife - 1 || step % kLife == kLife / 2 - 1) {
      worst = std::max(worst, FalsePositiveRate(table, step));
    }
    if (step < 2 * kLife) continue;
    EXPECT_TRUE(table.total_count() <=
                table.size() + (churn.by_value ? 2 : 1) * kPerLife);
    if (step < 5 * kLife) bytes = std::max(bytes, table.memory_bytes());
    EXPECT_TRUE(static_cast<double>(table.memory_bytes()) <=
                kGrowth * static_cast<double>(bytes));
  }
  EXPECT_TRUE(worst <= 1.5 * churn.filter.sketch.parameters.at(
                                 "false_positive_probability"));
}

TEST_WITHOUT_TSAN(ChurnNeedsBoundedMemoryAtTheErrorRate) {
  constexpr int64_t kPerLife = kNewKeys * kLife;
  for (const double p : {0.1, 0.01, 0.001}) {
    // One occurrence is one short of a row, also in cells of 16 bits.
    for (const FilterSpec& filter :
         {BloomFilter(2, 1, kPerLife, p), BloomFilter(300, 299, kPerLife, p)}) {
      for (const bool by_value : {false, true}) {
        CheckChurn({/*again=*/false, filter, by_value});
        CheckChurn({/*again=*/true, filter, by_value});
      }
    }
  }
}

TEST(OverfullFilterUnderEvictionKeepsBoundedEntries) {
  // Nearly all cells are in use, so hardly any key is free of them.
  EmbeddingTable table(1, 0.0f, BloomFilter(2, 1, 50, 0.1));
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 20; ++i) keys.push_back(StreamKey(step * 20 + i));
    EXPECT_TRUE(ApplyOnes(&table, keys, step));
    if (step % kSaves != 0) continue;
    EvictOlder(&table, step - kLife, step);
    EXPECT_TRUE(table.size() <= 20 * (kLife + 1));
    EXPECT_TRUE(table.total_count() - table.size() <= 20 * (kLife + 1));
  }
}

// The definition of a filter under churn, of keys and their last occurrences.
TEST(RandomChurnEqualsCountsPerKeyThatExpire) {
  Threads threads(2);
  EmbeddingTable table(1, 0.0f, BloomFilter(4, 1, 1 << 18, 1e-6));
  EmbeddingTable serial(1, 0.0f, BloomFilter(4, 1, 1 << 18, 1e-6));
  std::mt19937_64 random(1);
  struct Known {
    int64_t count = 0;
    int64_t last = 0;
  };
  std::unordered_map<int64_t, Known> known;
  for (int64_t step = 0; step < 600; ++step) {
    std::vector<int64_t> keys;
    for (int i = 0; i < 60; ++i) {
      keys.push_back(StreamKey(static_cast<int64_t>(random() % 4000)));
    }
    EXPECT_TRUE(ApplyOnes(&table, keys, step, threads.parallel()));
    EXPECT_TRUE(ApplyOnes(&serial, keys, step));
    for (const int64_t key : keys) {
      ++known[key].count;
      known[key].last = step;
    }
    if (random() % 7 == 0) {
      EvictOlder(&table, step + 1 - kLife, step + 1);
      EvictOlder(&serial, step + 1 - kLife, step + 1);
      for (auto it = known.begin(); it != known.end();) {
        const bool expired = it->second.last < step + 1 - kLife;
        // A count in cells may live half a lifetime longer; a row may not.
        if (expired && it->second.count >= 4) {
          EXPECT_FALSE(OwnsRow(table, it->first));
          EXPECT_EQ(CountOf(table, it->first), 0);
        }
        it = expired ? known.erase(it) : std::next(it);
      }
    }
    for (const auto& [key, its] : known) {
      EXPECT_TRUE(CountOf(table, key) >= its.count);
      EXPECT_TRUE(OwnsRow(table, key) || its.count < 4);
    }
  }
  EXPECT_TRUE(SketchOf(table) == SketchOf(serial));
  EXPECT_EQ(table.size(), serial.size());
  EXPECT_EQ(table.total_count(), serial.total_count());
}

// -------------------------------------------------------------------- saves

TEST(RestoredGenerationsGoOnLikeTheSavedOnes) {
  const FilterSpec filter = BloomFilter(3, 1, 2000, 0.01);
  EmbeddingTable live(1, 0.0f, filter);
  SavedCounts saved;
  for (int64_t step = 0; step < 230; ++step) {
    EXPECT_TRUE(ApplyOnes(&live, {StreamKey(step), StreamKey(step / 2)}, step));
    if (step % 20 == 0) EvictOlder(&live, step - kLife, step);
    if (step % 15 != 0) continue;
    // Full, then two incremental saves; generations rotate between them.
    const auto keys =
        step % 45 == 0 ? Contents::Keys::kAll : Contents::Keys::kChanged;
    {
      Snapshot snapshot(live, keys);
      live.TrackChanges();
      saved.Save(live, snapshot, keys);
      snapshot.MarkSaved();
    }
    live.CommitSaved();
    EmbeddingTable restored(1, 0.0f, filter);
    EXPECT_TRUE(saved.RestoreTo(&restored));
    EXPECT_TRUE(SketchOf(live) == SketchOf(restored));
  }
}

TEST(GenerationsOfAFurtherRunAreStampedAndForgottenInTime) {
  EmbeddingTable table(1, 0.0f, BloomFilter(3, 1, 2000, 0.01));
  EXPECT_TRUE(ApplyOnes(&table, {1}, 0));
  table.MergeSketchHeads({{}, {5, 90000, 0, 4, 80000, 0, 3, 70000, 0}}, 0);
  EvictOlder(&table, 0 - kLife, 0);
  EXPECT_TRUE(ApplyOnes(&table, {2}, 0));
  for (int64_t step = 10; step <= 160; step += 10) {
    EvictOlder(&table, step - kLife, step);
    if (step <= kLife) EXPECT_EQ(CountOf(table, 1), 1);
    if (step <= kLife) EXPECT_EQ(CountOf(table, 2), 1);
  }
  EXPECT_EQ(CountOf(table, 1), 0);
  EXPECT_EQ(CountOf(table, 2), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
