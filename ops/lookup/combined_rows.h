// SPDX-License-Identifier: Apache-2.0
// How a lookup combines the rows of several keys into one.
#ifndef REC_ESTIMATOR_OPS_LOOKUP_COMBINED_ROWS_H_
#define REC_ESTIMATOR_OPS_LOOKUP_COMBINED_ROWS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "ops/core/base/float8.h"

namespace rec_estimator {

enum class Combiner { kSum, kMean, kSqrtn };

// Finds the rows of consecutive keys of one lookup, a window of keys at a time.
class RowWindow {
 public:
  // The keys of a window: so few that the rows which Find has prefetched are
  // still in the first-level cache when they are read.
  static constexpr int64_t kKeys = 128;
  // Finds the rows of keys [begin, end).
  using Find =
      std::function<void(int64_t begin, int64_t end, const float** rows)>;

  // A window on keys [begin, end).
  RowWindow(int64_t begin, int64_t end, Find find)
      : find_(std::move(find)), limit_(end), begin_(begin), end_(begin) {}

  // Rows of keys [i, i + count). Requires count <= kKeys and an i that is not
  // below that of the previous call.
  const float* const* At(int64_t i, int64_t count) {
    if (i + count > end_) {
      begin_ = i;
      end_ = std::min(limit_, i + kKeys);
      find_(begin_, end_, rows_);
    }
    return rows_ + (i - begin_);
  }

 private:
  const Find find_;
  const int64_t limit_;
  int64_t begin_;  // rows_ holds the rows of keys [begin_, end_).
  int64_t end_;
  const float* rows_[kKeys];
};

// Combines keys [begin, end), which are one row of a lookup, into `out` (dim).
//
// The result has the bits of tf.nn.embedding_lookup_sparse, so the operations
// are those of TensorFlow's SparseSegmentSum, SparseSegmentMean and
// SparseSegmentSqrtN, in their order. The first n % 8 keys are added first
// (eight if n % 8 is 0, nine if it is 1). The rest follows in groups of eight,
// each summed before it is added. The sum is divided if n >= 10, and multiplied
// by the reciprocal otherwise.
inline void CombineRow(int dim, Combiner combiner, int64_t begin, int64_t end,
                       RowWindow* window, float* __restrict out) {
  const int64_t n = end - begin;
  if (n == 1) {
    CopyRow(*window->At(begin, 1), dim, out);
    return;
  }
  const int64_t remainder = n % 8;
  const int64_t head = remainder == 0 ? 8 : remainder == 1 ? 9 : remainder;
  const float* const* r = window->At(begin, head);
  for (int d = 0; d < dim; ++d) out[d] = r[0][d] + r[1][d];
  for (int64_t i = 2; i < head; ++i) {
    const float* row = r[i];
    for (int d = 0; d < dim; ++d) out[d] += row[d];
  }
  for (int64_t i = begin + head; i < end; i += 8) {
    r = window->At(i, 8);
    const float *r0 = r[0], *r1 = r[1], *r2 = r[2], *r3 = r[3];
    const float *r4 = r[4], *r5 = r[5], *r6 = r[6], *r7 = r[7];
    for (int d = 0; d < dim; ++d) {
      out[d] += r0[d] + r1[d] + r2[d] + r3[d] + r4[d] + r5[d] + r6[d] + r7[d];
    }
  }
  if (combiner == Combiner::kSum) return;
  const float divisor =
      combiner == Combiner::kMean
          ? static_cast<float>(n)
          : static_cast<float>(std::sqrt(static_cast<double>(n)));
  if (n < 10) {
    const float factor = 1.0f / divisor;
    for (int d = 0; d < dim; ++d) out[d] *= factor;
  } else {
    for (int d = 0; d < dim; ++d) out[d] /= divisor;
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_LOOKUP_COMBINED_ROWS_H_
