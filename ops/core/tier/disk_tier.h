// SPDX-License-Identifier: Apache-2.0
// DiskTier: the part of a table's rows that lies on disk.
//
// A table with a tier keeps at most a given number of rows in memory, besides
// those of running steps. The others are in a DiskLog (disk_log.h). The row
// word of a spilled row has its top bit set and holds the place in the log. So
// count, version and change marks stay in the index, and only what needs the
// floats of a spilled row reads it:
//
// - A step brings its rows in while it reserves, before anything changes, and
//   holds its keys until it ends: held keys are not spilled. The keys are those
//   that the step lists anyway, and they are looked at only if another step
//   spills rows meanwhile.
// - The rows of a coming batch may be brought in before its step begins. They
//   are spared until that step must have run (spared_rows.h), and so are rows
//   that are new, which the batches on their way could not ask for.
// - A lookup reads spilled rows, many at once, and leaves them where they are.
//   It pins them under the lock and reads them after it. What it has read is
//   kept for a while (recent_rows.h), so that a step does not read it again.
// - After a step or an insertion, each stripe that has more than its share of
//   rows in memory spills some: of a sample, those with the least counts or the
//   oldest versions. Their floats are copied to the log's buffers under the
//   lock; the buffers are written after it.
// - Segments with few rows are compacted by a thread of the tier, two for each
//   one that spilled rows fill. A step waits if many are due, and compacts
//   itself if the paths are full.
// - A save reads rows in the order of the checkpoint, in which segments lie on
//   disk, many at a time. An eviction that reads all rows reads the segments in
//   sequence; nothing is spilled meanwhile.
//
// If rows cannot be spilled, the table keeps them in memory, and the next step
// or insertion is refused until they can.
//
// Thread rule: any thread may call any method at any time, but the comments say
// which lock of the stripe it needs.
#ifndef REC_ESTIMATOR_OPS_CORE_TIER_DISK_TIER_H_
#define REC_ESTIMATOR_OPS_CORE_TIER_DISK_TIER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "ops/core/base/background_work.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/storage/disk_log.h"
#include "ops/core/stripes/held_keys.h"
#include "ops/core/stripes/memory_limit.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/recent_rows.h"
#include "ops/core/tier/spared_rows.h"

namespace rec_estimator {

// Which rows are spilled first.
enum class Victims { kLeastCounted, kOldest };

struct TierSpec {
  std::vector<DiskPath> paths;
  // The rows that stay in memory: so many, or, if memory_bytes is not 0, as
  // many as take so many bytes with the slots of today. At least kStripes.
  int64_t memory_rows = 0;
  Victims victims = Victims::kLeastCounted;
  int64_t memory_bytes = 0;
  std::string owner = {};  // Begins all errors, unless it is empty.
  // If not 0, replaces the other two: the bytes of all that the table has in
  // memory, index and buffers included (memory_limit.h).
  int64_t limit_bytes = 0;
  MemoryLimit::Warn warn = nullptr;
};

class DiskTier;

// Rows on disk that can be read while it lives, whatever happens to their keys.
class PinnedRows {
 public:
  explicit PinnedRows(DiskTier* tier);
  ~PinnedRows();
  PinnedRows(const PinnedRows&) = delete;
  PinnedRows& operator=(const PinnedRows&) = delete;

  // The lock of the key's stripe is held, shared at least. row: as in
  // DiskLog::Item. Throws std::bad_alloc.
  void Add(uint32_t place, int64_t key, float* row = nullptr);
  std::vector<DiskLog::Item>& items() { return items_; }
  const std::vector<DiskLog::Item>& items() const { return items_; }
  // The stamps of the items, for RecentRows::Add, while the items are in order.
  const std::vector<uint32_t>& stamps() const { return stamps_; }

 private:
  DiskTier& tier_;
  std::vector<DiskLog::Item> items_;
  std::vector<uint32_t> stamps_;
};

class DiskTier final : public RowsBeyondMemory {
 public:
  // stripes and store outlive the tier. nullptr: *error says why.
  static std::unique_ptr<DiskTier> Open(StripeSet* stripes, RowStore* store,
                                        const TierSpec& spec,
                                        std::unique_ptr<DiskIo> io,
                                        DiskError* error);
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  void Hold(const KeyHolder* holder) { holders_.Add(holder); }
  // Called at the end of a step, or of a call that changes rows like a step.
  void Release(const KeyHolder* holder);

  // Brings rows back to memory, and leaves them in another order. Their keys
  // are held. No lock is held. False: *error says why; an empty text means out
  // of memory. Throws std::bad_alloc. Either way, the table's contents are the
  // same.
  bool BringIn(PinnedRows* rows, DiskError* error);
  // Brings in the rows of keys (n), which are held. Throws StorageError and
  // std::bad_alloc.
  void BringInKeys(const int64_t* keys, size_t n);
  // Brings in the rows of a batch that is on its way to a step, and spares all
  // its rows in memory while `batches` batches, this one included, come. Keys
  // without a row cost nothing. No lock is held. False, with no more than some
  // of the rows brought in: the disk failed, *error says why, or there is no
  // memory; the step will tell. Does not throw. The table's contents are the
  // same.
  bool BringInAhead(const std::vector<KeySpan>& lists, uint32_t batches,
                    DiskError* error);
  void SpareNew(int stripe, uint32_t row) override {
    ahead_.Spare(stripe, row);
  }

  // Spills what is beyond the limit, and lets the tier's thread compact. No
  // lock is held. False: *error says why; an empty text means out of memory.
  // The table's contents are the same.
  bool SpillExcess(DiskError* error);

