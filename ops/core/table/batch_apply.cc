// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Apply, one training step.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/math/gradient_sum.h"
#include "ops/core/table/batch_room.h"
#include "ops/core/table/batch_scratch.h"
#include "ops/core/table/counting_bloom_filter.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {
namespace {

// Distance, in keys, at which an apply prefetches buckets.
constexpr uint32_t kBucketsAhead = 16;
// Rows that one call of RowUpdate::Update gets at most, and the floats of their
// summed gradients, which live on the stack.
constexpr size_t kTileRows = 64;
constexpr size_t kTileFloats = 4096;
// Distance, in rows, at which an update prefetches.
constexpr uint32_t kRowsAhead = 16;
// Distance, in keys, at which a filter prefetches what it counts in.
constexpr uint32_t kCountsAhead = 16;
// Row word, for a moment, of a key that is about to get a row.
constexpr uint32_t kToAdmit = HashIndex::kNoRow - 1;
static_assert(kToAdmit >= HashIndex::kMaxRows, "no row's number");

const ParallelFor kSerial = SerialFor;

}  // namespace

// One Apply, step by step. Each step is split by shard; steps that need a lock
// only try for it in `parallel`, and what was refused the calling thread does
// afterwards: see "Thread rule" in embedding_table.h.
class EmbeddingTable::Impl::BatchApply {
 public:
  BatchApply(Impl* table, const Batch& batch) : table_(*table), batch_(batch) {}

  // Sorts the keys. False: no memory.
  bool Prepare(const ParallelFor& parallel) {
    part_.head = batch_.keys;
    part_.n_head = batch_.n;
    part_.tail = batch_.counted_keys;
    part_.n = batch_.n + batch_.m;
    if (part_.n >= kMaxBatch || !Allocate()) return false;
    part_.Run(parallel);
    per_shard_ = static_cast<int64_t>(part_.n / kShards) + 1;
    return AllocateWide();
  }

  // After Prepare: how many keys of the batch would get a row.
  int64_t CountNewRows(const ParallelFor& parallel) {
    std::atomic<int64_t> rows{0};
    parallel(kShards, per_shard_ * 60, [&](int64_t s, int64_t end) {
      for (; s < end; ++s) {
        Deduplicate(static_cast<int>(s));
        if (unique_[s] == 0) continue;
        table_.shards[s].lock.LockShared();
        rows += Look(static_cast<int>(s)).rows;
        table_.shards[s].lock.Unlock();
      }
    });
    is_deduplicated_ = true;
    return rows;
  }

  // After Prepare. False: no memory, and nothing has changed.
  bool Run(const RowUpdate& update, const ParallelFor& parallel) {
    update_ = &update;
    parallel(kShards, per_shard_ * 30, [this](int64_t s, int64_t end) {
      for (; s < end; ++s) {
        if (!is_deduplicated_) Deduplicate(static_cast<int>(s));
        Promise(static_cast<int>(s));
      }
    });
    ForEach(&refused_, [this](int s) { PromiseLocked(s); });
    uint64_t rows = 0;
    for (int s = 0; s < kShards; ++s) rows += promised_rows_[s];
    if (failed_.load() || !table_.arena.Promise(rows)) {
      for (int s = 0; s < kShards; ++s) ReleaseEntries(s);
      return false;
    }

    const int64_t per_key = 100 + 8 * table_.dim;  // Cycles.
    parallel(kShards, per_shard_ * per_key, [this](int64_t s, int64_t end) {
      for (; s < end; ++s) TryUpdate(static_cast<int>(s));
    });
    ForEach(&refused_, [this](int s) {
      table_.shards[s].lock.Lock();
      Update(s);
      table_.shards[s].lock.Unlock();
    });
    uint64_t left = 0;
    for (int s = 0; s < kShards; ++s) left += promised_rows_[s];
    table_.arena.Release(left);
    return !failed_.load();
  }

 private:
  static constexpr uint32_t kSmallDedup = 4096;

