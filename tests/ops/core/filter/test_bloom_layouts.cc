// SPDX-License-Identifier: Apache-2.0
// A Bloom filter takes over the cells of one with other options.
#include <cstdint>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/bloom_sketch.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int64_t kKeys = 500;
constexpr uint32_t kThreshold = 9;

int64_t KeyOf(int64_t i) { return static_cast<int64_t>(MixKey(i)); }

int64_t CountOf(const EmbeddingTable& table, int64_t key) {
  int64_t count;
  table.Frequencies(&key, 1, &count);
  return count;
}

struct Options {
  uint32_t threshold;
  int64_t max_elements;
  double rate;
};

// Each of these options has other blocks, cells, bits or fewer hashes.
const Options kOptions[] = {
    {kThreshold, 1000, 0.001}, {kThreshold, 2000, 0.001},
    {kThreshold, 500, 0.001},  {kThreshold, 16000, 0.001},
    {kThreshold, 1000, 0.002}, {kThreshold, 1000, 0.02},
    {20, 1000, 0.001},         {300, 1000, 0.001},
    {70000, 3000, 0.01},
};

TEST(NoCountIsTooLowAfterAChangeOfOptionsAndFewAreTooHigh) {
  EmbeddingTable before(1, 0.0f, BloomFilter(kThreshold, 1, 1000, 0.001));
  for (int64_t i = 0; i < kKeys; ++i) {
    const std::vector<int64_t> occurrences(i % (kThreshold - 1) + 1, KeyOf(i));
    EXPECT_TRUE(ApplyOnes(&before, occurrences, 0));
  }
  const SavedSketch saved = SketchOf(before);
  for (const Options& options : kOptions) {
    EmbeddingTable after(
        1, 0.0f,
        BloomFilter(options.threshold, 1, options.max_elements, options.rate));
    EXPECT_TRUE(saved.MergeInto(&after, saved));
    after.MergeSketchHeads(saved.heads, saved.rows);
    int64_t lower = 0, higher = 0, others = 0;
    for (int64_t i = 0; i < kKeys; ++i) {
      const int64_t count = CountOf(before, KeyOf(i));
      lower += CountOf(after, KeyOf(i)) < count;
      higher += CountOf(after, KeyOf(i)) > count;
      others += CountOf(after, KeyOf(kKeys + i)) > 0;
    }
    EXPECT_EQ(lower, 0);
    // Half as many blocks hold twice the keys; no other change is as coarse.
    EXPECT_TRUE(higher < kKeys / 4);
    EXPECT_TRUE(others < kKeys / 4);
  }
}

TEST(MoreHashesOrSeventeenTimesTheBlocksAreNotTakenOver) {
  const BloomSketch sketch(kThreshold, 17000, 0.001);
  const std::vector<int64_t> own = sketch.format().layout;
  EXPECT_TRUE(sketch.FormatOf(own).has_value());
  std::vector<int64_t> layout = own;
  layout[0] = kStripes * (own[0] / kStripes / 17);
  EXPECT_TRUE(!sketch.FormatOf(layout).has_value());
  layout = own;
  --layout[2];
  EXPECT_TRUE(!sketch.FormatOf(layout).has_value());
}

TEST(NumbersThatNoLayoutHasAreNotTakenOver) {
  const BloomSketch sketch(kThreshold, 1000, 0.001);
  const std::vector<int64_t> own = sketch.format().layout;
  const int64_t bad[][2] = {
      {0, 0},          {0, -kStripes},
      {0, own[0] + 1}, {0, INT64_MAX / kStripes * kStripes},
      {1, 0},          {1, -1},
      {1, INT64_MAX},  {3, 0},
      {3, 5},          {3, INT64_MAX}};
  for (const auto& [at, value] : bad) {
    std::vector<int64_t> layout = own;
    layout[at] = value;
    EXPECT_TRUE(!sketch.FormatOf(layout).has_value());
  }
  EXPECT_TRUE(!sketch.FormatOf({own[0], own[1]}).has_value());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
