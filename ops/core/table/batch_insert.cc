// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Insert and InsertFiltered, keys as a checkpoint holds them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ops/core/table/batch_scratch.h"
#include "ops/core/table/counting_bloom_filter.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

class EmbeddingTable::Impl::BatchInsert {
 public:
  // Which keys get a row: all of them, or those whose count has reached the
  // threshold, while the others get an entry or raise cells.
  enum Mode { kRows, kFiltered, kFilteredIntoBloom };

  BatchInsert(Impl* table, const EmbeddingTable::Rows& rows, Mode mode)
      : table_(*table), batch_(rows), mode_(mode) {}

  bool Run() {
    part_.head = batch_.keys;
    part_.n_head = part_.n = batch_.n;
    part_.tail = nullptr;
    if (part_.n >= kMaxBatch) return false;
    Layout size(nullptr);
    part_.AddTo(&size);
    char* memory = scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    part_.AddTo(&layout);
    part_.Run(SerialFor);

    // Each thread begins elsewhere: two that restore one table would follow
    // each other from lock to lock.
    const int first = static_cast<int>(MixKey(batch_.keys[0]) % kShards);
    const auto shard_at = [first](int i) { return (first + i) % kShards; };
    uint64_t rows = 0;
    bool reserved = true;
    for (int i = 0; i < kShards; ++i) {
      const int s = shard_at(i);
      new_keys_[s] = new_rows_[s] = new_blocks_[s] = 0;
      if (reserved && part_.size_of(s) > 0) reserved = Reserve(s);
      rows += new_rows_[s];
    }
    reserved = reserved && table_.arena.Promise(rows);
    promised_ = reserved ? rows : 0;
    bool inserted = reserved;
    for (int i = 0; i < kShards; ++i) {
      const int s = shard_at(i);
      Shard& shard = table_.shards[s];
      if (reserved && part_.size_of(s) > 0) {
        shard.lock.Lock();
        inserted = InsertAll(s) && inserted;
        shard.lock.Unlock();
      }
      shard.promised.fetch_sub(new_keys_[s], std::memory_order_acq_rel);
      shard.bloom.Withdraw(new_blocks_[s]);
    }
    table_.arena.Release(promised_);
    return inserted;
  }

 private:
  // Keys that are looked for together.
  static constexpr uint32_t kFound = 16;

  uint32_t CountAt(uint32_t i) const {
    return CountOf(batch_.freqs != nullptr ? batch_.freqs[i] : 0);
  }
  bool OwnsRow(uint32_t count) const {
    return mode_ == kRows || count >= table_.filter.threshold;
  }

  bool CountsInCells(bool owns_row) const {
    return mode_ == kFilteredIntoBloom && !owns_row;
  }

  // Calls visit(occurrence, place) for the keys of shard s, in batch order. Its
  // lock is held.
  template <typename Visit>
  void FindAll(int s, const Visit& visit) const {
    const HashIndex& index = table_.shards[s].index;
    part_.ForEachRun(s, [&](const Occurrence* run, uint32_t n) {
      // Both lines of a bucket: a new entry writes the second one, too.
      const auto prefetch = [&](uint32_t begin) {
        const uint32_t end = std::min(n, begin + kFound);
        for (uint32_t i = begin; i < end; ++i) {
          PrefetchLines(index.Home(MixKey(run[i].key)), sizeof(Bucket));
        }
      };
      int64_t keys[kFound];
      prefetch(0);
      for (uint32_t at = 0; at < n; at += kFound) {
        prefetch(at + kFound);
        const uint32_t m = std::min(n - at, kFound);
        for (uint32_t i = 0; i < m; ++i) keys[i] = run[at + i].key;
        table_.FindEach(index, keys, m, [&](uint32_t i, Place place) {
          visit(run[at + i], place);
        });
      }
    });
  }

