// SPDX-License-Identifier: Apache-2.0
// StripeTimes: when the keys of some stripes were found, so that a later step
// knows which of the results still hold. A time is a count of exclusive locks.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_STRIPE_TIMES_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_STRIPE_TIMES_H_

#include <array>
#include <cstdint>

#include "ops/core/base/key_hash.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Calls work(s) for the stripes of a mask.
template <typename Work>
void ForEachStripe(uint64_t mask, const Work& work) {
  for (; mask != 0; mask &= mask - 1) work(__builtin_ctzll(mask));
}

// The stripes are locked, shared at least, when a method is called. Threads may
// call Note at the same time for different stripes.
class StripeTimes {
 public:
  void Note(const StripeSet& stripes, int s) {
    moves_[s] = stripes[s].moves();
    writes_[s] = stripes[s].mutex().writes();
  }

  // Whether entries may be elsewhere, and keys with a row in memory may have
  // another one (Stripe::moves). own_locks: how often the caller has locked
  // each stripe exclusively since Note.
  bool HaveEntriesMoved(const StripeSet& stripes, uint64_t mask,
                        uint32_t own_locks = 0) const {
    bool moved = false;
    ForEachStripe(mask, [&](int s) {
      moved |= stripes[s].moves() != moves_[s] + own_locks;
    });
    return moved;
  }

  // Whether anything may have changed: keys may have been inserted too.
  bool HaveStripesChanged(const StripeSet& stripes, uint64_t mask,
                          uint32_t own_locks = 0) const {
    bool changed = false;
    ForEachStripe(mask, [&](int s) {
      changed |= stripes[s].mutex().writes() != writes_[s] + own_locks;
    });
    return changed;
  }

 private:
  // Set for the stripes of Note.
  std::array<uint32_t, kStripes> moves_;
  std::array<uint32_t, kStripes> writes_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_STRIPE_TIMES_H_
