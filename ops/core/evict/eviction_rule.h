// SPDX-License-Identifier: Apache-2.0
// EvictionRule: says which keys of a table an eviction takes away. A rule is
// one class derived from EvictionRule, and one line in
// ops/table/evict_kernels.cc. Nothing else in C++ knows which rules there are.
//
// An eviction erases keys in place. A sketch cannot remove a key, so it ages as
// a whole. A key that is evicted before the sketch has forgotten it keeps an
// entry without a row (Stripe::Evict).
//
// An object serves one eviction. eviction.h has the order of the calls and who
// takes the locks.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_RULE_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_RULE_H_

#include <cstdint>

#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

class EvictionRule {
 public:
  // stamp: the step of the eviction, or -1 without steps. Keys that were never
  // applied, or applied later by a run that had come further than this one, get
  // this version (Stripe::LimitVersion).
  explicit EvictionRule(int64_t stamp) : stamp_(stamp) {}
  EvictionRule(const EvictionRule&) = delete;
  EvictionRule& operator=(const EvictionRule&) = delete;
  virtual ~EvictionRule() = default;

  int64_t stamp() const { return stamp_; }

  // Makes the sketch forget keys that no longer occur. Called first, and only
  // if the table has a sketch. No lock is held.
  virtual void AgeSketch(StripeSet* stripes) = 0;

  // Whether the rule decides by values. Only then are the rows on disk read.
  virtual bool reads_values() const { return false; }
  // Called for rows on disk: whether the row with this value (dim) is evicted.
  virtual bool EvictsValue(const float* /*value*/, int /*dim*/) const {
    return false;
  }

  // Evicts entries of a stripe, which is locked exclusively, and returns the
  // number of evicted keys. A rule that reads values leaves rows on disk alone
  // here. Throws std::bad_alloc; keys that were evicted before stay evicted.
  virtual int64_t EvictFrom(Stripe* stripe) const = 0;

 protected:
  void set_stamp(int64_t stamp) { stamp_ = stamp; }

 private:
  int64_t stamp_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_EVICTION_RULE_H_
