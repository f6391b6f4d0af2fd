// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/global_step_rule.h"

namespace rec_estimator {

void GlobalStepRule::AgeSketch(StripeSet* stripes) {
  const ExclusiveLocks locks(*stripes, kAllStripes);
  stripes->mutable_sketch()->AgeBySteps(version_, stamp());
}

int64_t GlobalStepRule::EvictFrom(Stripe* stripe) const {
  int64_t evicted = 0;
  stripe->index().ForEach([&](EntryRef entry) {
    if (entry.version() < 0 || entry.version() >= version_) {
      stripe->LimitVersion(entry, stamp());
      return;
    }
    // The entry that an evicted key kept was counted when it was evicted.
    evicted += !stripe->has_sketch() || entry.has_row() || entry.count() > 0;
    entry.has_row() ? stripe->Evict(entry, stamp()) : stripe->Erase(entry);
  });
  return evicted;
}

}  // namespace rec_estimator
