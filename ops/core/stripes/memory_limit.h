// SPDX-License-Identifier: Apache-2.0
// One limit for all that a table with rows on disk has in memory.
//
//   limit | index, of all keys | buffers | a 16th of the rest | rows
//
// The index grows with every key, also with those whose rows are on disk, and
// rows give way to it. Of what is left for rows, those of a step need a part:
// they are brought in and inserted before others are spilled. A 16th stays
// free, so that memory is given back in large pieces: that reads the whole
// index, under all locks, and takes about as long as a large step.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_MEMORY_LIMIT_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_MEMORY_LIMIT_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "ops/core/rows/row_store.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Gives the memory of rows back to the system, until the arena has `rows` rows
// or no free one. Moves rows in memory. No lock is held. Throws std::bad_alloc,
// and has changed nothing then.
void TrimRows(StripeSet* stripes, RowStore* store, uint64_t rows);

class MemoryLimit {
 public:
  // Called once, with a message, if index and buffers leave no room for rows.
  using Warn = std::function<void(const std::string&)>;

  // stripes and store outlive it.
  MemoryLimit(int64_t bytes, StripeSet* stripes, RowStore* store, Warn warn)
      : bytes_(bytes), stripes_(*stripes), store_(*store), warn_(warn) {}
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // Thread rule: any thread may call these at any time. No lock is held.

  // Called before rows are spilled. in_memory: the rows in memory. Returns how
  // many of them may stay, at least kStripes.
  int64_t RowsToKeep(int64_t in_memory, int64_t buffer_bytes);
  // Called after it. Gives memory back if there is too much of it.
  void GiveBack(int64_t in_memory);

 private:
  int64_t IndexBytes() const;  // Includes what the allocator loses.
  void WarnOnce(int64_t index_bytes, int64_t buffer_bytes);

  const int64_t bytes_;
  StripeSet& stripes_;
  RowStore& store_;
  const Warn warn_;
  std::mutex trimming_;  // One thread gives memory back.

  std::mutex mutex_;  // Guards what follows.
  bool has_warned_ = false;
  int64_t most_ = 0;    // Rows that there is memory for.
  int64_t usable_ = 0;  // Rows after memory was given back.
  int64_t kept_ = 0;    // Rows in memory after the last spill.
  // Rows that a step adds until it ends: the most of late.
  int64_t working_ = 0;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_MEMORY_LIMIT_H_
