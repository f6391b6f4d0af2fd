// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Snapshot: what a save reads.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/storage/pages_ahead.h"
#include "ops/core/table/disk_tier.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"
#include "ops/core/table/row_store.h"
#include "ops/core/table/shard.h"
#include "ops/core/table/shard_set.h"
#include "ops/core/table/sketch.h"

namespace rec_estimator {
namespace {

// A RowReader has the rows of so many windows: one that the caller uses, and
// one that is being read.
constexpr size_t kWindows = 2;
// Bytes that a row on disk takes while it is looked for, beside its floats.
constexpr size_t kListedBytes = 64;
// A window has at most so many times the entries whose rows it has memory for,
// because some are in memory.
constexpr size_t kReadAhead = 2;
// Memory for pages that a RowReader reads ahead: kAheadBytes plus a share of
// the table's memory.
constexpr size_t kAheadBytes = size_t{12} << 20;
constexpr int64_t kAheadShare = 400;  // 1/400 = 0.25 %.
// Entries that are sorted in groups: fewer are faster without, and more would
// take too much memory.
constexpr uint64_t kLeastGrouped = 256;
constexpr uint64_t kMostGrouped = uint64_t{1} << 17;
// Entries ahead of the one that is looked at, whose buckets are fetched.
constexpr size_t kPrefetched = 16;

// Sorts entries, which have keys of their own, by key. Keys are mostly spread
// evenly between the least and the greatest one. So a counting sort by where
// they are between these leaves a few in each group, which are then in order.
template <typename Entry>
void SortEntries(Entry* begin, Entry* end) {
  const auto is_before = [](const Entry& a, const Entry& b) {
    return a.key < b.key;
  };
  const auto n = static_cast<uint64_t>(end - begin);
  if (n < kLeastGrouped || n > kMostGrouped) {
    return std::sort(begin, end, is_before);
  }
  const auto [least, greatest] = std::minmax_element(begin, end, is_before);
  const auto from = static_cast<uint64_t>(least->key);
  const uint64_t range = static_cast<uint64_t>(greatest->key) - from;
  int shift = 0;
  while (range >> shift >= n) ++shift;
  const auto group_of = [from, shift](const Entry& entry) {
    return (static_cast<uint64_t>(entry.key) - from) >> shift;
  };
  std::vector<uint32_t> next(n + 1);
  for (const Entry* e = begin; e != end; ++e) ++next[group_of(*e) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Entry> sorted(n);
  for (const Entry* e = begin; e != end; ++e) sorted[next[group_of(*e)]++] = *e;
  uint32_t first = 0;
  for (uint64_t g = 0; g < n; first = next[g++]) {
    std::sort(sorted.begin() + first, sorted.begin() + next[g], is_before);
  }
  std::copy(sorted.begin(), sorted.end(), begin);
}

}  // namespace

std::unique_ptr<PagesAhead> EmbeddingTable::Snapshot::MakePagesAhead(
    const EmbeddingTable& table) {
  if (table.tier_ == nullptr) return nullptr;
  const auto share = static_cast<size_t>(table.memory_bytes() / kAheadShare);
  return std::make_unique<PagesAhead>(table.tier_->log()->segments(),
                                      kAheadBytes + share);
}

EmbeddingTable::Snapshot::Snapshot(const EmbeddingTable& table, Keys keys)
    : table_(table),
      only_changed_(keys == Keys::kChanged),
      ahead_(keys == Keys::kAll ? MakePagesAhead(table) : nullptr) {
  const ShardSet& shards = *table_.shards_;
  // Before the shards' locks: its holder must not wait for any of those.
  if (only_changed_) {
    save_lock_ = std::unique_lock<std::mutex>(shards.save_mutex());
  }
  locks_ = std::make_unique<const SharedLocks>(shards, kAllShards);
  only_changed_ = only_changed_ && shards.tracks_changes();
  Count();
}

EmbeddingTable::Snapshot::~Snapshot() = default;

// Calls visit(entry, bucket, has a row) for the entries of a shard that belong
// to the snapshot.
template <typename Visit>
void EmbeddingTable::Snapshot::ForEachEntry(int s, const Visit& visit) const {
  (*table_.shards_)[s].index().ForEach([&](EntryRef entry) {
    if (only_changed_ && !entry.changed()) return;
    visit(entry, BucketOf(entry.key()), entry.has_row());
  });
}

void EmbeddingTable::Snapshot::Count() {
  admitted_offsets_.assign(kBuckets + 1, 0);
  filtered_offsets_.assign(kBuckets + 1, 0);
  for (int s = 0; s < kShards; ++s) {
    ForEachEntry(s, [this](EntryRef, int64_t bucket, bool has_row) {
      ++(has_row ? admitted_offsets_ : filtered_offsets_)[bucket + 1];
    });
  }
  for (int64_t b = 0; b < kBuckets; ++b) {
    admitted_offsets_[b + 1] += admitted_offsets_[b];
    filtered_offsets_[b + 1] += filtered_offsets_[b];
  }
  if (const Sketch* sketch = table_.sketch()) {
    sketch_heads_ = sketch->SaveHeads(only_changed_);
    sketch_rows_ = sketch->RowsToSave(only_changed_);
  }
  if (!only_changed_) return;
  for (const Shard& shard : *table_.shards_) {
    erased_.insert(erased_.end(), shard.erased().begin(), shard.erased().end());
  }
  std::sort(erased_.begin(), erased_.end());
  erased_.erase(std::unique(erased_.begin(), erased_.end()), erased_.end());
}

void EmbeddingTable::Snapshot::List(int64_t begin_bucket, int64_t end_bucket,
                                    const ParallelFor& parallel,
                                    std::vector<Entry>* admitted,
                                    std::vector<Entry>* filtered) const {
  // A counting sort by bucket, then each bucket by key.
  struct Output {
    Output(const std::vector<int64_t>& offsets, int64_t begin, int64_t end,
           std::vector<Entry>* entries)
        : first(offsets[begin]),
          next(static_cast<size_t>(end - begin)),
          entries(*entries) {
      for (size_t b = 0; b < next.size(); ++b) {
        next[b].store(offsets[begin + static_cast<int64_t>(b)] - first,
                      std::memory_order_relaxed);
      }
      this->entries.resize(static_cast<size_t>(offsets[end] - first));
    }
    // Any thread may call it: SortByKey makes the order deterministic.
    void Add(int64_t bucket, EntryRef entry) {
      const int64_t at = next[static_cast<size_t>(bucket)].fetch_add(
          1, std::memory_order_relaxed);
      entries[static_cast<size_t>(at)] = {entry.key(), entry.opaque()};
    }
    void SortByKey(int64_t bucket) {
      // After all calls of Add, next holds the ends of the buckets.
      const auto end_of = [this](int64_t b) {
        return b < 0 ? 0 : next[static_cast<size_t>(b)].load();
      };
      const int64_t begin = end_of(bucket - 1);
      SortEntries(entries.data() + begin, entries.data() + end_of(bucket));
    }
    const int64_t first;
    std::vector<std::atomic<int64_t>> next;
    std::vector<Entry>& entries;
  };
  Output with_row(admitted_offsets_, begin_bucket, end_bucket, admitted);
  Output without(filtered_offsets_, begin_bucket, end_bucket, filtered);
  const int64_t keys = table_.total_count();
  parallel(kShards, keys / kShards * 10, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      ForEachEntry(static_cast<int>(s), [&](EntryRef entry, int64_t bucket,
                                            bool has_row) {
        if (bucket < begin_bucket || bucket >= end_bucket) return;
        (has_row ? with_row : without).Add(bucket - begin_bucket, entry);
      });
    }
  });
  const int64_t listed =
      static_cast<int64_t>(with_row.entries.size() + without.entries.size());
  const int64_t buckets = end_bucket - begin_bucket;
  parallel(buckets, listed / std::max<int64_t>(buckets, 1) * 50,
           [&](int64_t b, int64_t end) {
             for (; b < end; ++b) {
               with_row.SortByKey(b);
               without.SortByKey(b);
             }
           });
}

