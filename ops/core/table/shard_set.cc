// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/shard_set.h"

namespace rec_estimator {
namespace {

// From this many keys on, every shard is locked without hashing the keys first:
// they belong to nearly all shards anyway.
constexpr size_t kLockAllFrom = 512;

// Where shard s is in its growth cycle: 0, 1/64, ... The bits of s are
// reversed, so that neighbours differ and memory grows steadily instead of in
// steps of 30 %.
double Stagger(int s) {
  int reversed = 0;
  for (int bit = 0; bit < kShardBits; ++bit) {
    reversed |= ((s >> bit) & 1) << (kShardBits - 1 - bit);
  }
  return static_cast<double>(reversed) / kShards;
}

}  // namespace

ShardSet::ShardSet(RowStore* store, const FilterSpec& filter,
                   const RowRules& rules) {
  if (rules.has_padding) padding_shard_ = ShardOf(MixKey(kPaddingKey));
  if (filter.threshold >= 2 && filter.max_elements > 0) {
    bloom_ = BloomGeometry(kShards, filter.threshold, filter.max_elements,
                           filter.false_positive_rate);
  }
  for (int s = 0; s < kShards; ++s) {
    shards_[s].Initialize(store, &bloom_, &tracks_changes_, Stagger(s));
  }
  for (const int64_t key : rules.frozen_keys) {
    const int s = ShardOf(MixKey(key));
    shards_[s].AddFrozenKey(key);
    frozen_shards_ |= uint64_t{1} << s;
  }
}

uint64_t ShardSet::MaskOf(const int64_t* keys, size_t n) {
  if (n >= kLockAllFrom) return kAllShards;
  uint64_t mask = 0;
  for (size_t i = 0; i < n; ++i) {
    mask |= uint64_t{1} << ShardOf(MixKey(keys[i]));
  }
  return mask;
}

}  // namespace rec_estimator
