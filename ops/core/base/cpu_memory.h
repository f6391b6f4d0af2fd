// SPDX-License-Identifier: Apache-2.0
// Memory as the machine gives it: zeroed, aligned to cache lines, in huge pages
// where that pays, and back to the operating system as soon as it is freed.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace rec_estimator {

constexpr size_t kCacheLine = 64;  // Bytes; every x86 and most ARM servers.

enum class Pages {
  kSmall,  // 4 KiB: memory that may stay mostly untouched.
  kHuge,   // 2 MiB where the block is that large: a TLB entry covers 512 times
           // as much, and random reads of a large table miss the TLB each time.
};

// Zeroed memory aligned to a cache line (to 2 MiB from 2 MiB on); nullptr if
// there is none. bytes >= 1. Large blocks take memory only where touched.
void* AllocateZeroed(size_t bytes, Pages pages);

// Takes the memory of a block at once that is about to be used all over:
// cheaper than a fault per page, and much cheaper than faults that read first.
void Populate(void* memory, size_t bytes);

// Gives back what AllocateZeroed(bytes, ...) returned; nullptr is allowed.
void FreeZeroed(void* memory, size_t bytes);

inline void PrefetchLine(const void* address) { __builtin_prefetch(address); }

// Prefetches the lines of [address, address + bytes), at most `max_lines` of
// them: the hardware follows a longer run by itself.
inline void PrefetchLines(const void* address, size_t bytes,
                          size_t max_lines = 8) {
  const char* line = reinterpret_cast<const char*>(
      reinterpret_cast<uintptr_t>(address) & ~(kCacheLine - 1));
  const char* end = static_cast<const char*>(address) + bytes;
  for (size_t i = 0; i < max_lines && line < end; ++i, line += kCacheLine) {
    __builtin_prefetch(line);
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_CPU_MEMORY_H_
