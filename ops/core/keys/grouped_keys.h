// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a long list, in a group for each stripe.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_GROUPED_KEYS_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_GROUPED_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"
#include "ops/core/keys/key_partition.h"

namespace rec_estimator {

// Immutable, so threads can share it.
class GroupedKeys {
 public:
  // Groups keys (n), n < kMaxBatch, which outlive the object. Throws
  // std::bad_alloc.
  GroupedKeys(const int64_t* keys, size_t n, const ParallelFor& parallel);
  GroupedKeys(const GroupedKeys&) = delete;
  GroupedKeys& operator=(const GroupedKeys&) = delete;

  // How the occurrences are grouped. The arrays below begin at
  // partition().begin[g] for group g.
  const KeyPartition& partition() const { return part_; }
  const KeyPartition::Distinct& distinct() const { return distinct_; }
  // Distinct keys of group g, of the groups before it, and of all groups.
  uint32_t size(int g) const { return first_[g + 1] - first_[g]; }
  uint32_t first(int g) const { return first_[g]; }
  uint32_t size() const { return first_[kStripes]; }

 private:
  KeyPartition part_;
  KeyPartition::Distinct distinct_;
  std::array<uint32_t, kStripes + 1> first_;
  Scratch scratch_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_GROUPED_KEYS_H_
