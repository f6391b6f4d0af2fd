// SPDX-License-Identifier: Apache-2.0
// RowHints: where one phase of a training step found its keys in a table. The
// next phase does not search for them again, unless the table has changed.
//
//   lookup of a list --hints for a step--> Reserve
//   Reserve --hints for a lookup--> lookup of packed keys (packed_keys.h)
//
// Hints for a lookup have a row for each key. Hints for a step also have the
// entry of each distinct key, which the update writes to.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_ROW_HINTS_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_ROW_HINTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "ops/core/index/hash_index.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/stripe_times.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Immutable once it is filled, so threads can share it.
class RowHints {
 public:
  // For a lookup of n keys. Throws std::bad_alloc.
  explicit RowHints(size_t n) : size_(n), rows_(new uint32_t[n]) {
    std::fill_n(rows_.get(), n, HashIndex::kNoRow);
  }
  // For a step of the keys of this list. Throws std::bad_alloc.
  explicit RowHints(std::shared_ptr<const DeduplicatedList> list)
      : list_(std::move(list)),
        size_(list_->size()),
        entries_(new EntryRef[size_]),
        rows_(new uint32_t[size_]) {}
  RowHints(const RowHints&) = delete;
  RowHints& operator=(const RowHints&) = delete;

  // nullptr: the hints are for a lookup.
  const DeduplicatedList* list() const { return list_.get(); }

  // The keys of the lookup, or the distinct keys of the list: of a long list,
  // those of a group after those of the groups before it.
  size_t size() const { return size_; }
  // (size()) The row word of each key.
  const uint32_t* rows() const { return rows_.get(); }
  // (size()) For a step only.
  const EntryRef* entries() const { return entries_.get(); }

  // Whether the rows in memory are still those of their keys. For a lookup
  // only. The stripes of its keys are locked, shared at least.
  bool AreRowsInPlace(const StripeSet& stripes) const {
    return !times_.HaveEntriesMoved(stripes, stripes_);
  }
  // Whether nothing has changed in these stripes, which are locked, shared at
  // least. For a step only.
  bool IsCurrent(const StripeSet& stripes, uint64_t mask) const {
    return !times_.HaveStripesChanged(stripes, mask);
  }

  // For a StepPlan, which fills hints for a lookup. stripes: those of the keys,
  // which were found at these times.
  void SetRow(size_t i, uint32_t row) { rows_[i] = row; }
  void SetTimes(const StripeTimes& times, uint64_t stripes) {
    times_ = times;
    stripes_ = stripes;
  }

  // For a RowLookup, which fills hints for a step while stripes are locked.
  void Set(uint32_t u, EntryRef entry, uint32_t row) {
    entries_[u] = entry;
    rows_[u] = row;
  }
  void NoteTime(const StripeSet& stripes, uint64_t mask) {
    ForEachStripe(mask, [&](int s) { times_.Note(stripes, s); });
  }

 private:
  const std::shared_ptr<const DeduplicatedList> list_;
  const size_t size_;
  const std::unique_ptr<EntryRef[]> entries_;
  const std::unique_ptr<uint32_t[]> rows_;
  StripeTimes times_;
  uint64_t stripes_ = 0;  // Bit s: a key of the lookup is in stripe s.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_ROW_HINTS_H_