  // Calls work(s) for the shards in *mask and empties it.
  template <typename Work>
  static void ForEach(std::atomic<uint64_t>* mask, const Work& work) {
    for (uint64_t left = mask->exchange(0); left != 0; left &= left - 1) {
      work(__builtin_ctzll(left));
    }
  }

  bool Allocate() {
    const auto lay = [this](Layout* layout) {
      part_.AddTo(layout);
      layout->Add(&key_, part_.n);
      layout->Add(&id_, part_.n);
      layout->Add(&grouped_, part_.n);
      layout->Add(&end_, part_.n);
      layout->Add(&place_, part_.n);
      layout->Add(&row_, part_.n);
      if (table_.has_bloom()) layout->Add(&estimate_, part_.n);
    };
    Layout size(nullptr);
    lay(&size);
    char* memory = scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    lay(&layout);
    return true;
  }

  // What only unusual batches need: hash tables for more occurrences of a shard
  // than the stack takes, sums of more floats.
  bool AllocateWide() {
    const auto lay = [this](Layout* layout) {
      for (int s = 0; s < kShards; ++s) {
        const uint32_t n = part_.size_of(s);
        dedup_[s] = nullptr;
        if (n > kSmallDedup) layout->Add(&dedup_[s], Partition::DedupSize(n));
      }
      const size_t dim = static_cast<size_t>(table_.dim);
      if (dim > kTileFloats) layout->Add(&wide_sums_, kShards * dim);
    };
    Layout size(nullptr);
    lay(&size);
    if (size.bytes() == 0) return true;
    char* memory = wide_scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    lay(&layout);
    return true;
  }

  void Deduplicate(int s) {
    const uint32_t begin = part_.begin[s];
    uint32_t small[2 * kSmallDedup];
    unique_[s] = part_.Deduplicate(
        s, {key_ + begin, id_ + begin, grouped_ + begin, end_ + begin},
        dedup_[s] != nullptr ? dedup_[s] : small);
  }

  // Secures room for the new entries of shard s before anything changes. Mostly
  // there is room for as many as the batch has keys, and no lock is needed.
  void Promise(int s) {
    promised_keys_[s] = promised_rows_[s] = promised_blocks_[s] = unique_[s];
    if (unique_[s] == 0) return;
    Shard& shard = table_.shards[s];
    const bool cells = !table_.has_bloom() || shard.bloom.Promise(unique_[s]);
    // Before reading keys: an apply that ends in between is counted twice
    // rather than never, for it adds to keys first and withdraws then.
    const int64_t promised =
        shard.promised.fetch_add(unique_[s], std::memory_order_acq_rel) +
        unique_[s];
    if (cells && shard.keys.load(std::memory_order_acquire) + promised <=
                     shard.capacity.load(std::memory_order_acquire)) {
      return;
    }
    if (!shard.lock.TryLock()) {
      refused_.fetch_or(uint64_t{1} << s);
      return;
    }
    CountAndReserve(s);
    shard.lock.Unlock();
  }

  void PromiseLocked(int s) {
    table_.shards[s].lock.Lock();
    CountAndReserve(s);
    table_.shards[s].lock.Unlock();
  }

  // Makes room for the keys of shard s that are new: counts them and grows the
  // index if they do not fit. With a Bloom filter, of whose keys few enter the
  // index, there would hardly ever be room for all and each batch would count:
  // so it makes room for all. The lock is held.
  void CountAndReserve(int s) {
    Shard& shard = table_.shards[s];
    if (table_.has_bloom()) {
      const int64_t keys = shard.keys.load(std::memory_order_relaxed) +
                           shard.promised.load(std::memory_order_acquire);
      const int64_t blocks = shard.bloom.used() + shard.bloom.promised();
      if (!table_.ReserveEntries(s, keys) ||
          !shard.bloom.Reserve(blocks, table_.stagger[s])) {
        failed_.store(true);
      }
      return;
    }
    uint32_t keys = 0;
    uint32_t rows = 0;
    table_.FindEach(shard.index, key_ + part_.begin[s], unique_[s],
                    [&](uint32_t, Place place) {
                      keys += !place.found();
                      rows +=
                          !place.found() || place.row() == HashIndex::kNoRow;
                    });
    const int64_t less = static_cast<int64_t>(unique_[s]) - keys;
    promised_keys_[s] = keys;
    promised_rows_[s] = rows;
    const int64_t promised =
        shard.promised.fetch_sub(less, std::memory_order_acq_rel) - less;
    if (keys > 0 &&
        !table_.ReserveEntries(
            s, shard.keys.load(std::memory_order_relaxed) + promised)) {
      failed_.store(true);
    }
  }

