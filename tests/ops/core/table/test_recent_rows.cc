// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "ops/core/table/recent_rows.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr size_t kFloats = 3;

std::vector<float> RowOf(float value) {
  return std::vector<float>(kFloats, value);
}

void Add(RecentRows* rows, uint32_t place, float value) {
  rows->Add(place, rows->StampOf(place), RowOf(value).data(), kFloats);
}

// The row of a place; empty: it is not there.
std::vector<float> Find(const RecentRows& rows, uint32_t place,
                        size_t floats = kFloats) {
  std::vector<float> row(floats, -1.0f);
  if (!rows.Copy(place, floats, row.data())) row.clear();
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
  rows.Add(7, stamp, RowOf(1.0f).data(), kFloats);
  EXPECT_TRUE(Find(rows, 7).empty());
  const uint32_t next = rows.StampOf(7);
  rows.Clear();
  rows.Add(7, next, RowOf(1.0f).data(), kFloats);
  EXPECT_TRUE(Find(rows, 7).empty());
}

TEST(OldestRowsGoFirst) {
  RecentRows rows(4 * kFloats * sizeof(float));
  for (uint32_t place = 0; place < 6; ++place) {
    Add(&rows, place, static_cast<float>(place));
  }
  EXPECT_TRUE(Find(rows, 0).empty() && Find(rows, 1).empty());
  for (uint32_t place = 2; place < 6; ++place) {
    EXPECT_TRUE(Find(rows, place) == RowOf(static_cast<float>(place)));
  }
  // A row, and less than 100 bytes to find it.
  EXPECT_TRUE(rows.bytes() <= 4 * (kFloats * sizeof(float) + 100));
}

TEST(RowsOfAnotherWidthReplaceAll) {
  RecentRows rows(1 << 20);
  Add(&rows, 1, 1.0f);
  const std::vector<float> wide(5, 2.0f);
  rows.Add(2, rows.StampOf(2), wide.data(), wide.size());
  EXPECT_TRUE(Find(rows, 1).empty());
  EXPECT_TRUE(Find(rows, 2, 5) == wide);
  RecentRows none(4);
  Add(&none, 1, 1.0f);
  EXPECT_TRUE(Find(none, 1).empty());
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
