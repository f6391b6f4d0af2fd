// SPDX-License-Identifier: Apache-2.0
// One stripe of a table: its lock, its index, its part of the sketch and its
// counters.
// embedding_table.h has the overall design.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/base/shared_mutex.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/stripes/rows_beyond_memory.h"

namespace rec_estimator {

// Keys whose cache misses are in flight together in a lookup, measured
// (docs/decisions.md).
inline constexpr size_t kChunk = 24;

// What the keys of a batch will occupy in one stripe, at most.
struct StripeNeeds {
  uint32_t entries = 0;
  uint32_t rows = 0;
  uint32_t sketched = 0;  // Keys that the sketch counts.
};

// Thread rule: const methods need mutex(), shared at least; all others need it
// exclusively. Methods marked "no lock" need neither.
class Stripe {
 public:
  Stripe() = default;
  Stripe(const Stripe&) = delete;
  Stripe& operator=(const Stripe&) = delete;

  // Must be called first. What the pointers refer to outlives this object.
  // `stagger` in [0, 1): where the stripe is in its growth cycle.
  // sketch: nullptr if every counted key has an entry.
  void Initialize(int number, RowStore* rows, Sketch* sketch,
                  const std::atomic<bool>* tracks_changes, double stagger);
  void AddFrozenKey(int64_t key);
  // Before there are rows. It outlives this object.
  void set_tier(RowsBeyondMemory* tier) { tier_ = tier; }
  RowsBeyondMemory* tier() const { return tier_; }  // nullptr: none.

  SharedMutex& mutex() const { return mutex_; }

  // Counts exclusive locks of mutex() that may have moved entries. While it
  // stays the same, an entry is where it was found. If it owned a row in
  // memory, it has the same row, unless its key was not held and the row went
  // to the disk (disk_tier.h). New keys may have been inserted, and rows,
  // counts and versions have other contents.
  uint32_t moves() const { return mutex_.writes() - writes_in_place_; }
  // Called by a thread that holds mutex() exclusively, if it has moved and
  // erased no entry and taken no row away except to the disk. Called at most
  // once before it is released.
  void LeaveInPlace() { ++writes_in_place_; }

  // ----- Counters; no lock.

  int64_t keys() const { return keys_; }  // Entries of the index.
  int64_t rows() const { return rows_; }  // Entries that own a row.
  int64_t removed_rows() const { return removed_rows_; }  // Since it was made.
  int64_t capacity() const { return capacity_; }  // Entries without growth.

  // ----- Room.

  // Reserves room for new entries and for new keys of the sketch. Returns
  // whether there is room now. If not, the caller calls GrowToQuota or releases
  // the quota. No lock.
  bool ReserveQuota(int64_t entries, int64_t sketched) {
    const bool has_sketched =
        sketch_ == nullptr || sketch_->ReserveQuota(number_, sketched);
    // Before keys_ is read: an apply adds to keys_ first and releases its quota
    // then, so one that ends in between is counted twice rather than never.
    const int64_t quota =
        quota_.fetch_add(entries, std::memory_order_acq_rel) + entries;
    return has_sketched && keys_.load(std::memory_order_acquire) + quota <=
                               capacity_.load(std::memory_order_acquire);
  }
  // No lock.
  void ReleaseQuota(int64_t entries, int64_t sketched) {
    quota_.fetch_sub(entries, std::memory_order_acq_rel);
    if (sketch_ != nullptr) sketch_->ReleaseQuota(number_, sketched);
  }
  // Makes room for all quotas and `more_entries`. False: no memory.
  bool GrowToQuota(int64_t more_entries = 0);

  // Whether this fits in addition to what the stripe holds. Ignores quotas.
  bool HasRoom(const StripeNeeds& needs) const {
    return n_keys() + needs.entries <=
               capacity_.load(std::memory_order_relaxed) &&
           (needs.sketched == 0 || sketch_->HasRoom(number_, needs.sketched));
  }
  // Makes it fit. Entries move. False: no memory.
  bool MakeRoom(const StripeNeeds& needs);

  // ----- Reading.

  const HashIndex& index() const { return index_; }
  const RowStore& store() const { return *store_; }
  bool has_sketch() const { return sketch_ != nullptr; }
  bool tracks_changes() const {
    return tracks_changes_->load(std::memory_order_relaxed);
  }
  size_t bytes() const {
    return index_.bytes() + (sketch_ == nullptr ? 0 : sketch_->bytes(number_));
  }
  // Keys that lost their row or entry since the last committed save, while
  // changes were tracked.
  const std::vector<int64_t>& erased() const { return erased_; }

  EntryRef Find(int64_t key) const {
    return index_.Find(index_.Home(HashKey(key)), key);
  }
  void Prefetch(int64_t key) const { PrefetchLine(index_.Home(HashKey(key))); }

  // The count of a key for which Find returned `entry`.
  uint32_t CountOf(int64_t key, EntryRef entry) const {
    return entry.found() ? entry.count() : CountInSketch(key);
  }

