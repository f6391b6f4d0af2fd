// SPDX-License-Identifier: Apache-2.0
// Which row of a SparseTensor each key of a lookup belongs to.
#ifndef REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_
#define REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/base/read_once.h"
#include "ops/kernel/errors.h"

namespace rec_estimator {

// Column 0 of the indices (n, rank) of a SparseTensor: the row of each key.
struct RowColumn {
  const int64_t* indices = nullptr;
  int64_t n = 0;
  int64_t rank = 1;

  // Another thread may write to it (read_once.h).
  int64_t Read(int64_t i) const { return ReadOnce(indices[i * rank]); }
};

// The rows that have keys, in order. Each has a run of consecutive keys.
class SparseRowIndex {
 public:
  // Takes a column of n keys in which key i is row i.
  void SetOneKeyPerRow(int64_t n) {
    n_ = n;
    runs_.clear();
  }
  // Takes a column of a list of `rows` rows. InvalidArgument unless they are
  // in [0, rows) and do not decrease. `lookup` names the lookup in the message.
  absl::Status Read(const RowColumn& column, int64_t rows,
                    const std::string& lookup) {
    n_ = column.n;
    int64_t previous = 0;
    for (int64_t i = 0; i < column.n; ++i) {
      const int64_t row = column.Read(i);
      if (row < previous || row >= rows) {
        return InvalidArgument("indices of lookup ", lookup,
                               " must have rows in [0, ", rows,
                               ") that do not decrease, got ", row, " at ", i,
                               i > 0 ? " after " : "; ",
                               i > 0 ? std::to_string(previous) + "; " : "",
                               "tf.sparse.reorder sorts a SparseTensor");
      }
      if (row != previous && i > 0) runs_.push_back({previous, i});
      previous = row;
    }
    if (n_ > 0) runs_.push_back({previous, n_});
    return absl::Status();
  }

  int64_t n() const { return n_; }  // Keys.
  // Whether key i is row i. Requires keys.
  bool one_key_per_row() const { return runs_.empty(); }

  // The run of key i, i < n().
  int64_t RunOf(int64_t i) const {
    const auto ends_later = [](int64_t key, const Run& run) {
      return key < run.end;
    };
    return runs_.empty()
               ? i
               : std::upper_bound(runs_.begin(), runs_.end(), i, ends_later) -
                     runs_.begin();
  }
  int64_t row(int64_t run) const { return runs_.empty() ? run : At(run).row; }
  // The keys of a run.
  int64_t begin(int64_t run) const {
    return runs_.empty() || run == 0 ? run : At(run - 1).end;
  }
  int64_t end(int64_t run) const {
    return runs_.empty() ? run + 1 : At(run).end;
  }

  // Makes a range of keys that of the rows whose first keys are in it.
  void ToWholeRows(int64_t* first, int64_t* last) const {
    if (*first >= *last) return;
    const int64_t run = RunOf(*first);
    if (begin(run) < *first) *first = end(run);
    if (*first < *last) *last = end(RunOf(*last - 1));
  }

 private:
  struct Run {
    int64_t row;
    int64_t end;  // The end of its keys. They begin where the run before ends.
  };
  const Run& At(int64_t run) const { return runs_[static_cast<size_t>(run)]; }

  int64_t n_ = 0;
  std::vector<Run> runs_;  // None, with keys: key i is row i.
};

// Writes the rows of keys [begin, end), which ToWholeRows returned, and the
// empty rows before them to out (rows, dim). write(begin, end, row) writes the
// row of keys [begin, end).
template <typename T, typename Write>
void WriteRows(const SparseRowIndex& index, int64_t begin, int64_t end,
               int64_t dim, T* out, const Write& write) {
  if (begin >= end) return;
  if (index.one_key_per_row()) {
    for (; begin < end; ++begin) write(begin, begin + 1, out + begin * dim);
    return;
  }
  int64_t run = index.RunOf(begin);
  int64_t next_row = run == 0 ? 0 : index.row(run - 1) + 1;
  for (; begin < end; ++run) {
    const int64_t row = index.row(run);
    std::fill(out + next_row * dim, out + row * dim, T{0});
    write(begin, index.end(run), out + row * dim);
    next_row = row + 1;
    begin = index.end(run);
  }
}

// Writes the empty rows after the last key: of a list of `rows` rows.
template <typename T>
void WriteLastRows(const SparseRowIndex& index, int64_t rows, int64_t dim,
                   T* out) {
  const int64_t next_row =
      index.n() == 0 ? 0 : index.row(index.RunOf(index.n() - 1)) + 1;
  std::fill(out + next_row * dim, out + rows * dim, T{0});
}

// Tells of a column whether each row i consists of key i alone. Features
// without padding often have the same indices, in the same memory, which are
// read once.
class OneKeyPerRow {
 public:
  bool operator()(const RowColumn& column, int64_t rows) {
    if (column.n != rows) return false;
    if (column.indices == yes_.indices && column.n == yes_.n &&
        column.rank == yes_.rank) {
      return true;
    }
    for (int64_t i = 0; i < column.n; ++i) {
      if (column.Read(i) != i) return false;
    }
    yes_ = column;
    return true;
  }

 private:
  RowColumn yes_;  // The last column of which it is true.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_LOOKUP_SPARSE_ROW_INDEX_H_
