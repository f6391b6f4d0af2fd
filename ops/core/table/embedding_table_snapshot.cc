// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Snapshot: what a save reads.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/storage/ordered_reader.h"
#include "ops/core/table/bucket_range.h"
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

// A RowReader has the rows of so many windows: one that the caller uses, one
// that is ready, and two that the disk reads.
constexpr size_t kWindows = 4;
// Bytes that a row on disk takes while it is looked for, beside its floats.
constexpr size_t kListedBytes = 64;
// A window has at most so many times the entries whose rows it has memory for,
// because some are in memory.
constexpr size_t kReadAhead = 2;
// Memory for pages that are held for later rows: kHeldBytes plus a share of the
// table's memory.
constexpr size_t kHeldBytes = size_t{20} << 20;
constexpr int64_t kHeldShare = 400;  // 1/400 = 0.25 %.
// Entries that are sorted in groups: fewer are faster without, and more would
// take too much memory.
constexpr uint64_t kLeastGrouped = 256;
constexpr uint64_t kMostGrouped = uint64_t{1} << 17;
// Entries of a list that a thread collects for each bucket before it adds them,
// because threads share where the next one goes.
constexpr size_t kCollected = 8;

// The distance, in buckets of an index, at which a scan prefetches: beyond the
// ends of pages of 4 KiB, which the CPU does not by itself.
constexpr size_t kBucketsAhead = 32;

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

// The entries (bits) of a bucket; of those that changed, only these.
uint32_t EntriesOf(const Bucket& bucket, bool only_changed) {
  if (!only_changed) return bucket.used;
  return bucket.used & (bucket.changes | bucket.changes >> HashIndex::kEntries);
}

// Calls visit(bucket, entry, number) for the entries of an index that are in
// the range.
template <BucketRange::Matcher* kMatch, typename Visit>
inline __attribute__((always_inline)) void ForEachMatch(const HashIndex& index,
                                                        BucketRange range,
                                                        bool only_changed,
                                                        const Visit& visit) {
  BucketRange::Numbers numbers;
  for (const Bucket& bucket : index) {
    PrefetchLine(&bucket + kBucketsAhead);
    // Without a jump for each key: most are of other buckets.
    uint32_t match = kMatch(range, bucket, &numbers);
    if (match != 0) match &= EntriesOf(bucket, only_changed);
    for (; match != 0; match &= match - 1) {
      const int e = __builtin_ctz(match);
      visit(bucket, e, numbers.of(e));
    }
  }
}

#if defined(__SSE4_1__)
template <typename Visit>
__attribute__((target("avx512f"))) void ForEachMatchWide(
    const HashIndex& index, const BucketRange& range, bool only_changed,
    const Visit& visit) {
  ForEachMatch<BucketRange::MatchWide>(index, range, only_changed, visit);
}
#endif

template <typename Visit>
void ForEachListed(const HashIndex& index, const BucketRange& range,
                   bool only_changed, const Visit& visit) {
#if defined(__SSE4_1__)
  if (HashIndex::HasWideMatch()) {
    return ForEachMatchWide(index, range, only_changed, visit);
  }
#endif
  ForEachMatch<BucketRange::Match>(index, range, only_changed, visit);
}

}  // namespace

std::unique_ptr<OrderedReader> EmbeddingTable::Snapshot::MakeReader() const {
  if (table_.tier_ == nullptr) return nullptr;
  // Changed rows lie too far apart for pages to be held.
  const size_t bytes =
      only_changed_ ? 0
                    : kHeldBytes + static_cast<size_t>(table_.memory_bytes() /
                                                       kHeldShare);
  return std::make_unique<OrderedReader>(
      table_.tier_->log(), table_.store_->arena().row_floats(), bytes);
}

