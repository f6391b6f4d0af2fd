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
#include "ops/core/rows/row_format.h"
#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

// The initial vectors of keys: row floormod(key, rows) of a bank, in the format
// of rows. Copied into loops; valid while a stripe's lock is held.
class InitialVectors {
 public:
  // bank: (rows, words); rows >= 1.
  InitialVectors(const float* bank, int64_t rows, int words)
      : bank_(bank),
        rows_(rows),
        mask_((rows & (rows - 1)) == 0 ? rows - 1 : -1),
        words_(words) {}

  const float* Of(int64_t key) const {  // (words)
    return bank_ + (mask_ >= 0 ? key & mask_ : FloorMod(key, rows_)) * words_;
  }
  const float* bank() const { return bank_; }
  int64_t rows() const { return rows_; }

 private:
  const float* bank_;
  int64_t rows_;
  int64_t mask_;  // rows - 1 if rows is a power of two, else -1.
  int64_t words_;
};

// Which stripe owns which row is the stripes' business; this class provides the
// memory and knows the layout of a row.
//
// Thread rule: bank and slots change under the locks of all stripes and under
// metadata_mutex_. So one stripe's lock is enough to read them; methods marked
// "no lock" take metadata_mutex_ instead.
class RowStore {
 public:
  RowStore(int dim, float default_value, const ValueSpec& value = {});
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  int dim() const { return format_.dim(); }
  const RowFormat& format() const { return format_; }
  // (value_words) In the format of rows.
  const float* default_vector() const { return defaults_.data(); }

  // Takes and reserves rows.
  RowArena& arena() { return arena_; }
  const RowArena& arena() const { return arena_; }
  RowArena::View view() const { return arena_.view(); }
  // Bytes of a row as it is stored.
  size_t row_bytes() const { return arena_.row_floats() * sizeof(float); }

  const InitialVectors& initial() const { return initial_; }
  const std::vector<SlotSpec>& slots() const { return slots_; }
  // (words) The first values of all slots, as they are stored.
  const std::vector<float>& slot_initials() const { return slot_initials_; }

  // Whether the value and the first n slots are of floats, so that a row can be
  // used where it is.
  bool AreFloats(size_t n_slots) const {
    return !format_.is_narrow() &&
           std::none_of(slots_.begin(), SlotsEnd(n_slots),
                        [this](const SlotSpec& slot) {
                          return format_.IsNarrowSlot(slot.width);
                        });
  }
  // wide = the value and the first n slots of a row, as floats.
  void ReadRow(const float* row, size_t n_slots, float* wide) const {
    ReadRow(format_, row, n_slots, wide);
  }
  // The same, for loops: format is what RowFormat::WithTrained gives.
  template <typename Format>
  inline __attribute__((always_inline)) void ReadRow(const Format& format,
                                                     const float* row,
                                                     size_t n_slots,
                                                     float* wide) const {
    format.ReadValue(row, wide);
    row += format.value_words();
    wide += format.dim();
    for (size_t s = 0; s < n_slots; ++s) {
      const int width = slots_[s].width;
      format.ReadSlot(row, width, wide);
      row += format.slot_words(width);
      wide += width;
    }
  }
  // The opposite, for what a step has computed: rounded stochastically. noise:
  // RowFormat::NoiseOf the step.
  template <typename Format>
  inline __attribute__((always_inline)) void WriteTrainedRow(
      const Format& format, const float* wide, size_t n_slots, uint64_t noise,
      float* row) const {
    format.WriteValue(wide, noise, row);
    row += format.value_words();
    wide += format.dim();
    for (size_t s = 0; s < n_slots; ++s) {
      const int width = slots_[s].width;
      format.WriteSlot(wide, width, s, noise, row);
      row += format.slot_words(width);
      wide += width;
    }
  }

  // Writes the initial vector of `key` and the initial slots.
  void InitializeRow(int64_t key, float* row) const {
    const int words = format_.value_words();
    CopyRow(initial_.Of(key), words, row);
    std::copy(slot_initials_.begin(), slot_initials_.end(), row + words);
  }

  // No lock.
  int row_floats() const;               // dim + the slots' widths.
  int64_t stored_bytes() const;         // As row_bytes.
  int64_t bank_rows() const;            // 0 before the first SetBank.
  std::vector<float> CopyBank() const;  // (bank_rows, dim)
  std::vector<SlotSpec> CopySlots() const;
  bool BeginsWithSlots(const std::vector<SlotSpec>& wanted) const;

  // All stripes are locked exclusively.
  // `bank` holds rows * value_words floats, in the format of rows.
  void SetBank(ZeroedMemory bank, int64_t rows);
  // As EmbeddingTable::EnsureSlots. Calls widen_others(floats) for what it adds
  // to rows, before it changes anything; false: they cannot be widened.
  using WidenOthers = std::function<bool(const std::vector<float>&)>;
  bool EnsureSlots(const std::vector<SlotSpec>& wanted,
                   const WidenOthers& widen_others);
  // Frees all rows. Bank and slots stay.
  void Clear() { arena_.Clear(); }

 private:
  std::vector<SlotSpec>::const_iterator SlotsEnd(size_t n) const {
    return slots_.begin() + static_cast<std::ptrdiff_t>(n);
  }
  // Appends `added` to every row of the arena. False: no memory.
  bool WidenRows(const std::vector<float>& added,
                 const WidenOthers& widen_others);

  const RowFormat format_;
  const std::vector<float> zeros_;  // (value_words); the bank before SetBank.
  std::vector<float> defaults_;     // (value_words)

  mutable std::mutex metadata_mutex_;
  std::vector<SlotSpec> slots_;
  std::vector<float> slot_initials_;  // (words) As they are stored.
  ZeroedMemory bank_;                 // Null before SetBank.
  InitialVectors initial_;            // The rows of bank_, or zeros_.

  RowArena arena_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_ROW_STORE_H_
