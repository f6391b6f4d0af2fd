// SPDX-License-Identifier: Apache-2.0
// RowArena: rows never move, and quotas are honoured.
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/spare_memory.h"
#include "ops/core/rows/row_arena.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(RowsKeepTheirAddressesAndDoNotOverlap) {
  for (const size_t floats : {size_t{1}, size_t{33}, size_t{700000}}) {
    RowArena arena(floats);
    const uint32_t rows = floats > 1000 ? 5 : 200000;
    std::vector<float*> addresses;
    while (addresses.size() < rows) {
      uint32_t first;
      EXPECT_TRUE(arena.Take(rows / 5, 0, &first));
      EXPECT_EQ(first, addresses.size());
      const RowArena::View view = arena.view();
      for (uint32_t r = first; r < first + rows / 5; ++r) {
        addresses.push_back(view.Row(r));
        view.Row(r)[0] = static_cast<float>(r);
        view.Row(r)[floats - 1] = static_cast<float>(r);
      }
    }
    const RowArena::View view = arena.view();
    for (uint32_t r = 0; r < rows; ++r) {
      EXPECT_TRUE(view.Row(r) == addresses[r]);
      EXPECT_EQ(addresses[r][0], static_cast<float>(r));
      EXPECT_EQ(addresses[r][floats - 1], static_cast<float>(r));
    }
    EXPECT_EQ(arena.taken(), rows);
    EXPECT_EQ(arena.bytes(), rows * floats * sizeof(float));
  }
}

TEST(RowsThatFillCacheLinesAreAlignedToThem) {
  RowArena arena(32);
  uint32_t first;
  EXPECT_TRUE(arena.Take(50000, 0, &first));
  for (uint32_t r = 0; r < 50000; ++r) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.view().Row(r)) % 64, 0u);
  }
}

TEST(TrimmedRowsAreHandedOutAgainAndKeepNoMemory) {
  for (const size_t floats : {size_t{32}, size_t{1101}}) {
    RowArena arena(floats);
    uint32_t first;
    EXPECT_TRUE(arena.ReserveQuota(5));
    EXPECT_TRUE(arena.Take(40000, 0, &first));
    for (uint32_t r = 0; r < 40000; ++r) arena.view().Row(r)[0] = 1 + r;
    arena.Trim(12345);
    EXPECT_EQ(arena.taken(), 12345u);
    EXPECT_EQ(arena.bytes(), 12345 * floats * sizeof(float));
    arena.Trim(20000);
    EXPECT_EQ(arena.taken(), 12345u);
    const RowArena::View view = arena.view();
    uint32_t kept = 0, cleared = 0;
    for (uint32_t r = 0; r < 40000; ++r) {
      if (r < 12345) EXPECT_EQ(view.Row(r)[0], static_cast<float>(1 + r));
      // New pages are zeros. A page that is shared with other rows is kept.
      if (r >= 12345) (view.Row(r)[0] == 0 ? cleared : kept) += 1;
    }
    EXPECT_TRUE(cleared > 100 * kept);
    EXPECT_TRUE(arena.Take(40000 - 12345, 5, &first));
    EXPECT_EQ(first, 12345u);
    view.Row(39999)[0] = 7;
    EXPECT_EQ(arena.view().Row(39999)[0], 7.0f);
  }
}

TEST(QuotaTakesNoRowAndIsRefusedBeyondTheLimit) {
  RowArena arena(4);
  EXPECT_TRUE(arena.ReserveQuota(1000));
  EXPECT_EQ(arena.taken(), 0u);
  uint32_t first;
  EXPECT_TRUE(arena.Take(400, 400, &first));
  EXPECT_EQ(first, 0u);
  arena.ReleaseQuota(600);
  EXPECT_FALSE(arena.ReserveQuota(uint64_t{1} << 31));
  EXPECT_FALSE(arena.Take(uint64_t{1} << 31, 0, &first));
  EXPECT_EQ(arena.taken(), 400u);
}

TEST(ClearFreesAllRows) {
  RowArena arena(4);
  uint32_t first;
  EXPECT_TRUE(arena.Take(300000, 0, &first));
  arena.Clear();
  EXPECT_EQ(arena.taken(), 0u);
  EXPECT_TRUE(arena.Take(1, 0, &first));
  EXPECT_EQ(first, 0u);
}

TEST(AnArenaGetsTheMemoryThatAnotherOneOfItsRowSizeHasFreed) {
#if !defined(__SANITIZE_ADDRESS__)
  constexpr uint32_t kRows = 300000;
  std::set<const float*> first_rows, again;
  const auto fill = [](std::set<const float*>* addresses) {
    RowArena arena(32);
    uint32_t first;
    EXPECT_TRUE(arena.Take(kRows, 0, &first));
    // Beyond the first block, whose pages are small.
    for (uint32_t r = kRows / 2; r < kRows; ++r) {
      addresses->insert(arena.view().Row(r));
    }
  };
  fill(&first_rows);
  EXPECT_TRUE(SpareMemory::OfProcess().bytes() >= kRows / 2 * 32 * 4);
  const ZeroedMemory other = AllocateZeroed(size_t{64} << 20, Pages::kHuge);
  fill(&again);
  size_t same = 0;
  for (const float* row : again) same += first_rows.count(row);
  EXPECT_TRUE(same > kRows / 4);
#endif
}

TEST(ThreadsTakeDisjointRows) {
  RowArena arena(3);
  constexpr uint32_t kRows = 50000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (uint32_t i = 0; i < kRows; i += 10) {
        uint32_t first;
        EXPECT_TRUE(arena.ReserveQuota(10));
        EXPECT_TRUE(arena.Take(10, 10, &first));
        const RowArena::View view = arena.view();
        for (uint32_t r = first; r < first + 10; ++r) {
          view.Row(r)[0] = static_cast<float>(t + 1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint32_t> taken(5, 0);
  for (uint32_t r = 0; r < 4 * kRows; ++r) {
    ++taken[static_cast<size_t>(arena.view().Row(r)[0])];
  }
  for (int t = 1; t <= 4; ++t) EXPECT_EQ(taken[t], kRows);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