  void ReleaseEntries(int s) {
    table_.shards[s].promised.fetch_sub(promised_keys_[s],
                                        std::memory_order_acq_rel);
    promised_keys_[s] = 0;
    if (table_.has_bloom()) {
      table_.shards[s].bloom.Withdraw(promised_blocks_[s]);
      promised_blocks_[s] = 0;
    }
  }

  void TryUpdate(int s) {
    if (unique_[s] == 0) return;
    ReadWriteLock& lock = table_.shards[s].lock;
    if (!lock.TryLock()) {
      refused_.fetch_or(uint64_t{1} << s);
      return;
    }
    Update(s);
    lock.Unlock();
  }

  // Finds or inserts the keys of shard s, then updates their rows. The lock is
  // held.
  void Update(int s) {
    bool all_have_rows = true;
    if (AdmitAll(s, &all_have_rows)) {
      // Values that must not change are put back.
      ForFrozen(s, [&](float* row, float* kept) {
        std::copy_n(row, table_.dim, kept);
      });
      all_have_rows ? UpdateRows<true>(s) : UpdateRows<false>(s);
      ForFrozen(s, [&](float* row, float* kept) {
        std::copy_n(kept, table_.dim, row);
      });
    } else {
      failed_.store(true);
    }
    ReleaseEntries(s);
  }

  // Calls visit(row, kept (dim)) for the frozen keys of shard s that own a row.
  template <typename Visit>
  void ForFrozen(int s, const Visit& visit) {
    Frozen& frozen = table_.frozen[s];
    const HashIndex& index = table_.shards[s].index;
    for (size_t i = 0; i < frozen.keys.size(); ++i) {
      const int64_t key = frozen.keys[i];
      const Place place = index.Find(index.Home(MixKey(key)), key);
      if (!place.found() || place.row() == HashIndex::kNoRow) continue;
      visit(table_.arena.view().Row(place.row()),
            frozen.values.data() + i * static_cast<size_t>(table_.dim));
    }
  }

  // What keys without a row are going to take.
  struct Needs {
    uint32_t rows = 0;
    uint32_t keys = 0;    // Entries.
    uint32_t blocks = 0;  // Of the Bloom filter; those of two keys count twice.
  };

  // Finds the distinct keys of shard s, lists those without a row in id_, whose
  // content is used up, and judges them. Padding is not listed. The lock is
  // held, shared at least.
  Needs Look(int s) {
    const uint32_t begin = part_.begin[s];
    const int64_t* keys = key_ + begin;
    Place* places = place_ + begin;
    uint32_t* rows = row_ + begin;
    uint32_t* without_row = id_ + begin;
    uint32_t n = 0;
    table_.FindEach(table_.shards[s].index, keys, unique_[s],
                    [&](uint32_t u, Place place) {
                      places[u] = place;
                      rows[u] = place.found() ? place.row() : HashIndex::kNoRow;
                      without_row[n] = u;
                      n += rows[u] == HashIndex::kNoRow;
                    });
    if (s == table_.padding_shard) {
      n = static_cast<uint32_t>(
          std::remove_if(without_row, without_row + n,
                         [&](uint32_t u) { return keys[u] == kPadding; }) -
          without_row);
    }
    n_without_[s] = n;
    return Judge(s, without_row, n);
  }