  // Reads the first `floats` floats of spilled rows (n), whose stripes are
  // locked or which are pinned. Throws StorageError and std::bad_alloc.
  void Read(const DiskLog::Item* items, size_t n, size_t floats);
  // Throws what a read of the log says, as Read does.
  [[noreturn]] void ThrowError(DiskError error) const;
  // Reads the values of rows for a lookup, as floats (dim); a step may need the
  // rows soon.
  void ReadForLookup(const PinnedRows& rows);
  // While the lock is held, no row moves to the disk or there.
  std::unique_lock<std::shared_mutex> PauseSpilling() {
    return std::unique_lock<std::shared_mutex>(spilling_);
  }
  // Reads all spilled rows in sequence and evicts those whose value (dim)
  // evicts(value, dim) names. Returns their number. Spilling is paused; no
  // other lock is held. Throws StorageError and std::bad_alloc; rows that were
  // evicted before stay evicted.
  using EvictsValue = std::function<bool(const float* value, int dim)>;
  int64_t EvictSpilled(const EvictsValue& evicts, int64_t stamp);

  void Free(int stripe, const uint32_t* places, size_t n) override;
  // Called when all stripes are cleared.
  void Clear();
  bool Widen(const std::vector<float>& added) { return log_->Widen(added); }

  int64_t spilled() const;  // Rows on disk.
  // Distinct keys of steps whose rows were in memory, and that were not.
  void AddToHits(int64_t hits, int64_t misses) {
    hits_.fetch_add(hits, std::memory_order_relaxed);
    misses_.fetch_add(misses, std::memory_order_relaxed);
  }
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  // Waits until all is compacted that is due, so that equal steps give equal
  // counts. No lock is held.
  TierCounts counts();
  size_t memory_bytes() const {
    return log_->counters().memory_bytes + recent_.bytes() + ahead_.bytes();
  }
  const RecentRows& recent() const { return recent_; }
  DiskLog* log() const { return log_.get(); }

 private:
  // Reads the first `floats` floats of rows as they are stored. row_stamps: as
  // PinnedRows::stamps.
  void ReadWords(const std::vector<DiskLog::Item>& items,
                 const std::vector<uint32_t>& row_stamps, size_t floats);
  // A row as it was read from the log.
  struct StoredRow {
    uint32_t place;
    int64_t key;
    const float* row;  // (floats)
    size_t floats;
  };
  struct Victim {
    int64_t priority;
    EntryRef entry;
  };
  // Who brings rows in: a step, whose keys are held, or a batch on its way.
  enum class For { kStep, kBatchAhead };

  // memory_bytes: about what the rows that stay in memory take.
  DiskTier(StripeSet* stripes, RowStore* store, const TierSpec& spec,
           int64_t memory_bytes);

  // Completes *error. Returns false.
  bool Fail(DiskError* error) const;
  // Rows in memory that a stripe may have, without spared ones.
  int64_t RowsPerStripe() const;
  // Rows in memory that a stripe may have, with spared ones.
  int64_t MostInMemory(int stripe) const;
  // False: *error says why. Throws std::bad_alloc.
  bool Spill(DiskError* error);
  int64_t InMemory(int stripe) const {
    return stripes_[stripe].rows() - spilled_[stripe];
  }
  // Spills up to n rows of a stripe that is locked exclusively. Returns how
  // many it did. *is_full: the log's buffers are.
  int64_t SpillSome(int stripe, int64_t n, bool* is_full);
  // Asks the tier's thread to compact as much as was spilled since.
  void AskForCompaction();
  // Moves the rows of one segment. Does nothing if that does not pay or if
  // there is no memory.
  void CompactOne();
  // Moves those of at most that many segments, because the paths are full.
  // Throws std::bad_alloc.
  void CompactForRoom(int most);
  // False: no segment is left that pays, or *error says why it was not moved.
  // compacting_ and spilling_ are held. Throws std::bad_alloc.
  bool MoveSegment(bool for_room, DiskError* error);
  // Moves a row that is still at `place`. False: *error says why.
  bool Move(const StoredRow& stored, bool for_room, DiskError* error);
  // Empties buffers that are full, if need be by compaction. False: *error says
  // why.
  bool MakeRoomOnDisk(DiskError* error);
  // As BringIn. For a batch ahead, rows that others changed since are left.
  bool BringInFor(For whom, PinnedRows* rows, DiskError* error);
  // Lists the rows of the keys that are on disk, each once, and spares the
  // others. Throws std::bad_alloc.
  void ListAhead(const std::vector<KeySpan>& lists, PinnedRows* spilled);
  // False: no memory.
  bool PutBack(For whom, int stripe, const DiskLog::Item* items, size_t n,
               size_t floats);

  StripeSet& stripes_;
  RowStore& store_;
  const TierSpec spec_;
  std::unique_ptr<DiskLog> log_;
  RecentRows recent_;
  SparedRows ahead_;
  const std::unique_ptr<MemoryLimit> limit_;  // nullptr: only rows are limited.
  std::atomic<int64_t> limited_rows_{kStripes};  // What limit_ said last.
  // Spilled rows of each stripe. Written under its lock.
  std::array<std::atomic<int64_t>, kStripes> spilled_{};
  std::array<uint64_t, kStripes> hand_{};  // Where the search for victims is.
  // Held shared by threads that spill or compact. Taken before other locks.
  std::shared_mutex spilling_;
  std::mutex compacting_;  // Taken after spilling_, before a stripe's lock.
  std::atomic<int64_t> hits_{0}, misses_{0}, spills_{0};
  std::atomic<int64_t> spilled_since_{0};  // Since compaction was asked for.
  KeyHolders holders_;
  BackgroundWork compaction_;  // Ends before the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TIER_DISK_TIER_H_
