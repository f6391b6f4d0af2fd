// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "ops/core/index/hash_index.h"
#include "ops/core/index/key_match.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Around multiples of 1000 and of 2^32, and at random.
std::vector<int64_t> Keys() {
  std::vector<int64_t> keys = {kMin, kMin + 1, kMax - 1, kMax, -1, 0, 1};
  std::mt19937_64 random(7);
  for (int bits = 1; bits <= 64; ++bits) {
    for (int i = 0; i < 50; ++i) {
      const auto any = static_cast<int64_t>(random() >> (64 - bits));
      const int64_t round = any / 1000 * 1000;
      for (const int64_t key : {any, round, round - 1, round + 999}) {
        keys.insert(keys.end(), {key, -key});
      }
    }
  }
  for (int64_t high = -3; high <= 3; ++high) {
    for (int64_t low = -3; low <= 3; ++low) {
      keys.push_back(high * (int64_t{1} << 32) + low);
    }
  }
  while (keys.size() % Bucket::kEntries != 0) keys.push_back(0);
  return keys;
}

using MatchKey = uint32_t(const Bucket*, int64_t);
using MatchClasses = uint32_t(const Bucket*, const KeyClassRange&,
                              KeyClassRange::Numbers*);

void ExpectKeysMatch(MatchKey* match) {
  Bucket bucket = {};
  // They are in the same line, and must not matter.
  std::fill_n(bucket.row, Bucket::kEntries, HashIndex::kNoRow);
  const std::vector<int64_t> keys = Keys();
  for (size_t at = 0; at < keys.size(); at += Bucket::kEntries) {
    std::copy_n(keys.begin() + at, Bucket::kEntries, bucket.key);
    for (uint32_t used = 0; used < 1u << Bucket::kEntries; ++used) {
      bucket.used = static_cast<uint8_t>(used);
      for (const int64_t key : {keys[at], keys[at + 4], keys[0], int64_t{-1}}) {
        uint32_t expected = 0;
        for (int e = 0; e < Bucket::kEntries; ++e) {
          if (bucket.key[e] == key) expected |= used & 1u << e;
        }
        EXPECT_EQ(match(&bucket, key), expected);
      }
    }
  }
}

void ExpectClassesMatch(MatchClasses* match) {
  const std::vector<int64_t> keys = Keys();
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1000}, {0, 1}, {999, 1000}, {37, 103}, {500, 500}}) {
    const KeyClassRange range(begin, end);
    int64_t found = 0;
    for (size_t at = 0; at < keys.size(); at += Bucket::kEntries) {
      Bucket bucket = {};
      std::copy_n(keys.begin() + at, Bucket::kEntries, bucket.key);
      // They are in the same line, and must not matter.
      std::fill_n(bucket.row, Bucket::kEntries, HashIndex::kNoRow);
      KeyClassRange::Numbers numbers;
      const uint32_t matches = match(&bucket, range, &numbers);
      EXPECT_TRUE(matches < 1u << Bucket::kEntries);
      for (int e = 0; e < Bucket::kEntries; ++e) {
        const int64_t expected = FloorMod(bucket.key[e], 1000);
        const bool in_range = expected >= begin && expected < end;
        EXPECT_EQ(matches >> e & 1, in_range ? 1u : 0u);
        if (in_range) EXPECT_EQ(numbers.of(e), expected - begin);
        found += in_range;
      }
    }
    EXPECT_TRUE((found > 0) == (begin < end));
  }
}

TEST(UsedEntriesWithTheKeyMatch) { ExpectKeysMatch(PortableMatch::Key); }

TEST(KeysOfTheClassesMatch) { ExpectClassesMatch(PortableMatch::Classes); }

#if defined(__SSE4_1__)
TEST(TheSameKeysMatchWhereTheCpuComparesALineAtOnce) {
  if (!__builtin_cpu_supports("avx512f")) return;
  ExpectKeysMatch(Avx512Match::Key);
  ExpectClassesMatch(Avx512Match::Classes);
}
#endif

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