  // False: no memory, although promised; only if another thread erased keys or
  // cleared the table since. The shard is then as it was.
  bool AdmitAll(int s, bool* all_have_rows) {
    Shard& shard = table_.shards[s];
    const uint32_t begin = part_.begin[s];
    const int64_t* keys = key_ + begin;
    Place* places = place_ + begin;
    uint32_t* rows = row_ + begin;
    const uint32_t* without_row = id_ + begin;
    Needs needs = Look(s);
    const uint32_t n_without = n_without_[s];
    // Padding has no row, and may have been left out.
    *all_have_rows = needs.rows == n_without && s != table_.padding_shard;
    if (n_without == 0) return true;

    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    const int64_t blocks = shard.bloom.used() + needs.blocks;
    if (present + needs.keys > shard.capacity.load(std::memory_order_relaxed) ||
        (needs.blocks > 0 && blocks > shard.bloom.capacity())) {
      if (!table_.ReserveEntries(s, present + needs.keys)) return false;
      if (!shard.bloom.Reserve(blocks, table_.stagger[s])) return false;
      needs = Look(s);  // Entries and blocks have moved.
    }
    uint32_t first = 0;
    const uint32_t freed = std::min(shard.free_rows, needs.rows);
    if (needs.rows > freed) {
      const uint32_t taken = needs.rows - freed;
      const uint32_t promised = std::min(taken, promised_rows_[s]);
      if (!table_.arena.Take(taken, promised, &first)) return false;
      promised_rows_[s] -= promised;
    }

    const RowArena::View view = table_.arena.view();
    RowSource source(&shard, view, first);
    const bool tracking = table_.tracking.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < n_without; ++i) {
      if (i + kBucketsAhead < n_without) {
        const uint32_t later = without_row[i + kBucketsAhead];
        if (rows[later] == kToAdmit || !table_.has_bloom()) {
          PrefetchLines(shard.index.Home(MixKey(keys[later])), sizeof(Bucket));
        }
      }
      const uint32_t u = without_row[i];
      if (!places[u].found()) {
        if (table_.has_bloom()) {
          const BloomShard::Spot spot = shard.bloom.SpotOf(MixKey(keys[u]));
          shard.bloom.Raise(spot.seed, Grown(s, u, estimate_[begin + u]),
                            tracking, shard.bloom.FindOrAdd(spot.block));
          if (rows[u] != kToAdmit) continue;
        }
        places[u] =
            shard.index.Insert(shard.index.Home(MixKey(keys[u])), keys[u]);
        if (table_.has_bloom()) places[u].count() = estimate_[begin + u];
      }
      if (rows[u] != kToAdmit) continue;
      rows[u] = source.Next();
      places[u].row() = rows[u];
      table_.InitializeRow(keys[u], view.Row(rows[u]));
    }
    shard.keys.store(present + needs.keys, std::memory_order_release);
    shard.rows.store(shard.rows.load(std::memory_order_relaxed) + needs.rows,
                     std::memory_order_relaxed);
    return true;
  }

  // The count of distinct key u of shard s after the batch.
  uint32_t Grown(int s, uint32_t u, uint32_t count) const {
    const uint32_t* end = end_ + part_.begin[s];
    const uint32_t occurrences = u == 0 ? end[0] : end[u] - end[u - 1];
    return Saturated(uint64_t{count} + table_.Added(occurrences));
  }

  // Marks, of keys (n) without a row, those that get one by kToAdmit. With a
  // Bloom filter, remembers the estimates of those without an entry: no key
  // counts what another one of this batch has added.
  Needs Judge(int s, const uint32_t* without_row, uint32_t n) {
    const Shard& shard = table_.shards[s];
    const int64_t* keys = key_ + part_.begin[s];
    const Place* places = place_ + part_.begin[s];
    uint32_t* rows = row_ + part_.begin[s];
    const uint32_t threshold = table_.filter.threshold;
    Needs needs;
    if (threshold == 0) {
      for (uint32_t i = 0; i < n; ++i) {
        rows[without_row[i]] = kToAdmit;
        needs.keys += !places[without_row[i]].found();
      }
      needs.rows = n;
      return needs;
    }
    const bool bloom = table_.has_bloom();
    BloomShard::Spot spots[kCountsAhead];
    const auto fetch = [&](uint32_t i) {
      const uint32_t u = without_row[i];
      if (places[u].found()) {
        PrefetchLine(places[u].bucket()->version);
      } else if (bloom) {
        spots[i % kCountsAhead] = shard.bloom.SpotOf(MixKey(keys[u]));
        shard.bloom.Prefetch(spots[i % kCountsAhead]);
      }
    };
    for (uint32_t i = 0; i < std::min(n, kCountsAhead); ++i) fetch(i);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t u = without_row[i];
      const bool found = places[u].found();
      uint32_t count = found ? places[u].count() : 0;
      if (bloom && !found) {
        const BloomShard::Spot& spot = spots[i % kCountsAhead];
        const BloomShard::Block* block = shard.bloom.Find(spot.block);
        needs.blocks += block == nullptr;
        if (block != nullptr) count = shard.bloom.Estimate(*block, spot.seed);
        estimate_[part_.begin[s] + u] = count;
      }
      const bool admitted = Grown(s, u, count) >= threshold;
      if (admitted) rows[u] = kToAdmit;
      needs.rows += admitted;
      needs.keys += !found && (admitted || !bloom);
      if (i + kCountsAhead < n) fetch(i + kCountsAhead);
    }
    return needs;
  }

  // Stamps, sums and updates, kTileRows rows at a time.
  template <bool kAllHaveRows>
  void UpdateRows(int s) {
    const uint32_t begin = part_.begin[s];
    const uint32_t unique = unique_[s];
    const Place* places = place_ + begin;
    const uint32_t* rows = row_ + begin;
    const uint32_t* end = end_ + begin;
    const uint32_t* occurrences = grouped_ + begin;
    const uint32_t n = part_.size_of(s);
    const RowArena::View view = table_.arena.view();
    const int dim = table_.dim;
    const size_t stride = static_cast<size_t>(dim);
    const size_t row_bytes = table_.arena.row_floats() * sizeof(float);
    const bool each = update_->per_occurrence();
    const uint64_t coefficient = table_.filter.coefficient;
    const bool tracking = table_.tracking.load(std::memory_order_relaxed);

    alignas(kCacheLine) float small_sums[kTileFloats];
    float* sums = stride > kTileFloats ? wide_sums_ + s * stride : small_sums;
    const size_t tile_rows =
        each ? kTileRows
             : std::max<size_t>(1, std::min(kTileRows, kTileFloats / stride));
    float* tile[kTileRows];
    const float* tile_grads[kTileRows];
    size_t filled = 0;
    const auto flush = [&] {
      if (filled > 0) update_->Update(tile, tile_grads, filled, dim);
      filled = 0;
    };

    uint32_t fetched = 0;  // Occurrences whose gradients were prefetched.
    uint32_t at = 0;
    for (uint32_t u = 0; u < unique; ++u) {
      if (u + kRowsAhead < unique) {
        const Place later = places[u + kRowsAhead];
        if (kAllHaveRows || later.found()) {
          PrefetchLine(later.bucket()->version);
        }
        if (kAllHaveRows || rows[u + kRowsAhead] != HashIndex::kNoRow) {
          PrefetchLines(view.Row(rows[u + kRowsAhead]), row_bytes);
        }
      }
      const uint32_t stop = end[u];
      // A long run of one key prefetches its own (SumOccurrences).
      fetched = std::max(fetched, at);
      const uint32_t fetch =
          std::min(n, std::min(stop, at + kGradsAhead) + kGradsAhead);
      for (; fetched < fetch; ++fetched) {
        if (occurrences[fetched] < batch_.n) {
          PrefetchLines(batch_.grads + occurrences[fetched] * stride,
                        stride * sizeof(float));
        }
      }

      if (kAllHaveRows || places[u].found()) {
        places[u].count() =
            Saturated(places[u].count() + (stop - at) * coefficient);
        places[u].version() = batch_.version;
        if (tracking) places[u].MarkChanged();
      }
      if (!kAllHaveRows && rows[u] == HashIndex::kNoRow) {
        at = stop;
        continue;
      }

      // Counted keys come behind all others in the batch.
      uint32_t with_grad = stop;
      while (with_grad > at && occurrences[with_grad - 1] >= batch_.n) {
        --with_grad;
      }
      float* row = view.Row(rows[u]);
      if (each) {
        for (uint32_t j = at; j < with_grad; ++j) {
          tile[filled] = row;
          tile_grads[filled] = batch_.grads + occurrences[j] * stride;
          if (++filled == tile_rows) flush();
        }
      } else if (with_grad > at) {
        float* sum = sums + filled * stride;
        SumOccurrences(batch_.grads, occurrences + at, with_grad - at, dim,
                       sum);
        tile[filled] = row;
        tile_grads[filled] = sum;
        if (++filled == tile_rows) flush();
      }
      at = stop;
    }
    flush();
  }

  Impl& table_;
  const Batch& batch_;
  const RowUpdate* update_ = nullptr;
  int64_t per_shard_ = 0;         // Occurrences, about.
  bool is_deduplicated_ = false;  // CountNewRows was here.
  Scratch scratch_{Scratch::kBatch};
  Scratch wide_scratch_{Scratch::kWide};
  Partition part_;

  // Per shard, from part_.begin[s] on:
  int64_t* key_;        // (unique)
  uint32_t* id_;        // (n) which distinct key an occurrence is of
  uint32_t* grouped_;   // (n) occurrences, grouped by distinct key
  uint32_t* end_;       // (unique) end of each one's occurrences in grouped_
  Place* place_;        // (unique)
  uint32_t* row_;       // (unique)
  uint32_t* estimate_;  // (unique) of keys that a Bloom filter counted
  std::array<uint32_t*, kShards> dedup_;
  float* wide_sums_ = nullptr;  // (kShards, dim) if dim > kTileFloats

  std::array<uint32_t, kShards> unique_{};
  std::array<uint32_t, kShards> n_without_{};        // Keys without a row.
  std::array<uint32_t, kShards> promised_keys_{};    // In Shard::promised.
  std::array<uint32_t, kShards> promised_rows_{};    // In the arena.
  std::array<uint32_t, kShards> promised_blocks_{};  // In Shard::bloom.
  std::atomic<uint64_t> refused_{0};  // Shards whose lock was not to be had.
  std::atomic<bool> failed_{false};
};

