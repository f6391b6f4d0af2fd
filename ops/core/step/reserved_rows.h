// SPDX-License-Identifier: Apache-2.0
// Where a training step found the rows of its keys, for the lookup that
// follows.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_RESERVED_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_RESERVED_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Immutable once it is filled, so threads can share it. It says nothing about
// when it is used: IsCurrent does.
class ReservedRows {
 public:
  // Of n keys, in the order of the lookup. Throws std::bad_alloc.
  explicit ReservedRows(size_t n) : rows_(n, HashIndex::kNoRow) {}

  // (size()) The row of each key; HashIndex::kSpilled is set if it is to be
  // looked up.
  const uint32_t* rows() const { return rows_.data(); }
  size_t size() const { return rows_.size(); }

  // Whether rows() still holds: no entry of the stripes has moved since. The
  // stripes of the keys are locked, shared at least.
  bool IsCurrent(const StripeSet& stripes) const {
    bool is_current = true;
    for (uint64_t mask = stripes_; mask != 0; mask &= mask - 1) {
      const int s = __builtin_ctzll(mask);
      is_current &= stripes[s].moves() == moves_[s];
    }
    return is_current;
  }

  // For BatchApply, which fills it. The time of a stripe: Stripe::moves then.
  void Set(size_t i, uint32_t row) { rows_[i] = row; }
  void SetTime(int stripe, uint32_t moves) {
    stripes_ |= uint64_t{1} << stripe;
    moves_[stripe] = moves;
  }

 private:
  std::vector<uint32_t> rows_;
  uint64_t stripes_ = 0;
  std::array<uint32_t, kStripes> moves_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_RESERVED_ROWS_H_
