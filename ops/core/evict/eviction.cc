// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/eviction.h"

#include <algorithm>
#include <mutex>

#include "ops/core/base/shared_mutex.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/filter/sketch.h"

namespace rec_estimator {
namespace {

// Calls evict(&shard) for each shard under its lock and adds the results.
template <typename Evict>
int64_t EvictEach(ShardSet* shards, const Evict& evict) {
  int64_t evicted = 0;
  for (Shard& shard : *shards) {
    const std::unique_lock<SharedMutex> lock(shard.mutex());
    evicted += evict(&shard);
  }
  return evicted;
}

bool IsAgeingDue(const ShardSet& shards) {
  const SharedLocks locks(shards, kAllShards);
  return shards.sketch()->IsAgeingDue();
}

}  // namespace

int64_t EvictOlderKeys(ShardSet* shards, int64_t version, int64_t stamp) {
  if (shards->sketch() != nullptr) {
    const ExclusiveLocks locks(*shards, kAllShards);
    shards->mutable_sketch()->AgeBySteps(version, stamp);
  }
  return EvictEach(
      shards, [&](Shard* shard) { return shard->EvictOlder(version, stamp); });
}

int64_t EvictSmallerRows(ShardSet* shards, DiskTier* tier,
                         float half_squared_norm, int64_t stamp) {
  // Otherwise a row could escape: in memory now, and on disk later.
  std::unique_lock<std::shared_mutex> pause;
  if (tier != nullptr) pause = tier->PauseSpilling();
  int64_t forgotten = INT64_MIN;
  if (shards->sketch() != nullptr) {
    const bool is_due = IsAgeingDue(*shards);
    const ExclusiveLocks locks(*shards, kAllShards);
    Sketch* sketch = shards->mutable_sketch();
    if (is_due) sketch->AgeByKeys(stamp);
    forgotten = sketch->forgotten();
    // Versions do not lag behind the sketch, without steps either.
    stamp = std::max(stamp, sketch->youngest());
  }
  const double limit = 2 * static_cast<double>(half_squared_norm);
  const int64_t from_disk =
      tier == nullptr ? 0 : tier->EvictSmaller(limit, stamp);
  return from_disk + EvictEach(shards, [&](Shard* shard) {
           return shard->EvictSmaller(limit, forgotten, stamp);
         });
}

}  // namespace rec_estimator
