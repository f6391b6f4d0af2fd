// SPDX-License-Identifier: Apache-2.0
// TableClock: the time of tables, by a clock that jumps and by data out of
// order.
#include <algorithm>
#include <cstdint>
#include <random>

#include "ops/core/evict/table_clock.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int64_t kNow = 1'700'000'000;
constexpr int64_t kYear = 365 * 24 * 3600;

TEST(TheFirstReadingIsTheTimeAndNoReadingLeavesIt) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(0, 0), 0);
  EXPECT_EQ(clock.Advance(0, kNow), kNow);
  EXPECT_EQ(clock.Advance(kNow, 0), kNow);
  EXPECT_EQ(clock.Advance(kNow, kNow + 3), kNow + 3);
}

TEST(AJumpAheadAdvancesTheTimeByTheMostOfAReading) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(kNow, kNow + kYear), kNow + 10);
  EXPECT_EQ(clock.Advance(kNow + 10, kNow + kYear), kNow + 20);
  // Set right again, the clock is behind, and the time advances with it.
  EXPECT_EQ(clock.Advance(kNow + 20, kNow + 1), kNow + 20);
  EXPECT_EQ(clock.Advance(kNow + 20, kNow + 4), kNow + 23);
}

TEST(AReadingWithinTheToleranceIsLateAndChangesNothing) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(kNow, kNow - 5), kNow);
  EXPECT_EQ(clock.Advance(kNow, kNow + 1), kNow + 1);
}

TEST(AClockThatWasSetBackGoesOnFromTheTime) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(kNow, kNow - 6), kNow);
  EXPECT_EQ(clock.Advance(kNow, kNow - 4), kNow + 2);
  EXPECT_EQ(clock.Advance(kNow + 2, kNow - kYear), kNow + 2);
  EXPECT_EQ(clock.Advance(kNow + 2, kNow - kYear + 7), kNow + 9);
  // Set right again, it tells the time.
  EXPECT_EQ(clock.Advance(kNow + 9, kNow + 11), kNow + 11);
  EXPECT_EQ(clock.Present(kNow + 11), kNow + 11);
}

TEST(OneWrongReadingOfLongAgoChangesNothing) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(kNow, 1), kNow);
  EXPECT_EQ(clock.Advance(kNow, kNow + 1), kNow + 1);
  EXPECT_EQ(clock.Advance(kNow + 1, kNow + 3), kNow + 3);
}

TEST(ALateReadingTellsHowLateItIs) {
  TableClock clock(10, 5);
  EXPECT_EQ(clock.Advance(kNow, kNow - 3), kNow);
  EXPECT_EQ(clock.Present(kNow - 3), kNow - 3);
  EXPECT_EQ(clock.Advance(kNow, kNow - kYear), kNow);
  EXPECT_EQ(clock.Present(kNow - kYear), kNow);
}

TEST(TheGreatestTimesDoNotOverflow) {
  constexpr int64_t kMost = TableClock::kMostSeconds;
  TableClock clock(INT64_MAX, INT64_MAX);
  EXPECT_EQ(clock.Advance(2 * kMost - 1, kMost - 1), 2 * kMost - 1);
  EXPECT_EQ(clock.Advance(1, kMost - 1), kMost - 1);
  TableClock strict(INT64_MAX, 0);
  EXPECT_EQ(strict.Advance(2 * kMost - 1, 1), 2 * kMost - 1);
  EXPECT_EQ(strict.Advance(2 * kMost - 1, kMost - 1), 3 * kMost - 3);
}

TEST(TheTimeNeverGoesBackAndNeverJumps) {
  std::mt19937_64 random(3);
  std::uniform_int_distribution<int64_t> jump(-2 * kYear, 2 * kYear);
  std::uniform_int_distribution<int64_t> pass(0, 20), kind(0, 9);
  for (int run = 0; run < 100; ++run) {
    TableClock clock(7, 30);
    int64_t now = kNow, time = now;
    for (int step = 0; step < 1000; ++step) {
      now = std::max<int64_t>(
          1, now + (kind(random) == 0 ? jump(random) : pass(random)));
      const int64_t next = clock.Advance(time, now);
      EXPECT_TRUE(next >= time && next <= time + 7);
      time = next;
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
