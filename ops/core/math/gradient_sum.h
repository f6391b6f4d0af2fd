// SPDX-License-Identifier: Apache-2.0
// The sum of one key's gradients, in the order in which TensorFlow adds them.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

// Distance, in gradients, at which a sum prefetches.
inline constexpr uint32_t kGradsAhead = 16;

// sum = (((+0 + g0) + g1) + ...), with g_j = row occurrences[j] of grads,
// (dim). The leading +0 turns a lone -0 into +0, as TensorFlow's segment sum
// does.
inline void SumOccurrences(const float* grads, const uint32_t* occurrences,
                           size_t n, int dim, float* sum) {
  constexpr int kWide = 8;
  const size_t stride = static_cast<size_t>(dim);
  if (dim < kWide) {
    for (int d = 0; d < dim; ++d) sum[d] = 0.0f;
    for (size_t j = 0; j < n; ++j) {
      const float* grad = grads + occurrences[j] * stride;
      for (int d = 0; d < dim; ++d) sum[d] += grad[d];
    }
    return;
  }
  int d = 0;
  for (; d + 2 * kWide <= dim; d += 2 * kWide) {
    Vector sum0 = {}, sum1 = {};
    for (size_t j = 0; j < n; ++j) {
      if (j + kGradsAhead < n) {
        PrefetchLine(grads + occurrences[j + kGradsAhead] * stride + d);
      }
      const float* grad = grads + occurrences[j] * stride + d;
      sum0 += VectorAt(grad);
      sum1 += VectorAt(grad + kWide);
    }
    VectorAt(sum + d) = sum0;
    VectorAt(sum + d + kWide) = sum1;
  }
  // What is left, at most twice; the last one overlaps floats already summed.
  while (d < dim) {
    d = std::min(d, dim - kWide);
    Vector sum0 = {};
    for (size_t j = 0; j < n; ++j) {
      sum0 += VectorAt(grads + occurrences[j] * stride + d);
    }
    VectorAt(sum + d) = sum0;
    d += kWide;
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_GRADIENT_SUM_H_
