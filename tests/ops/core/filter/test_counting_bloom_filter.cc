// SPDX-License-Identifier: Apache-2.0
// The counting Bloom filter: geometry, error rate and memory, by itself and as
// part of an EmbeddingTable.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/counting_bloom_filter.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/snapshot.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kElements = 60000;  // About ten times slower there.
#else
constexpr int64_t kElements = 1000000;
#endif

// All blocks of the filter, touched or not.
int64_t BlocksOf(const EmbeddingTable& table) {
  return SketchOf(table).heads[0][0];
}

// A search for a block passes those between its place and the next free one.
TEST(ChosenBlocksDoNotCrowdInOnePartOfMemory) {
  const BloomGeometry geometry(64, 3, int64_t{1} << 36, 0.01);
  const WithSecret secret(1);
  constexpr int64_t kBlocks = 5000;
  for (const uint64_t step : {1, 7, 1 << 12}) {
    BloomStripe stripe;
    stripe.SetGeometry(&geometry);
    EXPECT_TRUE(stripe.Reserve(kBlocks, 0.0));
    for (uint64_t i = 0; i < kBlocks; ++i) stripe.FindOrAdd(i * step);
    int64_t run = 0, longest = 0;
    const char* next = nullptr;
    stripe.ForEach([&](const BloomStripe::Block* block) {
      const char* const at = reinterpret_cast<const char*>(block);
      run = at == next ? run + 1 : 1;
      longest = std::max(longest, run);
      next = at + geometry.block_bytes();
    });
    EXPECT_EQ(stripe.used(), kBlocks);
    // They were one run. Random numbers have runs of 50.
    EXPECT_TRUE(longest < 200);
  }
}

TEST(GeometryMeetsItsSpecification) {
  for (const uint32_t threshold : {2u, 15u, 16u, 255u, 256u, 65535u, 65536u}) {
    for (const double p : {0.5, 0.1, 0.01, 0.001, 1e-6}) {
      for (const int64_t n : {int64_t{1}, int64_t{1000}, int64_t{1} << 30}) {
        const BloomGeometry geometry(64, threshold, n, p);
        const int bits = geometry.cell_bits();
        EXPECT_TRUE(threshold < uint64_t{1} << bits);
        EXPECT_TRUE(bits == 4 || threshold >= uint64_t{1} << bits / 2);
        EXPECT_EQ(geometry.hashes(), std::ceil(-std::log2(p)));
        EXPECT_EQ(geometry.cells() * bits, (geometry.lines() * 64 - 8) * 8);
        const double cells = 64.0 *
                             static_cast<double>(geometry.stripe_blocks()) *
                             geometry.cells();
        const double plain = std::ceil(static_cast<double>(n) * -std::log(p) /
                                       (std::log(2) * std::log(2)));
        EXPECT_TRUE(cells >= plain);
        // Each stripe's share of blocks is rounded up.
        EXPECT_TRUE(cells <= 1.26 * plain + 64.0 * geometry.cells());
        std::vector<int> used(geometry.cells());
        for (uint64_t seed = 0; seed < 100; ++seed) {
          for (int i = 0; i < geometry.hashes(); ++i) {
            ++used.at(geometry.Cell(MixKey(static_cast<int64_t>(seed)), i));
          }
        }
      }
    }
  }
  // One line is enough for common filters.
  EXPECT_EQ(BloomGeometry(64, 15, 1 << 20, 0.01).lines(), 1);
  // Absurd specifications give a filter, too.
  EXPECT_TRUE(BloomGeometry(64, 3, kMax, 1e-300).stripe_blocks() > 0);
  EXPECT_EQ(BloomGeometry(64, 3, 1, 1 - 1e-16).stripe_blocks(), 1);
}

