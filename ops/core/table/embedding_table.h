// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: maps int64 keys to rows of floats. It grows, and threads
// share it.
//
// LAYOUT
//
//            key --MixKey--> the lowest 6 bits choose one of 64 stripes
//                --HashKey-> the highest bits choose a bucket in it
//
//   stripe    one lock | its index: an array of buckets | free rows, counters
//
//   bucket   128 bytes, 5 entries, open addressing
//            |used|over|  |row 0..4 |key 0 |key 1 |key 2 |key 3 |key 4 | 64 B
//            |version 0..4                      |count 0..4       |    | 64 B
//
//   arena    row number --directory--> block of 2^k rows, 2 to 4 MiB
//            |value ........|slot 0 ......|slot 1 ......|  one row, contiguous
//
// A lookup reads only the first line of a bucket. Applies, saves and evictions
// also use the second. hash_index.h explains how keys find their buckets. Rows
// do not move: only EnsureSlots changes their addresses.
//
// WHERE IT IS EXPLAINED
//
//   index/    hash_index.h         buckets, growth; key_match.h: 5 keys at once
//   rows/     row_arena.h          the memory of rows
//   filter/   filter_rule.h        which keys own rows; sketch.h: their counts
//   stripes/  stripe.h             locks, quotas, change marks; row_budget.h
//   tier/     disk_tier.h          rows on disk
//   evict/    eviction_rule.h      which keys are taken away; capacity.h;
//             memory_budget.h      memory that tables share
//   step/     training_step.h      reserve and apply; batch_insert.h: restore
//   table/    row_lookup.h         lookups; row_reader.h; snapshot.h: saves
//
// AN APPLY
//
// A stable counting sort by stripe, then, per stripe, the distinct keys with
// their occurrences in batch order (key_groups.h), and which of them are new.
// Room is held for those (step_plan.h; see below). Then, under an exclusive
// lock, new keys are inserted, and 64 rows at a time summed and updated
// (row_updater.h). A small batch is not sorted but handled as a whole under the
// locks of all its stripes. If a lookup of the same list has found its keys
// (deduplicated_list.h, row_hints.h), they are not searched again. All steps
// are split by table and stripe and keep the batch's order within a key, so the
// bits do not depend on the number of threads. Insert (batch_insert.h), which a
// restore uses, sorts and reserves room in the same way. If its keys are new,
// it then writes all rows in the order of the batch before it searches a key.
//
// A key that is counted but not admitted has either an entry without a row, or
// no entry, and a sketch counts it. An apply decides on all keys of a stripe by
// the counts before the batch and changes entries after that. So Admits, which
// decides the same way, predicts what an Apply will do.
//
// Special keys: only a key without a row is compared with the padding key, so
// other tables pay nothing for it. The values of frozen keys are saved before
// the rows of a stripe are updated and restored afterwards.
//
// OUT OF MEMORY
//
// A step first gets its scratch memory and reserves quotas of entries, rows and
// room in the sketch for its new keys, in all its tables. Mostly a quota is one
// atomic addition; if there is no room, the index grows under the lock. No
// entry or row is touched before all quotas are granted, so Apply and Insert
// change nothing if they return false. The exception: another thread erases
// keys of the batch or clears the table meanwhile, and memory then runs out.
// Then whole stripes are skipped. SetBank, EnsureSlots, bank, slots and
// Snapshot throw std::bad_alloc instead.
//
// THREAD RULE
//
// Any thread may call any method at any time. A stripe's lock is held shared to
// read rows and entries and exclusively to change them. An insertion, erasure,
// eviction, CommitSaved and the apply of a large batch hold one stripe's lock
// at a time. The apply of a small batch, a RowReader, Snapshot, EnsureSlots,
// SetBank, Clear, MergeSketch, an eviction that ages the sketch and one from a
// small table that is full hold several, taken in ascending order. No thread
// waits for locks of two tables. bank() and slots() take no stripe's lock.
//
// Work inside `parallel` never blocks on an exclusive lock. It calls try_lock,
// and the calling thread later handles the stripes whose try_lock failed. The
// reason: a save holds all shared locks while it waits for threads of the same
// pool. For the same reason a waiting writer does not block readers
// (shared_mutex.h). A lookup holds its locks for 4096 keys at a time, so it
// reads each row at one instant but not the whole batch; a RowReader does that.
// A thread that holds a RowReader or a Snapshot must not call a method that
// needs an exclusive lock. The calling thread of an apply takes the row limit's
// mutex before any stripe's lock. Callers must commit one save before the next
// begins.
//
// COSTS
//
// Memory beyond a row's floats: 25.6 bytes per entry, 34.5 per key averaged
// over growth (0.74 load). An empty table takes 25 KiB. Growing a stripe needs
// its old and new array at once. Erased rows are reused by their stripe; only
// Clear frees memory. A lookup reads 1.1 lines of index per key (1.3 for an
// absent key) and the lines of the value; an apply one more line of index and
// the slots. docs/core_measurements.md has speeds, docs/decisions.md the
// alternatives that were slower.
//
// Weak points: a call per key is slow (an apply takes 0.5 us), so every method
// takes a batch. A batch whose keys are in one stripe runs on one thread. The
// hash function is fixed, so an adversary can fill one bucket, where searches
// become linear.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"
#include "ops/core/filter/filter_rule.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/math/row_update.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/step/batch.h"

