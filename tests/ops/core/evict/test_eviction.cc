// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: eviction, memory use and lack of memory.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/spare_memory.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/failing_new.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

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

TEST(KeyWithoutARowCostsAtMostFortyBytes) {
  EmbeddingTable table(16, 0.0f, FilterSpec{2, 1});
  double sum = 0;
  int samples = 0;
  std::vector<int64_t> keys;
  int64_t next = 0;
  for (double n = 20000; n < 400000; n *= 1.05) {
    keys.clear();
    while (next < static_cast<int64_t>(n)) keys.push_back(next++);
    EXPECT_TRUE(ApplyOnes(&table, keys));
    sum += static_cast<double>(table.memory_bytes()) /
           static_cast<double>(table.total_count());
    ++samples;
  }
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(sum / samples < 36);
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not under sanitizers: they reserve terabytes of address space.
std::vector<float> Read(const EmbeddingTable& table, int64_t key) {
  std::vector<float> out(table.dim());
  table.Lookup(&key, 1, UnknownKey::kInitial, out.data(), SerialFor);
  return out;
}

void RunOutOfMemory(const FilterSpec& filter, int dim, rlim_t step) {
  EmbeddingTable table(dim, 0.0f, filter);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 3000; ++key) keys.push_back(key);
  const int first_count = filter.threshold == 0 ? 1 : 2;
  for (int i = 0; i < first_count; ++i) EXPECT_TRUE(ApplyOnes(&table, keys));
  for (int64_t key = 3000; key < 600000; ++key) keys.push_back(key);
  const std::vector<float> grads(keys.size() * static_cast<size_t>(dim), 1.0f);
  const std::vector<int64_t> freqs(keys.size(), 1);
  const int64_t bytes = table.memory_bytes();
  const SavedSketch sketch_before = SketchOf(table);

  SpareMemory::OfProcess().FreeAll();  // Of other tests; it counts as mapped.
  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  int refused = 0;
  bool done = false;
  // The limit rises step by step, so each allocation fails first once.
  for (rlim_t megabytes = 1; !done && megabytes < 600; megabytes += step) {
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    EXPECT_EQ(std::fscanf(file, "%lu", &pages), 1);
    std::fclose(file);
    rlimit limit = before;
    limit.rlim_cur = pages * 4096 + (megabytes << 20);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const bool inserted =
        megabytes % 2 == 1 ? table.Apply({keys.data(), grads.data(),
                                          keys.size(), nullptr, 0, 1},
                                         AddSum(), SerialFor)
        : filter.threshold == 0
            ? table.Insert({keys.data(),
                            keys.size(),
                            nullptr,
                            {},
                            nullptr,
                            nullptr,
                            megabytes % 4 == 0})
            : table.InsertFiltered(keys.data(), keys.size(), freqs.data(),
                                   nullptr, true);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    done = inserted;
    if (done) break;
    ++refused;
    EXPECT_EQ(table.size(), 3000);
    EXPECT_EQ(table.total_count(), 3000);
    EXPECT_TRUE(SketchOf(table) == sketch_before);
    EXPECT_EQ(Read(table, 7).back(), 1.0f);
    int64_t count;
    table.Frequencies(&keys[7], 1, &count);
    EXPECT_EQ(count, first_count);
  }
  EXPECT_TRUE(done);
  EXPECT_TRUE(refused > 1);
  if (filter.threshold == 0) {
    EXPECT_EQ(table.size(), static_cast<int64_t>(keys.size()));
  } else if (filter.sketch.name.empty()) {
    EXPECT_EQ(table.total_count(), static_cast<int64_t>(keys.size()));
  }
  EXPECT_TRUE(table.memory_bytes() > bytes);
  // No quota is left over: there is room for what the keys need.
  EXPECT_TRUE(ApplyOnes(&table, keys));
}

TEST(ApplyAndInsertWithoutMemoryChangeNothing) { RunOutOfMemory({}, 64, 7); }

TEST(ApplyWithACounterFilterWithoutMemoryChangesNothing) {
  RunOutOfMemory({2, 1}, 1, 3);
}

TEST(ApplyWithABloomFilterWithoutMemoryChangesNothing) {
  RunOutOfMemory(BloomFilter(2, 1, int64_t{1} << 30, 0.01), 1, 3);
}
#endif

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
