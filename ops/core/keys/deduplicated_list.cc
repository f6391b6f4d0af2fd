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
  for (size_t i = 0; i < n; ++i) {
    const int64_t key = ReadOnce(keys[i]);
    position[i] =
        static_cast<uint16_t>(deduplicator.Add(key, CellHash(HashKey(key))));
  }
  size_ = deduplicator.size();
  stripes_ = 0;
  for (uint32_t u = 0; u < size_; ++u) {
    stripes_ |= uint64_t{1} << StripeOf(MixKey(distinct_[u]));
  }
}

DeduplicatedList::~DeduplicatedList() = default;

}  // namespace rec_estimator
