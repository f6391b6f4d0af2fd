// SPDX-License-Identifier: Apache-2.0
// What a training step does in one table. training_step.h has the step.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_BATCH_APPLY_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_BATCH_APPLY_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "ops/core/filter/filter_rule.h"
#include "ops/core/keys/key_partition.h"
#include "ops/core/math/row_update.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

// A large batch is split into a group of keys per stripe, and groups may be
// handled by several threads at once.
//
// A small batch has only a few keys per stripe: the costs per stripe would
// exceed those of the keys, and cache misses would not overlap. So it is one
// group, which belongs to several stripes.
//
// No method but Grow and Update waits for an exclusive lock (see "THREAD RULE"
// in embedding_table.h).
class BatchApply final : public KeyHolder {
 public:
  // All of these outlive the object.
  BatchApply(StripeSet* stripes, RowStore* store, const FilterRule& rule,
             const StepBatch& batch)
      : stripes_(*stripes), store_(*store), rule_(rule), batch_(batch) {}
  // Returns what is left of the quotas.
  ~BatchApply() { ReleaseQuotas(); }
  BatchApply(const BatchApply&) = delete;
  BatchApply& operator=(const BatchApply&) = delete;

  // `follower`, which has the same lists of keys, uses what this object sorts
  // and deduplicates. Its groups are found by Find of this object.
  void ShareKeysWith(BatchApply* follower) {
    follower->leader_ = this;
    follower->next_follower_ = next_follower_;
    next_follower_ = follower;
  }
  bool has_leader() const { return leader_ != nullptr; }

  // ----- Reserving, in this order. Reads keys only.

  // Chooses the groups. False: the occurrences cannot be numbered.
  bool Begin();
  uint64_t occurrences() const { return part_.n; }
  int groups() const { return part_.groups; }
  void AddTo(Layout* layout);
  int64_t blocks() const {
    if (leader_ != nullptr || groups_ != nullptr) return 0;
    return static_cast<int64_t>(part_.blocks());
  }
  void SortBlock(int64_t b) { part_.SortBlock(static_cast<uint64_t>(b)); }
  // That of the leader first.
  void EndSort();
  // What only unusual batches need: hash tables of groups with many
  // occurrences, and sums of wide rows.
  void AddUnusualTo(Layout* layout);
  // Finds the distinct keys of group g, and which of them are new, here and in
  // the followers.
  void Find(int g);
  // The distinct keys of the stripe's group, from Find on.
  Keys KeysIn(int stripe) const override;
  // Adds the rows on disk. Returns the number of those in memory. Throws
  // std::bad_alloc.
  int64_t ListSpilled(PinnedRows* spilled) const;
  // Looks again which of them are new.
  void FindAgain(int g);
  int64_t new_rows() const;
  // Reserves room for what is new. Sets *to_grow to the stripes that have no
  // room now: TryGrow or Grow makes it. False: no memory for rows.
  bool ReserveQuotas(uint64_t* to_grow);
  // Sets the rows of the keys, then of the counted keys, of a batch without
  // hints.
  void ListRows(RowHints* hints) const;
  // Makes room in stripe s. TryGrow returns whether it got the lock.
  bool TryGrow(int s, bool* has_memory);
  bool Grow(int s);
  // Also called at the end of a step.
  void ReleaseQuotas();

  // ----- Applying.

  // How to update rows. It outlives the step.
  void set_update(const RowUpdate* update) { update_ = update; }
  // Inserts what is new in group g, then updates its rows. TryUpdate returns
  // whether it got the locks. *done = false, with the group as it was: there is
  // no memory in spite of the quota, which needs that another thread has erased
  // keys or cleared the table since.
  bool TryUpdate(int g, bool* done);
  void Update(int g, bool* done);

 private:
  // The row word of a key that is about to get a row.
  static constexpr uint32_t kToAdmit = HashIndex::kNoRow - 1;
  static_assert(kToAdmit >= HashIndex::kMaxRows, "not the number of a row");

  // The locks of the group are held for both.
  bool UpdateLocked(int g);
  // Makes room for needs_, if it is missing in spite of the quotas. *has_grown:
  // entries have moved. False: no memory.
  bool MakeRoom(int g, bool* has_grown);

  void Deduplicate(int g);

  // The locks of a group's stripes are held for all methods below, shared at
  // least for Classify and DecideAdmission.

