// SPDX-License-Identifier: Apache-2.0
// Rows that several occurrences of a key share: copied to each of them, and
// summed over them. Rows to be copied may be of 16-bit numbers; copies and sums
// are of floats.
//
// Another thread may write to the indices of an input (read_once.h). So it is a
// copy that is checked and used.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/math/narrow_floats.h"

namespace rec_estimator {

// Whether each index (n) is one of `rows` rows.
inline bool AreRows(const int32_t* index, int64_t n, int64_t rows) {
  // A negative index is a large one without its sign.
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, static_cast<uint32_t>(index[i]));
  }
  return n == 0 || static_cast<int64_t>(largest) < rows;
}

// Rows of floats, one behind the other.
struct FloatRows {
  const float* values;  // (rows, dim)
  int dim;

  void Copy(int64_t row, float* out) const {  // (dim)
    CopyRow(values + row * dim, dim, out);
  }
};

// Rows of 16-bit numbers, which are widened.
struct NarrowRows {
  NarrowType type;
  const NarrowFloat* values;  // (rows, dim)
  int dim;

  void Copy(int64_t row, float* out) const {  // (dim)
    WidenFloats(type, values + row * dim, dim, out);
  }
};

// out (n, dim): row i is row index[i] of `rows`, FloatRows or NarrowRows.
template <typename Rows>
void CopyIndexedRows(const Rows& rows, const int32_t* index, int64_t n,
                     float* out) {
  for (int64_t i = 0; i < n; ++i) rows.Copy(index[i], out + i * rows.dim);
}

// Adds row i of `values` (n, dim) to row index[i] of `sums`, one after the
// other. A sum that starts with +0 has the bits of SumOccurrences.
template <typename Index>
void AddIndexedRows(const float* values, const Index* index, int64_t n, int dim,
                    float* sums) {
  for (int64_t i = 0; i < n; ++i) {
    const float* value = values + i * dim;
    float* sum = sums + static_cast<int64_t>(index[i]) * dim;
    int d = 0;
    for (; d + kFloat8 <= dim; d += kFloat8) {
      StoreFloat8(LoadFloat8(sum + d) + LoadFloat8(value + d), sum + d);
    }
    for (; d < dim; ++d) sum[d] += value[d];
  }
}

// Calls work(at, indices, size) for parts of the indices (n), which are copied
// and checked. False, with a part done: an index is not in [0, rows).
template <typename Work>
bool ForCheckedIndices(const int32_t* index, int64_t n, int64_t rows,
                       const Work& work) {
  constexpr int64_t kPart = 256;
  int32_t copy[kPart];
  for (int64_t at = 0; at < n; at += kPart) {
    const int64_t size = std::min(kPart, n - at);
    std::copy_n(index + at, size, copy);
    if (!AreRows(copy, size, rows)) return false;
    work(at, copy, size);
  }
  return true;
}

// CopyIndexedRows for any indices of n_rows `rows`.
template <typename Rows>
bool CopyCheckedRows(const Rows& rows, int64_t n_rows, const int32_t* index,
                     int64_t n, float* out) {
  return ForCheckedIndices(
      index, n, n_rows, [&](int64_t at, const int32_t* checked, int64_t size) {
        CopyIndexedRows(rows, checked, size, out + at * rows.dim);
      });
}

// AddIndexedRows for any indices of `sums` (n_sums, dim).
inline bool AddCheckedRows(const float* values, const int32_t* index, int64_t n,
                           int dim, float* sums, int64_t n_sums) {
  return ForCheckedIndices(
      index, n, n_sums, [&](int64_t at, const int32_t* checked, int64_t size) {
        AddIndexedRows(values + at * dim, checked, size, dim, sums);
      });
}

// The same for the rows of `values` at n positions, which have `keys` rows
// each. The positions are checked.
inline bool AddCheckedRowsAt(const float* values, const int32_t* positions,
                             int64_t n, int64_t keys, const int32_t* index,
                             int dim, float* sums, int64_t n_sums) {
  constexpr int64_t kPositionsAhead = 16;  // The distance of prefetches.
  const int64_t floats = keys * dim;
  for (int64_t p = 0; p < n; ++p, index += keys) {
    if (p + kPositionsAhead < n) {
      PrefetchLines(values + positions[p + kPositionsAhead] * floats,
                    static_cast<size_t>(floats) * sizeof(float));
    }
    if (!AddCheckedRows(values + positions[p] * floats, index, keys, dim, sums,
                        n_sums)) {
      return false;
    }
  }
  return true;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_