EmbeddingTable::Snapshot::Snapshot(const EmbeddingTable& table, Keys keys)
    : table_(table),
      only_changed_(keys == Keys::kChanged),
      reader_(MakeReader()) {
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

void EmbeddingTable::Snapshot::Count() {
  admitted_offsets_.assign(kBuckets + 1, 0);
  filtered_offsets_.assign(kBuckets + 1, 0);
  const auto count = [this](const Bucket& bucket, int e, int64_t number) {
    const bool has_row = bucket.row[e] != HashIndex::kNoRow;
    ++(has_row ? admitted_offsets_ : filtered_offsets_)[number + 1];
  };
  for (const Shard& shard : *table_.shards_) {
    ForEachListed(shard.index(), BucketRange(0, kBuckets), only_changed_,
                  count);
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

// The entries of some buckets, in the order of the buckets: a counting sort.
class EmbeddingTable::Snapshot::Output {
 public:
  // offsets: those of the snapshot. *entries takes what is added.
  Output(const std::vector<int64_t>& offsets, int64_t begin, int64_t end,
         std::vector<Entry>* entries)
      : next_(static_cast<size_t>(end - begin)), entries_(*entries) {
    for (size_t b = 0; b < next_.size(); ++b) {
      next_[b].store(offsets[begin + static_cast<int64_t>(b)] - offsets[begin],
                     std::memory_order_relaxed);
    }
    entries_.resize(static_cast<size_t>(offsets[end] - offsets[begin]));
  }

  // What one thread adds.
  class Collector {
   public:
    explicit Collector(Output* output)
        : output_(*output), collected_(output->next_.size()) {}
    ~Collector() {
      for (size_t b = 0; b < collected_.size(); ++b) Move(b);
    }
    Collector(const Collector&) = delete;
    Collector& operator=(const Collector&) = delete;

    void Add(size_t bucket, const Entry& entry) {
      Collected& collected = collected_[bucket];
      collected.entries[collected.n++] = entry;
      if (collected.n == kCollected) Move(bucket);
    }

   private:
    struct Collected {
      size_t n = 0;
      std::array<Entry, kCollected> entries;
    };
    void Move(size_t bucket) {
      Collected& collected = collected_[bucket];
      const int64_t at = output_.next_[bucket].fetch_add(
          static_cast<int64_t>(collected.n), std::memory_order_relaxed);
      std::copy_n(collected.entries.begin(), collected.n,
                  output_.entries_.begin() + at);
      collected.n = 0;
    }

    Output& output_;
    std::vector<Collected> collected_;
  };

  // After all entries were added. Makes the order that of the keys.
  void Sort(size_t bucket) {
    const auto end_of = [this](size_t b) { return next_[b].load(); };
    const int64_t begin = bucket == 0 ? 0 : end_of(bucket - 1);
    SortEntries(entries_.data() + begin, entries_.data() + end_of(bucket));
  }
  size_t size() const { return entries_.size(); }

 private:
  std::vector<std::atomic<int64_t>> next_;
  std::vector<Entry>& entries_;
};

void EmbeddingTable::Snapshot::List(int64_t begin_bucket, int64_t end_bucket,
                                    const ParallelFor& parallel,
                                    std::vector<Entry>* admitted,
                                    std::vector<Entry>* filtered) const {
  Output with_row(admitted_offsets_, begin_bucket, end_bucket, admitted);
  Output without(filtered_offsets_, begin_bucket, end_bucket, filtered);
  const BucketRange range(begin_bucket, end_bucket);
  const int64_t keys = table_.total_count();
  parallel(kShards, keys / kShards * 2, [&](int64_t s, int64_t end) {
    Output::Collector to_with_row(&with_row), to_without(&without);
    const auto add = [&](const Bucket& bucket, int e, int64_t number) {
      const bool has_row = bucket.row[e] != HashIndex::kNoRow;
      (has_row ? to_with_row : to_without)
          .Add(static_cast<size_t>(number), {bucket.key[e], bucket.version[e],
                                             bucket.count[e], bucket.row[e]});
    };
    for (; s < end; ++s) {
      ForEachListed((*table_.shards_)[static_cast<int>(s)].index(), range,
                    only_changed_, add);
    }
  });
  const auto listed = static_cast<int64_t>(with_row.size() + without.size());
  const int64_t n = end_bucket - begin_bucket;
  parallel(n, listed / std::max<int64_t>(n, 1) * 50,
           [&](int64_t b, int64_t end) {
             for (; b < end; ++b) {
               with_row.Sort(static_cast<size_t>(b));
               without.Sort(static_cast<size_t>(b));
             }
           });
}

struct EmbeddingTable::Snapshot::RowReader::Window {
  size_t begin = 0, end = 0;
  std::vector<const float*> rows;
  std::vector<OrderedReader::Wanted> wanted;  // The rows on disk.
  std::unique_ptr<OrderedReader::Batch> batch;
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

EmbeddingTable::Snapshot::RowReader::~RowReader() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void EmbeddingTable::Snapshot::RowReader::Load(size_t begin) {
  if (snapshot_.reader_ == nullptr) return;
  if (now_ != nullptr && begin < now_->end) return;
  if (begin == 0) {
    try {
      thread_ = std::thread([this] { ReadAll(); });
    } catch (const std::system_error&) {
    }
  }
  if (!thread_.joinable()) {
    now_ = ListNext(std::move(now_));
    if (now_ == nullptr) return;
    Start(now_.get());
    return Finish(now_.get());
  }
  std::unique_lock<std::mutex> lock(mutex_);
  unused_ = std::move(now_);
  changed_.wait(lock, [this] { return ready_ != nullptr || all_ready_; });
  now_ = std::move(ready_);
  if (now_ == nullptr && error_ != nullptr) std::rethrow_exception(error_);
  changed_.notify_all();
}

void EmbeddingTable::Snapshot::RowReader::ReadAll() {
  std::exception_ptr error;
  try {
    ReadWindows();
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = error;
  all_ready_ = true;
  changed_.notify_all();
}

void EmbeddingTable::Snapshot::RowReader::ReadWindows() {
  WindowPtr first, second;
  const auto start_second = [&] {
    second = ListNext(TakeUnused());
    if (second != nullptr) Start(second.get());
  };
  start_second();
  while (second != nullptr) {
    first = std::move(second);
    start_second();
    Finish(first.get());
    if (!HandOver(std::move(first))) return;
  }
}

EmbeddingTable::Snapshot::RowReader::WindowPtr
EmbeddingTable::Snapshot::RowReader::TakeUnused() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::move(unused_);
}

bool EmbeddingTable::Snapshot::RowReader::HandOver(WindowPtr window) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ready_ == nullptr || stopped_; });
  if (stopped_) return false;
  ready_ = std::move(window);
  changed_.notify_all();
  return true;
}

EmbeddingTable::Snapshot::RowReader::WindowPtr
EmbeddingTable::Snapshot::RowReader::ListNext(WindowPtr memory) {
  if (listed_ == n_) return nullptr;
  WindowPtr window =
      memory != nullptr ? std::move(memory) : std::make_unique<Window>();
  const RowArena::View view = snapshot_.table_.store_->view();
  window->batch.reset();
  window->begin = window->end = listed_;
  window->rows.clear();
  window->wanted.clear();
  const size_t most = std::min(n_, listed_ + kReadAhead * max_rows_);
  do {
    const size_t end = std::min(n_, window->end + step_);
    for (size_t i = window->end; i < end; ++i) {
      const uint32_t row = entries_[i].row;
      const bool is_spilled = row >= HashIndex::kMaxRows;
      if (is_spilled) {
        window->wanted.push_back(
            {row & ~HashIndex::kSpilled, entries_[i].key, nullptr});
      }
      window->rows.push_back(is_spilled ? nullptr : view.Row(row));
    }
    window->end = end;
  } while (window->end + step_ <= most &&
           window->wanted.size() + step_ <= max_rows_);
  auto wanted = window->wanted.begin();
  for (const float*& row : window->rows) {
    if (row == nullptr) (wanted++)->row = &row;
  }
  listed_ = window->end;
  return window;
}

void EmbeddingTable::Snapshot::RowReader::Start(Window* window) const {
  DiskError error;
  window->batch = snapshot_.reader_->Start(window->wanted.data(),
                                           window->wanted.size(), &error);
  if (window->batch == nullptr) snapshot_.table_.tier_->ThrowError(error);
}

void EmbeddingTable::Snapshot::RowReader::Finish(Window* window) const {
  DiskError error;
  if (!snapshot_.reader_->Finish(window->batch.get(), &error)) {
    snapshot_.table_.tier_->ThrowError(error);
  }
}

const float* EmbeddingTable::Snapshot::RowReader::Row(size_t i) const {
  if (snapshot_.reader_ != nullptr) return now_->rows[i - now_->begin];
  return snapshot_.table_.store_->view().Row(entries_[i].row);
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
