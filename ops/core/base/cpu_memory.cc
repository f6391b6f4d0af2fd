// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/cpu_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/base/huge_page_heap.h"
#include "ops/core/base/spare_memory.h"

namespace rec_estimator {
namespace {

constexpr size_t kSmallPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

// Blocks of this size and above are mapped directly. malloc would keep freed
// memory, and a growing table frees a long series of ever larger blocks.
constexpr size_t kMapFrom = size_t{256} << 10;

// What LimitAllocations has set.
std::atomic<bool> is_limited{false};
std::atomic<int64_t> allocations_left{0};
// Blocks of these sizes share huge pages if asked for: the indexes of the 64
// stripes of tables of 100,000 to 10 million keys. The ends of larger blocks,
// below 2 MiB, hardly matter.
constexpr size_t kShareFrom = kPageAlignedBytes;
constexpr size_t kShareBelow = size_t{8} << 20;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// AddressSanitizer finds errors at the ends of blocks only if blocks are apart.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMayShare = false;
#else
constexpr bool kMayShare = true;
#endif

bool SharesHugePages(size_t bytes, Pages pages) {
  return kMayShare && pages == Pages::kHuge && bytes >= kShareFrom &&
         bytes < kShareBelow;
}

void* Map(size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

}  // namespace

void LimitAllocations(int64_t n) {
  allocations_left = n;
  is_limited = n >= 0;
}

ZeroedMemory AllocateZeroed(size_t bytes, Pages pages) {
  const ZeroedDeleter deleter{bytes};
  if (bytes > PTRDIFF_MAX - kHugePage) return nullptr;
  if (is_limited.load(std::memory_order_relaxed) && --allocations_left < 0) {
    return nullptr;
  }
  if (SharesHugePages(bytes, pages)) {
    void* memory = HugePageHeap::OfProcess().Allocate(bytes);
    return ZeroedMemory(memory, {memory == nullptr ? 0 : bytes, true});
  }
  if (bytes < kMapFrom) {
    const size_t unit = bytes < kPageAlignedBytes ? kCacheLine : kSmallPage;
    const size_t size = RoundUp(bytes, unit);
    void* memory = std::aligned_alloc(unit, size);
    if (memory != nullptr) std::memset(memory, 0, size);
    return ZeroedMemory(memory, deleter);
  }
  const size_t size = RoundUp(bytes, kSmallPage);
  // mmap aligns to 4 KiB only: map 2 MiB more and unmap what is not needed.
  const size_t spare = size >= kHugePage ? kHugePage - kSmallPage : 0;
  void* mapped = Map(size + spare);
  // A limit of the process, which spare blocks count against.
  if (mapped == MAP_FAILED && SpareMemory::OfProcess().FreeAll()) {
    mapped = Map(size + spare);
  }
  if (mapped == MAP_FAILED) return nullptr;
  if (spare == 0) return ZeroedMemory(mapped, deleter);
  char* begin = static_cast<char*>(mapped);
  const size_t before = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage) -
                        reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (spare > before) munmap(begin + before + size, spare - before);
  // Only a hint: without huge pages everything works, but more slowly.
  if (pages == Pages::kHuge) madvise(begin + before, size, MADV_HUGEPAGE);
  return ZeroedMemory(begin + before, deleter);
}

void Populate(void* memory, size_t bytes) {
  if (bytes < kMapFrom) return;  // Zeroed, so touched.
#if defined(MADV_POPULATE_WRITE)
  // Since Linux 5.14.
  if (madvise(memory, RoundUp(bytes, kSmallPage), MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  volatile char* page = static_cast<char*>(memory);
  for (size_t at = 0; at < bytes; at += kSmallPage) page[at] = 0;
}

void ZeroedDeleter::operator()(void* memory) const {
  if (in_heap) {
    HugePageHeap::OfProcess().Free(memory, bytes);
  } else if (bytes < kMapFrom) {
    std::free(memory);
  } else {
    munmap(memory, RoundUp(bytes, kSmallPage));
  }
}

}  // namespace rec_estimator
