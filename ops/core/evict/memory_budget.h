// SPDX-License-Identifier: Apache-2.0
// MemoryBudget: several tables share memory.
//
// If all of them take more than the budget at the end of a step, each table of
// the step evicts its coldest rows (capacity.h), for a part of the excess in
// proportion to the memory that it takes. So a table with many new keys grows
// at the cost of all others, until the rows of each table stay equally long. A
// table whose part is less than a row evicts nothing: small tables keep their
// rows. The parts come from the sizes of the tables alone, so a stream of steps
// leaves the same rows in every run.
//
//   memory of a table = entries of its index * 35 + rows * their bytes
//
// An entry takes 35 bytes on average over the growth of an index, and stripes
// grow at different times. What sketches count is not included.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_MEMORY_BUDGET_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_MEMORY_BUDGET_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Thread rule: any thread may call any method at any time.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t bytes) : bytes_(bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // A table takes its memory from the budget until it leaves. Join throws
  // std::bad_alloc.
  void Join(const StripeSet* table);
  void Leave(const StripeSet* table);

  // What all tables took at the same moment.
  class Use {
   public:
    Use() = default;
    Use(int64_t taken, int64_t budget) : taken_(taken), budget_(budget) {}

    // How many rows a table evicts for its part of the excess.
    int64_t RowsToEvict(const StripeSet& table) const;

   private:
    int64_t taken_ = 0;
    int64_t budget_ = 0;
  };
  Use Measure() const;

 private:
  const int64_t bytes_;
  mutable std::mutex mutex_;
  std::vector<const StripeSet*> tables_;  // Guarded by mutex_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_MEMORY_BUDGET_H_
