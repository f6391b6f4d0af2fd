// SPDX-License-Identifier: Apache-2.0
// HugePageHeap: blocks do not overlap, are zeroed, and are given back.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/huge_page_heap.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr size_t kRegion = HugePageHeap::kRegionBytes;

bool IsFilledWith(const char* bytes, size_t n, char value) {
  return std::all_of(bytes, bytes + n, [=](char c) { return c == value; });
}

// Allocates and frees blocks at random and checks that each keeps its bytes.
void Churn(HugePageHeap* heap, uint32_t seed, int steps) {
  struct Block {
    char* memory;
    size_t bytes;
    char value;
  };
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int i = 0; i < steps; ++i) {
    if (blocks.size() < 10 || random() % 2 == 0) {
      const size_t bytes = 1 + random() % (size_t{1} << 20);
      char* memory = static_cast<char*>(heap->Allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % HugePageHeap::kUnit, 0u);
      EXPECT_TRUE(IsFilledWith(memory, bytes, 0));
      const char value = static_cast<char>(1 + random() % 100);
      std::memset(memory, value, bytes);
      blocks.push_back({memory, bytes, value});
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block block = blocks.back();
      blocks.pop_back();
      EXPECT_TRUE(IsFilledWith(block.memory, block.bytes, block.value));
      heap->Free(block.memory, block.bytes);
    }
  }
  for (const Block& block : blocks) heap->Free(block.memory, block.bytes);
}

TEST_WITHOUT_TSAN(BlocksAreZeroedAndDoNotOverlap) {
  HugePageHeap heap;
  Churn(&heap, 1, 600);
  EXPECT_EQ(heap.regions(), 0u);
}

TEST(ThreadsGetBlocksOfTheirOwn) {
  HugePageHeap heap;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&heap, t] { Churn(&heap, t, 200); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heap.regions(), 0u);
}

TEST(ABlockMayFillARegion) {
  HugePageHeap heap;
  char* block = static_cast<char*>(heap.Allocate(kRegion));
  block[kRegion - 1] = 1;
  EXPECT_EQ(heap.regions(), 1u);
  void* other = heap.Allocate(1);
  EXPECT_EQ(heap.regions(), 2u);
  heap.Free(block, kRegion);
  EXPECT_EQ(heap.regions(), 1u);
  heap.Free(other, 1);
  EXPECT_EQ(heap.regions(), 0u);
}

TEST(FreedBlocksMakeRoomForALargerOne) {
  HugePageHeap heap;
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(heap.Allocate(kRegion / 16));
  EXPECT_EQ(heap.regions(), 1u);
  heap.Free(blocks[4], kRegion / 16);
  heap.Free(blocks[5], kRegion / 16);
  EXPECT_TRUE(heap.Allocate(kRegion / 8) == blocks[4]);
  EXPECT_EQ(heap.regions(), 1u);
}

TEST(BlocksOfHugePagesComeFromTheHeap) {
  const size_t before = HugePageHeap::OfProcess().regions();
  ZeroedMemory small = AllocateZeroed(size_t{300} << 10, Pages::kSmall);
  EXPECT_EQ(HugePageHeap::OfProcess().regions(), before);
  std::vector<ZeroedMemory> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(AllocateZeroed(size_t{300} << 10, Pages::kHuge));
  }
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_TRUE(HugePageHeap::OfProcess().regions() >= 2);
#endif
  blocks.clear();
  EXPECT_EQ(HugePageHeap::OfProcess().regions(), before);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
