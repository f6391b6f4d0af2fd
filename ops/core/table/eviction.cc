// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/eviction.h"

#include <algorithm>
#include <mutex>

#include "ops/core/base/shared_mutex.h"
#include "ops/core/table/bloom_generations.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {
namespace {

// Calls age(), which may age the generations of the table, and makes those of
// the shards as old. age() returns whether they rotate.
template <typename Age>
void AgeGenerations(ShardSet* shards, const Age& age) {
  const ExclusiveLocks locks(*shards, kAllShards);
  const bool rotates = age();
  for (Shard& shard : *shards) {
    if (rotates) shard.RotateBloom();
    shard.KeepGenerations(shards->ages().count());
  }
}

// Calls evict(&shard) for each shard under its lock and adds the results.
template <typename Evict>
int64_t EvictEach(ShardSet* shards, const Evict& evict) {
  int64_t evicted = 0;
  for (Shard& shard : *shards) {
    const std::unique_lock<SharedMutex> lock(shard.mutex());
    shard.ReserveAsBefore();
    evicted += evict(&shard);
  }
  return evicted;
}

// Whether the youngest generation holds half the keys of the filter.
bool IsHalfFull(const ShardSet& shards) {
  const SharedLocks locks(shards, kAllShards);
  int64_t in_use = 0;
  for (const Shard& shard : shards) in_use += shard.bloom()[0].CellsInUse();
  return in_use >= shards.bloom().half_full_cells();
}

}  // namespace

int64_t EvictOlderKeys(ShardSet* shards, int64_t version, int64_t stamp) {
  if (shards->has_bloom()) {
    AgeGenerations(shards, [&] {
      return shards->mutable_ages()->AgeBySteps(version, stamp);
    });
  }
  return EvictEach(
      shards, [&](Shard* shard) { return shard->EvictOlder(version, stamp); });
}

int64_t EvictSmallerRows(ShardSet* shards, float half_squared_norm,
                         int64_t stamp) {
  int64_t forgotten = INT64_MIN;
  if (shards->has_bloom()) {
    const bool rotates = IsHalfFull(*shards);
    AgeGenerations(shards, [&] {
      GenerationAges* ages = shards->mutable_ages();
      if (rotates) ages->Rotate(stamp);
      forgotten = ages->forgotten();
      // Versions do not lag behind the generations, without steps either.
      stamp = std::max(stamp, ages->start(0));
      return rotates;
    });
  }
  return EvictEach(shards, [&](Shard* shard) {
    return shard->EvictSmaller(half_squared_norm, forgotten, stamp);
  });
}

}  // namespace rec_estimator
