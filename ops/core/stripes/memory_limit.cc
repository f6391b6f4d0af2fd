// SPDX-License-Identifier: Apache-2.0
#include "ops/core/stripes/memory_limit.h"

#include <algorithm>
#include <new>
#include <shared_mutex>
#include <vector>

#include "ops/core/base/float8.h"
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {
namespace {

// The part of the rows that stays free when memory is given back.
constexpr int64_t kFreeShare = 16;
// The rows of a step are forgotten by this share with each later spill.
constexpr int64_t kForgottenShare = 32;
// The part of the indexes' memory that they have beyond their sizes: blocks
// that were freed by growing indexes and wait for others in huge_page_heap.h.
constexpr int64_t kHeapShare = 5;
// Less is not worth reading the index.
constexpr int64_t kLeastTrimmed = 1024;

}  // namespace

void TrimRows(StripeSet* stripes, RowStore* store, uint64_t rows) {
  const ExclusiveLocks locks(*stripes, kAllStripes);
  RowArena& arena = store->arena();
  std::vector<uint32_t> free;
  size_t n_free = 0;
  for (const Stripe& stripe : *stripes) n_free += stripe.n_free_rows();
  free.reserve(n_free);
  // Every row that was taken is in memory, or free.
  const uint64_t first = std::max<uint64_t>(rows, arena.taken() - n_free);
  if (first >= arena.taken()) return;
  // Nothing below fails.
  const RowArena::View view = store->view();
  const uint32_t end = static_cast<uint32_t>(first);
  for (Stripe& stripe : *stripes) {
    while (stripe.n_free_rows() > 0) {
      const uint32_t row = Stripe::RowSource(view, 0).Next(&stripe);
      if (row < end) free.push_back(row);
    }
  }
  const int floats = static_cast<int>(arena.row_floats());
  for (Stripe& stripe : *stripes) {
    stripe.index().ForEach([&](EntryRef entry) {
      if (!entry.in_memory() || entry.row() < end) return;
      CopyRow(view.Row(entry.row()), floats, view.Row(free.back()));
      entry.row() = free.back();
      free.pop_back();
    });
  }
  for (size_t i = 0; i < free.size(); ++i) {
    (*stripes)[static_cast<int>(i % kStripes)].FreeRow(free[i]);
  }
  arena.Trim(first);
}

int64_t MemoryLimit::IndexBytes() const {
  size_t bytes = 0;
  for (const Stripe& stripe : stripes_) {
    const std::shared_lock<SharedMutex> lock(stripe.mutex());
    bytes += stripe.bytes();
  }
  return static_cast<int64_t>(bytes) * (kHeapShare + 1) / kHeapShare;
}

int64_t MemoryLimit::RowsToKeep(int64_t in_memory, int64_t buffer_bytes) {
  const int64_t index_bytes = IndexBytes();
  const int64_t row_bytes = store_.stored_bytes();
  const std::lock_guard<std::mutex> lock(mutex_);
  most_ = (bytes_ - index_bytes - buffer_bytes) / row_bytes;
  if (most_ < kStripes) WarnOnce(index_bytes, buffer_bytes);
  usable_ = std::max<int64_t>(most_ - most_ / kFreeShare, 0);
  working_ -= working_ / kForgottenShare;
  working_ = std::max(working_, in_memory - kept_);
  return std::max<int64_t>(usable_ - working_, kStripes);
}

void MemoryLimit::GiveBack(int64_t in_memory) {
  const std::unique_lock<std::mutex> trimming(trimming_, std::try_to_lock);
  int64_t wanted;
  bool is_worth;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_ = in_memory;
    if (!trimming.owns_lock()) return;
    const RowArena& arena = store_.arena();
    if (static_cast<int64_t>(arena.in_memory()) <= most_) return;
    wanted = std::max(usable_, in_memory + working_);
    const int64_t least = std::max(wanted / kFreeShare, kLeastTrimmed);
    is_worth = static_cast<int64_t>(arena.taken()) >= wanted + least;
    if (!is_worth && arena.taken() == arena.in_memory()) return;
  }
  if (!is_worth) {
    store_.arena().Trim(RowArena::kAll);
    return;
  }
  try {
    TrimRows(&stripes_, &store_, static_cast<uint64_t>(wanted));
  } catch (const std::bad_alloc&) {
    // The next call tries again.
  }
}

void MemoryLimit::WarnOnce(int64_t index_bytes, int64_t buffer_bytes) {
  if (has_warned_ || warn_ == nullptr) return;
  has_warned_ = true;
  warn_("the memory limit must be above what index and buffers take, got " +
        std::to_string(bytes_) + " bytes for " + std::to_string(index_bytes) +
        " of index and " + std::to_string(buffer_bytes) +
        " of buffers; all rows but those of running steps are on disk now: "
        "raise the limit, or let a filter admit fewer keys");
}

}  // namespace rec_estimator
