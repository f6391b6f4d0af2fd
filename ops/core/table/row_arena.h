// SPDX-License-Identifier: Apache-2.0
// Where the rows of one table live: blocks that never move, numbered rows.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_ROW_ARENA_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_ROW_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace rec_estimator {

// Row r is row r % 2^k of block r / 2^k; a block holds 2 to 4 MiB (one row if
// that is more). A directory maps blocks to addresses; it grows by being
// copied, and old copies live until Clear, so that View needs no lock.
//
// Rows are handed out in order and never given back one by one: who took a row
// keeps it for reuse. `Promise` first, so that a later `Take` cannot fail.
//
// Thread rule: Promise, Release, Take and bytes from any thread; view() from a
// thread that is synchronized with the Take of each row it reads (a shard's
// lock does that); Clear, Swap from one thread while no other uses the arena.
class RowArena {
 public:
  explicit RowArena(size_t row_floats);  // row_floats >= 1
  ~RowArena() { Clear(); }
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  size_t row_floats() const { return row_floats_; }

  // Addresses of rows, for use in a loop.
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

  // Sees to it that `rows` rows can be taken later; false: no memory.
  bool Promise(uint64_t rows);
  // Takes back what is left of a promise.
  void Release(uint64_t rows);
  // Hands out rows *first, *first + 1, ...; `promised` of them out of the
  // caller's promise. False, nothing changed: no memory. Uninitialized.
  bool Take(uint64_t rows, uint64_t promised, uint32_t* first);

  uint64_t taken() const;  // Rows handed out.
  size_t bytes() const;    // Of the rows handed out.

  // Gives all memory back; rows and views are gone.
  void Clear();

  // Exchanges contents with an arena of another row size. Promises stay.
  void Swap(RowArena* other);

 private:
  struct Extent;

  // Both: mutex_ is held.
  bool Grow(uint64_t rows);
  bool Publish(float* memory, uint64_t blocks);

  size_t row_floats_;
  uint32_t shift_;  // log2 of the rows of a block.
  std::atomic<float**> directory_{nullptr};

  mutable std::mutex mutex_;  // Guards what follows, and writes to the above.
  uint64_t directory_size_ = 0;  // Blocks that fit into directory_.
  uint64_t blocks_ = 0;          // Blocks that are mapped.
  uint64_t next_ = 0;            // Rows handed out.
  uint64_t promised_ = 0;        // Rows that may still be asked for.
  Extent* extents_ = nullptr;    // What is to be freed, newest first.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_ROW_ARENA_H_
