// SPDX-License-Identifier: Apache-2.0
// An eviction: runs a rule over the sketch, the rows on disk and the stripes.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_

#include <cstdint>

#include "ops/core/evict/eviction_rule.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

// What an eviction took. Each stripe counts at one instant.
struct Evicted {
  int64_t keys = 0;         // With those that were only counted.
  int64_t rows = 0;         // The rows that these keys had.
  int64_t rows_before = 0;  // All rows of the table.
};

// Evicts the keys that the rule names. Locks one stripe at a time, except while
// the rule ages the sketch. tier: nullptr if all rows are in memory. Throws
// std::bad_alloc and, if the rule reads values, StorageError; keys that were
// evicted before stay evicted.
Evicted Evict(StripeSet* stripes, DiskTier* tier, EvictionRule* rule);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_
