// SPDX-License-Identifier: Apache-2.0
// The sum of one key's gradients, in the order in which TensorFlow adds them.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"

namespace rec_estimator {

// The distance, in gradients, at which a sum prefetches.
inline constexpr uint32_t kGradsAhead = 16;

// sum (dim) = (((+0 + g0) + g1) + ...), where g_j is row occurrences[j] of
// grads. The leading +0 turns a lone -0 into +0, as TensorFlow's segment sum
// does.
inline void SumOccurrences(const float* grads, const uint32_t* occurrences,
                           size_t n, int dim, float* sum) {
  const size_t stride = static_cast<size_t>(dim);
  if (dim < kFloat8) {
    for (int d = 0; d < dim; ++d) sum[d] = 0.0f;
    for (size_t j = 0; j < n; ++j) {
      const float* grad = grads + occurrences[j] * stride;
      for (int d = 0; d < dim; ++d) sum[d] += grad[d];
    }
    return;
  }
  int d = 0;
  for (; d + 2 * kFloat8 <= dim; d += 2 * kFloat8) {
    Float8 sum0 = {}, sum1 = {};
    for (size_t j = 0; j < n; ++j) {
      if (j + kGradsAhead < n) {
        PrefetchLine(grads + occurrences[j + kGradsAhead] * stride + d);
      }
      const float* grad = grads + occurrences[j] * stride + d;
      sum0 += LoadFloat8(grad);
      sum1 += LoadFloat8(grad + kFloat8);
    }
    StoreFloat8(sum0, sum + d);
    StoreFloat8(sum1, sum + d + kFloat8);
  }
  // The rest, at most two Float8s; the last may overlap floats already summed.
  while (d < dim) {
    d = std::min(d, dim - kFloat8);
    Float8 sum0 = {};
    for (size_t j = 0; j < n; ++j) {
      sum0 += LoadFloat8(grads + occurrences[j] * stride + d);
    }
    StoreFloat8(sum0, sum + d);
    d += kFloat8;
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_
