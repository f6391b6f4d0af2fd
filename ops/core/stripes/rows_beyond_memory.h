// SPDX-License-Identifier: Apache-2.0
// What stripes and steps ask of the tier that keeps rows beyond memory.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_ROWS_BEYOND_MEMORY_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_ROWS_BEYOND_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace rec_estimator {

class RowsBeyondMemory {
 public:
  // Frees places (n) of a stripe that is locked exclusively.
  virtual void Free(int stripe, const uint32_t* places, size_t n) = 0;
  // Spares a new row of a stripe that is locked: it stays in memory until the
  // batches on their way, which could not ask for it, must have run.
  virtual void SpareNew(int stripe, uint32_t row) = 0;

 protected:
  ~RowsBeyondMemory() = default;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_ROWS_BEYOND_MEMORY_H_
