// SPDX-License-Identifier: Apache-2.0
// The rule of L2WeightEvict: evicts rows with small values.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_L2_WEIGHT_RULE_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_L2_WEIGHT_RULE_H_

#include <cstdint>

#include "ops/core/evict/eviction_rule.h"

namespace rec_estimator {

// Without a sketch, an eviction keeps the counts of this many keys for each
// row, of those that occurred last. Four entries take about as much memory as a
// row of 16 floats with one slot. A small table keeps the counts of
// kLeastCounts keys.
inline constexpr int64_t kCountsPerRow = 4;
inline constexpr int64_t kLeastCounts = int64_t{1} << 16;

// Evicts rows with 0.5 * sum(value^2) < half_squared_norm, summed in float64
// and in order, and rows with a NaN or an infinity: no gradient repairs them.
//
// Values do not bound the number of keys without a row. Their counts age by the
// number of other keys that were counted since: a sketch ages as a whole;
// without one, the oldest entries are erased.
class L2WeightRule final : public EvictionRule {
 public:
  explicit L2WeightRule(float half_squared_norm, int64_t stamp = -1)
      : EvictionRule(stamp),
        limit_(2 * static_cast<double>(half_squared_norm)) {}

  void AgeSketch(StripeSet* stripes) override;
  bool reads_values() const override { return true; }
  bool EvictsValue(const float* value, int dim) const override;
  // With a sketch, also erases entries without a row that were last counted
  // before the sketch forgot their keys.
  int64_t EvictFrom(Stripe* stripe) const override;

 private:
  const double limit_;             // Below it, sum(value^2) evicts.
  int64_t forgotten_ = INT64_MIN;  // Sketch::forgotten
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_L2_WEIGHT_RULE_H_
