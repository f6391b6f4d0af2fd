// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "ops/core/tier/recent_rows.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr size_t kFloats = 3;

std::vector<float> RowOf(float value) {
  return std::vector<float>(kFloats, value);
}

void AddWithStamp(RecentRows* rows, uint32_t place, uint32_t stamp,
                  std::vector<float> row) {
  const DiskLog::Item item = {place, 0, row.data()};
  rows->Add(&item, &stamp, 1, row.size());
}

void Add(RecentRows* rows, uint32_t place, float value) {
  AddWithStamp(rows, place, rows->StampOf(place), RowOf(value));
}

// The row of a place; empty: it is not there.
std::vector<float> Find(const RecentRows& rows, uint32_t place,
                        size_t floats = kFloats) {
  std::vector<float> row(floats, -1.0f);
  const DiskLog::Item item = {place, 0, row.data()};
  if (!rows.Copy(&item, 1, floats).empty()) row.clear();
  return row;
}

constexpr uint32_t kPlace = 7;

TEST(RowsAreFoundUntilTheirPlaceIsFreed) {
  RecentRows rows(1 << 20);
  Add(&rows, 7, 1.5f);
  Add(&rows, 9, 2.5f);
  EXPECT_TRUE(Find(rows, 7) == RowOf(1.5f));
  EXPECT_TRUE(Find(rows, 9, 1) == std::vector<float>{2.5f});
  EXPECT_TRUE(Find(rows, 8).empty());
  EXPECT_TRUE(Find(rows, 9, kFloats + 1).empty());
  rows.Forget(&kPlace, 1);
  EXPECT_TRUE(Find(rows, 7).empty());
  Add(&rows, 7, 3.5f);
  EXPECT_TRUE(Find(rows, 7) == RowOf(3.5f));
  rows.Clear();
  EXPECT_TRUE(Find(rows, 7).empty() && Find(rows, 9).empty());
}

TEST(ARowWhosePlaceWasFreedWhileItWasReadIsNotKept) {
  RecentRows rows(1 << 20);
  const uint32_t stamp = rows.StampOf(7);
  rows.Forget(&kPlace, 1);
  AddWithStamp(&rows, 7, stamp, RowOf(1.0f));
  EXPECT_TRUE(Find(rows, 7).empty());
  const uint32_t next = rows.StampOf(7);
  rows.Clear();
  AddWithStamp(&rows, 7, next, RowOf(1.0f));
  EXPECT_TRUE(Find(rows, 7).empty());
}

TEST(OldestRowsGoFirst) {
  constexpr uint32_t kRows = 400;
  RecentRows rows(kRows * kFloats * sizeof(float));
  for (uint32_t place = 0; place < kRows + 2; ++place) {
    Add(&rows, place, static_cast<float>(place));
  }
  EXPECT_TRUE(Find(rows, 0).empty() && Find(rows, 1).empty());
  for (uint32_t place = 2; place < kRows + 2; ++place) {
    EXPECT_TRUE(Find(rows, place) == RowOf(static_cast<float>(place)));
  }
  // Vectors have room for up to twice as many rows. Less than 50 bytes find
  // one.
  EXPECT_TRUE(rows.bytes() <= kRows * (2 * kFloats * sizeof(float) + 50));
}

TEST(RowsOfAnotherWidthReplaceAll) {
  RecentRows rows(1 << 20);
  Add(&rows, 1, 1.0f);
  const std::vector<float> wide(5, 2.0f);
  AddWithStamp(&rows, 2, rows.StampOf(2), wide);
  EXPECT_TRUE(Find(rows, 1).empty());
  EXPECT_TRUE(Find(rows, 2, 5) == wide);
  RecentRows none(4);
  Add(&none, 1, 1.0f);
  EXPECT_TRUE(Find(none, 1).empty());
}

TEST(RandomOperationsMatchAMap) {
  constexpr size_t kRows = 50;
  RecentRows rows(kRows * kFloats * sizeof(float));
  std::map<uint32_t, float> expected;  // By place that is kept.
  std::vector<uint32_t> slots(kRows, ~uint32_t{0});
  size_t next = 0;
  uint32_t random = 1;
  for (int i = 0; i < 50000; ++i) {
    random = random * 1664525 + 1013904223;
    // Places of few pages, and far ones.
    const uint32_t place = (random >> 8) % 120 * (random >> 31 ? 1 : 65536);
    const float value = static_cast<float>(i);
    if ((random >> 16) % 4 == 0) {
      rows.Forget(&place, 1);
      if (expected.erase(place) > 0) {
        std::replace(slots.begin(), slots.end(), place, ~uint32_t{0});
      }
    } else {
      Add(&rows, place, value);
      if (expected.emplace(place, value).second) {
        expected.erase(slots[next]);
        slots[next] = place;
        next = (next + 1) % kRows;
      }
    }
    const auto kept = expected.find(place);
    EXPECT_TRUE(
        Find(rows, place) ==
        (kept == expected.end() ? std::vector<float>() : RowOf(kept->second)));
  }
  for (const auto& [place, value] : expected) {
    EXPECT_TRUE(Find(rows, place) == RowOf(value));
  }
}

TEST(ThreadsNeverFindARowThatWasFreed) {
  RecentRows rows(64 * kFloats * sizeof(float));
  // Each place has one owner at a time, which writes its next value.
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&rows, &wrong, t] {
      for (int i = 0; i < 20000; ++i) {
        const uint32_t place = t * 4096 + static_cast<uint32_t>(i % 40);
        const float value = static_cast<float>(i);
        Add(&rows, place, value);
        const std::vector<float> found = Find(rows, place);
        wrong += !found.empty() && found != RowOf(value);
        rows.Forget(&place, 1);
        wrong += !Find(rows, place).empty();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
