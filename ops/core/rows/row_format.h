// SPDX-License-Identifier: Apache-2.0
// RowFormat: how a row lies in memory and on disk.
//
//   kFloat32       |value: dim floats          |slot 0 ...|slot 1 ...|
//   16 bits        |value: dim x 16 bits |(0)|slot 0 ...|slot 1 ...|
//   8 bits         |scale|offset|value: dim bytes |(0)|
//
// A slot is of floats or, if the table has narrow slots, of bfloat16. A slot of
// one number is a float always: it takes a word in either type.
//
// Values and slots of fewer than 32 bits fill whole words of 4 bytes, so that
// what follows is aligned: the rest of the last word is zero. Rows of 8 bits
// are those of an export: no step trains them.
//
// Whatever moves rows as a whole, such as the arena or a disk log, moves words
// and does not know the format. Whatever reads or writes values and slots asks
// this class, and then has floats:
//
//   WithReader     lookups: a loop over rows
//   ReadValue, ReadSlot
//                  EntryReader, of which saves and exports read
//   ValueView      one value at a time, for rules of eviction
//   WriteValue     restores and refreshes, the bank: rounded to the nearest
//   WriteSlot      restores; initial slots
//   WithTrained    steps: a loop over rows, which are rounded stochastically
#ifndef REC_ESTIMATOR_OPS_CORE_ROWS_ROW_FORMAT_H_
#define REC_ESTIMATOR_OPS_CORE_ROWS_ROW_FORMAT_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/math/narrow_floats.h"
#include "ops/core/math/narrowing.h"
#include "ops/core/math/quantized_floats.h"
#include "ops/core/math/widening.h"
#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

struct FloatValues {};
// Type: FloatValues, ToBFloat16 or ToHalf.
template <typename Widening, typename Type>
class TrainedFormat;

class RowFormat {
 public:
  RowFormat(int dim, const ValueSpec& value)
      : dim_(dim),
        is_narrow_(value.type != ValueType::kFloat32),
        has_bytes_(value.type == ValueType::kInt8),
        has_narrow_slots_(value.has_narrow_slots),
        type_(value.type == ValueType::kHalf ? NarrowType::kHalf
                                             : NarrowType::kBFloat16),
        seed_(MixKey(static_cast<int64_t>(value.seed))) {}

  int dim() const { return dim_; }
  // Whether values have fewer than 32 bits.
  bool is_narrow() const { return is_narrow_; }
  // The words of 4 bytes of a value: where the slots of a row begin.
  int value_words() const {
    if (has_bytes_) return kScaleWords + (dim_ + 3) / 4;
    return is_narrow_ ? (dim_ + 1) / 2 : dim_;
  }
  size_t value_bytes() const {
    return static_cast<size_t>(value_words()) * sizeof(float);
  }

  // value (dim) = that of a row.
  void ReadValue(const float* row, float* value) const {
    if (!is_narrow_) return CopyRow(row, dim_, value);
    if (!has_bytes_) return WidenFloats(type_, NarrowOf(row), dim_, value);
    DequantizeFloats(BytesOf(row), {row[0], row[1]}, dim_, value);
  }

