// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/embedding_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <new>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {
// ---------------------------------------------------------------------------
// The table as a whole

EmbeddingTable::EmbeddingTable(int dim, float default_value,
                               const FilterSpec& filter, const RowRules& rules)
    : impl_(new Impl(dim, default_value, filter, rules)) {}

EmbeddingTable::~EmbeddingTable() { delete impl_; }

int EmbeddingTable::dim() const { return impl_->dim; }

const FilterSpec& EmbeddingTable::filter() const { return impl_->filter; }

const RowRules& EmbeddingTable::rules() const { return impl_->rules; }

void EmbeddingTable::Clear() {
  impl_->LockAll();
  for (Shard& shard : impl_->shards) {
    shard.index.Clear();
    shard.keys = 0;
    shard.rows = 0;
    shard.capacity = 0;
    shard.free_row = HashIndex::kNoRow;
    shard.free_rows = 0;
    shard.bloom.Clear();
    shard.erased = {};
    shard.n_erased_pending = 0;
  }
  impl_->tracking = false;
  impl_->arena.Clear();
  impl_->UnlockAll();
}

// ---------------------------------------------------------------------------
// Lookup

EmbeddingTable::Reader::Reader(const EmbeddingTable& table, const int64_t* keys,
                               size_t n)
    : table_(table), locked_(Impl::ShardsOf(keys, n)) {
  table_.impl_->LockShared(locked_);
}

EmbeddingTable::Reader::~Reader() { table_.impl_->UnlockShared(locked_); }

void EmbeddingTable::Reader::Rows(const int64_t* keys, size_t n,
                                  UnknownKey unknown,
                                  const float** rows) const {
  table_.impl_->Rows(keys, n, unknown, rows);
}

void EmbeddingTable::Lookup(const int64_t* keys, size_t n, UnknownKey unknown,
                            float* out, const ParallelFor& parallel) const {
  const Impl& table = *impl_;
  if (n < kSerialBelow) {
    const uint64_t mask = Impl::ShardsOf(keys, n);
    table.LockShared(mask);
    table.Lookup(keys, n, unknown, out);
    table.UnlockShared(mask);
    return;
  }
  const int64_t blocks =
      static_cast<int64_t>((n + kLockBlock - 1) / kLockBlock);
  const int64_t per_key = 60 + table.dim;  // Cycles.
  const auto read = [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const size_t at = static_cast<size_t>(block) * kLockBlock;
      table.LockShared(kAllShards);
      table.Lookup(keys + at, std::min(kLockBlock, n - at), unknown,
                   out + at * static_cast<size_t>(table.dim));
      table.UnlockShared(kAllShards);
    }
  };
  // By reference: a function object of this size would be allocated.
  parallel(blocks, static_cast<int64_t>(kLockBlock) * per_key, std::cref(read));
}

EmbeddingTable::BloomLayout EmbeddingTable::bloom_layout() const {
  const BloomGeometry& bloom = impl_->bloom;
  return {bloom.shard_blocks() * kShards, bloom.cells(), bloom.hashes(),
          bloom.cell_bits()};
}

bool EmbeddingTable::MergeBloom(const int64_t* blocks, size_t n,
                                const uint32_t* cells) {
  Impl& table = *impl_;
  const int64_t shard_blocks = table.bloom.shard_blocks();
  // Calls visit(shard, begin, end) for runs of blocks of one shard, locked;
  // stops when that is false.
  const auto for_runs = [&](const auto& visit) {
    for (size_t begin = 0, end; begin < n; begin = end) {
      const int64_t s = blocks[begin] / shard_blocks;
      end = begin + 1;
      while (end < n && blocks[end] / shard_blocks == s) ++end;
      const ExclusiveLock lock(&table.shards[s].lock);
      if (!visit(static_cast<int>(s), begin, end)) return false;
    }
    return true;
  };
  const auto lacking = [&](int s, size_t begin, size_t end) {
    BloomShard& bloom = table.shards[s].bloom;
    int64_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      count += bloom.Find(static_cast<uint64_t>(blocks[i] % shard_blocks)) ==
               nullptr;
    }
    return count;
  };
  std::array<int64_t, kShards> promised{};
  bool merged = for_runs([&](int s, size_t begin, size_t end) {
    BloomShard& bloom = table.shards[s].bloom;
    const int64_t more = lacking(s, begin, end);
    promised[s] += more;
    return bloom.Promise(more) ||
           bloom.Reserve(bloom.used() + bloom.promised(), table.stagger[s]);
  });
  const size_t width = static_cast<size_t>(table.bloom.cells());
  merged =
      merged && for_runs([&](int s, size_t begin, size_t end) {
        BloomShard& bloom = table.shards[s].bloom;
        // There is room, unless another thread cleared the table since.
        if (!bloom.Reserve(bloom.used() + lacking(s, begin, end),
                           table.stagger[s])) {
          return false;
        }
        const bool tracking = table.tracking.load(std::memory_order_relaxed);
        for (size_t i = begin; i < end; ++i) {
          bloom.Merge(
              cells + i * width, tracking,
              bloom.FindOrAdd(static_cast<uint64_t>(blocks[i] % shard_blocks)));
        }
        return true;
      });
  for (int s = 0; s < kShards; ++s) {
    table.shards[s].bloom.Withdraw(promised[s]);
  }
  return merged;
}

// ---------------------------------------------------------------------------
// Bank and slots

std::vector<SlotSpec> EmbeddingTable::slots() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->slots;
}

int EmbeddingTable::row_floats() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->dim + static_cast<int>(impl_->slot_initials.size());
}

