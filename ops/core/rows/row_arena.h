// SPDX-License-Identifier: Apache-2.0
// The memory of a table's rows: numbered rows in blocks that never move.
#ifndef REC_ESTIMATOR_OPS_CORE_ROWS_ROW_ARENA_H_
#define REC_ESTIMATOR_OPS_CORE_ROWS_ROW_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {

// Row r is row r % 2^k of block r / 2^k; a block holds 2 to 4 MiB (one row if
// that is more). A directory maps blocks to addresses. It grows by being
// copied, and old copies live until Clear, so a View needs no lock. A row that
// is handed out holds anything: its memory may have been another arena's.
//
// Rows are handed out in order and are never given back one by one: the caller
// keeps a free row for reuse, or makes the last rows free and gives back their
// memory with Trim. After ReserveQuota, a Take from the quota cannot
// fail.
//
// Thread rule: ReserveQuota, ReleaseQuota, Take and bytes may be called from
// any thread. view() is for threads that are synchronized with the Take of each
// row they read, which a stripe's lock ensures. Clear, Swap and Trim need that
// no other thread uses rows or takes some.
class RowArena {
 public:
  explicit RowArena(size_t row_floats);  // row_floats >= 1
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  size_t row_floats() const { return row_floats_; }

  // The addresses of rows, for use in a loop.
  class View {
   public:
    float* Row(uint32_t row) const {
      return blocks_[row >> shift_] + (row & mask_) * row_floats_;
    }

   private:
    friend class RowArena;
    float* const* blocks_;
    uint32_t shift_;
    uint32_t mask_;
    size_t row_floats_;
  };
  View view() const {
    View view;
    view.blocks_ = directory_.load(std::memory_order_acquire);
    view.shift_ = shift_;
    view.mask_ = (1u << shift_) - 1;
    view.row_floats_ = row_floats_;
    return view;
  }

  // Ensures that `rows` rows can be taken later; false if there is no memory.
  bool ReserveQuota(uint64_t rows);
  // Returns the unused rest of a quota.
  void ReleaseQuota(uint64_t rows);
  // Hands out rows *first, *first + 1, ..., uninitialized; `from_quota` of them
  // are charged to the caller's quota. Returns false and changes nothing if
  // there is no memory.
  bool Take(uint64_t rows, uint64_t from_quota, uint32_t* first);

  // Takes back the rows from `rows` on, which nobody uses any more. Gives the
  // memory of all rows that are not handed out to the system; it comes anew
  // when they are. With rows = kAll, other threads may use rows and take some.
  static constexpr uint64_t kAll = UINT64_MAX;
  void Trim(uint64_t rows);
  // The rows that may occupy memory, handed out or not.
  uint64_t in_memory() const;

  uint64_t taken() const;  // Rows handed out.
  size_t bytes() const;    // The size of the rows handed out.

  // Frees all memory, large blocks for reuse by any arena of the process; rows
  // and views become invalid.
  void Clear();

  // Exchanges rows with an arena of another row size. Quotas stay.
  void Swap(RowArena* other);

 private:
  struct Extent;
  // A list, newest first: extending it allocates nothing but the element.
  using Extents = std::unique_ptr<Extent>;

  static Extents Allocate(size_t bytes, Pages pages);  // Null: no memory.
  void Keep(Extents extent);

  // mutex_ is held for both.
  bool Grow(uint64_t rows);
  bool Publish(Extents extent, uint64_t blocks);

  size_t row_floats_;
  uint32_t shift_;  // log2 of the rows of a block.
  std::atomic<float**> directory_{nullptr};

  // Guards the members below, and writes to those above.
  mutable std::mutex mutex_;
  uint64_t directory_size_ = 0;  // Blocks that fit into directory_.
  uint64_t blocks_ = 0;          // Blocks that are mapped.
  uint64_t next_ = 0;            // Rows handed out.
  uint64_t quota_ = 0;           // Rows reserved and not taken yet.
  uint64_t in_memory_ = 0;       // What in_memory() returns.
  Extents extents_;              // Owns blocks and directories.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_ROW_ARENA_H_
