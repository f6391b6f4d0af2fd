// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/eviction.h"

#include <algorithm>
#include <mutex>

#include "ops/core/base/shared_mutex.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {
namespace {

// Calls evict(&stripe) for each stripe under its lock and adds the results.
template <typename Evict>
int64_t EvictEach(StripeSet* stripes, const Evict& evict) {
  int64_t evicted = 0;
  for (Stripe& stripe : *stripes) {
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    evicted += evict(&stripe);
  }
  return evicted;
}

bool IsAgeingDue(const StripeSet& stripes) {
  const SharedLocks locks(stripes, kAllStripes);
  return stripes.sketch()->IsAgeingDue();
}

}  // namespace

int64_t EvictOlderKeys(StripeSet* stripes, int64_t version, int64_t stamp) {
  if (stripes->sketch() != nullptr) {
    const ExclusiveLocks locks(*stripes, kAllStripes);
    stripes->mutable_sketch()->AgeBySteps(version, stamp);
  }
  return EvictEach(stripes, [&](Stripe* stripe) {
    return stripe->EvictOlder(version, stamp);
  });
}

int64_t EvictSmallerRows(StripeSet* stripes, DiskTier* tier,
                         float half_squared_norm, int64_t stamp) {
  // Otherwise a row could escape: in memory now, and on disk later.
  std::unique_lock<std::shared_mutex> pause;
  if (tier != nullptr) pause = tier->PauseSpilling();
  int64_t forgotten = INT64_MIN;
  if (stripes->sketch() != nullptr) {
    const bool is_due = IsAgeingDue(*stripes);
    const ExclusiveLocks locks(*stripes, kAllStripes);
    Sketch* sketch = stripes->mutable_sketch();
    if (is_due) sketch->AgeByKeys(stamp);
    forgotten = sketch->forgotten();
    // Versions do not lag behind the sketch, without steps either.
    stamp = std::max(stamp, sketch->youngest());
  }
  const double limit = 2 * static_cast<double>(half_squared_norm);
  const int64_t from_disk =
      tier == nullptr ? 0 : tier->EvictSmaller(limit, stamp);
  return from_disk + EvictEach(stripes, [&](Stripe* stripe) {
           return stripe->EvictSmaller(limit, forgotten, stamp);
         });
}

}  // namespace rec_estimator