  // Calls loop(read), where read(row, value) does the same as ReadValue. Both
  // are always inlined here: for a loop over rows, which is compiled for each
  // format and for the instructions of the CPU.
  template <typename Loop>
  void WithReader(Loop loop) const {
    if (!is_narrow_) return loop(FloatReader{dim_});
    const RowFormat format = *this;
    WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
      format.WithNarrowReader<decltype(widening)>(loop);
    });
  }

  // Makes `value` (dim) that of a row, rounded to the nearest numbers.
  void WriteValue(const float* value, float* row) const {
    if (!is_narrow_) return CopyRow(value, dim_, row);
    row[value_words() - 1] = 0.0f;
    if (!has_bytes_) return NarrowFloats(type_, value, dim_, NarrowOf(row));
    auto* bytes = reinterpret_cast<uint8_t*>(row + kScaleWords);
    const ByteScale scale = QuantizeFloats(value, dim_, bytes);
    row[0] = scale.scale;
    row[1] = scale.offset;
  }

  // Calls loop(format) for a loop over the rows that a step trains, compiled as
  // that of WithReader. Not of rows of 8 bits. `format` is a TrainedFormat.
  template <typename Loop>
  void WithTrained(Loop loop) const {
    const RowFormat format = *this;
    WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
      using Widening = decltype(widening);
      if (!format.is_narrow_) {
        return loop(TrainedFormat<Widening, FloatValues>(format));
      }
      format.type_ == NarrowType::kHalf
          ? loop(TrainedFormat<Widening, ToHalf>(format))
          : loop(TrainedFormat<Widening, ToBFloat16>(format));
    });
  }

  // Whether a slot of so many numbers has fewer than 32 bits for each.
  bool IsNarrowSlot(int width) const { return has_narrow_slots_ && width > 1; }
  // The words of 4 bytes of such a slot.
  int slot_words(int width) const {
    return IsNarrowSlot(width) ? (width + 1) / 2 : width;
  }

  // to (width) = a slot, which is stored at `slot`.
  void ReadSlot(const float* slot, int width, float* to) const {
    if (!IsNarrowSlot(width)) return CopyRow(slot, width, to);
    WidenFloats(kSlotType, NarrowOf(slot), width, to);
  }

  // Makes `from` (width) a slot, rounded to the nearest numbers.
  void WriteSlot(const float* from, int width, float* slot) const {
    if (!IsNarrowSlot(width)) return CopyRow(from, width, slot);
    slot[slot_words(width) - 1] = 0.0f;
    NarrowFloats(kSlotType, from, width, NarrowOf(slot));
  }

  // What the random bits of a step for one row come from: the same in every
  // run, for any number of threads and shards. The count tells steps apart that
  // have the same version, as those without a global step do.
  uint64_t NoiseOf(int64_t key, int64_t version, uint32_t count) const {
    const uint64_t of_key = MixKey(key) ^ seed_;
    const uint64_t of_step = (static_cast<uint64_t>(version) << 32) +
                             static_cast<uint64_t>(version >> 32) + count;
    return MixKey(static_cast<int64_t>(of_key + of_step * kGoldenRatio));
  }

 private:
  template <typename Widening, typename Type>
  friend class TrainedFormat;

  static constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15u;
  static constexpr int kScaleWords = 2;
  static constexpr NarrowType kSlotType = NarrowType::kBFloat16;

  template <typename Widening, typename Loop>
  inline __attribute__((always_inline)) void WithNarrowReader(
      const Loop& loop) const {
    if (has_bytes_) return loop(ByteReader<Widening>{dim_});
    type_ == NarrowType::kHalf ? loop(HalfReader<Widening>{dim_})
                               : loop(BFloat16Reader<Widening>{dim_});
  }

  // What WithReader passes to a loop.
  struct FloatReader {
    int dim;
    inline __attribute__((always_inline)) void operator()(const float* row,
                                                          float* value) const {
      CopyRow(row, dim, value);
    }
  };
  template <typename Widening>
  struct BFloat16Reader {
    int dim;
    inline __attribute__((always_inline)) void operator()(const float* row,
                                                          float* value) const {
      WidenBFloat16s<Widening>(NarrowOf(row), dim, value);
    }
  };
  template <typename Widening>
  struct HalfReader {
    int dim;
    inline __attribute__((always_inline)) void operator()(const float* row,
                                                          float* value) const {
      WidenHalves<Widening>(NarrowOf(row), dim, value);
    }
  };
  template <typename Widening>
  struct ByteReader {
    int dim;
    inline __attribute__((always_inline)) void operator()(const float* row,
                                                          float* value) const {
      WidenBytes<Widening>(BytesOf(row), {row[0], row[1]}, dim, value);
    }
  };

  static const uint8_t* BytesOf(const float* row) {
    return reinterpret_cast<const uint8_t*>(row + kScaleWords);
  }
  static NarrowFloat* NarrowOf(float* row) {
    return reinterpret_cast<NarrowFloat*>(row);
  }
  static const NarrowFloat* NarrowOf(const float* row) {
    return reinterpret_cast<const NarrowFloat*>(row);
  }
  int dim_;
  bool is_narrow_;
  bool has_bytes_;
  bool has_narrow_slots_;
  NarrowType type_;
  uint64_t seed_;
};

// What RowFormat::WithTrained passes to a loop: the format of its rows, always
// inlined. It reads as RowFormat does, and writes what a step has computed.
template <typename Widening, typename Type>
class TrainedFormat {
 public:
  explicit TrainedFormat(const RowFormat& format) : format_(format) {}

