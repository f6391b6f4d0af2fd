// SPDX-License-Identifier: Apache-2.0
// Internal to EmbeddingTable: its shards, their locks and what is done to rows
// under them. embedding_table.h has the whole picture.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_SHARD_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_SHARD_H_

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/counting_bloom_filter.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"

namespace rec_estimator {

using Bucket = HashIndex::Bucket;
using Place = HashIndex::Place;

inline constexpr int kShards = EmbeddingTable::kShards;
inline constexpr uint64_t kAllShards = ~uint64_t{0};
static_assert(kShards == 64, "sets of shards are 64-bit masks");
// Lowest bits of a hash that choose the shard.
inline constexpr int kShardBits = 6;

// Keys whose cache misses are in flight together in a lookup: as many as a core
// has line fill buffers. embedding_table.h has the measurements.
inline constexpr size_t kChunk = 16;
// From here on a Reader locks every shard without hashing its keys first: fewer
// keys than this would leave shards free.
inline constexpr size_t kLockAllFrom = 512;
// Keys that one set of locks serves: so many that their lookups cost far more
// than 64 locks, and an apply waits no longer than these lookups take.
inline constexpr size_t kLockBlock = 4096;
// Below, splitting a batch over threads costs more than it gains.
inline constexpr uint64_t kSerialBelow = 2048;

inline int ShardOf(uint64_t hash) { return static_cast<int>(hash % kShards); }

// Where shard s is in its growth cycle: 0, 1/64, ..., in an order that spreads
// neighbours, so that memory grows steadily and not in steps of 30 %.
inline double Stagger(int s) {
  int reversed = 0;
  for (int bit = 0; bit < 6; ++bit) reversed |= ((s >> bit) & 1) << (5 - bit);
  return reversed / 64.0;
}

// A shard's lock. Readers never wait for writers that are waiting themselves:
// a save holds read locks while it waits for threads of the pool, which may be
// about to read. They only give way for a moment, so that a stream of
// overlapping lookups does not starve an apply.
class ReadWriteLock {
 public:
  ReadWriteLock() {
    // glibc's default kind: readers pass waiting writers.
    pthread_rwlock_init(&lock_, nullptr);
  }
  ~ReadWriteLock() { pthread_rwlock_destroy(&lock_); }
  ReadWriteLock(const ReadWriteLock&) = delete;
  ReadWriteLock& operator=(const ReadWriteLock&) = delete;

