// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include "ops/core/base/prefetcher.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

using Item = std::unique_ptr<int>;

TEST(ItemsComeInOrderAndEnd) {
  for (const bool on_thread : {false, true}) {
    int made = 0;
    Prefetcher<Item> items;
    items.Start(
        [&made](Item* item) {
          if (made == 1000) return false;
          *item = std::make_unique<int>(made++);
          return true;
        },
        on_thread);
    Item item;
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(items.Next(&item));
      EXPECT_EQ(*item, i);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(!items.Next(&item));
      EXPECT_TRUE(item == nullptr);
    }
  }
}

struct Counted {
  explicit Counted(std::atomic<int>* alive) : alive(*alive) { ++*alive; }
  ~Counted() { --alive; }
  std::atomic<int>& alive;
};

TEST(FewItemsAreAliveAtATime) {
  for (const bool on_thread : {false, true}) {
    // The user's; on a thread also one that is ready, one that is made, and one
    // that was given back.
    const int most = on_thread ? 4 : 1;
    std::atomic<int> alive{0}, most_alive{0}, made{0};
    {
      Prefetcher<std::unique_ptr<Counted>> items;
      items.Start(
          [&](std::unique_ptr<Counted>* item) {
            if (*item == nullptr) *item = std::make_unique<Counted>(&alive);
            most_alive = std::max<int>(most_alive, alive);
            return ++made <= 1000;
          },
          on_thread);
      std::unique_ptr<Counted> item;
      while (items.Next(&item)) EXPECT_TRUE(item != nullptr);
    }
    EXPECT_EQ(made, 1001);
    EXPECT_TRUE(most_alive >= 1 && most_alive <= most);
    EXPECT_EQ(alive, 0);
  }
}

TEST(AnErrorComesAfterTheItemsBeforeIt) {
  for (const bool on_thread : {false, true}) {
    int made = 0;
    Prefetcher<Item> items;
    items.Start(
        [&made](Item* item) {
          if (made == 3) throw std::runtime_error("the fourth");
          *item = std::make_unique<int>(made++);
          return true;
        },
        on_thread);
    Item item;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(items.Next(&item));
      EXPECT_EQ(*item, i);
    }
    bool is_thrown = false;
    try {
      items.Next(&item);
    } catch (const std::runtime_error&) {
      is_thrown = true;
    }
    EXPECT_TRUE(is_thrown);
  }
}

// One is ready then, and one is made that nobody takes.
TEST(ItEndsBeforeItsItems) {
  for (const int taken : {0, 1, 5}) {
    std::atomic<int> made{0};
    Prefetcher<Item> items;
    items.Start(
        [&made](Item* item) {
          *item = std::make_unique<int>(made++);
          return true;
        },
        true);
    Item item;
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(items.Next(&item));
    while (made < taken + 2) std::this_thread::yield();
    EXPECT_EQ(made, taken + 2);
  }
}

TEST(WhatMakesItemsIsDestroyedOnItsThread) {
  for (const bool on_thread : {false, true}) {
    for (const int taken : {1, 3, 10}) {
      std::thread::id made_on, destroyed_on;
      {
        const auto note = [&destroyed_on](int* held) {
          destroyed_on = std::this_thread::get_id();
          delete held;
        };
        Prefetcher<Item> items;
        items.Start(
            [&made_on, left = std::shared_ptr<int>(new int(5), note)](Item*) {
              made_on = std::this_thread::get_id();
              return (*left)-- > 0;
            },
            on_thread);
        Item item;
        for (int i = 0; i < taken; ++i) items.Next(&item);
      }
      EXPECT_TRUE(made_on == destroyed_on);
      EXPECT_EQ(made_on == std::this_thread::get_id(), !on_thread);
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
