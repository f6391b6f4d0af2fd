// SPDX-License-Identifier: Apache-2.0
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

StripeSet::StripeSet(RowStore* store, const FilterSpec& filter,
                     const RowRules& rules) {
  if (rules.has_padding) padding_stripe_ = StripeOf(MixKey(kPaddingKey));
  if (filter.threshold >= 2 && !filter.sketch.name.empty()) {
    sketch_ = MakeSketch(filter.sketch, filter.threshold);
  }
  for (int s = 0; s < kStripes; ++s) {
    stripes_[s].Initialize(s, store, sketch_.get(), &tracks_changes_,
                           StripeStagger(s));
  }
  for (const int64_t key : rules.frozen_keys) {
    const int s = StripeOf(MixKey(key));
    stripes_[s].AddFrozenKey(key);
    frozen_stripes_ |= uint64_t{1} << s;
  }
}

}  // namespace rec_estimator