  bool TryLock() { return pthread_rwlock_trywrlock(&lock_) == 0; }
  void Lock() {
    if (TryLock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    pthread_rwlock_wrlock(&lock_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void LockShared() {
    if (waiting_.load(std::memory_order_relaxed) > 0) GiveWay();
    pthread_rwlock_rdlock(&lock_);
  }
  void Unlock() { pthread_rwlock_unlock(&lock_); }

 private:
  // Long enough for a lookup that is reading to finish its block.
  static constexpr std::chrono::microseconds kGiveWay{100};

  void GiveWay() const {
    const auto until = std::chrono::steady_clock::now() + kGiveWay;
    while (waiting_.load(std::memory_order_relaxed) > 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }

  pthread_rwlock_t lock_;
  std::atomic<int> waiting_{0};  // Writers in Lock.
};

// Holds a shard's lock exclusively.
class ExclusiveLock {
 public:
  explicit ExclusiveLock(ReadWriteLock* lock) : lock_(*lock) { lock_.Lock(); }
  ~ExclusiveLock() { lock_.Unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  ReadWriteLock& lock_;
};

// Counts stay at the largest.
inline uint32_t Saturated(uint64_t count) {
  return static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX));
}
// As a checkpoint holds them.
inline uint32_t CountOf(int64_t freq) {
  return Saturated(static_cast<uint64_t>(std::max<int64_t>(freq, 0)));
}

// Eight floats at any address.
typedef float Vector
    __attribute__((vector_size(32), aligned(alignof(float)), may_alias));

inline const Vector& VectorAt(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}
inline Vector& VectorAt(float* p) { return *reinterpret_cast<Vector*>(p); }

// Copies dim floats; for whole vectors and an overlapping last one, where
// memcpy would be a call per row.
inline void CopyRow(const float* from, int dim, float* to) {
  constexpr int kWide = 8;
  if (dim >= kWide) {
    for (int d = 0; d + kWide <= dim; d += kWide) {
      VectorAt(to + d) = VectorAt(from + d);
    }
    VectorAt(to + dim - kWide) = VectorAt(from + dim - kWide);
  } else {
    for (int d = 0; d < dim; ++d) to[d] = from[d];
  }
}

struct EmbeddingTable::Shard {
  // Line 1. Shared: reading rows and entries; exclusive: anything else.
  alignas(kCacheLine) mutable ReadWriteLock lock;

  // Line 2, read by every lookup. Guarded by lock.
  alignas(kCacheLine) HashIndex index;

  // Line 3. Written under lock; the atomics are read without.
  alignas(kCacheLine) std::atomic<int64_t> keys{0};  // Entries of index.
  std::atomic<int64_t> rows{0};                      // Those that own a row.
  std::atomic<int64_t> capacity{0};                  // index.capacity().
  // Entries that applies under way may still add; added to without lock.
  std::atomic<int64_t> promised{0};
  uint32_t free_row = HashIndex::kNoRow;  // First of a list: a free row begins
  uint32_t free_rows = 0;                 // with the number of the next.

  // While changes are tracked: keys that lost their row or entry since the last
  // committed save; the first n_erased_pending were there at the last
  // MarkSaved.
  std::vector<int64_t> erased;
  size_t n_erased_pending = 0;

  // Cells of the keys that have no entry. Guarded by lock.
  alignas(kCacheLine) BloomShard bloom;
};

struct EmbeddingTable::Impl {
  Impl(int dim, float default_value, const FilterSpec& filter,
       const RowRules& rules)
      : dim(dim),
        filter(filter),
        rules(rules),
        zeros(dim, 0.0f),
        defaults(dim, default_value),
        arena(static_cast<size_t>(dim)) {
    if (filter.threshold >= 2 && filter.max_elements > 0) {
      bloom = BloomGeometry(kShards, filter.threshold, filter.max_elements,
                            filter.false_positive_rate);
    }
    for (int s = 0; s < kShards; ++s) {
      stagger[s] = Stagger(s);
      shards[s].bloom.SetGeometry(&bloom);
    }
    if (rules.has_padding) padding_shard = ShardOf(MixKey(kPadding));
    for (const int64_t key : rules.frozen_keys) {
      Frozen& of_shard = frozen[ShardOf(MixKey(key))];
      of_shard.keys.push_back(key);
      of_shard.values.resize(of_shard.keys.size() * dim);
    }
  }
  ~Impl() { FreeZeroed(bank, bank_bytes()); }

  const int dim;
  const FilterSpec filter;
  const RowRules rules;
  int padding_shard = -1;  // The shard that padding would be in, if it is kept.
  // Of one shard: keys whose values no apply changes, and where one keeps these
  // meanwhile, under the shard's lock.
  struct Frozen {
    std::vector<int64_t> keys;
    std::vector<float> values;  // (keys, dim)
  };
  std::array<Frozen, kShards> frozen;
  // Of tables with a limit. Applies that fit in whatever their keys turn out to
  // be hold it shared, and say in may_add how many rows that could be; near the
  // limit an apply holds it exclusively, to count first and change then.
  std::shared_mutex limit_mutex;
  std::atomic<int64_t> may_add{0};

  BloomGeometry bloom;  // Of no block if the filter keeps an entry a key.
  const std::vector<float> zeros;     // (dim); read before the first SetBank.
  const std::vector<float> defaults;  // (dim)
  std::array<double, kShards> stagger;
  std::array<Shard, kShards> shards;

  // Written under every shard's lock and metadata_mutex, so that one shard's
  // lock or metadata_mutex is enough to read.
  std::mutex metadata_mutex;
  std::vector<SlotSpec> slots;
  std::vector<float> slot_initials;  // (row_floats - dim): a new row's slots.
  float* bank = nullptr;             // (bank_rows, dim)
  int64_t bank_rows = 0;
  int64_t bank_mask = -1;  // bank_rows - 1 if that is a power of two, else -1.

  RowArena arena;  // Its rows are guarded by the lock of the shard they are in.

  // Whether changes are noted. Read under a shard's lock.
  std::atomic<bool> tracking{false};
  // Taken before a shard's lock or beside shared ones: guards Bucket::changes
  // and Shard::erased against others who hold shared locks.
  std::mutex save_mutex;

  size_t bank_bytes() const {
    return static_cast<size_t>(bank_rows) * dim * sizeof(float);
  }

  void LockAll() {
    for (Shard& shard : shards) shard.lock.Lock();
  }
  void UnlockAll() {
    for (Shard& shard : shards) shard.lock.Unlock();
  }
  void LockShared(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      shards[__builtin_ctzll(mask)].lock.LockShared();
    }
  }
  void UnlockShared(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      shards[__builtin_ctzll(mask)].lock.Unlock();
    }
  }
  static uint64_t ShardsOf(const int64_t* keys, size_t n) {
    if (n >= kLockAllFrom) return kAllShards;
    uint64_t mask = 0;
    for (size_t i = 0; i < n; ++i) {
      mask |= uint64_t{1} << ShardOf(MixKey(keys[i]));
    }
    return mask;
  }

  const HashIndex& IndexOf(int64_t key) const {
    return shards[ShardOf(MixKey(key))].index;
  }
  Bucket* Home(int64_t key) const {
    const uint64_t hash = MixKey(key);
    return shards[ShardOf(hash)].index.Home(hash);
  }

  bool IsPadding(int64_t key) const {
    return key == kPadding && rules.has_padding;
  }

  int64_t n_rows() const {
    int64_t rows = 0;
    for (const Shard& shard : shards) rows += shard.rows;
    return rows;
  }

  // The vector that a new row of `key` starts from.
  const float* Initial(int64_t key) const {
    if (bank_rows == 0) return zeros.data();
    const int64_t row =
        bank_mask >= 0 ? key & bank_mask : FloorMod(key, bank_rows);
    return bank + row * dim;
  }

  void InitializeRow(int64_t key, float* row) const {
    CopyRow(Initial(key), dim, row);
    std::copy(slot_initials.begin(), slot_initials.end(), row + dim);
  }

  // The steps of a lookup, for n <= kChunk keys each; shards are locked.
  void PrefetchHomes(const int64_t* keys, size_t n, Bucket** homes) const {
    for (size_t i = 0; i < n; ++i) {
      homes[i] = Home(keys[i]);
      PrefetchLine(homes[i]);
    }
  }
  template <HashIndex::Matcher* kMatch>
  inline __attribute__((always_inline)) void FindRowsWith(
      const int64_t* keys, size_t n, Bucket* const* homes,
      const RowArena::View& view, UnknownKey unknown,
      const float** rows) const {
    const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
    const auto resolve = [&](size_t i, Place place) {
      if (place.found() && place.row() != HashIndex::kNoRow) {
        rows[i] = view.Row(place.row());
      } else if (unknown == UnknownKey::kInitial && !IsPadding(keys[i])) {
        rows[i] = Initial(keys[i]);
      } else {
        rows[i] = defaults.data();
      }
      PrefetchLines(rows[i], bytes);
    };
    // A tenth of the keys lives beyond home; their next line comes meanwhile.
    uint8_t beyond[kChunk];
    size_t n_beyond = 0;
    for (size_t i = 0; i < n; ++i) {
      Place place;
      if (IndexOf(keys[i]).FindAtHome<kMatch>(homes[i], keys[i], &place)) {
        resolve(i, place);
      } else {
        beyond[n_beyond++] = static_cast<uint8_t>(i);
      }
    }
    for (size_t b = 0; b < n_beyond; ++b) {
      const size_t i = beyond[b];
      resolve(i, IndexOf(keys[i]).FindBeyond(homes[i], keys[i]));
    }
  }

  void FindRowsNarrow(const int64_t* keys, size_t n, Bucket* const* homes,
                      const RowArena::View& view, UnknownKey unknown,
                      const float** rows) const {
    FindRowsWith<HashIndex::Match>(keys, n, homes, view, unknown, rows);
  }
#if defined(__SSE4_1__)
  __attribute__((target("avx512f"))) void FindRowsWide(
      const int64_t* keys, size_t n, Bucket* const* homes,
      const RowArena::View& view, UnknownKey unknown,
      const float** rows) const {
    FindRowsWith<HashIndex::MatchWide>(keys, n, homes, view, unknown, rows);
  }
#endif
  void FindRows(const int64_t* keys, size_t n, Bucket* const* homes,
                const RowArena::View& view, UnknownKey unknown,
                const float** rows) const {
#if defined(__SSE4_1__)
    static const bool wide = HashIndex::HasWideMatch();
    if (wide) return FindRowsWide(keys, n, homes, view, unknown, rows);
#endif
    FindRowsNarrow(keys, n, homes, view, unknown, rows);
  }

  void Rows(const int64_t* keys, size_t n, UnknownKey unknown,
            const float** rows) const {
    const RowArena::View view = arena.view();
    Bucket* homes[2][kChunk];
    size_t now = std::min(n, kChunk);
    PrefetchHomes(keys, now, homes[0]);
    for (int turn = 0; now > 0; turn ^= 1) {
      const size_t next = std::min(n - now, kChunk);
      PrefetchHomes(keys + now, next, homes[turn ^ 1]);
      FindRows(keys, now, homes[turn], view, unknown, rows);
      keys += now;
      rows += now;
      n -= now;
      now = next;
    }
  }

  void Lookup(const int64_t* keys, size_t n, UnknownKey unknown,
              float* out) const {
    const RowArena::View view = arena.view();
    const size_t stride = static_cast<size_t>(dim);
    Bucket* homes[2][kChunk];
    const float* rows[2][kChunk];
    const size_t chunks = (n + kChunk - 1) / kChunk;
    const auto size = [&](size_t c) {
      return c + 1 == chunks ? n - c * kChunk : kChunk;
    };
    // Three steps in flight: chunk c has its buckets fetched, c - 1 its rows,
    // c - 2 is copied.
    for (size_t c = 0; c < chunks + 2; ++c) {
      if (c < chunks) PrefetchHomes(keys + c * kChunk, size(c), homes[c % 2]);
      if (c >= 1 && c - 1 < chunks) {
        FindRows(keys + (c - 1) * kChunk, size(c - 1), homes[(c - 1) % 2], view,
                 unknown, rows[(c - 1) % 2]);
      }
      if (c >= 2) {
        float* to = out + (c - 2) * kChunk * stride;
        const size_t m = size(c - 2);
        for (size_t i = 0; i < m; ++i, to += stride) {
          CopyRow(rows[c % 2][i], dim, to);
        }
      }
    }
  }

  // Finds the entries of keys (n), which are all in `index`, whose lock is
  // held. Calls visit(i, place) in order.
  template <typename Visit>
  static void FindEach(const HashIndex& index, const int64_t* keys, uint32_t n,
                       const Visit& visit) {
    Bucket* homes[2][kChunk];
    const auto fetch = [&](uint32_t at, Bucket** to) {
      const uint32_t end = std::min<uint32_t>(n, at + kChunk);
      for (; at < end; ++at, ++to) {
        *to = index.Home(MixKey(keys[at]));
        PrefetchLine(*to);
      }
    };
    Place places[kChunk];
    uint8_t beyond[kChunk];
    fetch(0, homes[0]);
    int turn = 0;
    for (uint32_t at = 0; at < n; at += kChunk, turn ^= 1) {
      if (n - at > kChunk) fetch(at + kChunk, homes[turn ^ 1]);
      const uint32_t size = std::min<uint32_t>(n - at, kChunk);
      size_t n_beyond = 0;
      for (uint32_t i = 0; i < size; ++i) {
        if (!index.FindAtHome<HashIndex::Match>(homes[turn][i], keys[at + i],
                                                &places[i])) {
          beyond[n_beyond++] = static_cast<uint8_t>(i);
        }
      }
      for (size_t b = 0; b < n_beyond; ++b) {
        const uint32_t i = beyond[b];
        places[i] = index.FindBeyond(homes[turn][i], keys[at + i]);
      }
      for (uint32_t i = 0; i < size; ++i) visit(at + i, places[i]);
    }
  }

  // Whether a key that is counted in the Bloom filter would need a new block.
  bool LacksCells(const Shard& shard, int64_t key) const {
    return has_bloom() &&
           shard.bloom.Find(shard.bloom.SpotOf(MixKey(key)).block) == nullptr;
  }

  bool ReserveEntries(int s, int64_t keys) {
    Shard& shard = shards[s];
    if (keys <= shard.capacity.load(std::memory_order_relaxed)) return true;
    const bool reserved =
        shard.index.Reserve(static_cast<uint64_t>(keys), stagger[s]);
    shard.capacity.store(static_cast<int64_t>(shard.index.capacity()),
                         std::memory_order_release);
    return reserved;
  }

  // Hands out rows to one shard whose lock is held: freed ones first.
  class RowSource {
   public:
    RowSource(Shard* shard, const RowArena::View& view, uint32_t first)
        : shard_(shard), view_(view), next_(first) {}
    uint32_t Next() {
      if (shard_->free_rows == 0) return next_++;
      const uint32_t row = shard_->free_row;
      std::memcpy(&shard_->free_row, view_.Row(row), sizeof(uint32_t));
      --shard_->free_rows;
      return row;
    }

   private:
    Shard* shard_;
    RowArena::View view_;
    uint32_t next_;
  };
  // The reverse.
  void FreeRow(Shard* shard, uint32_t row) const {
    std::memcpy(arena.view().Row(row), &shard->free_row, sizeof(uint32_t));
    shard->free_row = row;
    ++shard->free_rows;
  }

  bool has_bloom() const { return bloom.shard_blocks() > 0; }
  // Whether an entry is all that is left of a key that was evicted.
  bool IsTrace(Place place) const {
    return has_bloom() && place.row() == HashIndex::kNoRow &&
           place.count() == 0;
  }

  // What n occurrences add to a count.
  uint32_t Added(uint64_t n) const {
    return Saturated(n * filter.coefficient);  // Both are below 2^32.
  }

  // Notes that a key has lost its row or entry. May throw std::bad_alloc.
  void NoteErased(Shard* shard, int64_t key);
  // Takes an entry and its row, if it has one, away; `keep_entry`: only the
  // row, and the entry counts from 0. May throw std::bad_alloc, with nothing
  // changed.
  void TakeAway(Shard* shard, Place place, bool keep_entry);
  // Calls visit(&shard, i) for keys (n <= kLockBlock) with the shard's lock
  // held exclusively.
  template <typename Visit>
  void VisitLocked(const int64_t* keys, size_t n, const Visit& visit);
  // Calls visit(i, place) for keys (n), which are in shards that are locked.
  template <typename Visit>
  void InspectLocked(const int64_t* keys, size_t n, const Visit& visit) const {
    for (size_t at = 0; at < n; at += kChunk) {
      const size_t end = std::min(n, at + kChunk);
      Bucket* homes[kChunk];
      for (size_t i = at; i < end; ++i) {
        homes[i - at] = Home(keys[i]);
        PrefetchLines(homes[i - at], sizeof(Bucket));
      }
      for (size_t i = at; i < end; ++i) {
        visit(i, IndexOf(keys[i]).Find(homes[i - at], keys[i]));
      }
    }
  }
  template <typename Visit>
  void Inspect(const int64_t* keys, size_t n, const Visit& visit) const;

  // What was counted for a key, of which an index search gave `place`.
  uint32_t Counted(int64_t key, Place place) const {
    if (place.found()) return place.count();
    if (!has_bloom()) return 0;
    const uint64_t hash = MixKey(key);
    const BloomShard& cells = shards[ShardOf(hash)].bloom;
    const BloomShard::Spot spot = cells.SpotOf(hash);
    const BloomShard::Block* block = cells.Find(spot.block);
    return block == nullptr ? 0 : cells.Estimate(*block, spot.seed);
  }

  class BatchApply;
  class RoomForBatch;
  class BatchInsert;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_SHARD_H_
