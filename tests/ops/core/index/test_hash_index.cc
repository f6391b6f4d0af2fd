// SPDX-License-Identifier: Apache-2.0
// HashIndex against std::unordered_map: overflow counters, growth, erasure.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

EntryRef Find(const HashIndex& index, int64_t key) {
  return index.Find(index.Home(HashKey(key)), key);
}

void Insert(HashIndex* index, int64_t key, uint32_t row) {
  index->Insert(index->Home(HashKey(key)), key).row() = row;
}

void Erase(HashIndex* index, int64_t key) {
  index->Erase(index->Home(HashKey(key)), Find(*index, key));
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
  const EntryRef entry = index.Insert(index.Home(HashKey(0)), 0);
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

// n keys whose hashes begin with 12 zeros, or with 12 ones: the first or the
// last bucket of any index with fewer than 2^12 buckets.
std::vector<int64_t> CrowdedKeys(size_t n, bool is_last) {
  const uint64_t first_bits = is_last ? 0xFFF : 0;
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < n; ++key) {
    if (HashKey(key) >> 52 == first_bits) keys.push_back(key);
  }
  return keys;
}

TEST(OverflowCountersReturnToZeroWhenKeysAreErased) {
  const std::vector<int64_t> crowded = CrowdedKeys(200, true);
  HashIndex index;
  EXPECT_TRUE(index.Reserve(400, 0.25));
  for (uint64_t i = 0; i < 200; ++i) {
    Insert(&index, crowded[i], static_cast<uint32_t>(i));
  }
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(Find(index, crowded[i]).row(), i);
  }
  // The search wraps around the end of the array.
  Bucket* home = index.Home(HashKey(crowded[0]));
  EXPECT_TRUE(Find(index, crowded[199]).bucket() < home);
  EXPECT_EQ(home->overflow, 195);
  for (uint64_t i = 0; i < 200; ++i) Erase(&index, crowded[i]);
  EXPECT_EQ(home->overflow, 0);
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_FALSE(Find(index, crowded[i]).found());
  }
}

TEST(SaturatedCounterStaysAndKeysAreStillFound) {
  const std::vector<int64_t> crowded = CrowdedKeys(1000, true);
  HashIndex index;
  EXPECT_TRUE(index.Reserve(1200, 0.0));
  for (uint64_t i = 0; i < 1000; ++i) {
    Insert(&index, crowded[i], static_cast<uint32_t>(i));
  }
  Bucket* home = index.Home(HashKey(crowded[0]));
  EXPECT_EQ(home->overflow, 255);
  for (uint64_t i = 0; i < 990; ++i) Erase(&index, crowded[i]);
  EXPECT_EQ(home->overflow, 255);
  for (uint64_t i = 990; i < 1000; ++i) {
    EXPECT_EQ(Find(index, crowded[i]).row(), i);
  }
  EXPECT_FALSE(Find(index, crowded[0]).found());
  // Growth recomputes the counters.
  const uint64_t before = index.capacity();
  EXPECT_TRUE(index.Reserve(before + 1, 0.0));
  EXPECT_EQ(index.Home(HashKey(crowded[0]))->overflow, 5);
}

TEST(SearchForAnAbsentKeyEndsWhenEveryCounterIsAboveZero) {
  HashIndex index;
  EXPECT_TRUE(index.Reserve(6, 0.0));
  // Two buckets, 8 of 10 entries allowed.
  EXPECT_EQ(index.bytes(), 2 * sizeof(Bucket));
  const std::vector<int64_t> low = CrowdedKeys(101, false);
  const std::vector<int64_t> high = CrowdedKeys(101, true);
  for (uint64_t i = 0; i < 6; ++i) Insert(&index, low[i], 0);  // One overflows.
  for (uint64_t i = 0; i < 2; ++i) Erase(&index, low[i]);
  for (uint64_t i = 0; i < 4; ++i) Insert(&index, high[i], 0);
  EXPECT_EQ(index.Home(HashKey(low[0]))->overflow, 1);
  Insert(&index, low[0], 0);
  Erase(&index, low[2]);
  Insert(&index, high[4], 0);  // The high bucket is full: wraps to the low one.
  EXPECT_TRUE(index.Home(HashKey(low[0]))->overflow > 0);
  EXPECT_TRUE(index.Home(HashKey(high[0]))->overflow > 0);
  EXPECT_FALSE(Find(index, low[100]).found());
  EXPECT_FALSE(Find(index, high[100]).found());
  EXPECT_TRUE(Find(index, high[4]).found());
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
       {std::array<double, 3>{0.85, 0.155, 0.5}, {0.74, 0.10, 0.275}}) {
    const WithSecret secret(1);
    HashIndex index;
    EXPECT_TRUE(index.Reserve(200000, 0.0));
    const double n = std::floor(load / 0.85 * double(index.capacity()));
    int beyond = 0, searched = 0;
    for (int64_t key = 0; key < n; ++key) Insert(&index, key, 0);
    for (int64_t key = 0; key < n; ++key) {
      beyond += Find(index, key).bucket() != index.Home(HashKey(key));
      searched += index.Home(HashKey(~key))->overflow != 0;
    }
    // The figures are halves of a percent.
    EXPECT_TRUE(std::abs(beyond / n - beyond_share) < 0.005);
    EXPECT_TRUE(std::abs(searched / n - searched_share) < 0.005);
  }
}

// Keys that share a bucket by MixKey were, on average, half as many buckets
// away from it as they need, which made a step quadratic.
TEST(ChosenKeysAreAsNearToTheirHomesAsAnyOthers) {
  constexpr size_t kKeys = 20000;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const WithSecret secret(seed);
    for (const std::vector<int64_t>& keys : ChosenKeys(kKeys)) {
      HashIndex index;
      EXPECT_TRUE(index.Reserve(kKeys, 0.0));
      const auto buckets = static_cast<size_t>(index.end() - index.begin());
      size_t passed = 0;
      for (const int64_t key : keys) {
        Insert(&index, key, 0);
        const Bucket* const home = index.Home(HashKey(key));
        const auto away = Find(index, key).bucket() - home;
        passed += static_cast<size_t>(away) % buckets;
      }
      // At full load, random keys pass .45 buckets on average.
      EXPECT_TRUE(passed < kKeys);
    }
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
