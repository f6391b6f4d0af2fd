// SPDX-License-Identifier: Apache-2.0
// Deduplicator: against a plain map, for both sizes of cells, with keys that
// share a cell and with as many distinct keys as there is room for.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/keys/deduplicator.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Adds the keys, with hashes by hash_of, and compares with a map. The memory
// has exactly the size that the class asks for, so that ASan sees more.
template <typename Cell, typename HashOf>
void ExpectNumbersInOrder(const std::vector<int64_t>& keys,
                          const HashOf& hash_of) {
  std::vector<Cell> cells(Deduplicator<Cell>::CellsFor(keys.size()), Cell{77});
  std::vector<int64_t> distinct(keys.size(), 77);
  Deduplicator<Cell> deduplicator(keys.size(), cells.data(), distinct.data());
  std::unordered_map<int64_t, uint32_t> expected;
  for (const int64_t key : keys) {
    const auto [known, is_new] =
        expected.emplace(key, static_cast<uint32_t>(expected.size()));
    deduplicator.Prefetch(hash_of(key));
    EXPECT_EQ(deduplicator.Add(key, hash_of(key)), known->second);
    EXPECT_EQ(deduplicator.size(), expected.size());
  }
  for (const auto& [key, number] : expected) EXPECT_EQ(distinct[number], key);
}

template <typename HashOf>
void ExpectNumbersInOrderWithAllCells(const std::vector<int64_t>& keys,
                                      const HashOf& hash_of) {
  ExpectNumbersInOrder<uint16_t>(keys, hash_of);
  ExpectNumbersInOrder<uint32_t>(keys, hash_of);
}

uint32_t HashOf(int64_t key) { return CellHash(HashKey(key)); }

TEST(KeysAreNumberedInOrderOfFirstOccurrence) {
  ExpectNumbersInOrderWithAllCells({}, HashOf);
  ExpectNumbersInOrderWithAllCells({0}, HashOf);
  ExpectNumbersInOrderWithAllCells({7, 9, 7, 0, 9, 7}, HashOf);
  ExpectNumbersInOrderWithAllCells({kMin, kMax, -1, 0, 77, kMax, kMin, -1},
                                   HashOf);
}

TEST(RandomKeysEqualAPlainMap) {
  std::mt19937_64 random(1);
  for (const size_t n : {17, 1000, 8192}) {
    for (const uint64_t range : {1ul, 5ul, 600ul, 1ul << 40}) {
      std::vector<int64_t> keys;
      for (size_t i = 0; i < n; ++i) {
        keys.push_back(static_cast<int64_t>(random() % range) - 3);
      }
      ExpectNumbersInOrderWithAllCells(keys, HashOf);
    }
  }
}

TEST(AllKeysMayBeDistinct) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < int64_t{Deduplicator<uint16_t>::kMostKeys};
       ++key) {
    keys.push_back(key);
  }
  ExpectNumbersInOrderWithAllCells(keys, HashOf);
}

TEST(KeysOfOneCellAreSearchedInTheNextOnesAndFromTheFirst) {
  const std::vector<int64_t> keys = {5, 6, 5, 8, 6, 1, 8, 5};
  for (const uint32_t hash : {0u, 3u, 15u, ~0u}) {
    ExpectNumbersInOrderWithAllCells(keys, [hash](int64_t) { return hash; });
  }
}

TEST(CellsAreAPowerOfTwoOfWhichHalfIsUsed) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{8}, size_t{9},
                         size_t{8192}, size_t{1} << 31}) {
    const size_t cells = Deduplicator<uint32_t>::CellsFor(n);
    EXPECT_TRUE(cells >= 2 * n && cells >= 16);
    EXPECT_EQ(cells & (cells - 1), 0u);
  }
}

// Keys that share a cell by MixKey were, on average, half as many cells away
// from it as there are keys, which made a step quadratic.
TEST(ChosenKeysAreAsNearToTheirCellsAsAnyOthers) {
  constexpr size_t kKeys = 1 << 14;
  constexpr size_t kCells = Deduplicator<uint32_t>::CellsFor(kKeys);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const WithSecret secret(seed);
    for (const std::vector<int64_t>& keys : ChosenKeys(kKeys)) {
      std::vector<uint32_t> cells(kCells);
      std::vector<int64_t> distinct(kKeys);
      Deduplicator<uint32_t> deduplicator(kKeys, cells.data(), distinct.data());
      for (const int64_t key : keys) deduplicator.Add(key, HashOf(key));
      EXPECT_EQ(deduplicator.size(), kKeys);
      size_t passed = 0;
      for (size_t cell = 0; cell < kCells; ++cell) {
        if (cells[cell] == 0) continue;
        passed += (cell - HashOf(distinct[cells[cell] - 1])) % kCells;
      }
      // Half full, random keys pass half a cell on average.
      EXPECT_TRUE(passed < kKeys);
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
