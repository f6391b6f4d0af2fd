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
#include "ops/core/table/counting_bloom_filter.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/table/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kElements = 60000;  // About ten times slower there.
#else
constexpr int64_t kElements = 1000000;
#endif

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
                             static_cast<double>(geometry.shard_blocks()) *
                             geometry.cells();
        const double plain = std::ceil(static_cast<double>(n) * -std::log(p) /
                                       (std::log(2) * std::log(2)));
        EXPECT_TRUE(cells >= plain);
        // Each shard's share of blocks is rounded up.
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
  EXPECT_TRUE(BloomGeometry(64, 3, kMax, 1e-300).shard_blocks() > 0);
  EXPECT_EQ(BloomGeometry(64, 3, 1, 1 - 1e-16).shard_blocks(), 1);
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
      EmbeddingTable table(1, 0.0f, {c.threshold, 1, c.elements, p});
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
       {FilterSpec{3, 1, 300, 0.3}, FilterSpec{17, 2, 500, 0.1},
        FilterSpec{300, 40, 100, 0.5}, FilterSpec{70000, 9999, 50, 0.2}}) {
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
  EmbeddingTable table(1, 0.0f, {10, 1, int64_t{1} << 30, 0.01});
  EXPECT_TRUE(table.bloom_layout().blocks > 50'000'000);
  EXPECT_EQ(table.memory_bytes(), 0);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 20000; ++key) keys.push_back(key * 7919);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_EQ(table.total_count(), 0);
  // One line per key, in a table that is at least half full.
  EXPECT_TRUE(table.memory_bytes() < 4 << 20);
  {
    const EmbeddingTable::Snapshot snapshot(table);
    EXPECT_TRUE(snapshot.bloom_blocks() <= 20000);
    EXPECT_TRUE(snapshot.bloom_blocks() > 19000);
  }
  table.Clear();
  EXPECT_EQ(table.memory_bytes(), 0);
  int64_t count;
  table.Frequencies(&keys[3], 1, &count);
  EXPECT_EQ(count, 0);
}

TEST(SmallFilterGrowsToItsGeometryAndNoFurther) {
  EmbeddingTable table(1, 0.0f, {10, 1, 20000, 0.01});
  const EmbeddingTable::BloomLayout layout = table.bloom_layout();
  for (int64_t first = 0; first < 200000; first += 10000) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 10000; ++key) keys.push_back(first + key);
    EXPECT_TRUE(ApplyOnes(&table, keys));
  }
  // The index entries of keys that are admitted early come on top.
  const EmbeddingTable::Snapshot snapshot(table);
  EXPECT_EQ(snapshot.bloom_blocks(), layout.blocks);
  EXPECT_TRUE(table.memory_bytes() - 60 * table.total_count() <
              layout.blocks * 64 + (1 << 20));
}

TEST(MergedBlocksHoldTheLargerCell) {
  const FilterSpec filter = {100, 1, 5000, 0.01};
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
  const auto blocks_of = [](const EmbeddingTable& table,
                            std::vector<int64_t>* blocks,
                            std::vector<uint32_t>* cells) {
    const EmbeddingTable::Snapshot snapshot(table);
    const int width = table.bloom_layout().cells_per_block;
    snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* of_block) {
      blocks->push_back(number);
      cells->insert(cells->end(), of_block, of_block + width);
    });
  };
  std::vector<int64_t> blocks;
  std::vector<uint32_t> cells;
  blocks_of(b, &blocks, &cells);
  // Blocks come in any order, and cells saturate at the threshold.
  std::vector<int64_t> shuffled(blocks.rbegin(), blocks.rend());
  const size_t width = static_cast<size_t>(b.bloom_layout().cells_per_block);
  std::vector<uint32_t> shuffled_cells;
  for (size_t i = blocks.size(); i-- > 0;) {
    shuffled_cells.insert(shuffled_cells.end(), cells.begin() + i * width,
                          cells.begin() + (i + 1) * width);
  }
  EXPECT_TRUE(
      a.MergeBloom(0, shuffled.data(), shuffled.size(), shuffled_cells.data()));
  for (int64_t key = 0; key < 3000; ++key) {
    int64_t count;
    a.Frequencies(&key, 1, &count);
    EXPECT_TRUE(count >= std::max(key % 90, key % 70));
  }
  std::vector<int64_t> merged_blocks;
  std::vector<uint32_t> merged, once_more;
  blocks_of(a, &merged_blocks, &merged);
  EXPECT_TRUE(
      a.MergeBloom(0, shuffled.data(), shuffled.size(), shuffled_cells.data()));
  blocks_of(a, &merged_blocks, &once_more);
  EXPECT_TRUE(merged == once_more);
  const std::vector<uint32_t> large(width, UINT32_MAX);
  EXPECT_TRUE(a.MergeBloom(0, &blocks[0], 1, large.data()));
  const EmbeddingTable::Snapshot snapshot(a);
  snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* of_block) {
    for (size_t c = 0; number == blocks[0] && c < width; ++c) {
      EXPECT_EQ(of_block[c], 100u);
    }
  });
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
