// SPDX-License-Identifier: Apache-2.0
// Large blocks of memory that were freed and are likely to be wanted again.
//
// New memory is expensive: the system clears it, and a virtual machine whose
// host takes back what its guest frees first gets it from there. A table that
// is emptied and restored, or closed and built again for the next evaluation,
// would pay that for all its rows each time.
//
// Kept blocks are marked with MADV_FREE: the system takes their pages as soon
// as it runs short of memory, and a page that it took is a new one when it is
// written again. Until then tools count them as memory of the process.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_SPARE_MEMORY_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_SPARE_MEMORY_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {

// All methods may be called from any thread.
class SpareMemory {
 public:
  // Keeps at most `limit` bytes.
  explicit SpareMemory(size_t limit) : limit_(limit) {}
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  // The one of the process. It keeps at most a quarter of the machine's memory.
  static SpareMemory& OfProcess();

  // Returns a kept block of exactly this size, with unspecified contents; null
  // if there is none.
  ZeroedMemory Take(size_t bytes);

  // Keeps a block that nobody uses any more, and frees the oldest blocks beyond
  // the limit. Frees the block instead if it cannot be kept.
  void Keep(ZeroedMemory block);

  // Frees all blocks. Returns whether there were any.
  bool FreeAll();

  size_t bytes() const;  // The sum of all kept blocks.

 private:
  const size_t limit_;
  mutable std::mutex mutex_;
  std::vector<ZeroedMemory> blocks_;  // Oldest first. Guarded by mutex_.
  size_t bytes_ = 0;                  // Guarded by mutex_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_SPARE_MEMORY_H_
