// SPDX-License-Identifier: Apache-2.0
// The rule of GlobalStepEvict: evicts keys by the step of their last apply.
// TimeEvict uses it, too: its versions are seconds.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_GLOBAL_STEP_RULE_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_GLOBAL_STEP_RULE_H_

#include <cstdint>

#include "ops/core/evict/eviction_rule.h"

namespace rec_estimator {

// Evicts all keys, with or without a row, whose version is in [0, version).
class GlobalStepRule final : public EvictionRule {
 public:
  // stamp - version is the keys' time to live, by which the sketch ages.
  GlobalStepRule(int64_t version, int64_t stamp)
      : EvictionRule(stamp), version_(version) {}

  void AgeSketch(StripeSet* stripes) override;
  int64_t EvictFrom(Stripe* stripe) const override;

 private:
  const int64_t version_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_GLOBAL_STEP_RULE_H_
