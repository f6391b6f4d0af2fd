// SPDX-License-Identifier: Apache-2.0
// Blocks that share huge pages.
//
// A mapping of its own gets pages of 4 KiB for what is left of its size after
// multiples of 2 MiB. Mapping such a page costs a fault of 1.7 us, and random
// reads of an index miss the TLB each time. Here blocks lie side by side in
// regions of huge pages, so none is left over. The 64 stripes of a
// table grow one after the other, so what one of them frees, the next ones use,
// and no new page is touched.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_HUGE_PAGE_HEAP_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_HUGE_PAGE_HEAP_H_

#include <cstddef>
#include <memory>
#include <mutex>

namespace rec_estimator {

// All methods may be called from any thread.
class HugePageHeap {
 public:
  static constexpr size_t kRegionBytes = size_t{32} << 20;
  // Blocks begin at multiples of this and occupy multiples of it.
  static constexpr size_t kUnit = size_t{4} << 10;

  HugePageHeap();
  ~HugePageHeap();
  HugePageHeap(const HugePageHeap&) = delete;
  HugePageHeap& operator=(const HugePageHeap&) = delete;

  static HugePageHeap& OfProcess();

  // Returns zeroed memory; nullptr if there is none. 1 <= bytes <=
  // kRegionBytes.
  void* Allocate(size_t bytes);
  // Frees a block. A region without blocks goes back to the system.
  void Free(void* block, size_t bytes);

  size_t regions() const;

 private:
  struct Region;

  // mutex_ is held for both. nullptr: there is no room, or no memory.
  char* TakeFromRegions(size_t units);
  char* TakeFromNewRegion(size_t units);

  mutable std::mutex mutex_;
  std::unique_ptr<Region> first_;  // A list. Guarded by mutex_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_HUGE_PAGE_HEAP_H_