  // What the keys of shard s are going to take, at most. Its lock is held.
  struct Needs {
    uint32_t keys = 0;
    uint32_t rows = 0;
    uint32_t blocks = 0;
  };
  Needs Count(int s) const {
    const Shard& shard = table_.shards[s];
    Needs needs;
    FindAll(s, [&](const Occurrence& one, Place place) {
      const bool row = OwnsRow(CountAt(one.index));
      const bool cells = !place.found() && CountsInCells(row);
      needs.keys += !place.found() && !cells;
      needs.rows += row && (!place.found() || place.row() == HashIndex::kNoRow);
      needs.blocks += cells && table_.LacksCells(shard, one.key);
    });
    return needs;
  }

  // Whether all keys of shard s would be counted in entries; then they may all
  // be taken for new ones, if there is room, and need not be looked for.
  bool AllInEntries() const { return mode_ != kFilteredIntoBloom; }

  bool Reserve(int s) {
    Shard& shard = table_.shards[s];
    const ExclusiveLock lock(&shard.lock);
    const uint32_t n = part_.size_of(s);
    const bool fits = AllInEntries() &&
                      shard.keys.load(std::memory_order_relaxed) +
                              shard.promised.load(std::memory_order_relaxed) +
                              n <=
                          shard.capacity.load(std::memory_order_relaxed);
    const Needs needs = fits ? Needs{n, n, 0} : Count(s);
    new_keys_[s] = needs.keys;
    new_rows_[s] = needs.rows;
    new_blocks_[s] = needs.blocks;
    const int64_t promised =
        shard.promised.fetch_add(needs.keys, std::memory_order_acq_rel) +
        needs.keys;
    const bool cells =
        shard.bloom.Promise(needs.blocks) ||
        shard.bloom.Reserve(shard.bloom.used() + shard.bloom.promised(),
                            table_.stagger[s]);
    return cells &&
           table_.ReserveEntries(
               s, shard.keys.load(std::memory_order_relaxed) + promised);
  }

  // One key after the other, so that a key given twice does no harm: the last
  // one wins. The lock is held.
  bool InsertAll(int s) {
    Shard& shard = table_.shards[s];
    // There is room, unless another thread cleared the table since Reserve.
    // InsertOne must not make it: FindEach would go on in the old index.
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    const bool fits =
        AllInEntries() && present + part_.size_of(s) <=
                              shard.capacity.load(std::memory_order_relaxed);
    if (!fits) {
      const Needs needs = Count(s);
      if (!table_.ReserveEntries(s, present + needs.keys) ||
          !shard.bloom.Reserve(shard.bloom.used() + needs.blocks,
                               table_.stagger[s])) {
        return false;
      }
    }
    tracking_ = table_.tracking.load(std::memory_order_relaxed);
    run_rows_ = 0;
    bool done = true;
    FindAll(s, [&](const Occurrence& one, Place place) {
      done = InsertOne(s, one.key, one.index, place) && done;
    });
    for (; run_rows_ > 0; --run_rows_) table_.FreeRow(&shard, next_row_++);
    return done;
  }

