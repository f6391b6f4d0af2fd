// EmbeddingTable::Insert and InsertFiltered, keys as a checkpoint holds them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "batch_scratch.h"
#include "counting_bloom_filter.h"
#include "embedding_table.h"
#include "embedding_table_impl.h"
#include "hash_index.h"
#include "row_arena.h"

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

    uint64_t rows = 0;
    bool reserved = true;
    for (int s = 0; s < kShards; ++s) {
      new_keys_[s] = new_rows_[s] = new_blocks_[s] = 0;
      if (reserved && size_of(s) > 0) reserved = Reserve(s);
      rows += new_rows_[s];
    }
    reserved = reserved && table_.arena.Promise(rows);
    promised_ = reserved ? rows : 0;
    bool inserted = reserved;
    for (int s = 0; s < kShards; ++s) {
      Shard& shard = table_.shards[s];
      if (reserved && size_of(s) > 0) {
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
  uint32_t size_of(int s) const { return part_.begin[s + 1] - part_.begin[s]; }

  uint32_t CountAt(uint32_t i) const {
    return CountOf(batch_.freqs != nullptr ? batch_.freqs[i] : 0);
  }
  bool OwnsRow(uint32_t count) const {
    return mode_ == kRows || count >= table_.filter.threshold;
  }

  bool CountsInCells(bool owns_row) const {
    return mode_ == kFilteredIntoBloom && !owns_row;
  }

  // What the keys of shard s are going to take, at most. Its lock is held.
  struct Needs {
    uint32_t keys = 0;
    uint32_t rows = 0;
    uint32_t blocks = 0;
  };
  Needs Count(int s) const {
    const Shard& shard = table_.shards[s];
    const int64_t* keys = part_.keys + part_.begin[s];
    const uint32_t* index = part_.index + part_.begin[s];
    Needs needs;
    table_.FindEach(
        shard.index, keys, size_of(s), [&](uint32_t i, Place place) {
          const bool row = OwnsRow(CountAt(index[i]));
          const bool cells = !place.found() && CountsInCells(row);
          needs.keys += !place.found() && !cells;
          needs.rows +=
              row && (!place.found() || place.row() == HashIndex::kNoRow);
          needs.blocks += cells && table_.LacksCells(shard, keys[i]);
        });
    return needs;
  }

  bool Reserve(int s) {
    Shard& shard = table_.shards[s];
    const ExclusiveLock lock(&shard.lock);
    const Needs needs = Count(s);
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
    const uint32_t begin = part_.begin[s];
    // There is room, unless another thread cleared the table since Reserve.
    // InsertOne must not make it: FindEach would go on in the old index.
    const Needs needs = Count(s);
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (!table_.ReserveEntries(s, present + needs.keys) ||
        !shard.bloom.Reserve(shard.bloom.used() + needs.blocks,
                             table_.stagger[s])) {
      return false;
    }
    tracking_ = table_.tracking.load(std::memory_order_relaxed);
    bool done = true;
    table_.FindEach(
        shard.index, part_.keys + begin, size_of(s), [&](uint32_t i, Place) {
          done = InsertOne(s, part_.keys[begin + i], part_.index[begin + i]) &&
                 done;
        });
    return done;
  }

  bool InsertOne(int s, int64_t key, uint32_t i) {
    Shard& shard = table_.shards[s];
    const auto home = [&] { return shard.index.Home(MixKey(key)); };
    Place place = shard.index.Find(home(), key);
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
    uint32_t first = 0;
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (needs_row && shard.free_rows == 0) {
      const uint64_t promised = promised_ > 0;
      if (!table_.arena.Take(1, promised, &first)) return false;
      promised_ -= promised;
    }
    const RowArena::View view = table_.arena.view();
    if (is_new) {
      place = shard.index.Insert(home(), key);
      shard.keys.store(present + 1, std::memory_order_release);
    }
    if (needs_row) {
      place.row() = RowSource(&shard, view, first).Next();
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

  void SetRow(int64_t key, uint32_t i, float* row) const {
    table_.InitializeRow(key, row);
    if (batch_.values != nullptr) {
      const size_t stride = static_cast<size_t>(table_.dim);
      CopyRow(batch_.values + i * stride, table_.dim, row);
    }
    float* slot = row + table_.dim;
    for (size_t t = 0; t < table_.slots.size(); ++t) {
      const size_t width = static_cast<size_t>(table_.slots[t].width);
      if (t < batch_.slots.size() && batch_.slots[t] != nullptr) {
        std::copy_n(batch_.slots[t] + i * width, width, slot);
      }
      slot += width;
    }
  }

  Impl& table_;
  const EmbeddingTable::Rows& batch_;
  const Mode mode_;
  Scratch scratch_{Scratch::kBatch};
  Partition part_;
  std::array<uint32_t, kShards> new_keys_{};    // In Shard::promised.
  std::array<uint32_t, kShards> new_rows_{};    // In the arena's promise.
  std::array<uint32_t, kShards> new_blocks_{};  // In that of Shard::bloom.
  uint64_t promised_ = 0;  // What is left of the arena's promise.
  bool tracking_ = false;  // Of the shard that is being written.
};

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