void EmbeddingTable::Snapshot::Prefetch(const Entry* entries, size_t n) const {
  const RowArena::View view = table_.store_->view();
  const size_t bytes = table_.store_->row_bytes();
  for (size_t i = 0; i < n; ++i) {
    PrefetchLines(EntryRef(entries[i].ref).bucket(), sizeof(Bucket));
  }
  for (size_t i = 0; i < n; ++i) {
    const EntryRef entry(entries[i].ref);
    if (entry.in_memory()) PrefetchLines(view.Row(entry.row()), bytes);
  }
}

const float* EmbeddingTable::Snapshot::Row(const Entry& entry) const {
  const EntryRef ref(entry.ref);
  if (!ref.is_spilled()) return table_.store_->view().Row(ref.row());
  std::vector<float> row(table_.store_->arena().row_floats());
  const DiskLog::Item item = {ref.place(), entry.key, row.data()};
  table_.tier_->Read(&item, 1, row.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  from_disk_.push_back(std::move(row));  // Does not move the floats.
  return from_disk_.back().data();
}

struct EmbeddingTable::Snapshot::RowReader::Window {
  size_t begin = 0, end = 0;
  std::vector<const float*> rows;
  std::vector<DiskLog::Item> items;  // The rows on disk,
  std::vector<float> from_disk;      // which are read to here.
};

EmbeddingTable::Snapshot::RowReader::RowReader(const Snapshot& snapshot,
                                               const Entry* entries, size_t n,
                                               size_t step, size_t max_bytes)
    : snapshot_(snapshot),
      entries_(entries),
      n_(n),
      step_(step),
      row_floats_(snapshot.table_.store_->arena().row_floats()),
      max_rows_(max_bytes / kWindows /
                (row_floats_ * sizeof(float) + kListedBytes)) {}

EmbeddingTable::Snapshot::RowReader::~RowReader() = default;

void EmbeddingTable::Snapshot::RowReader::Load(size_t begin) {
  if (snapshot_.table_.tier_ == nullptr) return;
  if (now_ != nullptr && begin < now_->end) return;
  while (next_.size() + 1 < kWindows && listed_ < n_) {
    ReadNext(std::make_unique<Window>());
  }
  if (next_.empty()) return;
  WindowPtr unused = std::exchange(now_, next_.front().get());
  next_.pop_front();
  if (listed_ == n_) return;
  ReadNext(unused != nullptr ? std::move(unused) : std::make_unique<Window>());
}

void EmbeddingTable::Snapshot::RowReader::List(Window* window) const {
  const RowArena::View view = snapshot_.table_.store_->view();
  window->begin = window->end = listed_;
  window->rows.clear();
  window->items.clear();
  const size_t most = std::min(n_, listed_ + kReadAhead * max_rows_);
  do {
    const size_t end = std::min(n_, window->end + step_);
    for (size_t i = window->end; i < end; ++i) {
      if (i + kPrefetched < n_) {
        PrefetchLine(EntryRef(entries_[i + kPrefetched].ref).bucket());
      }
      const EntryRef entry(entries_[i].ref);
      const bool is_spilled = entry.is_spilled();
      if (is_spilled) {
        window->items.push_back({entry.place(), entries_[i].key, nullptr});
      }
      window->rows.push_back(is_spilled ? nullptr : view.Row(entry.row()));
    }
    window->end = end;
  } while (window->end + step_ <= most &&
           window->items.size() + step_ <= max_rows_);
  window->from_disk.resize(window->items.size() * row_floats_);
  size_t next = 0;
  for (const float*& row : window->rows) {
    if (row != nullptr) continue;
    DiskLog::Item& item = window->items[next];
    item.row = &window->from_disk[next++ * row_floats_];
    row = item.row;
  }
}

void EmbeddingTable::Snapshot::RowReader::ReadNext(WindowPtr memory) {
  List(memory.get());
  listed_ = memory->end;
  next_.push_back(std::async(
      std::launch::async | std::launch::deferred,
      [tier = snapshot_.table_.tier_.get(), floats = row_floats_,
       ahead = snapshot_.ahead_.get()](WindowPtr w) {
        tier->Read(w->items.data(), w->items.size(), floats, ahead);
        return w;
      },
      std::move(memory)));
}

const float* EmbeddingTable::Snapshot::RowReader::Row(size_t i) const {
  if (snapshot_.table_.tier_ != nullptr) return now_->rows[i - now_->begin];
  const EntryRef entry(entries_[i].ref);
  return snapshot_.table_.store_->view().Row(entry.row());
}

int64_t EmbeddingTable::Snapshot::Freq(const Entry& entry) const {
  return EntryRef(entry.ref).count();
}

int64_t EmbeddingTable::Snapshot::Version(const Entry& entry) const {
  return EntryRef(entry.ref).version();
}

void EmbeddingTable::Snapshot::MarkSaved() {
  std::unique_lock<std::mutex> lock(table_.shards_->save_mutex(),
                                    std::defer_lock);
  if (!save_lock_.owns_lock()) lock.lock();
  for (Shard& shard : *table_.shards_) shard.MarkSaved();
}

void EmbeddingTable::Snapshot::ForEachSketchRow(
    const Sketch::VisitRow& visit) const {
  table_.sketch()->SaveRows(only_changed_, visit);
}

}  // namespace rec_estimator
