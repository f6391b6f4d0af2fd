// SPDX-License-Identifier: Apache-2.0
// HashIndex against std::unordered_map: overflow counters, growth, erasure.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/index/hash_index.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// The inverse of MixKey.
int64_t UnmixKey(uint64_t hash) {
  const auto unshift = [](uint64_t x, int by) {
    uint64_t result = x;
    for (int done = by; done < 64; done += by) result = x ^ (result >> by);
    return result;
  };
  const auto inverse = [](uint64_t odd) {  // modulo 2^64, by Newton
    uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  uint64_t x = unshift(hash, 27);
  x *= inverse(0x1C69B3F74AC4AE35u);
  x = unshift(x, 33);
  x *= inverse(0x3C79AC492BA7B653u);
  return static_cast<int64_t>(unshift(x, 27));
}

EntryRef Find(const HashIndex& index, int64_t key) {
  return index.Find(index.Home(MixKey(key)), key);
}

void Insert(HashIndex* index, int64_t key, uint32_t row) {
  index->Insert(index->Home(MixKey(key)), key).row() = row;
}

void Erase(HashIndex* index, int64_t key) {
  index->Erase(index->Home(MixKey(key)), Find(*index, key));
}

TEST(MixKeyIsABijection) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int64_t key = static_cast<int64_t>(random() >> (i % 64));
    EXPECT_EQ(UnmixKey(MixKey(key)), key);
  }
}

TEST(FloorModMatchesPython) {
  EXPECT_EQ(FloorMod(7, 5), 2);
  EXPECT_EQ(FloorMod(-7, 5), 3);
  EXPECT_EQ(FloorMod(-5, 5), 0);
  EXPECT_EQ(FloorMod(std::numeric_limits<int64_t>::min(), 1000), 192);
  EXPECT_EQ(FloorMod(std::numeric_limits<int64_t>::max(), 1000), 807);
}

TEST(FastRangeCoversTheRangeMonotonically) {
  EXPECT_EQ(FastRange(0, 7), 0u);
  EXPECT_EQ(FastRange(~uint64_t{0}, 7), 6u);
  uint64_t last = 0;
  for (uint64_t hash = 0; hash < 64; ++hash) {
    const uint64_t at = FastRange(hash << 58, 1000);
    EXPECT_TRUE(at >= last && at < 1000);
    last = at;
  }
}

TEST(EmptyIndexFindsNothingAndOccupiesNoMemory) {
  HashIndex index;
  EXPECT_FALSE(Find(index, 0).found());
  EXPECT_FALSE(Find(index, -1).found());
  EXPECT_EQ(index.capacity(), 0u);
  EXPECT_EQ(index.bytes(), 0u);
  index.Clear();
  index.ForEach([](const EntryRef&) { EXPECT_TRUE(false); });
}

TEST(NewEntryHasNoCountAndNoRow) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(1, 0.0));
  const EntryRef entry = index.Insert(index.Home(MixKey(0)), 0);
  EXPECT_EQ(entry.row(), HashIndex::kNoRow);
  EXPECT_EQ(entry.count(), 0u);
  EXPECT_EQ(entry.version(), -1);
  EXPECT_TRUE(Find(index, 0).found());
}

TEST(RandomOperationsAgreeWithUnorderedMap) {
  for (const double stagger : {0.0, 0.5, 63.0 / 64}) {
    for (const uint64_t universe : {12u, 300u, 40000u}) {
      std::mt19937_64 random(universe);
      HashIndex index;
      std::unordered_map<int64_t, uint32_t> oracle;
      for (uint32_t i = 0; i < 120000; ++i) {
        const int64_t key = static_cast<int64_t>(random() % universe) - 5;
        const EntryRef entry = Find(index, key);
        const auto known = oracle.find(key);
        EXPECT_EQ(entry.found(), known != oracle.end());
        if (known != oracle.end()) EXPECT_EQ(entry.row(), known->second);
        // Waves of growing and shrinking.
        const bool insert = random() % 100 < (i / 20000 % 2 == 0 ? 70u : 30u);
        if (insert && known == oracle.end()) {
          EXPECT_TRUE(index.Reserve(oracle.size() + 1, stagger));
          Insert(&index, key, i);
          oracle[key] = i;
        } else if (!insert && known != oracle.end()) {
          Erase(&index, key);
          oracle.erase(known);
        }
      }
      size_t seen = 0;
      index.ForEach([&](const EntryRef& entry) {
        ++seen;
        const auto known = oracle.find(entry.key());
        EXPECT_TRUE(known != oracle.end() && known->second == entry.row());
      });
      EXPECT_EQ(seen, oracle.size());
    }
  }
}

// Keys whose hashes are at the end of the hash space: one bucket of any index
// with fewer than 2^20 buckets.
int64_t CrowdedKey(uint64_t i) { return UnmixKey(~uint64_t{0} - (i << 6)); }

