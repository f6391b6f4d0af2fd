// SPDX-License-Identifier: Apache-2.0
// The rows of one table: their memory, their slots and their initial values.
#ifndef REC_ESTIMATOR_OPS_CORE_ROWS_ROW_STORE_H_
#define REC_ESTIMATOR_OPS_CORE_ROWS_ROW_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

// The initial vectors of keys: row floormod(key, rows) of a bank. Copied into
// loops; valid while a stripe's lock is held.
class InitialVectors {
 public:
  // bank: (rows, dim); rows >= 1.
  InitialVectors(const float* bank, int64_t rows, int dim)
      : bank_(bank),
        rows_(rows),
        mask_((rows & (rows - 1)) == 0 ? rows - 1 : -1),
        dim_(dim) {}

  const float* Of(int64_t key) const {  // (dim)
    return bank_ + (mask_ >= 0 ? key & mask_ : FloorMod(key, rows_)) * dim_;
  }
  const float* bank() const { return bank_; }
  int64_t rows() const { return rows_; }

 private:
  const float* bank_;
  int64_t rows_;
  int64_t mask_;  // rows - 1 if rows is a power of two, else -1.
  int64_t dim_;
};

// Which stripe owns which row is the stripes' business; this class provides the
// memory and knows the layout of a row.
//
// Thread rule: bank and slots change under the locks of all stripes and under
// metadata_mutex_. So one stripe's lock is enough to read them; methods marked
// "no lock" take metadata_mutex_ instead.
class RowStore {
 public:
  RowStore(int dim, float default_value)
      : dim_(dim),
        zeros_(static_cast<size_t>(dim), 0.0f),
        defaults_(static_cast<size_t>(dim), default_value),
        initial_(zeros_.data(), 1, dim),
        arena_(static_cast<size_t>(dim)) {}
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  int dim() const { return dim_; }
  const float* default_vector() const { return defaults_.data(); }  // (dim)

  // Takes and reserves rows.
  RowArena& arena() { return arena_; }
  const RowArena& arena() const { return arena_; }
  RowArena::View view() const { return arena_.view(); }
  size_t row_bytes() const { return arena_.row_floats() * sizeof(float); }

  const InitialVectors& initial() const { return initial_; }
  const std::vector<SlotSpec>& slots() const { return slots_; }
  const std::vector<float>& slot_initials() const { return slot_initials_; }

  // Writes the initial vector of `key` and the initial slots.
  void InitializeRow(int64_t key, float* row) const {
    CopyRow(initial_.Of(key), dim_, row);
    std::copy(slot_initials_.begin(), slot_initials_.end(), row + dim_);
  }

  // No lock.
  int row_floats() const;
  int64_t bank_rows() const;  // 0 before the first SetBank.
  std::vector<float> CopyBank() const;
  std::vector<SlotSpec> CopySlots() const;
  bool BeginsWithSlots(const std::vector<SlotSpec>& wanted) const;

  // All stripes are locked exclusively.
  // `bank` holds rows * dim floats.
  void SetBank(ZeroedMemory bank, int64_t rows);
  // As EmbeddingTable::EnsureSlots. Calls widen_others(floats) for what it adds
  // to rows, before it changes anything; false: they cannot be widened.
  using WidenOthers = std::function<bool(const std::vector<float>&)>;
  bool EnsureSlots(const std::vector<SlotSpec>& wanted,
                   const WidenOthers& widen_others);
  // Frees all rows. Bank and slots stay.
  void Clear() { arena_.Clear(); }

 private:
  // Appends `added` to every row of the arena. False: no memory.
  bool WidenRows(const std::vector<float>& added,
                 const WidenOthers& widen_others);

  const int dim_;
  const std::vector<float> zeros_;     // (dim); the bank before SetBank.
  const std::vector<float> defaults_;  // (dim)

  mutable std::mutex metadata_mutex_;
  std::vector<SlotSpec> slots_;
  std::vector<float> slot_initials_;  // (row_floats - dim)
  ZeroedMemory bank_;                 // Null before SetBank.
  InitialVectors initial_;            // The rows of bank_, or zeros_.

  RowArena arena_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_ROW_STORE_H_