  // The count by the sketch alone, whether or not the key has an entry.
  uint32_t CountInSketch(int64_t key) const {
    return sketch_ == nullptr ? 0 : sketch_->CountOf(key);
  }

  // ----- Changing single entries. The caller has made room.

  EntryRef Insert(int64_t key) {
    return index_.Insert(index_.Home(HashKey(key)), key);
  }
  // The caller calls these after it has inserted entries or given them rows.
  void AddToKeys(int64_t entries) {
    keys_.store(n_keys() + entries, std::memory_order_release);
  }
  void AddToRows(int64_t rows) {
    rows_.store(rows_.load(std::memory_order_relaxed) + rows,
                std::memory_order_relaxed);
  }

  // Hands out rows to the entries of stripes: a row that the stripe has freed,
  // or else the next one of `first`, `first` + 1, ..., which the caller took
  // from the arena.
  class RowSource {
   public:
    RowSource(const RowArena::View& view, uint32_t first)
        : view_(view), next_(first) {}
    uint32_t Next(Stripe* stripe) {
      if (stripe->n_free_rows_ == 0) return next_++;
      const uint32_t row = stripe->first_free_row_;
      std::memcpy(&stripe->first_free_row_, view_.Row(row), sizeof(uint32_t));
      // It names the one after it, which the next call reads.
      if (--stripe->n_free_rows_ > 0) {
        PrefetchLine(view_.Row(stripe->first_free_row_));
      }
      return row;
    }

   private:
    RowArena::View view_;
    uint32_t next_;
  };
  uint32_t n_free_rows() const { return n_free_rows_; }
  void FreeRow(uint32_t row);
  // Frees the row of an entry whose row is on disk. The caller gives the entry
  // another row.
  void FreeSpilledRow(EntryRef entry);

  // ----- Frozen keys: an apply saves their values before it updates rows and
  // restores them afterwards.

  void SaveFrozenValues();
  void RestoreFrozenValues();

  // ----- Operations of the table on this stripe; embedding_table.h explains
  // them. Those that erase may throw std::bad_alloc, and have then not changed
  // the entry they could not note.

  bool Erase(int64_t key);
  void Erase(EntryRef entry);
  // Evicts a key, which owns a row or not. If the sketch still counts the key,
  // it would admit it at once, so the key keeps an entry without a row, of
  // count 0 and version `stamp`. That entry is evicted like any other without a
  // row, and the sketch has forgotten the key before that.
  void Evict(EntryRef entry, int64_t stamp);
  // Evicts a key if its row is at this place on disk. Returns whether it did.
  bool EvictSpilled(int64_t key, uint32_t place, int64_t stamp);
  // Gives a key the version `stamp` if it has a later one or was never applied.
  void LimitVersion(EntryRef entry, int64_t stamp) {
    if (entry.version() <= stamp && entry.version() != -1) return;
    entry.version() = stamp;
    if (tracks_changes()) entry.MarkChanged();
  }
  // Returns whether the key owns a row. values: (slots()[slot].width)
  bool SetSlot(size_t slot, int64_t key, const float* values);
  void Clear();

  // Changed marks become pending marks. Needs mutex() shared only, but then
  // also the table's save mutex.
  void MarkSaved();
  // Forgets what is pending.
  void CommitSaved();

 private:
  int64_t n_keys() const { return keys_.load(std::memory_order_relaxed); }
  // Makes room for this many entries in all.
  bool ReserveEntries(int64_t entries);
  // Calls visit(row, saved (dim)) for the frozen keys that own a row.
  template <typename Visit>
  void ForEachFrozen(const Visit& visit);
  void FreeRowOf(EntryRef entry);
  void NoteErased(int64_t key);

  // A lookup needs only what is in these two lines.
  static_assert(sizeof(SharedMutex) <= kCacheLine, "one line");
  alignas(kCacheLine) mutable SharedMutex mutex_;
  alignas(kCacheLine) HashIndex index_;
  uint32_t writes_in_place_ = 0;

  // Another line. Written under the lock; the atomics are also read without it.
  alignas(kCacheLine) std::atomic<int64_t> keys_{0};
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> capacity_{0};  // index_.capacity()
  // Entries that running applies may still add. Written without the lock.
  std::atomic<int64_t> quota_{0};
  // A list of free rows: each begins with the number of the next one.
  uint32_t first_free_row_ = HashIndex::kNoRow;
  uint32_t n_free_rows_ = 0;
  int number_ = 0;
  RowStore* store_ = nullptr;
  Sketch* sketch_ = nullptr;
  RowsBeyondMemory* tier_ = nullptr;  // nullptr: all rows are in memory.
  const std::atomic<bool>* tracks_changes_ = nullptr;
  double stagger_ = 0;
  std::atomic<int64_t> removed_rows_{0};  // Written under the lock.

  std::vector<int64_t> erased_;
  size_t n_erased_pending_ = 0;  // Size of erased_ at the last MarkSaved.

  std::vector<int64_t> frozen_keys_;
  std::vector<float> frozen_values_;  // (frozen_keys_, dim); used by an apply.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_H_
