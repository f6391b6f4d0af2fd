// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "ops/core/base/background_work.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(AnotherThreadDoesAllPiecesOneAtATime) {
  std::atomic<int> running{0}, most_running{0}, done{0}, here{0};
  const std::thread::id caller = std::this_thread::get_id();
  BackgroundWork work([&] {
    most_running = std::max<int>(most_running, ++running);
    here += std::this_thread::get_id() == caller;
    ++done;
    --running;
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        work.Add(static_cast<uint64_t>(i % 3));
        work.WaitUntilLeft(5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  work.WaitUntilLeft(0);
  EXPECT_EQ(done.load(), 3 * 199);
  EXPECT_EQ(most_running.load(), 1);
  EXPECT_EQ(here.load(), 0);
}

TEST(AddDoesNotWaitAndWaitUntilLeftDoes) {
  std::atomic<bool> may_go{false};
  std::atomic<int> done{0};
  BackgroundWork work([&] {
    while (!may_go) std::this_thread::yield();
    ++done;
  });
  work.Add(10);
  work.WaitUntilLeft(10);
  EXPECT_EQ(done.load(), 0);
  may_go = true;
  work.WaitUntilLeft(4);
  EXPECT_TRUE(done >= 6);
}

TEST(TheEndWaitsForOnePieceAndDropsTheOthers) {
  std::atomic<bool> has_begun{false};
  std::atomic<int> done{0};
  auto work = std::make_unique<BackgroundWork>([&] {
    has_begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++done;
  });
  work->Add(1000);
  while (!has_begun) std::this_thread::yield();
  work.reset();
  EXPECT_TRUE(done >= 1 && done < 1000);
}

TEST(AForkedProcessNeitherWorksNorWaits) {
  std::atomic<int> done{0};
  auto work = std::make_unique<BackgroundWork>([&done] { ++done; });
  work->Add(1);
  work->WaitUntilLeft(0);
  EXPECT_EQ(InChild([&] {
              work->Add(1);
              work->WaitUntilLeft(0);
              work.reset();
              return done == 1 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