  // Finds the distinct keys of group g, lists those without a row, except
  // padding, in id_, whose contents are no longer needed, and decides on them.
  void Classify(int g);
  // The same if entries are in place: finds only keys that had no row in
  // memory.
  void ClassifyOthers(int g);
  void FindKeysWithoutRow(int g);  // What both do with the entries.
  // Whether another thread has locked the stripes since Classify, and may have
  // moved entries; whether it may have changed keys that had no row in memory.
  // The locks are held exclusively.
  bool HaveMoved(int g) const;
  bool HaveOthersChanged(int g) const;
  // Sets the row word of the listed keys (n) that get a row to kToAdmit, and
  // adds what they need to needs_. With a sketch, records the estimates of
  // those without an entry, so that no key counts what another key of this
  // batch adds.
  void DecideAdmission(int g, const uint32_t* without_row, uint32_t n);
  // The occurrences of distinct key u of group g.
  uint64_t Occurrences(int g, uint32_t u) const {
    const uint32_t* end = end_ + part_.begin[g];
    return CountRange(g, u == 0 ? 0 : end[u - 1], end[u]);
  }
  // The occurrences that [begin, end) of group g's part of grouped_ stand for.
  uint64_t CountRange(int g, uint32_t begin, uint32_t end) const {
    return batch_.counts == nullptr ? end - begin : SumCounts(g, begin, end);
  }
  uint64_t SumCounts(int g, uint32_t begin, uint32_t end) const;
  // The rows that group g needs beyond those that its stripes have freed.
  uint32_t RowsToTake(int g) const;
  // Gives entries and rows to the keys that need them. There is room. False: no
  // memory for rows, and nothing has changed.
  bool InsertAdmitted(int g);
  // Stamps, sums and updates the rows of group g.
  void UpdateRows(int g);
  // kTileRows rows at a time.
  template <bool kAllHaveRows>
  void UpdateTiles(int g);
  // The same for a list of keys whose sums fit on the stack: gradients are
  // summed in batch order, as they are in memory.
  bool SumsOf(const DeduplicatedList& list) const;
  template <bool kAllHaveRows>
  void UpdateList();

  template <typename Work>
  static void ForEachStripe(uint64_t mask, const Work& work) {
    for (; mask != 0; mask &= mask - 1) work(__builtin_ctzll(mask));
  }

  StripeSet& stripes_;
  RowStore& store_;
  const FilterRule rule_;
  const StepBatch& batch_;
  const RowUpdate* update_ = nullptr;
  const RowHints* hints_ = nullptr;  // Of the batch, if its keys are those.
  // Those keys, here or in the leader: a short list, or a long one.
  const DeduplicatedList* list_ = nullptr;
  const GroupedKeys* groups_ = nullptr;
  const BatchApply* leader_ = nullptr;
  BatchApply* next_follower_ = nullptr;
  KeyPartition part_;

  // Each group's part begins at part_.begin[g]. key_, grouped_ and end_ may be
  // the leader's, or those of a long list:
  int64_t* key_;        // (unique)
  uint32_t* id_;        // (n) the distinct key of each occurrence
  uint32_t* grouped_;   // (n) occurrences, grouped by distinct key
  uint32_t* end_;       // (unique) end of each key's occurrences in grouped_
  EntryRef* entry_;     // (unique)
  uint32_t* row_;       // (unique)
  uint32_t* estimate_;  // (unique) of keys that the sketch counts
  float* wide_sums_ = nullptr;  // (kStripes, dim) if dim > kTileFloats

  // By group. Arrays that a small batch does not use are not set either.
  std::array<uint64_t, kStripes> stripes_of_;  // Of its keys.
  std::array<uint32_t, kStripes> unique_;
  std::array<uint32_t, kStripes> n_without_row_;
  // Rows on disk and in memory.
  std::array<uint32_t, kStripes> n_spilled_;
  std::array<uint32_t, kStripes> n_in_memory_;
  // Whether the group's distinct keys are listed.
  std::array<std::atomic<bool>, kStripes> is_listed_{};
  // Whether every key has a row, once InsertAdmitted has run.
  std::array<bool, kStripes> all_have_rows_;
  std::array<uint32_t, kStripes> row_quota_{};  // What is left.
  // By stripe.
  std::array<StripeNeeds, kStripes> needs_;
  StripeTimes times_;  // Of Classify.
  // Quotas of entries and of keys of the sketch.
  std::array<uint32_t, kStripes> entry_quota_;
  std::array<uint32_t, kStripes> sketch_quota_;
  uint64_t has_quota_ = 0;  // Bit s: the two above are set and not released.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_BATCH_APPLY_H_
