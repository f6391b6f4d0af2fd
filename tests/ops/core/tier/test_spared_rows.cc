// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/tier/spared_rows.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(RowsAreSparedWhileAsManyBatchesCome) {
  SparedRows ahead;
  EXPECT_TRUE(!ahead.IsSpared(7));
  ahead.Begin(3, 100);
  ahead.Spare(5, 7);
  ahead.Spare(5, 8);
  ahead.Spare(5, 7);
  EXPECT_EQ(ahead.spared(5), 2);
  ahead.Begin(3, 100);
  ahead.Spare(5, 8);
  ahead.Begin(3, 100);
  EXPECT_TRUE(ahead.IsSpared(7) && ahead.IsSpared(8) && !ahead.IsSpared(9));
  EXPECT_EQ(ahead.spared(5), 2);
  ahead.Begin(3, 100);
  EXPECT_TRUE(!ahead.IsSpared(7) && ahead.IsSpared(8));
  EXPECT_EQ(ahead.spared(5), 1);
  ahead.Begin(3, 100);
  EXPECT_TRUE(!ahead.IsSpared(8));
  EXPECT_EQ(ahead.spared(5), 0);
}

TEST(NothingIsSparedBeforeABatchComesAndAfterAllAreGivenUp) {
  SparedRows ahead;
  ahead.Spare(0, 1);
  EXPECT_TRUE(!ahead.IsSpared(1));
  ahead.Begin(2, 10);
  ahead.Spare(0, 1);
  ahead.Spare(63, 2);
  ahead.GiveUp();
  EXPECT_TRUE(!ahead.IsSpared(1) && !ahead.IsSpared(2));
  EXPECT_EQ(ahead.spared(0) + ahead.spared(63), 0);
  ahead.Spare(0, 1);
  EXPECT_TRUE(!ahead.IsSpared(1));
  ahead.Begin(2, 10);
  ahead.Spare(0, 1);
  EXPECT_TRUE(ahead.IsSpared(1) && !ahead.IsSpared(2));
  EXPECT_EQ(ahead.spared(0), 1);
}

TEST(StepsWithoutABatchGiveUpAll) {
  SparedRows ahead;
  ahead.Begin(2, 10);
  ahead.Spare(0, 1);
  for (int step = 0; step < 9; ++step) {
    ahead.EndStep();
    ahead.Begin(2, 10);
    ahead.Spare(0, 1);
  }
  ahead.EndStep();
  ahead.EndStep();
  EXPECT_TRUE(ahead.IsSpared(1));
  ahead.EndStep();
  EXPECT_TRUE(!ahead.IsSpared(1));
}

TEST(RowsWithoutAMarkAreNotSpared) {
  SparedRows ahead;
  ahead.Begin(2, 10);
  for (const uint32_t row : {10u, 1u << 20, (1u << 31) - 1}) {
    ahead.Spare(0, row);
    EXPECT_TRUE(!ahead.IsSpared(row));
  }
  EXPECT_EQ(ahead.spared(0), 0);
  EXPECT_EQ(ahead.bytes(), size_t{40});
  ahead.Begin(2, (1 << 20) + 1);  // Another block of marks.
  ahead.Spare(0, 1 << 20);
  EXPECT_TRUE(ahead.IsSpared(1 << 20));
}

TEST(TheNumbersOfBatchesStartAgain) {
  SparedRows ahead(std::numeric_limits<uint32_t>::max() - 2);
  for (uint32_t batch = 0; batch < 10; ++batch) {
    ahead.Begin(1, 10);
    ahead.Spare(0, batch);
    EXPECT_EQ(ahead.spared(0), 1);
    for (uint32_t row = 0; row < 10; ++row) {
      EXPECT_EQ(ahead.IsSpared(row), row == batch);
    }
  }
}

TEST(MoreBatchesThanTheMostAreGivenUp) {
  SparedRows ahead;
  for (uint32_t batch = 0; batch < 200; ++batch) {
    ahead.Begin(1000, 200);
    ahead.Spare(0, batch);
  }
  EXPECT_EQ(ahead.spared(0), int64_t{SparedRows::kMostBatches});
  EXPECT_TRUE(ahead.IsSpared(200 - SparedRows::kMostBatches));
  EXPECT_TRUE(!ahead.IsSpared(199 - SparedRows::kMostBatches));
}

TEST(ThreadsLeaveNoRowSparedForEver) {
  constexpr uint32_t kRows = 2000;
  SparedRows ahead;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {  // New rows of steps, and their ends.
      std::mt19937 random(t);
      while (!done) {
        for (int i = 0; i < 50; ++i) {
          const uint32_t row = random() % kRows;
          ahead.Spare(static_cast<int>(row % kStripes), row);
          ahead.IsSpared(random() % kRows);
        }
        ahead.EndStep();
        if (random() % 64 == 0) ahead.GiveUp();
      }
    });
  }
  std::mt19937 random(9);
  for (int batch = 0; batch < 3000; ++batch) {
    ahead.Begin(4, kRows);
    for (int i = 0; i < 50; ++i) {
      const uint32_t row = random() % kRows;
      ahead.Spare(static_cast<int>(row % kStripes), row);
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  // A batch that was given up while a row was spared for it keeps that row in
  // its sum until its place is used again, so all places are used.
  for (uint32_t batch = 0; batch <= SparedRows::kMostBatches; ++batch) {
    ahead.Begin(4, kRows);
  }
  ahead.GiveUp();
  for (uint32_t row = 0; row < kRows; ++row) {
    EXPECT_TRUE(!ahead.IsSpared(row));
  }
  for (int s = 0; s < kStripes; ++s) EXPECT_EQ(ahead.spared(s), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
