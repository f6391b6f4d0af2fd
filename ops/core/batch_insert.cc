// EmbeddingTable::Insert, rows as a checkpoint holds them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "batch_scratch.h"
#include "embedding_table.h"
#include "embedding_table_impl.h"
#include "hash_index.h"
#include "row_arena.h"

namespace rec_estimator {

class EmbeddingTable::Impl::BatchInsert {
 public:
  BatchInsert(Impl* table, const EmbeddingTable::Rows& rows)
      : table_(*table), batch_(rows) {}

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
      new_rows_[s] = 0;
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
      shard.promised.fetch_sub(new_rows_[s], std::memory_order_acq_rel);
    }
    table_.arena.Release(promised_);
    return inserted;
  }

 private:
  uint32_t size_of(int s) const { return part_.begin[s + 1] - part_.begin[s]; }

  bool Reserve(int s) {
    Shard& shard = table_.shards[s];
    shard.lock.Lock();
    uint32_t rows = 0;
    table_.FindEach(shard.index, part_.keys + part_.begin[s], size_of(s),
                    [&](uint32_t, Place place) {
                      rows +=
                          !place.found() || place.row() == HashIndex::kNoRow;
                    });
    new_rows_[s] = rows;
    const int64_t promised =
        shard.promised.fetch_add(rows, std::memory_order_acq_rel) + rows;
    const bool reserved = table_.ReserveEntries(
        s, shard.keys.load(std::memory_order_relaxed) + promised);
    shard.lock.Unlock();
    return reserved;
  }

  // One key after the other, so that a key given twice does no harm: the last
  // one wins. The lock is held.
  bool InsertAll(int s) {
    Shard& shard = table_.shards[s];
    const uint32_t begin = part_.begin[s];
    // There is room, unless another thread cleared the table since Reserve.
    // InsertOne must not make it: FindEach would go on in the old index.
    uint32_t new_keys = 0;
    table_.FindEach(shard.index, part_.keys + begin, size_of(s),
                    [&](uint32_t, Place place) { new_keys += !place.found(); });
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (!table_.ReserveEntries(s, present + new_keys)) return false;
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
    const bool needs_row = is_new || place.row() == HashIndex::kNoRow;
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
    float* row = view.Row(place.row());
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
    const int64_t freq = batch_.freqs != nullptr ? batch_.freqs[i] : 0;
    place.count() = static_cast<uint32_t>(
        std::min<int64_t>(std::max<int64_t>(freq, 0), UINT32_MAX));
    place.version() = batch_.versions != nullptr ? batch_.versions[i] : -1;
    return true;
  }

  Impl& table_;
  const EmbeddingTable::Rows& batch_;
  Scratch scratch_{Scratch::kBatch};
  Partition part_;
  std::array<uint32_t, kShards> new_rows_{};  // Promised to shard and arena.
  uint64_t promised_ = 0;  // What is left of the arena's promise.
};

bool EmbeddingTable::Insert(const Rows& rows) {
  if (rows.n == 0) return true;
  return Impl::BatchInsert(impl_, rows).Run();
}

}  // namespace rec_estimator