TEST(FalsePositiveRateHoldsAtFullLoad) {
  struct Case {
    uint32_t threshold;
    int64_t elements;
  };
  for (const Case& c :
       {Case{3, kElements}, Case{200, kElements}, Case{3000, kElements / 8},
        Case{70000, kElements / 8}}) {
    for (const double p : {0.1, 0.01, 0.001}) {
      // Full load: every key is one occurrence short of a row, so an unknown
      // key is admitted if all of its cells are shared.
      EmbeddingTable table(1, 0.0f, BloomFilter(c.threshold, 1, c.elements, p));
      std::mt19937_64 random(c.threshold);
      const size_t n = static_cast<size_t>(c.elements);
      std::vector<int64_t> keys(n);
      for (size_t i = 0; i < n; ++i) {
        keys[i] = i % 2 == 0 ? static_cast<int64_t>(random())
                             : static_cast<int64_t>(i);
      }
      const std::vector<int64_t> freqs(n, c.threshold - 1);
      EXPECT_TRUE(
          table.InsertFiltered(keys.data(), n, freqs.data(), nullptr, true));
      EXPECT_EQ(table.total_count(), 0);
      std::unique_ptr<bool[]> admits(new bool[n]);
      EXPECT_TRUE(table.Admits(keys.data(), n, admits.get()));
      size_t late = 0;
      for (size_t i = 0; i < n; ++i) late += !admits[i];
      EXPECT_EQ(late, 0u);
      for (size_t i = 0; i < n; ++i) {
        keys[i] = i % 2 == 0 ? static_cast<int64_t>(random())
                             : -1 - static_cast<int64_t>(i);
      }
      EXPECT_TRUE(table.Admits(keys.data(), n, admits.get()));
      size_t early = 0;
      for (size_t i = 0; i < n; ++i) early += admits[i];
      const double expected = p * static_cast<double>(n);
      // Four standard deviations beside, for samples as small as 75 expected.
      EXPECT_TRUE(early <= 1.5 * expected ||
                  early <= 1.2 * expected + 4 * std::sqrt(1.2 * expected));
    }
  }
}

// A few frequent and many rare keys, far more than the filter is made for.
TEST(OverfullFilterAdmitsNoKeyLate) {
  for (const FilterSpec& filter :
       {BloomFilter(3, 1, 300, 0.3), BloomFilter(17, 2, 500, 0.1),
        BloomFilter(300, 40, 100, 0.5), BloomFilter(70000, 9999, 50, 0.2)}) {
    EmbeddingTable table(2, 0.0f, filter);
    std::mt19937_64 random(filter.threshold);
    std::unordered_map<int64_t, int64_t> counts;
    for (int step = 0; step < 60; ++step) {
      std::vector<int64_t> keys(1 + random() % 500);
      for (int64_t& key : keys) {
        key = static_cast<int64_t>(random() % 2 == 0 ? random() % 20
                                                     : random() % 5000);
        counts[key] += filter.coefficient;
      }
      EXPECT_TRUE(ApplyOnes(&table, keys));
    }
    size_t admitted = 0;
    for (const auto& [key, count] : counts) {
      float value[2];
      table.Lookup(&key, 1, UnknownKey::kDefault, value, SerialFor);
      const bool has_row = value[0] > 0;
      admitted += has_row;
      EXPECT_TRUE(has_row || count < filter.threshold);
      int64_t estimate;
      table.Frequencies(&key, 1, &estimate);
      EXPECT_TRUE(estimate >= std::min<int64_t>(count, filter.threshold));
      int64_t version;
      table.Versions(&key, 1, &version);
      EXPECT_EQ(version, has_row ? 0 : -1);
    }
    EXPECT_EQ(table.size(), static_cast<int64_t>(admitted));
    EXPECT_EQ(table.total_count(), table.size());
  }
}

TEST(LargeFilterOccupiesTouchedBlocksOnly) {
  EmbeddingTable table(1, 0.0f, BloomFilter(10, 1, int64_t{1} << 30, 0.01));
  EXPECT_TRUE(BlocksOf(table) > 50'000'000);
  EXPECT_EQ(table.memory_bytes(), 0);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 20000; ++key) keys.push_back(key * 7919);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_EQ(table.total_count(), 0);
  // One line per key, in a table that is at least half full.
  EXPECT_TRUE(table.memory_bytes() < 4 << 20);
  {
    const Snapshot snapshot(table);
    EXPECT_TRUE(snapshot.sketch_rows() <= 20000);
    EXPECT_TRUE(snapshot.sketch_rows() > 19000);
  }
  table.Clear();
  EXPECT_EQ(table.memory_bytes(), 0);
  int64_t count;
  table.Frequencies(&keys[3], 1, &count);
  EXPECT_EQ(count, 0);
}

