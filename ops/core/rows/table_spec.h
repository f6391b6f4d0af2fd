// SPDX-License-Identifier: Apache-2.0
// What is fixed about an embedding table when it is made: slots, filter, rules.
#ifndef REC_ESTIMATOR_OPS_CORE_ROWS_TABLE_SPEC_H_
#define REC_ESTIMATOR_OPS_CORE_ROWS_TABLE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rec_estimator {

// One optimizer slot of every row, e.g. {"Adagrad", dim, 0.1f}.
struct SlotSpec {
  std::string name;
  int width;      // Floats: the table's dim, or 1 for row-wise rules.
  float initial;  // Every float of the slot in a new row.
};

// How the values of rows are stored. Of a table with kInt8, a byte for each
// element and a scale and an offset for each row, values are read and replaced,
// but not trained.
enum class ValueType { kFloat32, kBFloat16, kHalf, kInt8 };

struct ValueSpec {
  ValueType type = ValueType::kFloat32;
  // Seeds the random bits that round trained values and slots of 16 bits.
  uint64_t seed = 0;
  // Whether slots of more than one number are of bfloat16. Others are of
  // floats.
  bool has_narrow_slots = false;

  bool is_narrow() const {
    return type != ValueType::kFloat32 || has_narrow_slots;
  }
};

// The most elements of a value if it or its slots are not of floats: a step
// widens rows on the stack.
inline constexpr int kMaxNarrowDim = 2048;

// What a lookup reads for a key without a row.
enum class UnknownKey {
  kInitial,  // Its initial vector: row floormod(key, bank rows) of the bank.
  kDefault,  // The default vector: every element `default_value`.
};

// A sketch: its registered name and its parameters (sketch.h).
struct SketchSpec {
  std::string name;  // Empty: none.
  std::map<std::string, double> parameters;

  friend bool operator==(const SketchSpec& a, const SketchSpec& b) {
    return a.name == b.name && a.parameters == b.parameters;
  }
};

// Which keys own rows.
struct FilterSpec {
  uint32_t threshold = 0;    // Count that admits a key; 0: every key at once.
  uint32_t coefficient = 1;  // What one occurrence adds to a key's count.
  // What counts the keys without a row. None: entries do. A threshold of 0 or 1
  // needs neither.
  SketchSpec sketch = {};
};

// The key that tables with padding reserve.
inline constexpr int64_t kPaddingKey = -1;

// Keys of somebody else.
struct KeySpan {
  const int64_t* keys;  // (n)
  size_t n;
};

// How many rows a table keeps, and which it gives up when it is full
// (evict/capacity.h).
struct CapacitySpec {
  enum Policy { kLeastCounted, kOldest, kDecayed };
  int64_t max_rows = 0;  // 0: no such limit.
  Policy policy = kLeastCounted;
  // kDecayed: after so many versions without a step, a count is worth half.
  int64_t half_life = 1;

  friend bool operator==(const CapacitySpec& a, const CapacitySpec& b) {
    return a.max_rows == b.max_rows && a.policy == b.policy &&
           a.half_life == b.half_life;
  }
};

// Other rules for the rows of a table.
struct RowRules {
  int64_t max_rows = 0;  // 0: limited by memory only.
  // Whether kPaddingKey is padding: it reads the default
  // vector, and an apply neither stores nor counts it.
  bool has_padding = false;
  // Distinct keys whose values no apply changes. Their slots do change.
  std::vector<int64_t> frozen_keys;
  CapacitySpec capacity = {};
  ValueSpec value;  // If narrow, dim <= kMaxNarrowDim.
};

// What a table has, and what happened to it since it was made.
struct TableActivity {
  int64_t rows = 0;
  int64_t entries = 0;  // With those of keys that are only counted.
  int64_t memory_bytes = 0;
  // Occurrences of keys in steps, and of those whose key had a row before.
  int64_t looked_up = 0;
  int64_t found = 0;
  int64_t removed_rows = 0;  // Evicted or erased.
  int64_t disk_rows = 0;
  int64_t hits = 0;    // As in TierCounts.
  int64_t misses = 0;  // As in TierCounts.
};

// What a table with rows on disk did. All 0 without a tier.
struct TierCounts {
  int64_t memory_rows = 0;
  int64_t disk_rows = 0;
  // Distinct keys of steps whose rows were in memory, and were on disk.
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t spills = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t read_ns = 0;  // The time that threads waited for reads.
  int64_t file_bytes = 0;
  int64_t buffer_bytes = 0;  // Memory in addition to rows and index.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_TABLE_SPEC_H_
