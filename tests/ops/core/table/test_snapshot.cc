// SPDX-License-Identifier: Apache-2.0
// Snapshot: the entries that a save reads, and their order.
#include <algorithm>
#include <cstdint>
#include <map>
#include <new>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/failing_new.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// Keys with a row and counted ones, of all key classes.
std::vector<int64_t> KeysOfAllClasses() {
  std::mt19937_64 random(3);
  std::vector<int64_t> keys = {kMin, kMax, 0, -1, -1000, 999};
  for (int i = 0; i < 15000; ++i) {
    keys.push_back(static_cast<int64_t>(random()));
    if (i % 3 == 0) keys.push_back(keys.back());
  }
  return keys;
}

TEST(EntriesAreReadInOrderWhateverMemoryThereIs) {
  EmbeddingTable table(1, 0.0f, FilterSpec{2, 1});
  const std::vector<int64_t> keys = KeysOfAllClasses();
  EXPECT_TRUE(ApplyOnes(&table, keys));
  const Contents whole(table);
  std::map<int64_t, int64_t> counts;
  for (const int64_t key : keys) ++counts[key];
  for (const bool with_row : {true, false}) {
    // Key class, then key.
    std::set<std::pair<int64_t, int64_t>> expected;
    for (const auto& [key, count] : counts) {
      if ((count >= 2) == with_row) expected.insert({FloorMod(key, 1000), key});
    }
    EXPECT_TRUE(expected.size() > 4000);
    const std::vector<int64_t>& offsets =
        with_row ? whole.snapshot.admitted_offsets()
                 : whole.snapshot.filtered_offsets();
    EXPECT_EQ(offsets.size(), 1001u);
    EXPECT_EQ(offsets[1000], static_cast<int64_t>(expected.size()));
    for (const size_t step : {1, 700, 100000}) {
      for (const size_t max_bytes : {0, 100000, 1 << 30}) {
        auto next = expected.begin();
        int64_t at = 0;
        whole.Read(with_row, step, max_bytes,
                   [&](const auto& entry, const float* row) {
                     const auto [key_class, key] = *next++;
                     EXPECT_EQ(entry.key, key);
                     EXPECT_EQ(entry.count, counts[key]);
                     EXPECT_TRUE(offsets[key_class] <= at &&
                                 at < offsets[key_class + 1]);
                     // An initial 0 and a gradient of 1 per occurrence.
                     if (with_row) EXPECT_EQ(row[0], 1.0f * counts[key]);
                     ++at;
                   });
        EXPECT_TRUE(next == expected.end());
      }
    }
  }
}

TEST(AReaderOfEntriesMayEndBeforeThem) {
  EmbeddingTable table(1, 0.0f, FilterSpec{2, 1});
  EXPECT_TRUE(ApplyOnes(&table, KeysOfAllClasses()));
  const Contents whole(table);
  for (const size_t batches : {0, 1, 2, 10}) {
    EntryReader reader(whole.snapshot, true, 100, 0);
    for (size_t b = 0; b < batches; ++b) EXPECT_EQ(reader.Next().n, 100u);
  }
}

TEST(EntriesWithoutMemoryThrowOnTheThreadThatAsksForThem) {
  EmbeddingTable table(1, 0.0f, FilterSpec{2, 1});
  std::vector<int64_t> keys;
  // Many of one key class, whose sort needs memory as well.
  for (int64_t i = 0; i < 1000; ++i) keys.insert(keys.end(), {i, 1000 * i});
  EXPECT_TRUE(ApplyOnes(&table, keys));
  const Snapshot snapshot(table);
  // With one batch, and with threads that list and read ahead.
  for (const size_t step : {2000, 300}) {
    int64_t allocations = 0;
    for (bool is_read = false; !is_read; ++allocations) {
      size_t n = 0;
      news_left = allocations;
      try {
        EntryReader reader(snapshot, false, step, 0);
        while (const size_t more = reader.Next().n) n += more;
        is_read = true;
      } catch (const std::bad_alloc&) {
      }
      news_left = -1;
      if (is_read) EXPECT_EQ(n, 1998u);
    }
    EXPECT_TRUE(allocations > 5);
  }
}

TEST(ManyKeysOfAClassAreListedInOrderHoweverTheyLie) {
  std::mt19937_64 random(5);
  const std::vector<std::vector<int64_t>> spread = [&random] {
    std::vector<std::vector<int64_t>> all(5);
    for (int64_t i = 0; i < 3000; ++i) {
      all[0].push_back(1000 * i);  // Evenly.
      all[1].push_back(static_cast<int64_t>(random()) / 1000 * 1000);
      all[2].push_back(1000 * (int64_t{1} << i % 53) + i / 53 * 1000);
      all[3].push_back(i < 2999 ? -1000 * i : 9223372036854775000);  // A tail.
      all[4].push_back(-9223372036854775000 + 1000 * (i % 257));
    }
    return all;
  }();
  for (const std::vector<int64_t>& keys : spread) {
    EmbeddingTable table(1, 0.0f);
    EXPECT_TRUE(ApplyOnes(&table, keys));
    std::vector<int64_t> expected(keys), listed;
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()),
                   expected.end());
    for (const auto& entry : Contents(table).admitted) {
      listed.push_back(entry.key);
    }
    EXPECT_TRUE(listed == expected);
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
