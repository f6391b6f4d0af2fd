// SPDX-License-Identifier: Apache-2.0
// Where a lookup found the keys of a list in one table, for the training step
// that follows.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_FOUND_KEYS_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_FOUND_KEYS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "ops/core/base/key_hash.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Immutable once it is filled, so threads can share it. It says nothing about
// when it is used: IsCurrent does.
class FoundKeys {
 public:
  // Throws std::bad_alloc.
  explicit FoundKeys(std::shared_ptr<const DeduplicatedList> list)
      : list_(std::move(list)),
        entries_(new EntryRef[list_->size()]),
        rows_(new uint32_t[list_->size()]) {}
  FoundKeys(const FoundKeys&) = delete;
  FoundKeys& operator=(const FoundKeys&) = delete;

  const DeduplicatedList& list() const { return *list_; }

  // By distinct key of the list, (list().size()): of a long one, those of a
  // group after those of the groups before it.
  const EntryRef* entries() const { return entries_.get(); }
  const uint32_t* rows() const { return rows_.get(); }  // Or kNoRow.

  // Whether what it says of the keys of some of the list's stripes still holds:
  // none of these was locked exclusively since. They are locked, shared at
  // least.
  bool IsCurrent(const StripeSet& stripes, uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      const int s = __builtin_ctzll(mask);
      if (stripes[s].mutex().writes() != writes_[s]) return false;
    }
    return true;
  }

  // For RowLookup, which fills it while these stripes are locked.
  void Set(uint32_t u, EntryRef entry, uint32_t row) {
    entries_[u] = entry;
    rows_[u] = row;
  }
  void SetTime(const StripeSet& stripes, uint64_t mask) {
    for (; mask != 0; mask &= mask - 1) {
      const int s = __builtin_ctzll(mask);
      writes_[s] = stripes[s].mutex().writes();
    }
  }

 private:
  const std::shared_ptr<const DeduplicatedList> list_;
  const std::unique_ptr<EntryRef[]> entries_;
  const std::unique_ptr<uint32_t[]> rows_;
  // Of the list's stripes: SharedMutex::writes when the keys were found.
  std::array<uint32_t, kStripes> writes_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_FOUND_KEYS_H_
