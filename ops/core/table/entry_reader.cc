// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/entry_reader.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/training_step.h"
#include "ops/core/storage/ordered_reader.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/snapshot.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

std::vector<const HashIndex*> IndexesOf(const StripeSet& stripes) {
  std::vector<const HashIndex*> indexes;
  for (const Stripe& stripe : stripes) indexes.push_back(&stripe.index());
  return indexes;
}

}  // namespace

struct EntryReader::Window {
  std::vector<ListedEntry> entries;
  std::vector<const float*> rows;
  std::vector<float> wide;  // The rows as floats, if they are narrow.
  std::vector<OrderedReader::Wanted> wanted;  // The rows on disk.
  std::unique_ptr<OrderedReader::Batch> batch;
};

EntryReader::EntryReader(const Snapshot& snapshot, bool with_row, size_t step,
                         size_t max_bytes)
    : EntryReader(snapshot, snapshot.table().parts(), with_row, step,
                  max_bytes) {}

EntryReader::EntryReader(const Snapshot& snapshot, const TableParts& table,
                         bool with_row, size_t step, size_t max_bytes)
    : snapshot_(snapshot),
      store_(*table.store),
      tier_(table.tier),
      with_row_(with_row),
      step_(step),
      stream_(IndexesOf(*table.stripes), {with_row, snapshot.only_changed()},
              snapshot.offsets(with_row), max_bytes) {
  // A thread for a single batch would have nothing to read ahead.
  const auto n = static_cast<uint64_t>(snapshot.offsets(with_row).back());
  windows_.Start(
      [this, coming = std::make_shared<WindowPtr>()](WindowPtr* window) {
        return ReadNext(coming.get(), window);
      },
      /*on_thread=*/n > step);
}

EntryReader::~EntryReader() = default;

EntryReader::Batch EntryReader::Next() {
  if (!windows_.Next(&now_)) return {};
  return {now_->entries.size(), now_->entries.data(), now_->rows.data()};
}

bool EntryReader::ReadNext(WindowPtr* coming, WindowPtr* window) {
  if (!std::exchange(has_begun_, true)) *coming = StartNext(nullptr);
  if (*coming == nullptr) return false;
  WindowPtr next = std::move(*coming);
  *coming = StartNext(std::move(*window));
  DiskError error;
  if (next->batch != nullptr &&
      !snapshot_.disk_reader()->Finish(next->batch.get(), &error)) {
    tier_->ThrowError(error);
  }
  if (with_row_ && !store_.AreFloats(store_.slots().size())) {
    Widen(next.get());
  }
  *window = std::move(next);
  return true;
}

EntryReader::WindowPtr EntryReader::StartNext(WindowPtr memory) {
  WindowPtr window =
      memory != nullptr ? std::move(memory) : std::make_unique<Window>();
  Fill(window.get());
  if (window->entries.empty()) return nullptr;
  if (window->wanted.empty()) return window;
  DiskError error;
  window->batch = snapshot_.disk_reader()->Start(window->wanted.data(),
                                                 window->wanted.size(), &error);
  if (window->batch == nullptr) tier_->ThrowError(error);
  return window;
}

void EntryReader::Widen(Window* window) const {
  const auto floats = static_cast<size_t>(store_.row_floats());
  window->wide.resize(window->rows.size() * floats);
  float* wide = window->wide.data();
  for (const float*& row : window->rows) {
    store_.ReadRow(row, store_.slots().size(), wide);
    row = wide;
    wide += floats;
  }
}

void EntryReader::Fill(Window* window) {
  window->batch.reset();
  window->entries.clear();
  window->rows.clear();
  window->wanted.clear();
  while (window->entries.size() < step_) {
    if (at_ == key_class_.size()) {
      stream_.NextKeyClass(&key_class_);
      at_ = 0;
      if (key_class_.empty()) break;
    }
    const size_t n =
        std::min(step_ - window->entries.size(), key_class_.size() - at_);
    const auto begin = key_class_.begin() + static_cast<ptrdiff_t>(at_);
    window->entries.insert(window->entries.end(), begin,
                           begin + static_cast<ptrdiff_t>(n));
    at_ += n;
  }
  if (!with_row_) return;
  const RowArena::View view = store_.view();
  window->rows.reserve(window->entries.size());
  for (const ListedEntry& entry : window->entries) {
    const bool is_spilled = entry.row >= HashIndex::kMaxRows;
    window->rows.push_back(is_spilled ? nullptr : view.Row(entry.row));
    if (!is_spilled) continue;
    window->wanted.push_back(
        {entry.row & ~HashIndex::kSpilled, entry.key, &window->rows.back()});
  }
}

}  // namespace rec_estimator
