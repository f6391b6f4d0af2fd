// SPDX-License-Identifier: Apache-2.0
// Small update rules with predictable results, and a step with one of them, for
// tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_RULES_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_RULES_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/math/row_update.h"
#include "ops/core/table/embedding_table.h"

namespace rec_estimator {

// value -= rate * gradient, for every occurrence.
class SgdEach : public RowUpdate {
 public:
  explicit SgdEach(float rate) : rate_(rate) {}
  int slots() const override { return 0; }
  bool per_occurrence() const override { return true; }
  void Update(float* const* rows, const float* const* grads, size_t n,
              int dim) const override {
    for (size_t i = 0; i < n; ++i) {
      for (int d = 0; d < dim; ++d) rows[i][d] -= rate_ * grads[i][d];
    }
  }

 private:
  float rate_;
};

// value += summed gradient. Exact for integers, in any order of batches.
class AddSum : public RowUpdate {
 public:
  int slots() const override { return 0; }
  void Update(float* const* rows, const float* const* grads, size_t n,
              int dim) const override {
    for (size_t i = 0; i < n; ++i) {
      for (int d = 0; d < dim; ++d) rows[i][d] += grads[i][d];
    }
  }
};

// Adds 1 to every float of a key's value for each occurrence.
inline bool ApplyOnes(EmbeddingTable* table, const std::vector<int64_t>& keys,
                      int64_t version = 0,
                      const ParallelFor& parallel = SerialFor) {
  const std::vector<float> grads(keys.size() * table->dim(), 1.0f);
  return table->Apply(
      {keys.data(), grads.data(), keys.size(), nullptr, 0, version}, AddSum(),
      parallel);
}

// slot += gradient^2; value -= rate * gradient / sqrt(slot).
class AdagradLike : public RowUpdate {
 public:
  explicit AdagradLike(float rate) : rate_(rate) {}
  int slots() const override { return 1; }
  void Update(float* const* rows, const float* const* grads, size_t n,
              int dim) const override {
    for (size_t i = 0; i < n; ++i) {
      float* __restrict__ value = rows[i];
      float* __restrict__ slot = rows[i] + dim;
      const float* __restrict__ grad = grads[i];
      for (int d = 0; d < dim; ++d) {
        slot[d] += grad[d] * grad[d];
        value[d] -= rate_ * grad[d] / std::sqrt(slot[d]);
      }
    }
  }

 private:
  float rate_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_RULES_H_
