// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Snapshot: what a save reads.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/storage/ordered_reader.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

// Memory for pages that are held for later rows: kHeldBytes plus a share of the
// table's memory.
constexpr size_t kHeldBytes = size_t{20} << 20;
constexpr int64_t kHeldShare = 400;  // 1/400 = 0.25 %.

std::vector<const HashIndex*> IndexesOf(const StripeSet& stripes) {
  std::vector<const HashIndex*> indexes;
  for (const Stripe& stripe : stripes) indexes.push_back(&stripe.index());
  return indexes;
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
  const StripeSet& stripes = *table_.stripes_;
  // Before the stripes' locks: its holder must not wait for any of those.
  if (only_changed_) {
    save_lock_ = std::unique_lock<std::mutex>(stripes.save_mutex());
  }
  locks_ = std::make_unique<const SharedLocks>(stripes, kAllStripes);
  only_changed_ = only_changed_ && stripes.tracks_changes();
  Count();
}

EmbeddingTable::Snapshot::~Snapshot() = default;

void EmbeddingTable::Snapshot::Count() {
  admitted_offsets_.assign(kKeyClasses + 1, 0);
  filtered_offsets_.assign(kKeyClasses + 1, 0);
  const auto count = [this](const Bucket& bucket, int e, int64_t number) {
    const bool has_row = bucket.row[e] != HashIndex::kNoRow;
    ++(has_row ? admitted_offsets_ : filtered_offsets_)[number + 1];
  };
  for (const Stripe& stripe : *table_.stripes_) {
    stripe.index().ForEachInRange(KeyClassRange(0, kKeyClasses), only_changed_,
                                  count);
  }
  for (int64_t b = 0; b < kKeyClasses; ++b) {
    admitted_offsets_[b + 1] += admitted_offsets_[b];
    filtered_offsets_[b + 1] += filtered_offsets_[b];
  }
  if (const Sketch* sketch = table_.sketch()) {
    sketch_heads_ = sketch->SaveHeads(only_changed_);
    sketch_rows_ = sketch->RowsToSave(only_changed_);
  }
  if (!only_changed_) return;
  for (const Stripe& stripe : *table_.stripes_) {
    erased_.insert(erased_.end(), stripe.erased().begin(),
                   stripe.erased().end());
  }
  std::sort(erased_.begin(), erased_.end());
  erased_.erase(std::unique(erased_.begin(), erased_.end()), erased_.end());
}

struct EmbeddingTable::Snapshot::EntryReader::Window {
  std::vector<Entry> entries;
  std::vector<const float*> rows;
  std::vector<OrderedReader::Wanted> wanted;  // The rows on disk.
  std::unique_ptr<OrderedReader::Batch> batch;
};

EmbeddingTable::Snapshot::EntryReader::EntryReader(const Snapshot& snapshot,
                                                   bool with_row, size_t step,
                                                   size_t max_bytes)
    : snapshot_(snapshot),
      with_row_(with_row),
      step_(step),
      stream_(IndexesOf(*snapshot.table_.stripes_),
              {with_row, snapshot.only_changed_}, snapshot.offsets(with_row),
              max_bytes) {
  // A thread for a single batch would have nothing to read ahead.
  const auto n = static_cast<uint64_t>(snapshot.offsets(with_row).back());
  windows_.Start(
      [this, coming = std::make_shared<WindowPtr>()](WindowPtr* window) {
        return ReadNext(coming.get(), window);
      },
      /*on_thread=*/n > step);
}

EmbeddingTable::Snapshot::EntryReader::~EntryReader() = default;

EmbeddingTable::Snapshot::Batch EmbeddingTable::Snapshot::EntryReader::Next() {
  if (!windows_.Next(&now_)) return {};
  return {now_->entries.size(), now_->entries.data(), now_->rows.data()};
}

bool EmbeddingTable::Snapshot::EntryReader::ReadNext(WindowPtr* coming,
                                                     WindowPtr* window) {
  if (!std::exchange(has_begun_, true)) *coming = StartNext(nullptr);
  if (*coming == nullptr) return false;
  WindowPtr next = std::move(*coming);
  *coming = StartNext(std::move(*window));
  DiskError error;
  if (next->batch != nullptr &&
      !snapshot_.reader_->Finish(next->batch.get(), &error)) {
    snapshot_.table_.tier_->ThrowError(error);
  }
  *window = std::move(next);
  return true;
}

EmbeddingTable::Snapshot::EntryReader::WindowPtr
EmbeddingTable::Snapshot::EntryReader::StartNext(WindowPtr memory) {
  WindowPtr window =
      memory != nullptr ? std::move(memory) : std::make_unique<Window>();
  Fill(window.get());
  if (window->entries.empty()) return nullptr;
  if (window->wanted.empty()) return window;
  DiskError error;
  window->batch = snapshot_.reader_->Start(window->wanted.data(),
                                           window->wanted.size(), &error);
  if (window->batch == nullptr) snapshot_.table_.tier_->ThrowError(error);
  return window;
}

void EmbeddingTable::Snapshot::EntryReader::Fill(Window* window) {
  window->batch.reset();
  window->entries.clear();
  window->rows.clear();
  window->wanted.clear();
  while (window->entries.size() < step_) {
    if (at_ == bucket_.size()) {
      stream_.NextKeyClass(&bucket_);
      at_ = 0;
      if (bucket_.empty()) break;
    }
    const size_t n =
        std::min(step_ - window->entries.size(), bucket_.size() - at_);
    const auto begin = bucket_.begin() + static_cast<ptrdiff_t>(at_);
    window->entries.insert(window->entries.end(), begin,
                           begin + static_cast<ptrdiff_t>(n));
    at_ += n;
  }
  if (!with_row_) return;
  const RowArena::View view = snapshot_.table_.store_->view();
  window->rows.reserve(window->entries.size());
  for (const Entry& entry : window->entries) {
    const bool is_spilled = entry.row >= HashIndex::kMaxRows;
    window->rows.push_back(is_spilled ? nullptr : view.Row(entry.row));
    if (!is_spilled) continue;
    window->wanted.push_back(
        {entry.row & ~HashIndex::kSpilled, entry.key, &window->rows.back()});
  }
}

void EmbeddingTable::Snapshot::MarkSaved() {
  std::unique_lock<std::mutex> lock(table_.stripes_->save_mutex(),
                                    std::defer_lock);
  if (!save_lock_.owns_lock()) lock.lock();
  for (Stripe& stripe : *table_.stripes_) stripe.MarkSaved();
}

void EmbeddingTable::Snapshot::ForEachSketchRow(
    const Sketch::VisitRow& visit) const {
  table_.sketch()->SaveRows(only_changed_, visit);
}

}  // namespace rec_estimator
