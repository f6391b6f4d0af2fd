// SPDX-License-Identifier: Apache-2.0
// StepPlan: what a training step will do in one table. It finds the step's
// keys, decides which of those without a row get one, and holds the room that
// these need until the step ends. key_groups.h shows what comes before and
// after.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_STEP_PLAN_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_STEP_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/scratch.h"
#include "ops/core/filter/filter_rule.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/key_groups.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/stripe_times.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

// What is planned for the distinct keys of a group. The arrays are parallel to
// KeyGroup::keys.
struct GroupPlan {
  // The row word of a key that is about to get a row.
  static constexpr uint32_t kToAdmit = HashIndex::kNoRow - 1;
  static_assert(kToAdmit >= HashIndex::kMaxRows, "not the number of a row");

  EntryRef* entries;
  uint32_t* rows;  // Row words.
  // (n_without_row) the keys that have no row, except padding.
  uint32_t* without_row;
  // Counts of keys in the sketch before the batch, so that no key counts what
  // another key of the batch adds.
  uint32_t* estimates;
  uint32_t n_without_row;
  uint32_t n_spilled;    // Keys whose rows are on disk,
  uint32_t n_in_memory;  // and in memory.
  uint32_t n_padding;    // Occurrences of padding.
  // Whether every key has a row once those to admit have got theirs.
  bool all_have_rows;
};

// Only Grow waits for an exclusive lock (see "THREAD RULE" in
// embedding_table.h).
class StepPlan {
 public:
  // All of these outlive the object. hints: where the keys of a list were,
  // which the groups are made from; nullptr: unknown.
  StepPlan(StripeSet* stripes, RowStore* store, const FilterRule& rule,
           const KeyGroups& keys, const RowHints* hints)
      : stripes_(*stripes),
        store_(*store),
        rule_(rule),
        keys_(keys),
        hints_(hints) {}
  ~StepPlan() { ReleaseQuotas(); }
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  // ----- Finding keys.

  void AddTo(Layout* layout);
  // Memory for KeyGroups::Deduplicate, before the first Find.
  uint32_t* scratch(int g) { return without_row_ + keys_[g].begin; }
  // Finds the keys of group g under shared locks. May be repeated until
  // ReserveQuotas.
  void Find(int g);
  int64_t new_rows() const;
  // Adds the occurrences of all keys but padding to *looked_up, and those of
  // keys that have a row to *found.
  void CountLookedUp(int64_t* looked_up, int64_t* found) const;
  // Adds the rows on disk. Returns the number of those in memory. Throws
  // std::bad_alloc.
  int64_t ListSpilled(PinnedRows* spilled) const;
  // Sets the rows of the keys, then of the counted keys.
  void ListRows(RowHints* hints) const;

  // ----- Holding room.

  // Reserves room for what is new. Sets *to_grow to the stripes that have no
  // room now: TryGrow or Grow makes it. False: no memory for rows.
  bool ReserveQuotas(uint64_t* to_grow);
  // Makes room in stripe s. TryGrow returns whether it got the lock.
  bool TryGrow(int s, bool* has_memory);
  bool Grow(int s);
  // Also called at the end of a step.
  void ReleaseQuotas();

  // ----- For RowUpdater, which holds the exclusive locks of group g.

  // Looks again for the keys that other threads may have changed since Find.
  // The caller has taken each lock once since.
  void Refresh(int g);
  GroupPlan& operator[](int g) { return groups_[static_cast<size_t>(g)]; }
  const StripeNeeds& needs(int s) const {
    return needs_[static_cast<size_t>(s)];
  }
  // Makes room for what is new, if it is missing in spite of the quotas.
  // *has_grown: entries have moved. False: no memory.
  bool MakeRoom(int g, bool* has_grown);
  // Takes the rows that the group needs beyond those that its stripes have
  // freed. *first: the first of them. False: no memory.
  bool TakeRows(int g, uint32_t* first);

 private:
  // The locks of the group's stripes are held for all methods below, shared at
  // least.

  void FindAll(int g);
  // The same if entries are in place: finds only keys that had no row in
  // memory.
  void FindOthers(int g);
  // What both do with the row words: lists the keys without a row and decides
  // on them.
  void FindKeysWithoutRow(int g);
  // Sets the row word of the listed keys that get a row to kToAdmit, and adds
  // what they need to needs_.
  void ChooseKeysToAdmit(int g);

  StripeSet& stripes_;
  RowStore& store_;
  const FilterRule rule_;
  const KeyGroups& keys_;
  const RowHints* const hints_;

  // Each group's part begins at KeyGroup::begin.
  EntryRef* entries_;              // (n)
  uint32_t* rows_;                 // (n)
  uint32_t* without_row_;          // (n)
  uint32_t* estimates_ = nullptr;  // (n) if the table has a sketch

  // By group. What a small batch does not use is not set, here and below.
  std::array<GroupPlan, kStripes> groups_;
  std::array<uint32_t, kStripes> row_quota_{};  // What is left.
  // By stripe.
  std::array<StripeNeeds, kStripes> needs_;
  StripeTimes times_;  // When the keys were found.
  // Quotas of entries and of keys of the sketch.
  std::array<uint32_t, kStripes> entry_quota_;
  std::array<uint32_t, kStripes> sketch_quota_;
  uint64_t has_quota_ = 0;  // Bit s: the two above are set and not released.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_STEP_PLAN_H_
