// SPDX-License-Identifier: Apache-2.0
#include "ops/core/keys/deduplicated_list.h"

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
  distinct_.reset(new int64_t[n + 1]);
  position_.reset(new uint16_t[n]);
  DistinctKeys found(n, distinct_.get(), position_.get());
  found.Add(keys, n);
  size_ = found.size();
  stripes_ = found.stripes();
}

DeduplicatedList::~DeduplicatedList() = default;

}  // namespace rec_estimator
