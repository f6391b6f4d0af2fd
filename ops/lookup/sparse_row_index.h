// SPDX-License-Identifier: Apache-2.0
// Which row of a SparseTensor each key of a lookup belongs to.
#ifndef REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_
#define REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ops/kernel/errors.h"

namespace rec_estimator {

// The row of each key: column 0 of a SparseTensor's indices (n, rank).
struct RowIds {
  const int64_t* indices = nullptr;
  int64_t n = 0;
  int64_t rank = 1;

  int64_t operator[](int64_t i) const { return indices[i * rank]; }

  // First key in the row of key i.
  int64_t Begin(int64_t i) const {
    while (i > 0 && (*this)[i - 1] == (*this)[i]) --i;
    return i;
  }

  // One past the last key in the row of key i.
  int64_t End(int64_t i) const {
    const int64_t row = (*this)[i];
    do {
      ++i;
    } while (i < n && (*this)[i] == row);
    return i;
  }

  // Makes a range of keys that of the rows whose first keys are in it.
  void ToWholeRows(int64_t* begin, int64_t* end) const {
    if (*begin > 0 && *begin < *end && (*this)[*begin - 1] == (*this)[*begin]) {
      *begin = End(*begin);
    }
    if (*begin < *end) *end = End(*end - 1);
  }
};

// Writes the rows of keys [begin, end), which ToWholeRows returned, and the
// empty rows before them to out (rows, dim). write(begin, end, row) writes the
// row of keys [begin, end).
template <typename T, typename Write>
void WriteRows(const RowIds& ids, int64_t begin, int64_t end, int64_t dim,
               T* out, const Write& write) {
  int64_t next_row = begin == 0 ? 0 : ids[begin - 1] + 1;
  while (begin < end) {
    const int64_t row = ids[begin];
    const int64_t row_end = ids.End(begin);
    std::fill(out + next_row * dim, out + row * dim, T{0});
    write(begin, row_end, out + row * dim);
    next_row = row + 1;
    begin = row_end;
  }
}

// Writes the empty rows after the last key: of a list of `rows` rows.
template <typename T>
void WriteLastRows(const RowIds& ids, int64_t rows, int64_t dim, T* out) {
  const int64_t next_row = ids.n == 0 ? 0 : ids[ids.n - 1] + 1;
  std::fill(out + next_row * dim, out + rows * dim, T{0});
}

// InvalidArgument unless the ids are in [0, rows) and do not decrease. `lookup`
// names the lookup in the message.
inline absl::Status CheckRowIds(const RowIds& ids, int64_t rows,
                                const std::string& lookup) {
  int64_t previous = 0;
  for (int64_t i = 0; i < ids.n; ++i) {
    const int64_t row = ids[i];
    if (row < previous || row >= rows) {
      return InvalidArgument("indices of lookup ", lookup,
                             " must have rows in [0, ", rows,
                             ") that do not decrease, got ", row, " at ", i,
                             i > 0 ? " after " : "; ",
                             i > 0 ? std::to_string(previous) + "; " : "",
                             "tf.sparse.reorder sorts a SparseTensor");
    }
    previous = row;
  }
  return absl::Status();
}

// Tells of ids whether each row i consists of key i alone. Features without
// padding often have the same ids, in the same memory, which are read once.
class OneKeyPerRow {
 public:
  bool operator()(const RowIds& ids, int64_t rows) {
    if (ids.n != rows) return false;
    if (ids.indices == yes_.indices && ids.n == yes_.n &&
        ids.rank == yes_.rank) {
      return true;
    }
    for (int64_t i = 0; i < ids.n; ++i) {
      if (ids[i] != i) return false;
    }
    yes_ = ids;
    return true;
  }

 private:
  RowIds yes_;  // The last ids of which it is true.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_
