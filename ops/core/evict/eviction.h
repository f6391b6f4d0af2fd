// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::EvictOlder and EvictSmaller. They also age the sketch, so
// that it forgets keys that no longer occur.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_

#include <cstdint>

#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

// Both return the number of evicted keys and lock one stripe at a time. With a
// sketch they first lock all stripes, to age it.
int64_t EvictOlderKeys(StripeSet* stripes, int64_t version, int64_t stamp);
// tier: nullptr if all rows are in memory.
int64_t EvictSmallerRows(StripeSet* stripes, DiskTier* tier,
                         float half_squared_norm, int64_t stamp);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_H_
