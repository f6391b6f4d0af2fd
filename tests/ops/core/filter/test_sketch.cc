// SPDX-License-Identifier: Apache-2.0
// The registry of sketches, and a sketch that implements only what it must.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// Counts exactly, in a map, and leaves the rest to the defaults.
class MapSketch : public Sketch {
 public:
  void Estimate(const int64_t* keys, const uint32_t* at, size_t n,
                uint32_t* counts) const override {
    for (size_t i = 0; i < n; ++i) {
      const auto found = counts_.find(keys[at[i]]);
      counts[at[i]] = found == counts_.end() ? 0 : found->second;
    }
  }
  void Raise(const int64_t* keys, const uint32_t* at, size_t n,
             const uint32_t* counts, bool) override {
    for (size_t i = 0; i < n; ++i) counts_[keys[at[i]]] = counts[at[i]];
  }
  size_t bytes(int s) const override { return s == 0 ? counts_.size() : 0; }
  void Clear() override { counts_.clear(); }

 private:
  std::map<int64_t, uint32_t> counts_;  // Tests use one thread.
};

const RegisterSketch kRegistered(
    {"map",
     {{"size", true, 1, 0x1p40}, {"rate", false, 0, 1}},
     [](const SketchSpec&, uint32_t) -> std::unique_ptr<Sketch> {
       return std::make_unique<MapSketch>();
     },
     ""});

std::string Check(const std::string& text) {
  SketchSpec spec;
  EXPECT_TRUE(ParseSketch(text, &spec));
  return CheckSketch(spec);
}

TEST(TextOfASketchIsItsNameAndItsNumbers) {
  SketchSpec spec;
  EXPECT_TRUE(ParseSketch("map size=1099511627776 rate=0.1", &spec));
  EXPECT_EQ(spec.name, "map");
  EXPECT_EQ(spec.parameters.at("size"), 0x1p40);
  EXPECT_EQ(spec.parameters.at("rate"), 0.1f);
  EXPECT_EQ(SketchText(spec), "map rate=0.1 size=1099511627776");
  for (const char* text : {"", " ", "map size", "map size=", "map size=1x",
                           "map size=1 size=1", "map size=1,rate=0.1"}) {
    SketchSpec other;
    EXPECT_FALSE(ParseSketch(text, &other));
  }
}

TEST(ErrorsNameTheParameterTheRuleAndTheValue) {
  EXPECT_EQ(Check("map size=5 rate=0.5"), "");
  EXPECT_EQ(Check("map size=0 rate=0.5"),
            "size must be an integer in [1, 1099511627776], got 0");
  EXPECT_EQ(Check("map size=1.5 rate=0.5"),
            "size must be an integer in [1, 1099511627776], got 1.5");
  EXPECT_EQ(Check("map size=5 rate=1"), "rate must be in (0, 1), got 1");
  EXPECT_EQ(Check("map size=5 rate=nan"), "rate must be in (0, 1), got nan");
  EXPECT_EQ(Check("map size=5"),
            "parameters of sketch map must be size and rate, got size");
  EXPECT_EQ(
      Check("map size=5 rate=0.5 more=1"),
      "parameters of sketch map must be size and rate, got more, rate and "
      "size");
  EXPECT_EQ(
      Check("cuckoo"),
      "sketch must be one of counting_bloom_filter and map, got cuckoo; a "
      "newer release may have written the graph");
}

TEST(SketchNeedsNoMoreThanFourMethods) {
  FilterSpec filter = {3, 1};
  EXPECT_TRUE(ParseSketch("map size=5 rate=0.5", &filter.sketch));
  EmbeddingTable table(2, 0.0f, filter);
  table.TrackChanges();
  for (int64_t step = 0; step < 3; ++step) {
    EXPECT_TRUE(ApplyOnes(&table, {7, 8, 8}, step));
    EXPECT_EQ(table.size(), step == 0 ? 0 : step == 1 ? 1 : 2);
    EXPECT_EQ(table.total_count(), table.size());
  }
  EXPECT_TRUE(table.memory_bytes() > 0);
  // The sketch still counts the evicted keys, so they keep entries.
  EXPECT_EQ(EvictOlder(&table, 4, 5), 2);
  EXPECT_EQ(table.total_count(), 2);
  EXPECT_EQ(EvictSmaller(&table, 1.0f, 6), 0);
  EXPECT_EQ(SketchOf(table).rows, 0);
  table.Clear();
  EXPECT_EQ(table.total_count(), 0);
  EXPECT_TRUE(ApplyOnes(&table, {7, 7}));
  EXPECT_EQ(table.size(), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
