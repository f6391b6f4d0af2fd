// SPDX-License-Identifier: Apache-2.0
// Rows that several occurrences of a key share: copied to each of them, and
// summed over them.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"

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

// out (n, dim): row i is row index[i] of `rows`.
inline void CopyIndexedRows(const float* rows, const int32_t* index, int64_t n,
                            int dim, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    CopyRow(rows + static_cast<int64_t>(index[i]) * dim, dim, out + i * dim);
  }
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

// Adds the rows of `values` at n places, which have `keys` rows each.
inline void AddRowsAt(const float* values, const int32_t* places, int64_t n,
                      int64_t keys, const int32_t* index, int dim,
                      float* sums) {
  constexpr int64_t kPlacesAhead = 16;  // The distance of prefetches.
  const int64_t floats = keys * dim;
  for (int64_t p = 0; p < n; ++p, index += keys) {
    if (p + kPlacesAhead < n) {
      PrefetchLines(values + places[p + kPlacesAhead] * floats,
                    static_cast<size_t>(floats) * sizeof(float));
    }
    AddIndexedRows(values + places[p] * floats, index, keys, dim, sums);
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_INDEXED_ROWS_H_
