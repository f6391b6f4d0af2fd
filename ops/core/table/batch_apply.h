// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Apply, one training step, in its stages.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_APPLY_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_APPLY_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "ops/core/base/parallel.h"
#include "ops/core/math/row_update.h"
#include "ops/core/table/admission.h"
#include "ops/core/table/batch_scratch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_store.h"
#include "ops/core/table/shard.h"
#include "ops/core/table/shard_set.h"

namespace rec_estimator {

// Every stage is split by shard. Stages that need a lock only call try_lock in
// `parallel`; the calling thread handles the other shards afterwards (see
// "THREAD RULE" in embedding_table.h).
class BatchApply {
 public:
  // All of these outlive the object.
  BatchApply(ShardSet* shards, RowStore* store, const Admission& admission,
             const EmbeddingTable::Batch& batch)
      : shards_(*shards),
        store_(*store),
        admission_(admission),
        batch_(batch) {}

  // Sorts the keys. False: no memory.
  bool Prepare(const ParallelFor& parallel);

  // After Prepare: the number of keys that would get a row.
  int64_t CountNewRows(const ParallelFor& parallel);

  // After Prepare. Returns false and changes nothing if there is no memory.
  bool Run(const RowUpdate& update, const ParallelFor& parallel);

 private:
  // Allocates what only unusual batches need: hash tables for shards with too
  // many occurrences for the stack, and sums of wide rows.
  bool AllocateWide();
  void Deduplicate(int s);

  // Reserves room for the new entries of shard s before anything changes.
  // Mostly there is room for all keys of the batch, and no lock is needed.
  void ReserveQuota(int s);
  // Makes the room. The lock is held.
  void GrowToQuota(int s);
  void ReleaseQuota(int s);

  // Finds the distinct keys of shard s, lists those without a row, except
  // padding, in id_, whose contents are no longer needed, and decides on them.
  // The lock is held, shared at least.
  ShardNeeds Classify(int s);
  // Sets the row word of the listed keys (n) that get a row to kToAdmit. With a
  // Bloom filter, records the estimates of those without an entry, so that no
  // key counts what another key of this batch adds.
  ShardNeeds DecideAdmission(int s, const uint32_t* without_row, uint32_t n);
  // The occurrences of distinct key u of a shard whose part of end_ is `end`.
  static uint32_t Occurrences(const uint32_t* end, uint32_t u) {
    return u == 0 ? end[0] : end[u] - end[u - 1];
  }

  // Finds or inserts the keys of shard s, then updates their rows. The lock is
  // held.
  void Update(int s);
  // Gives entries and rows to the keys that need them. Returns false and leaves
  // the shard as it was if there is no memory in spite of the quota, which
  // needs that another thread has erased keys or cleared the table since.
  bool InsertAdmitted(int s, bool* all_have_rows);
  // Stamps, sums and updates, kTileRows rows at a time.
  template <bool kAllHaveRows>
  void UpdateRows(int s);

  ShardSet& shards_;
  RowStore& store_;
  const Admission admission_;
  const EmbeddingTable::Batch& batch_;
  const RowUpdate* update_ = nullptr;
  int64_t per_shard_ = 0;         // Occurrences, about.
  bool is_deduplicated_ = false;  // Set by CountNewRows.
  Scratch scratch_{Scratch::kBatch};
  Scratch wide_scratch_{Scratch::kWide};
  Partition part_;

  // Each shard's part begins at part_.begin[s]:
  int64_t* key_;        // (unique)
  uint32_t* id_;        // (n) the distinct key of each occurrence
  uint32_t* grouped_;   // (n) occurrences, grouped by distinct key
  uint32_t* end_;       // (unique) end of each key's occurrences in grouped_
  EntryRef* entry_;     // (unique)
  uint32_t* row_;       // (unique)
  uint32_t* estimate_;  // (unique) of keys that a Bloom filter counted
  std::array<uint32_t*, kShards> dedup_;
  float* wide_sums_ = nullptr;  // (kShards, dim) if dim > kTileFloats

  std::array<uint32_t, kShards> unique_{};
  std::array<uint32_t, kShards> n_without_row_{};
  // What is left of the quotas of entries, rows and Bloom blocks.
  std::array<uint32_t, kShards> entry_quota_{};
  std::array<uint32_t, kShards> row_quota_{};
  std::array<uint32_t, kShards> block_quota_{};
  std::atomic<uint64_t> try_lock_failed_{0};  // Bit s: on shard s.
  std::atomic<bool> failed_{false};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_APPLY_H_