bool EmbeddingTable::Apply(const Batch& batch, const RowUpdate& update,
                           const ParallelFor& given, int64_t* too_many) {
  if (too_many != nullptr) *too_many = 0;
  if (batch.n >= kMaxBatch || batch.m >= kMaxBatch) return false;
  if (batch.n + batch.m == 0) return true;
  Impl::BatchApply apply(impl_, batch);
  const bool is_small = batch.n + batch.m < kSerialBelow;
  const ParallelFor& parallel = is_small ? kSerial : given;
  const Impl::RoomForBatch room(impl_, batch);
  if (!apply.Prepare(parallel)) return false;
  if (!room.is_certain()) {
    const int64_t rows = impl_->n_rows() + apply.CountNewRows(parallel);
    if (rows > impl_->rules.max_rows) {
      if (too_many != nullptr) *too_many = rows - impl_->rules.max_rows;
      return false;
    }
  }
  return apply.Run(update, parallel);
}

bool EmbeddingTable::CountTooMany(const Batch& batch, const ParallelFor& given,
                                  int64_t* too_many) {
  *too_many = 0;
  if (batch.n >= kMaxBatch || batch.m >= kMaxBatch) return false;
  const Impl::RoomForBatch room(impl_, batch);
  if (room.is_certain()) return true;
  Impl::BatchApply apply(impl_, batch);
  const bool is_small = batch.n + batch.m < kSerialBelow;
  const ParallelFor& parallel = is_small ? kSerial : given;
  if (!apply.Prepare(parallel)) return false;
  const int64_t rows = impl_->n_rows() + apply.CountNewRows(parallel);
  *too_many = std::max<int64_t>(0, rows - impl_->rules.max_rows);
  return true;
}

}  // namespace rec_estimator
