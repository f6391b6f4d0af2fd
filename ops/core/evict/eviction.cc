// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/eviction.h"

#include <mutex>
#include <shared_mutex>

#include "ops/core/base/shared_mutex.h"

namespace rec_estimator {

int64_t Evict(StripeSet* stripes, DiskTier* tier, EvictionRule* rule) {
  const bool reads_disk = tier != nullptr && rule->reads_values();
  // Otherwise a row could escape: in memory now, and on disk later.
  std::unique_lock<std::shared_mutex> pause;
  if (reads_disk) pause = tier->PauseSpilling();
  if (stripes->sketch() != nullptr) rule->AgeSketch(stripes);
  int64_t evicted = 0;
  if (reads_disk) {
    evicted += tier->EvictSpilled(
        [rule](const float* value, int dim) {
          return rule->EvictsValue(value, dim);
        },
        rule->stamp());
  }
  for (Stripe& stripe : *stripes) {
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    evicted += rule->EvictFrom(&stripe);
  }
  return evicted;
}

}  // namespace rec_estimator