TEST(SmallFilterGrowsToItsGeometryAndNoFurther) {
  EmbeddingTable table(1, 0.0f, BloomFilter(10, 1, 20000, 0.01));
  const int64_t blocks = BlocksOf(table);
  for (int64_t first = 0; first < 200000; first += 10000) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 10000; ++key) keys.push_back(first + key);
    EXPECT_TRUE(ApplyOnes(&table, keys));
  }
  // The index entries of keys that are admitted early come on top.
  const Snapshot snapshot(table);
  EXPECT_EQ(snapshot.sketch_rows(), blocks);
  EXPECT_TRUE(table.memory_bytes() - 60 * table.total_count() <
              blocks * 64 + (1 << 20));
}

TEST(MergedBlocksHoldTheLargerCell) {
  const FilterSpec filter = BloomFilter(100, 1, 5000, 0.01);
  EmbeddingTable a(1, 0.0f, filter), b(1, 0.0f, filter);
  std::vector<int64_t> keys, freqs_a, freqs_b;
  for (int64_t key = 0; key < 3000; ++key) {
    keys.push_back(key);
    freqs_a.push_back(key % 90);
    freqs_b.push_back(key % 70);
  }
  EXPECT_TRUE(a.InsertFiltered(keys.data(), keys.size(), freqs_a.data(),
                               nullptr, true));
  EXPECT_TRUE(b.InsertFiltered(keys.data(), keys.size(), freqs_b.data(),
                               nullptr, true));
  // Blocks come in any order.
  SavedSketch saved = SketchOf(b);
  const size_t width = SavedSketch::RowBytes(b.sketch()->format())[1];
  SavedSketch shuffled = saved;
  for (size_t i = 0, n = static_cast<size_t>(saved.rows); i < n; ++i) {
    for (size_t c = 0; c < saved.columns.size(); ++c) {
      const size_t bytes = SavedSketch::RowBytes(b.sketch()->format())[c];
      std::copy_n(saved.columns[c].begin() + i * bytes, bytes,
                  shuffled.columns[c].begin() + (n - 1 - i) * bytes);
    }
  }
  EXPECT_TRUE(shuffled.MergeInto(&a, shuffled));
  for (int64_t key = 0; key < 3000; ++key) {
    int64_t count;
    a.Frequencies(&key, 1, &count);
    EXPECT_TRUE(count >= std::max(key % 90, key % 70));
  }
  const SavedSketch merged = SketchOf(a);
  EXPECT_TRUE(shuffled.MergeInto(&a, shuffled));
  EXPECT_TRUE(SketchOf(a) == merged);
  // Cells, of 8 bits here, saturate at the threshold.
  std::fill(shuffled.columns[1].begin(), shuffled.columns[1].end(), '\xff');
  EXPECT_TRUE(shuffled.MergeInto(&a, shuffled));
  const SavedSketch full = SketchOf(a);
  EXPECT_EQ(full.columns[1].size(), static_cast<size_t>(full.rows) * width);
  EXPECT_EQ(*std::max_element(full.columns[1].begin(), full.columns[1].end()),
            100);
}

TEST(DamagedRowsAndHeadsAreFound) {
  EmbeddingTable table(1, 0.0f, BloomFilter(100, 1, 5000, 0.01));
  EXPECT_TRUE(ApplyOnes(&table, {1, 2, 3}));
  const SavedSketch saved = SketchOf(table);
  EmbeddingTable other(1, 0.0f, table.filter());
  EXPECT_TRUE(saved.MergeInto(&other, saved));
  SavedSketch no_such_block = saved;
  no_such_block.columns[0][7] = 1;  // 2^56 or more.
  EXPECT_FALSE(no_such_block.MergeInto(&other, saved));
  SavedSketch too_few_rows = saved;
  too_few_rows.heads[1][2] -= 1;
  EXPECT_FALSE(too_few_rows.MergeInto(&other, saved));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