void EmbeddingTable::SetBank(const float* bank, int64_t rows) {
  Impl& table = *impl_;
  const size_t floats = static_cast<size_t>(rows) * table.dim;
  float* copy =
      static_cast<float*>(AllocateZeroed(floats * sizeof(float), Pages::kHuge));
  if (copy == nullptr) throw std::bad_alloc();
  std::copy_n(bank, floats, copy);
  table.LockAll();
  {
    std::lock_guard<std::mutex> lock(table.metadata_mutex);
    FreeZeroed(table.bank, table.bank_bytes());
    table.bank = copy;
    table.bank_rows = rows;
    table.bank_mask = (rows & (rows - 1)) == 0 ? rows - 1 : -1;
  }
  table.UnlockAll();
}

int64_t EmbeddingTable::bank_rows() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->bank_rows;
}

std::vector<float> EmbeddingTable::bank() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return std::vector<float>(impl_->bank,
                            impl_->bank + impl_->bank_bytes() / sizeof(float));
}

bool EmbeddingTable::EnsureSlots(const std::vector<SlotSpec>& wanted) {
  Impl& table = *impl_;
  {
    // Mostly they are there, and no lock of a shard is needed.
    std::lock_guard<std::mutex> lock(table.metadata_mutex);
    const bool present =
        std::all_of(wanted.begin(), wanted.end(), [&](const SlotSpec& spec) {
          return std::any_of(table.slots.begin(), table.slots.end(),
                             [&](const SlotSpec& slot) {
                               return slot.name == spec.name &&
                                      slot.width == spec.width &&
                                      slot.initial == spec.initial;
                             });
        });
    if (present) return true;
  }
  // What the slots would be; false: a width differs.
  std::vector<SlotSpec> slots;
  const auto merge = [&] {
    slots = table.slots;
    for (const SlotSpec& spec : wanted) {
      if (spec.width < 1) return false;
      const auto same = std::find_if(
          slots.begin(), slots.end(),
          [&](const SlotSpec& slot) { return slot.name == spec.name; });
      if (same == slots.end()) {
        slots.push_back(spec);
      } else if (same->width != spec.width) {
        return false;
      } else {
        same->initial = spec.initial;
      }
    }
    return true;
  };
  const auto initials = [&] {
    std::vector<float> floats;
    for (const SlotSpec& slot : slots) {
      floats.insert(floats.end(), static_cast<size_t>(slot.width),
                    slot.initial);
    }
    return floats;
  };

  struct AllLocks {
    explicit AllLocks(Impl* table) : table(table) { table->LockAll(); }
    ~AllLocks() { table->UnlockAll(); }
    Impl* table;
  } locks(&table);
  if (!merge()) return false;
  std::vector<float> floats = initials();
  const size_t old_floats = table.arena.row_floats();
  const size_t new_floats = static_cast<size_t>(table.dim) + floats.size();
  if (new_floats > old_floats) {
    const uint64_t rows = table.arena.taken();
    RowArena arena(new_floats);
    uint32_t first;
    if (!arena.Take(rows, 0, &first)) return false;
    // New slots go behind the old ones, so a row keeps its number and its
    // beginning; free rows keep their list with it.
    const RowArena::View from = table.arena.view();
    const RowArena::View to = arena.view();
    const std::vector<float> added(
        floats.begin() + static_cast<std::ptrdiff_t>(old_floats - table.dim),
        floats.end());
    for (uint64_t r = 0; r < rows; ++r) {
      const float* old_row = from.Row(static_cast<uint32_t>(r));
      float* row = to.Row(static_cast<uint32_t>(r));
      std::copy(old_row, old_row + old_floats, row);
      std::copy(added.begin(), added.end(), row + old_floats);
    }
    table.arena.Swap(&arena);
  }
  std::lock_guard<std::mutex> lock(table.metadata_mutex);
  table.slots.swap(slots);
  table.slot_initials.swap(floats);
  return true;
}

// ---------------------------------------------------------------------------
// Inspection

// Calls visit(i, place) for keys (n); place.found() or not.
template <typename Visit>
void EmbeddingTable::Impl::Inspect(const int64_t* keys, size_t n,
                                   const Visit& visit) const {
  for (size_t at = 0; at < n; at += kLockBlock) {
    const size_t size = std::min(kLockBlock, n - at);
    const uint64_t mask = ShardsOf(keys + at, size);
    LockShared(mask);
    InspectLocked(keys + at, size,
                  [&](size_t i, Place place) { visit(at + i, place); });
    UnlockShared(mask);
  }
}

void EmbeddingTable::Frequencies(const int64_t* keys, size_t n,
                                 int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = impl_->Counted(keys[i], place);
  });
}

void EmbeddingTable::Versions(const int64_t* keys, size_t n,
                              int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() ? place.version() : -1;
  });
}

void EmbeddingTable::Contains(const int64_t* keys, size_t n, bool* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() && place.row() != HashIndex::kNoRow;
  });
}

int64_t EmbeddingTable::size() const { return impl_->n_rows(); }

int64_t EmbeddingTable::total_count() const {
  int64_t keys = 0;
  for (const Shard& shard : impl_->shards) keys += shard.keys;
  return keys;
}

int64_t EmbeddingTable::capacity() const {
  int64_t keys = 0;
  for (const Shard& shard : impl_->shards) keys += shard.capacity;
  return keys;
}

int64_t EmbeddingTable::memory_bytes() const {
  size_t bytes = impl_->arena.bytes();
  for (const Shard& shard : impl_->shards) {
    shard.lock.LockShared();
    bytes += shard.index.bytes() + shard.bloom.bytes();
    shard.lock.Unlock();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace rec_estimator
