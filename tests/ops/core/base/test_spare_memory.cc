// SPDX-License-Identifier: Apache-2.0
// SpareMemory: which blocks are kept, for whom, and how many.
#include <thread>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/spare_memory.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// AddressSanitizer wants freed memory unmapped, so nothing is kept.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

// Returns the address of the block.
void* KeepNew(SpareMemory* spare, size_t bytes) {
  ZeroedMemory block = AllocateZeroed(bytes, Pages::kHuge);
  void* address = block.get();
  spare->Keep(std::move(block));
  return address;
}

TEST(AKeptBlockGoesToTheNextWhoWantsItsSize) {
  if (!kKeeps) return;
  SpareMemory spare(100 * kMiB);
  void* kept = KeepNew(&spare, 4 * kMiB);
  EXPECT_TRUE(spare.Take(2 * kMiB) == nullptr);
  EXPECT_TRUE(spare.Take(6 * kMiB) == nullptr);
  EXPECT_EQ(spare.bytes(), 4 * kMiB);
  const ZeroedMemory taken = spare.Take(4 * kMiB);
  EXPECT_TRUE(taken.get() == kept);
  EXPECT_EQ(BytesOf(taken), 4 * kMiB);
  EXPECT_EQ(spare.bytes(), 0u);
  EXPECT_TRUE(spare.Take(4 * kMiB) == nullptr);
}

TEST(ATakenBlockHoldsWhatIsWrittenIntoIt) {
  if (!kKeeps) return;
  SpareMemory spare(100 * kMiB);
  KeepNew(&spare, 4 * kMiB);
  const ZeroedMemory taken = spare.Take(4 * kMiB);
  char* bytes = static_cast<char*>(taken.get());
  for (size_t i = 0; i < 4 * kMiB; ++i) bytes[i] = static_cast<char>(i % 127);
  size_t wrong = 0;
  for (size_t i = 0; i < 4 * kMiB; ++i) {
    wrong += bytes[i] != static_cast<char>(i % 127);
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(BeyondTheLimitTheOldestBlocksAreFreed) {
  if (!kKeeps) return;
  SpareMemory spare(10 * kMiB);
  KeepNew(&spare, 4 * kMiB);
  void* second = KeepNew(&spare, 4 * kMiB);
  void* third = KeepNew(&spare, 6 * kMiB);
  EXPECT_EQ(spare.bytes(), 10 * kMiB);
  EXPECT_TRUE(spare.Take(6 * kMiB).get() == third);
  EXPECT_TRUE(spare.Take(4 * kMiB).get() == second);
  KeepNew(&spare, 11 * kMiB);
  EXPECT_EQ(spare.bytes(), 0u);
}

TEST(FreeAllLeavesNothing) {
  SpareMemory spare(100 * kMiB);
  EXPECT_FALSE(spare.FreeAll());
  KeepNew(&spare, 4 * kMiB);
  EXPECT_EQ(spare.FreeAll(), kKeeps);
  EXPECT_EQ(spare.bytes(), 0u);
  EXPECT_TRUE(spare.Take(4 * kMiB) == nullptr);
}

TEST(ThreadsNeverShareABlock) {
  SpareMemory spare(64 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&spare, t] {
      for (int i = 0; i < 200; ++i) {
        ZeroedMemory block = spare.Take(2 * kMiB);
        if (block == nullptr) block = AllocateZeroed(2 * kMiB, Pages::kHuge);
        int* number = static_cast<int*>(block.get());
        *number = t;
        std::this_thread::yield();
        EXPECT_EQ(*number, t);
        spare.Keep(std::move(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