namespace rec_estimator {

class Capacity;
class DiskIo;
struct DiskError;
class DiskTier;
struct Evicted;  // eviction.h
class EvictionRule;
class MemoryBudget;
class RowBudget;
class RowHints;
class RowStore;
class StripeSet;
class DeduplicatedList;
struct TableParts;
struct TierSpec;

class EmbeddingTable {
 public:
  static constexpr int64_t kPadding = kPaddingKey;

  explicit EmbeddingTable(int dim, float default_value = 0.0f,
                          const FilterSpec& filter = {},
                          const RowRules& rules = {});
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  // Makes the table evict the rows for which a budget has no memory
  // (memory_budget.h), by the policy of rules().capacity. Called at most once,
  // while no other thread uses the table. Throws std::bad_alloc.
  void ShareMemory(std::shared_ptr<MemoryBudget> budget);
  // Keeps only spec.memory_rows rows in memory and the others on disk
  // (disk_tier.h). Called at most once, while the table has no rows and no
  // other thread uses it. False: *error says why, and nothing has changed.
  //
  // From then on Lookup, Insert, InsertFiltered, SetSlot and Evict, by a rule
  // that reads values, throw StorageError if the disk fails, and
  // std::bad_alloc. Nothing has changed then, except that Evict may have
  // evicted some keys.
  bool OpenTier(const TierSpec& spec, std::unique_ptr<DiskIo> io,
                DiskError* error);
  const DiskTier* tier() const { return tier_.get(); }  // nullptr: none.
  // Brings rows on disk into memory ahead of the step that needs them; nothing
  // without a tier. As DiskTier::BringInAhead.
  bool BringInAhead(const std::vector<KeySpan>& lists, uint32_t batches);

  int dim() const { return dim_; }
  const FilterSpec& filter() const { return filter_; }
  const RowRules& rules() const { return rules_; }
  std::vector<SlotSpec> slots() const;
  int row_floats() const;  // dim + the slots' widths.

  // Replaces the bank of initial vectors by a copy of `bank`. Keys without a
  // row read the new bank; existing rows keep their values. rows >= 1.
  void SetBank(const float* bank, int64_t rows);  // (rows, dim)
  int64_t bank_rows() const;                      // 0 before the first SetBank.
  std::vector<float> bank() const;                // (bank_rows, dim)

  // Adds those of the slots that the rows do not have yet. Existing rows get
  // the slot's initial value. If a slot of that name exists with another
  // initial value, new rows get the new one. Returns false and changes nothing
  // if a slot exists with another width, a width is below 1, or there is no
  // memory. This is the only method that moves rows: it takes every lock and
  // temporarily needs memory for all rows twice.
  bool EnsureSlots(const std::vector<SlotSpec>& slots);
  // Whether the first slots of a row are these.
  bool BeginsWithSlots(const std::vector<SlotSpec>& slots) const;

  // Removes all keys and empties the sketch. Bank and slots stay. Stops
  // tracking changes, since nothing is known to be saved any more.
  void Clear();

  // out[i] = what keys[i] reads. Changes nothing. hints: the rows that a
  // step of this table found for these keys, to be used unless the table has
  // changed since; nullptr: none.
  void Lookup(const int64_t* keys,  // (n)
              size_t n, UnknownKey unknown,
              float* out,  // (n, dim)
              const ParallelFor& parallel,
              const RowHints* hints = nullptr) const;

  // Looks up the keys of a list that several tables share. The result is
  // for a StepBatch of this table with the same keys. Throws StorageError and
  // std::bad_alloc.
  std::shared_ptr<const RowHints> LookupListed(
      std::shared_ptr<const DeduplicatedList> list, UnknownKey unknown,
      float* out,  // (list->n(), dim)
      const ParallelFor& parallel) const;

  // Counts, admits, inserts and updates. The count of a key grows by
  // filter().coefficient per occurrence. A key without a row gets one, from its
  // initial vector, if that count reaches the threshold, and this step's
  // gradient is applied to it; otherwise the gradient is dropped. A key is
  // updated once, with its gradients summed from +0 in order of occurrence,
  // unless update.per_occurrence(). The bits do not depend on `parallel`.
  // Precondition: slots() begins with the slots of `update`, in their widths.
  // Returns false and changes nothing if there is no memory, if n + n_counted
  // reaches 2^31, or if the table would exceed rules().max_rows. In the last
  // case *excess_rows, if given, is the number of rows too many; otherwise 0.
  // training_step.h applies a step to several tables at once.
  bool Apply(const StepBatch& batch, const RowUpdate& update,
             const ParallelFor& parallel, int64_t* excess_rows = nullptr);

