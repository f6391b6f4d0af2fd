#include "embedding_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>

#include "cpu_memory.h"
#include "embedding_table_impl.h"
#include "hash_index.h"
#include "row_arena.h"

namespace rec_estimator {
namespace {

// Keys of a large lookup that one set of locks serves: 64 locks cost 0.7 us,
// 4096 keys 70 us or more, and an apply waits no longer than that.
constexpr size_t kLookupBlock = 4096;

}  // namespace

// ---------------------------------------------------------------------------
// Erase, Clear

size_t EmbeddingTable::Impl::EraseSome(const int64_t* keys, size_t n) {
  std::array<uint32_t, kShards + 1> start{};
  uint8_t shard_of[kLookupBlock];
  uint16_t order[kLookupBlock];
  for (size_t i = 0; i < n; ++i) {
    shard_of[i] = static_cast<uint8_t>(ShardOf(MixKey(keys[i])));
    ++start[shard_of[i] + 1];
  }
  for (int s = 0; s < kShards; ++s) start[s + 1] += start[s];
  std::array<uint32_t, kShards + 1> next = start;
  for (size_t i = 0; i < n; ++i) {
    order[next[shard_of[i]]++] = static_cast<uint16_t>(i);
  }
  size_t erased = 0;
  for (int s = 0; s < kShards; ++s) {
    if (start[s] == start[s + 1]) continue;
    Shard& shard = shards[s];
    shard.lock.Lock();
    const RowArena::View view = arena.view();
    int64_t gone = 0;
    int64_t rows_gone = 0;
    for (uint32_t o = start[s]; o < start[s + 1]; ++o) {
      const int64_t key = keys[order[o]];
      Bucket* home = shard.index.Home(MixKey(key));
      const Place place = shard.index.Find(home, key);
      if (!place.found()) continue;
      ++gone;
      if (place.row() != HashIndex::kNoRow) {
        std::memcpy(view.Row(place.row()), &shard.free_row, sizeof(uint32_t));
        shard.free_row = place.row();
        ++shard.free_rows;
        ++rows_gone;
      }
      shard.index.Erase(home, place);
    }
    shard.keys.fetch_sub(gone, std::memory_order_acq_rel);
    shard.rows.fetch_sub(rows_gone, std::memory_order_relaxed);
    shard.lock.Unlock();
    erased += static_cast<size_t>(gone);
  }
  return erased;
}

size_t EmbeddingTable::Erase(const int64_t* keys, size_t n) {
  size_t erased = 0;
  for (size_t at = 0; at < n; at += kLookupBlock) {
    erased += impl_->EraseSome(keys + at, std::min(kLookupBlock, n - at));
  }
  return erased;
}

void EmbeddingTable::Clear() {
  impl_->LockAll();
  for (Shard& shard : impl_->shards) {
    shard.index.Clear();
    shard.keys = 0;
    shard.rows = 0;
    shard.capacity = 0;
    shard.free_row = HashIndex::kNoRow;
    shard.free_rows = 0;
  }
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
      static_cast<int64_t>((n + kLookupBlock - 1) / kLookupBlock);
  const int64_t per_key = 60 + table.dim;  // Cycles.
  const auto read = [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const size_t at = static_cast<size_t>(block) * kLookupBlock;
      table.LockShared(kAllShards);
      table.Lookup(keys + at, std::min(kLookupBlock, n - at), unknown,
                   out + at * static_cast<size_t>(table.dim));
      table.UnlockShared(kAllShards);
    }
  };
  // By reference: a function object of this size would be allocated.
  parallel(blocks, static_cast<int64_t>(kLookupBlock) * per_key,
           std::cref(read));
}

// ---------------------------------------------------------------------------
// The table as a whole

EmbeddingTable::EmbeddingTable(int dim, float default_value)
    : impl_(new Impl(dim, default_value)) {}

EmbeddingTable::~EmbeddingTable() { delete impl_; }

int EmbeddingTable::dim() const { return impl_->dim; }

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

