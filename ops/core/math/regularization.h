// SPDX-License-Identifier: Apache-2.0
// Regularization: how a training step makes the values of its rows smaller, in
// addition to what their gradients do.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_REGULARIZATION_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_REGULARIZATION_H_

#include <cmath>
#include <cstdint>

namespace rec_estimator {

// The settings of one table. 0 turns a rule off.
struct Regularization {
  // What the gradient of a row gets in addition, as a multiple of its value.
  float l2_scale = 0.0f;
  // The part of its value that a row loses at each global step, in [0, 1).
  float decay_rate = 0.0f;
};

// gradient (dim) += scale * value.
inline void AddL2Gradient(const float* __restrict__ value, float scale, int dim,
                          float* __restrict__ gradient) {
  for (int d = 0; d < dim; ++d) gradient[d] += scale * value[d];
}

// The decay of the rows of a table in one step.
class RowDecay {
 public:
  explicit RowDecay(float rate)
      : rate_(rate),
        log_kept_(rate == 0.0f ? 0.0 : std::log1p(-double{rate})) {}

  bool is_on() const { return rate_ != 0.0f; }

  // The part of its value that a row loses before a step of `version` if its
  // key's previous step had version `last`: `rate` for each step after it.
  // last = -1: never trained, so that this step counts alone. Workers that
  // train asynchronously may bring a version before `last`: nothing.
  float Part(int64_t last, int64_t version) const {
    if (last == -1) return rate_;
    if (version <= last) return 0.0f;
    const uint64_t steps =
        static_cast<uint64_t>(version) - static_cast<uint64_t>(last);
    if (steps == 1) return rate_;
    // 1 - (1 - rate)^steps, which would lose the digits of a small rate.
    return static_cast<float>(
        -std::expm1(static_cast<double>(steps) * log_kept_));
  }

  // value (dim) -= part * value.
  static void Apply(float part, int dim, float* value) {
    for (int d = 0; d < dim; ++d) value[d] -= part * value[d];
  }

 private:
  const float rate_;
  const double log_kept_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_REGULARIZATION_H_