  // For the classes that work on a table: TrainingStep, RowReader, Snapshot.
  // The table outlives them.
  TableParts parts() const;

  // out[i] = whether keys[i] owns a row or would own one after an Apply of all
  // keys (n), repeats included. Changes nothing. False: no memory.
  bool Admits(const int64_t* keys, size_t n, bool* out) const;

  // out[i] = whether keys[i] owns a row.
  void Contains(const int64_t* keys, size_t n, bool* out) const;

  // Makes room in the index for this many more keys, so that inserting them
  // does not grow it step by step. Only a hint: it reports no error.
  void Reserve(int64_t keys);
  // Returns false and changes nothing if there is no memory.
  bool Insert(const RestoredRows& rows);

  // Inserts keys that a checkpoint holds as counted but not admitted, or
  // overwrites their count and version. FilterRule is decided anew: a key whose
  // count reaches the threshold gets an initial row. into_sketch: a sketch, if
  // there is one, counts a key that has no entry and is not admitted. Otherwise
  // the key gets an entry. A key that owns a row keeps it. Returns
  // false and changes nothing if there is no memory.
  bool InsertFiltered(const int64_t* keys, size_t n,
                      const int64_t* freqs,     // (n); nullptr: 0.
                      const int64_t* versions,  // (n); nullptr: -1.
                      bool into_sketch);

  // Overwrites one slot of those keys (n) that own rows and returns how many
  // do.
  size_t SetSlot(size_t slot, const int64_t* keys, size_t n,
                 const float* values);  // (n, slots()[slot].width)

  // The three methods below throw std::bad_alloc if changes are tracked and
  // there is no memory to record an erased key. Keys erased before that are
  // recorded.

  // Erases rows and counts of keys (n) and returns how many were present. The
  // rows are reused. What the sketch counted stays.
  size_t Erase(const int64_t* keys, size_t n);
  // Evicts the keys that a rule (eviction_rule.h) names. While the sketch
  // counts an evicted key, the key keeps an entry without a row, in which it is
  // counted from 0.
  Evicted Evict(EvictionRule* rule);
  // Evicts keys (n) in the same way and returns how many had a row. stamp: the
  // version of such an entry. What the sketch has counted of a key without an
  // entry stays.
  size_t EvictKeys(const int64_t* keys, size_t n, int64_t stamp);

  // nullptr: every counted key has an entry. For what is fixed about a sketch
  // and for checks of what was stored; a Snapshot reads what it counts.
  const Sketch* sketch() const;
  // Raises counts to those of a checkpoint, which were checked. Returns false
  // and changes nothing if there is no memory.
  bool MergeSketch(const Sketch::StoredRows& rows);
  // Takes over the heads of the last checkpoint of a chain, of `total` rows.
  void MergeSketchHeads(const Sketch::Heads& last, int64_t total);

  // Starts recording changes for incremental saves. Off at first and after
  // Clear. If called while a Snapshot lives, all changes after the Snapshot are
  // recorded.
  void TrackChanges();
  bool tracks_changes() const;
  // Forgets the changes that the last Snapshot::MarkSaved marked.
  void CommitSaved();

  // The count of each key; 0 if unknown. For a key that only the sketch counts,
  // the estimate: at least the smaller of count and threshold. Never inserts.
  void Frequencies(const int64_t* keys, size_t n, int64_t* out) const;
  // global_step of the last apply of each key; -1 if unknown or never applied.
  void Versions(const int64_t* keys, size_t n, int64_t* out) const;

  int64_t size() const;         // Keys that own a row.
  int64_t total_count() const;  // All entries, with and without a row.
  int64_t capacity() const;     // Entries that fit before a stripe grows.
  // The size of buckets, rows, the sketch and what a tier has in memory.
  int64_t memory_bytes() const;
  // Waits as an apply does.
  TierCounts tier_counts() const;
  // Waits as an apply does.
  TableActivity activity() const;

 private:
  // The cost of a key in a lookup of many keys.
  int64_t CyclesPerKey() const { return 60 + dim_; }
  // With a tier, called before and after rows are added. The first throws
  // StorageError and std::bad_alloc.
  void MakeRoomInMemory();
  void SpillExcess();

  const int dim_;
  const FilterSpec filter_;
  const RowRules rules_;
  const FilterRule rule_;
  std::unique_ptr<RowStore> store_;
  std::unique_ptr<StripeSet> stripes_;
  std::unique_ptr<RowBudget> budget_;
  std::unique_ptr<DiskTier> tier_;
  std::unique_ptr<Capacity> capacity_;  // nullptr: none.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_