  // `place`: where the key was found before the first of its run was inserted.
  bool InsertOne(int s, int64_t key, uint32_t i, Place place) {
    Shard& shard = table_.shards[s];
    Bucket* home = shard.index.Home(MixKey(key));
    if (!place.found()) place = shard.index.Find(home, key);
    const bool is_new = !place.found();
    const bool had_row = !is_new && place.row() != HashIndex::kNoRow;
    const uint32_t count = CountAt(i);
    const bool needs_row = !had_row && OwnsRow(count);
    if (is_new && CountsInCells(needs_row)) {
      const BloomShard::Spot spot = shard.bloom.SpotOf(MixKey(key));
      shard.bloom.Raise(spot.seed, count, tracking_,
                        shard.bloom.FindOrAdd(spot.block));
      return true;
    }
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (needs_row && shard.free_rows == 0 && run_rows_ == 0 && !TakeRun(s)) {
      return false;
    }
    const RowArena::View view = table_.arena.view();
    if (is_new) {
      place = shard.index.Insert(home, key);
      shard.keys.store(present + 1, std::memory_order_release);
    }
    if (needs_row) {
      const bool from_run = shard.free_rows == 0;
      place.row() = RowSource(&shard, view, next_row_).Next();
      next_row_ += from_run;
      run_rows_ -= from_run;
      shard.rows.store(shard.rows.load(std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
    }
    if (needs_row || mode_ == kRows) {
      SetRow(key, i, view.Row(place.row()));
    }
    place.count() = count;
    place.version() = batch_.versions != nullptr ? batch_.versions[i] : -1;
    if (tracking_) place.MarkChanged();
    return true;
  }

  // Takes the next rows of shard s, whose lock is held: several, as each time
  // costs a lock that all shards share, but no more than what it was promised.
  bool TakeRun(int s) {
    constexpr uint32_t kRun = 16;
    const uint32_t promised = std::min(kRun, new_rows_[s]);
    const uint32_t n = std::max(promised, 1u);
    if (!table_.arena.Take(n, promised, &next_row_)) return false;
    new_rows_[s] -= promised;
    promised_ -= promised;
    run_rows_ = n;
    return true;
  }

  // Writes what is given, and the initial values of what is not.
  void SetRow(int64_t key, uint32_t i, float* row) const {
    const size_t stride = static_cast<size_t>(table_.dim);
    CopyRow(batch_.values != nullptr ? batch_.values + i * stride
                                     : table_.Initial(key),
            table_.dim, row);
    float* slot = row + table_.dim;
    const float* initial = table_.slot_initials.data();
    for (size_t t = 0; t < table_.slots.size(); ++t) {
      const size_t width = static_cast<size_t>(table_.slots[t].width);
      const bool given = t < batch_.slots.size() && batch_.slots[t] != nullptr;
      std::copy_n(given ? batch_.slots[t] + i * width : initial, width, slot);
      slot += width;
      initial += width;
    }
  }

  Impl& table_;
  const EmbeddingTable::Rows& batch_;
  const Mode mode_;
  Scratch scratch_{Scratch::kBatch};
  Partition part_;
  std::array<uint32_t, kShards> new_keys_{};    // In Shard::promised.
  std::array<uint32_t, kShards> new_rows_{};    // Left of promised_.
  std::array<uint32_t, kShards> new_blocks_{};  // In that of Shard::bloom.
  uint64_t promised_ = 0;  // What is left of the arena's promise.
  uint32_t next_row_ = 0;  // Taken from the arena for the shard that is being
  uint32_t run_rows_ = 0;  // written, and not used yet.
  bool tracking_ = false;  // Of the shard that is being written.
};

void EmbeddingTable::Reserve(int64_t keys) {
  if (keys <= 0) return;
  const int64_t each = keys / kShards + 1;
  for (int s = 0; s < kShards; ++s) {
    Shard& shard = impl_->shards[s];
    const ExclusiveLock lock(&shard.lock);
    // Keys spread by chance: five deviations more than the mean.
    const double spare = 5 * std::sqrt(static_cast<double>(each));
    impl_->ReserveEntries(
        s, shard.keys.load(std::memory_order_relaxed) +
               shard.promised.load(std::memory_order_relaxed) + each +
               static_cast<int64_t>(spare));
  }
}

bool EmbeddingTable::Insert(const Rows& rows) {
  if (rows.n == 0) return true;
  return Impl::BatchInsert(impl_, rows, Impl::BatchInsert::kRows).Run();
}

bool EmbeddingTable::InsertFiltered(const int64_t* keys, size_t n,
                                    const int64_t* freqs,
                                    const int64_t* versions, bool into_bloom) {
  if (n == 0) return true;
  using Insertion = Impl::BatchInsert;
  const Rows counted = {keys, n, nullptr, {}, freqs, versions};
  return Insertion(impl_, counted,
                   into_bloom && impl_->has_bloom()
                       ? Insertion::kFilteredIntoBloom
                       : Insertion::kFiltered)
      .Run();
}

}  // namespace rec_estimator