EmbeddingTable::Snapshot::Snapshot(const EmbeddingTable& table)
    : table_(table) {
  table_.impl_->LockShared(kAllShards);
  try {
    List();
  } catch (...) {
    // No memory; a destructor would not run.
    table_.impl_->UnlockShared(kAllShards);
    throw;
  }
}

void EmbeddingTable::Snapshot::List() {
  // Checkpoints are cut into this many buckets (docs/architecture.md, rows to
  // checkpoints).
  constexpr int64_t kBuckets = 1000;
  const Impl& impl = *table_.impl_;
  const RowArena::View view = impl.arena.view();

  // A counting sort by bucket of the checkpoint, then each by key.
  std::vector<size_t> admitted(kBuckets + 1, 0);
  std::vector<size_t> filtered(kBuckets + 1, 0);
  for (const Shard& shard : impl.shards) {
    shard.index.ForEach([&](const Bucket& bucket, int e) {
      const int64_t part = FloorMod(bucket.key[e], kBuckets);
      ++(bucket.row[e] == HashIndex::kNoRow ? filtered : admitted)[part + 1];
    });
  }
  for (int64_t b = 0; b < kBuckets; ++b) {
    admitted[b + 1] += admitted[b];
    filtered[b + 1] += filtered[b];
  }
  admitted_.resize(admitted[kBuckets]);
  filtered_.resize(filtered[kBuckets]);
  for (const Shard& shard : impl.shards) {
    shard.index.ForEach([&](const Bucket& bucket, int e) {
      const int64_t part = FloorMod(bucket.key[e], kBuckets);
      const bool has_row = bucket.row[e] != HashIndex::kNoRow;
      Entry& entry =
          has_row ? admitted_[admitted[part]++] : filtered_[filtered[part]++];
      entry.key = bucket.key[e];
      entry.version = bucket.version[e];
      entry.freq = bucket.count[e];
      entry.row = has_row ? view.Row(bucket.row[e]) : nullptr;
    });
  }
  // admitted[b] is now the end of bucket b.
  const auto by_key = [](const Entry& a, const Entry& b) {
    return a.key < b.key;
  };
  for (int64_t b = 0; b < kBuckets; ++b) {
    std::sort(admitted_.begin() + (b == 0 ? 0 : admitted[b - 1]),
              admitted_.begin() + admitted[b], by_key);
    std::sort(filtered_.begin() + (b == 0 ? 0 : filtered[b - 1]),
              filtered_.begin() + filtered[b], by_key);
  }
}

EmbeddingTable::Snapshot::~Snapshot() {
  table_.impl_->UnlockShared(kAllShards);
}

// Calls visit(i, place) for keys (n); place.found() or not.
template <typename Visit>
void EmbeddingTable::Impl::Inspect(const int64_t* keys, size_t n,
                                   const Visit& visit) const {
  for (size_t at = 0; at < n; at += kLookupBlock) {
    const size_t block_end = std::min(n, at + kLookupBlock);
    const uint64_t mask = ShardsOf(keys + at, block_end - at);
    LockShared(mask);
    for (size_t i = at; i < block_end; i += kChunk) {
      const size_t end = std::min(block_end, i + kChunk);
      Bucket* homes[kChunk];
      for (size_t j = i; j < end; ++j) {
        homes[j - i] = Home(keys[j]);
        PrefetchLines(homes[j - i], sizeof(Bucket));
      }
      for (size_t j = i; j < end; ++j) {
        visit(j, IndexOf(keys[j]).Find(homes[j - i], keys[j]));
      }
    }
    UnlockShared(mask);
  }
}

void EmbeddingTable::Frequencies(const int64_t* keys, size_t n,
                                 int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() ? place.count() : 0;
  });
}

void EmbeddingTable::Versions(const int64_t* keys, size_t n,
                              int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() ? place.version() : -1;
  });
}

int64_t EmbeddingTable::size() const {
  int64_t rows = 0;
  for (const Shard& shard : impl_->shards) rows += shard.rows;
  return rows;
}

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
    bytes += shard.index.bytes();
    shard.lock.Unlock();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace rec_estimator
