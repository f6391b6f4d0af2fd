// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/eviction.h"

#include <mutex>
#include <shared_mutex>

#include "ops/core/base/shared_mutex.h"

namespace rec_estimator {

Evicted Evict(StripeSet* stripes, DiskTier* tier, EvictionRule* rule) {
  const bool reads_disk = tier != nullptr && rule->reads_values();
  // Otherwise a row could escape: in memory now, and on disk later.
  std::unique_lock<std::shared_mutex> pause;
  if (reads_disk) pause = tier->PauseSpilling();
  if (stripes->sketch() != nullptr) rule->AgeSketch(stripes);
  Evicted evicted;
  if (reads_disk) {
    evicted.rows = tier->EvictSpilled(
        [rule](const float* value, int dim) {
          return rule->EvictsValue(value, dim);
        },
        rule->stamp());
    evicted.keys = evicted.rows_before = evicted.rows;
  }
  for (Stripe& stripe : *stripes) {
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    const int64_t rows = stripe.rows();
    evicted.keys += rule->EvictFrom(&stripe);
    evicted.rows += rows - stripe.rows();
    evicted.rows_before += rows;
  }
  return evicted;
}

}  // namespace rec_estimator
