// SPDX-License-Identifier: Apache-2.0
#include "ops/core/keys/deduplicated_list.h"

#include "ops/core/base/key_hash.h"
#include "ops/core/base/read_once.h"
#include "ops/core/keys/deduplicator.h"
#include "ops/core/keys/grouped_keys.h"

namespace rec_estimator {

DeduplicatedList::DeduplicatedList(const int64_t* keys, size_t n,
                                   const ParallelFor& parallel)
    : keys_(keys), n_(n) {
  if (n > kShort) {
    groups_ = std::make_unique<GroupedKeys>(keys, n, parallel);
    size_ = groups_->size();
    stripes_ = kAllStripes;
    return;
  }
  distinct_.reset(new int64_t[n]);
  position_.reset(new uint16_t[n]);
  uint16_t cells[Deduplicator<uint16_t>::CellsFor(kShort)];
  Deduplicator<uint16_t> deduplicator(n, cells, distinct_.get());
  uint16_t* const position = position_.get();
  uint64_t stripes = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t key = ReadOnce(keys[i]);
    const uint64_t mixed = MixKey(key);
    stripes |= uint64_t{1} << StripeOf(mixed);
    position[i] = static_cast<uint16_t>(deduplicator.Add(key, CellHash(mixed)));
  }
  size_ = deduplicator.size();
  stripes_ = stripes;
}

DeduplicatedList::~DeduplicatedList() = default;

}  // namespace rec_estimator
