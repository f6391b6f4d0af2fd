// SPDX-License-Identifier: Apache-2.0
// Zeroed memory aligned to cache lines, in huge pages where they pay. Freed
// memory goes back to the operating system at once, except that of rows:
// spare_memory.h.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rec_estimator {

// Bytes; of every x86 and most ARM servers.
inline constexpr size_t kCacheLine = 64;

enum class Pages {
  kSmall,  // 4 KiB: for memory that may stay mostly untouched.
  kHuge,   // 2 MiB, which blocks below 8 MiB share (huge_page_heap.h): an entry
           // of the TLB covers 512 times as much, and random reads of a large
           // table miss the TLB each time.
};

// Frees the memory of AllocateZeroed.
struct ZeroedDeleter {
  void operator()(void* memory) const;
  size_t bytes = 0;      // As allocated.
  bool in_heap = false;  // In HugePageHeap.
};
using ZeroedMemory = std::unique_ptr<void, ZeroedDeleter>;

// Blocks of so many bytes and more begin at a multiple of 4 KiB.
inline constexpr size_t kPageAlignedBytes = size_t{64} << 10;

// Zeroed memory aligned to a cache line; null if there is none. bytes >= 1.
// Blocks of small pages and those of 8 MiB and more occupy memory only where
// they are touched.
ZeroedMemory AllocateZeroed(size_t bytes, Pages pages);

// Bytes that were asked for; 0 for null.
inline size_t BytesOf(const ZeroedMemory& memory) {
  return memory == nullptr ? 0 : memory.get_deleter().bytes;
}

// Maps all pages of a block that will soon be written everywhere. This is
// cheaper than one page fault per page, and much cheaper than faults in memory
// that is read before it is written.
void Populate(void* memory, size_t bytes);

// Fetch a line into the caches. To GCC, a function that does nothing but
// prefetch has no effect: it drops calls of one that it does not inline. The
// empty asm is an effect.
inline void PrefetchLine(const void* address) {
  __builtin_prefetch(address);
  __asm__ volatile("");
}
inline void PrefetchLineToWrite(const void* address) {
  __builtin_prefetch(address, 1);
  __asm__ volatile("");
}

// Prefetches the lines of [address, address + bytes), at most `max_lines` of
// them: the hardware prefetches a longer run on its own.
inline void PrefetchLines(const void* address, size_t bytes,
                          size_t max_lines = 8) {
  const char* line = reinterpret_cast<const char*>(
      reinterpret_cast<uintptr_t>(address) & ~(kCacheLine - 1));
  const char* end = static_cast<const char*>(address) + bytes;
  for (size_t i = 0; i < max_lines && line < end; ++i, line += kCacheLine) {
    PrefetchLine(line);
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_