  int dim() const { return format_.dim(); }
  int value_words() const { return kIsNarrow ? (dim() + 1) / 2 : dim(); }
  int slot_words(int width) const { return format_.slot_words(width); }

  inline __attribute__((always_inline)) void ReadValue(const float* row,
                                                       float* value) const {
    if constexpr (kIsNarrow) {
      Widen<Type>(row, dim(), value);
    } else {
      CopyRow(row, dim(), value);
    }
  }
  inline __attribute__((always_inline)) void ReadSlot(const float* slot,
                                                      int width,
                                                      float* to) const {
    if (!format_.IsNarrowSlot(width)) return CopyRow(slot, width, to);
    Widen<ToBFloat16>(slot, width, to);
  }

  // Makes `value` (dim) that of a row, rounded stochastically. noise:
  // RowFormat::NoiseOf the step.
  inline __attribute__((always_inline)) void WriteValue(const float* value,
                                                        uint64_t noise,
                                                        float* row) const {
    if constexpr (kIsNarrow) {
      Narrow<Type>(value, noise, dim(), value_words(), row);
    } else {
      CopyRow(value, dim(), row);
    }
  }
  // The same for a slot. number: of the slot in its row, as each has random
  // bits of its own.
  inline __attribute__((always_inline)) void WriteSlot(const float* from,
                                                       int width, size_t number,
                                                       uint64_t noise,
                                                       float* slot) const {
    if (!format_.IsNarrowSlot(width)) return CopyRow(from, width, slot);
    const uint64_t own = MixKey(static_cast<int64_t>(noise + number + 1));
    Narrow<ToBFloat16>(from, own, width, slot_words(width), slot);
  }

 private:
  static constexpr bool kIsNarrow = !std::is_same_v<Type, FloatValues>;

  template <typename Of>
  static inline __attribute__((always_inline)) void Widen(const float* from,
                                                          int n, float* to) {
    if constexpr (std::is_same_v<Of, ToHalf>) {
      WidenHalves<Widening>(RowFormat::NarrowOf(from), n, to);
    } else {
      WidenBFloat16s<Widening>(RowFormat::NarrowOf(from), n, to);
    }
  }
  // The rest of the last word is zero.
  template <typename Of>
  static inline __attribute__((always_inline)) void Narrow(const float* from,
                                                           uint64_t noise,
                                                           int n, int words,
                                                           float* to) {
    to[words - 1] = 0.0f;
    NarrowAll<Widening, Of, Stochastically>(from, noise, n,
                                            RowFormat::NarrowOf(to));
  }

  const RowFormat format_;
};

// The values of rows as floats, one at a time.
class ValueView {
 public:
  explicit ValueView(const RowFormat& format)
      : format_(format),
        wide_(format.is_narrow() ? static_cast<size_t>(format.dim()) : 0) {}

  // (dim); valid until the next call.
  const float* Of(const float* row) {
    if (!format_.is_narrow()) return row;
    format_.ReadValue(row, wide_.data());
    return wide_.data();
  }

 private:
  const RowFormat format_;
  std::vector<float> wide_;
};

// What rows read of values that were written to them.
class ValueRounding {
 public:
  explicit ValueRounding(const RowFormat& format)
      : format_(format),
        row_(static_cast<size_t>(format.value_words())),
        read_(format.is_narrow() ? static_cast<size_t>(format.dim()) : 0) {}

  // value (dim) = what a row reads after WriteValue(value).
  void Round(float* value) {
    if (!format_.is_narrow()) return;
    format_.WriteValue(value, row_.data());
    format_.ReadValue(row_.data(), value);
  }

  // The place of the first number of a finite value (dim) that rows cannot
  // hold: they would read an infinity or a NaN. -1: there is none.
  int FirstLost(const float* value) {
    if (!format_.is_narrow()) return -1;
    const auto is_infinite = [](float x) { return !std::isfinite(x); };
    read_.assign(value, value + format_.dim());
    Round(read_.data());
    const auto lost = std::find_if(read_.begin(), read_.end(), is_infinite);
    if (lost == read_.end()) return -1;
    if (std::any_of(value, value + format_.dim(), is_infinite)) return -1;
    return static_cast<int>(lost - read_.begin());
  }

 private:
  const RowFormat format_;
  std::vector<float> row_;
  std::vector<float> read_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_ROW_FORMAT_H_