TEST(OverflowCountersReturnToZeroWhenKeysAreErased) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(400, 0.25));
  for (uint64_t i = 0; i < 200; ++i) {
    Insert(&index, CrowdedKey(i), static_cast<uint32_t>(i));
  }
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(Find(index, CrowdedKey(i)).row(), i);
  }
  // The search wraps around the end of the array.
  Bucket* home = index.Home(MixKey(CrowdedKey(0)));
  EXPECT_TRUE(Find(index, CrowdedKey(199)).bucket() < home);
  EXPECT_EQ(home->overflow, 195);
  for (uint64_t i = 0; i < 200; ++i) Erase(&index, CrowdedKey(i));
  EXPECT_EQ(home->overflow, 0);
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_FALSE(Find(index, CrowdedKey(i)).found());
  }
}

TEST(SaturatedCounterStaysAndKeysAreStillFound) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(1200, 0.0));
  for (uint64_t i = 0; i < 1000; ++i) {
    Insert(&index, CrowdedKey(i), static_cast<uint32_t>(i));
  }
  Bucket* home = index.Home(MixKey(CrowdedKey(0)));
  EXPECT_EQ(home->overflow, 255);
  for (uint64_t i = 0; i < 990; ++i) Erase(&index, CrowdedKey(i));
  EXPECT_EQ(home->overflow, 255);
  for (uint64_t i = 990; i < 1000; ++i) {
    EXPECT_EQ(Find(index, CrowdedKey(i)).row(), i);
  }
  EXPECT_FALSE(Find(index, CrowdedKey(0)).found());
  // Growth recomputes the counters.
  const uint64_t before = index.capacity();
  EXPECT_TRUE(index.Reserve(before + 1, 0.0));
  EXPECT_EQ(index.Home(MixKey(CrowdedKey(0)))->overflow, 5);
}

TEST(SearchForAnAbsentKeyEndsWhenEveryCounterIsAboveZero) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(6, 0.0));
  // Two buckets, 8 of 10 entries allowed.
  EXPECT_EQ(index.bytes(), 2 * sizeof(Bucket));
  const auto low = [](uint64_t i) { return UnmixKey(i << 6); };
  const auto high = CrowdedKey;
  for (uint64_t i = 0; i < 6; ++i) Insert(&index, low(i), 0);  // One overflows.
  for (uint64_t i = 0; i < 2; ++i) Erase(&index, low(i));
  for (uint64_t i = 0; i < 4; ++i) Insert(&index, high(i), 0);
  EXPECT_EQ(index.Home(MixKey(low(0)))->overflow, 1);
  Insert(&index, low(0), 0);
  Erase(&index, low(2));
  Insert(&index, high(4), 0);  // The high bucket is full: wraps to the low one.
  EXPECT_TRUE(index.Home(MixKey(low(0)))->overflow > 0);
  EXPECT_TRUE(index.Home(MixKey(high(0)))->overflow > 0);
  EXPECT_FALSE(Find(index, low(100)).found());
  EXPECT_FALSE(Find(index, high(100)).found());
  EXPECT_TRUE(Find(index, high(4)).found());
}

TEST(SiblingsGrowAtDifferentSizesByThirtyPercent) {
  HashIndex a, b;
  EXPECT_TRUE(a.Reserve(100000, 0.0));
  EXPECT_TRUE(b.Reserve(100000, 0.5));
  EXPECT_TRUE(a.capacity() != b.capacity());
  const double before = static_cast<double>(a.capacity());
  EXPECT_TRUE(a.Reserve(a.capacity() + 1, 0.0));
  const double factor = static_cast<double>(a.capacity()) / before;
  EXPECT_TRUE(factor > 1.29 && factor < 1.31);
}

// At full load and at the mean load over growth: the shares of keys outside
// their home bucket, and of absent keys that are searched beyond it.
TEST(OverflowRatesMatchTheGrowthConstants) {
  for (const auto& [load, beyond_share, searched_share] :
       {std::array<double, 3>{0.85, 0.15, 0.5}, {0.74, 0.10, 0.27}}) {
    HashIndex index;
    EXPECT_TRUE(index.Reserve(200000, 0.0));
    const double n = std::floor(load / 0.85 * double(index.capacity()));
    int beyond = 0, searched = 0;
    for (int64_t key = 0; key < n; ++key) Insert(&index, key, 0);
    for (int64_t key = 0; key < n; ++key) {
      beyond += Find(index, key).bucket() != index.Home(MixKey(key));
      searched += index.Home(MixKey(~key))->overflow != 0;
    }
    // The figures are whole percents.
    EXPECT_TRUE(std::abs(beyond / n - beyond_share) < 0.005);
    EXPECT_TRUE(std::abs(searched / n - searched_share) < 0.005);
  }
}

TEST(RefusedReserveChangesNothing) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(10, 0.0));
  Insert(&index, 7, 70);
  const uint64_t before = index.capacity();
  EXPECT_FALSE(index.Reserve(uint64_t{1} << 60, 0.0));
  EXPECT_FALSE(index.Reserve(uint64_t{1} << 42, 0.0));
  EXPECT_EQ(index.capacity(), before);
  EXPECT_EQ(Find(index, 7).row(), 70u);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
