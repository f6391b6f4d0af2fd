// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Insert and InsertFiltered: keys as a checkpoint holds them.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_BATCH_INSERT_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_BATCH_INSERT_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/filter/filter_rule.h"
#include "ops/core/keys/key_partition.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

class BatchInsert {
 public:
  // kRows: every key gets a row. Otherwise the keys that are admitted do; the
  // others get an entry or, with kFilteredIntoSketch, the sketch counts them.
  enum Mode { kRows, kFiltered, kFilteredIntoSketch };

  // All of these outlive the object.
  BatchInsert(StripeSet* stripes, RowStore* store, const FilterRule& rule,
              const RestoredRows& batch, Mode mode)
      : stripes_(*stripes),
        store_(*store),
        rule_(rule),
        batch_(batch),
        mode_(mode),
        // A tier decides which rows take memory.
        rows_first_(mode == kRows && batch.are_new &&
                    (*stripes)[0].tier() == nullptr) {}

  // Returns false and changes nothing if there is no memory.
  bool Run();

 private:
  // Keys that are found together.
  static constexpr uint32_t kFound = 16;
  // Keys whose buckets, which come from memory, and whose rows, which a restore
  // has just read, are fetched before they are inserted.
  static constexpr uint32_t kBucketsAhead = 16;
  static constexpr uint32_t kRowsAhead = 4;

  uint32_t CountAt(uint32_t i) const {
    return FilterRule::CountOf(batch_.freqs != nullptr ? batch_.freqs[i] : 0);
  }
  bool OwnsRow(uint32_t count) const {
    return mode_ == kRows || rule_.IsAdmitted(count);
  }
  bool CountsInSketch(bool owns_row) const {
    return mode_ == kFilteredIntoSketch && !owns_row;
  }
  // Whether every key gets an entry. Then, if there is room, all keys may be
  // treated as new ones, and none has to be searched.
  bool AllGetEntries() const { return mode_ != kFilteredIntoSketch; }

  // With rows_first_: takes rows for the whole batch and writes them in the
  // order of the batch. Memory that is read and written in sequence is fetched
  // ahead by the CPU; in the order of the stripes, each row waits for both.
  // False: no memory. Needs no lock, because nobody knows these rows yet.
  bool WriteRows();

  // The methods below need the exclusive lock of stripe s.

  // Calls visit(occurrence, entry) for the keys of stripe s, in batch order.
  template <typename Visit>
  void FindAll(int s, const Visit& visit) const;
  // What the keys of stripe s will occupy, at most.
  StripeNeeds CountNeeds(int s) const;
  // Reserves room for the keys of stripe s. False: no memory.
  bool ReserveQuota(int s);
  // Inserts one key after the other: of a key given twice, the last row wins.
  bool InsertAll(int s);
  bool InsertOne(int s, int64_t key, uint32_t i);
  // Inserts a key whose row has been written.
  void InsertWritten(int s, int64_t key, uint32_t i);
  void SetCounts(EntryRef entry, uint32_t i) const;
  // Fetch what InsertOne will read.
  static void PrefetchBucket(const Stripe& stripe, int64_t key);
  void PrefetchRow(size_t i) const;
  // Takes several rows from the arena, whose lock all stripes share, but no
  // more than the quota of stripe s.
  bool TakeRun(int s);
  // Writes the given values and the initial values of the rest, by CopyRow or
  // StreamRow.
  template <typename Copy>
  void SetRow(int64_t key, uint32_t i, const Copy& copy, float* row) const;

  StripeSet& stripes_;
  RowStore& store_;
  const FilterRule rule_;
  const RestoredRows& batch_;
  const Mode mode_;
  const bool rows_first_;
  Scratch scratch_;
  KeyPartition part_;
  std::array<StripeNeeds, kStripes> quota_{};  // What is left, per stripe.
  uint64_t row_quota_ = 0;                     // What is left in the arena.
  // With rows_first_, row i of the batch is row first_row_ + i of the arena.
  uint32_t first_row_ = 0;
  // Rows that were taken from the arena for the current stripe and not used
  // yet.
  uint32_t next_row_ = 0;
  uint32_t run_rows_ = 0;
  bool tracking_ = false;  // Whether the current stripe tracks.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_BATCH_INSERT_H_
