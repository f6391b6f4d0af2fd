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

// A large batch is split into a group of keys per shard, and each stage runs on
// several groups at once. Stages that need a lock only call try_lock in
// `parallel`; the calling thread handles the other shards afterwards (see
// "THREAD RULE" in embedding_table.h).
//
// A small batch has only a few keys per shard: the costs per shard would exceed
// those of the keys, and cache misses would not overlap. So it is one group.
// The calling thread locks all its shards and runs every stage once.
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
  // Allocates what only unusual batches need: hash tables for groups with too
  // many occurrences for the stack, and sums of wide rows.
  bool AllocateWide();
  void Deduplicate(int g);

  // ----- A group is one shard.

  bool RunByShard(const ParallelFor& parallel);
  // Reserves room for the new entries of shard s before anything changes.
  // Mostly there is room for all keys of the batch, and no lock is needed.
  void ReserveQuota(int s);
  // Makes the room. The lock is held.
  void GrowToQuota(int s);
  void ReleaseQuota(int s);
  // Finds or inserts the keys of shard s, then updates their rows. The lock is
  // held. Notes a failure, with the shard as it was, if there is no memory in
  // spite of the quota, which needs that another thread has erased keys or
  // cleared the table since.
  void Update(int s);

  // ----- The whole batch is group 0.

  bool RunAtOnce();
  // Reserves what needs_ says. The locks are held.
  bool ReserveNeeds();

  // ----- Either. The locks of a group's shards are held, shared at least for
  // Classify and DecideAdmission.

  // Finds the distinct keys of group g, lists those without a row, except
  // padding, in id_, whose contents are no longer needed, and decides on them.
  void Classify(int g);
  // Sets the row word of the listed keys (n) that get a row to kToAdmit, and
  // adds what they need to needs_. With a sketch, records the estimates of
  // those without an entry, so that no key counts what another key of this
  // batch adds.
  void DecideAdmission(int g, const uint32_t* without_row, uint32_t n);
  // The occurrences of distinct key u of a group whose part of end_ is `end`.
  static uint32_t Occurrences(const uint32_t* end, uint32_t u) {
    return u == 0 ? end[0] : end[u] - end[u - 1];
  }
  // The rows that group g needs beyond those that its shards have freed.
  uint32_t RowsToTake(int g) const;
  // Gives entries and rows to the keys that need them. There is room. False: no
  // memory for rows, and nothing has changed.
  bool InsertAdmitted(int g);
  // Stamps, sums and updates the rows of group g.
  void UpdateRows(int g);
  // kTileRows rows at a time.
  template <bool kAllHaveRows>
  void UpdateTiles(int g);

  template <typename Work>
  static void ForEachShard(uint64_t mask, const Work& work) {
    for (; mask != 0; mask &= mask - 1) work(__builtin_ctzll(mask));
  }

  ShardSet& shards_;
  RowStore& store_;
  const Admission admission_;
  const EmbeddingTable::Batch& batch_;
  const RowUpdate* update_ = nullptr;
  int64_t per_group_ = 0;         // Occurrences, about.
  bool is_deduplicated_ = false;  // Set by CountNewRows.
  Scratch scratch_{Scratch::kBatch};
  Scratch wide_scratch_{Scratch::kWide};
  Partition part_;

  // Each group's part begins at part_.begin[g]:
  int64_t* key_;        // (unique)
  uint32_t* id_;        // (n) the distinct key of each occurrence
  uint32_t* grouped_;   // (n) occurrences, grouped by distinct key
  uint32_t* end_;       // (unique) end of each key's occurrences in grouped_
  EntryRef* entry_;     // (unique)
  uint32_t* row_;       // (unique)
  uint32_t* estimate_;  // (unique) of keys that the sketch counts
  std::array<uint32_t*, kShards> dedup_;
  float* wide_sums_ = nullptr;  // (kShards, dim) if dim > kTileFloats

  // By group. Arrays that a small batch does not use are not set either.
  std::array<uint64_t, kShards> shards_of_;  // Of its keys.
  std::array<uint32_t, kShards> unique_;
  std::array<uint32_t, kShards> n_without_row_;
  // Whether every key has a row, once InsertAdmitted has run.
  std::array<bool, kShards> all_have_rows_;
  std::array<uint32_t, kShards> row_quota_;  // What is left.
  // By shard.
  std::array<ShardNeeds, kShards> needs_;
  // What is left of the quotas of entries and of keys of the sketch.
  std::array<uint32_t, kShards> entry_quota_;
  std::array<uint32_t, kShards> sketch_quota_;
  std::atomic<uint64_t> try_lock_failed_{0};  // Bit s: on shard s.
  std::atomic<bool> failed_{false};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_APPLY_H_
