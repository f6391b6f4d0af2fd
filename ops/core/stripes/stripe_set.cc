// SPDX-License-Identifier: Apache-2.0
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {
namespace {

// From this many keys on, every shard is locked without hashing the keys first:
// they belong to nearly all shards anyway.
constexpr size_t kLockAllFrom = 512;

}  // namespace

ShardSet::ShardSet(RowStore* store, const FilterSpec& filter,
                   const RowRules& rules) {
  if (rules.has_padding) padding_shard_ = ShardOf(MixKey(kPaddingKey));
  if (filter.threshold >= 2 && !filter.sketch.name.empty()) {
    sketch_ = MakeSketch(filter.sketch, filter.threshold);
  }
  for (int s = 0; s < kShards; ++s) {
    shards_[s].Initialize(s, store, sketch_.get(), &tracks_changes_,
                          ShardStagger(s));
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
