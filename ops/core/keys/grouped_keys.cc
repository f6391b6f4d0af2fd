// SPDX-License-Identifier: Apache-2.0
#include "ops/core/keys/grouped_keys.h"

#include <functional>
#include <new>
#include <numeric>

namespace rec_estimator {
namespace {

// Cycles of an occurrence in the caches.
constexpr int64_t kSortOccurrence = 16;
constexpr int64_t kDeduplicateOccurrence = 16;

}  // namespace

GroupedKeys::GroupedKeys(const int64_t* keys, size_t n,
                         const ParallelFor& parallel) {
  part_.head = part_.tail = keys;
  part_.n_head = part_.n = n;
  const bool has_memory = scratch_.Allocate([&](Layout* layout) {
    part_.AddTo(layout);
    layout->Add(&distinct_.keys, n);
    layout->Add(&distinct_.id, n);
    layout->Add(&distinct_.grouped, n);
    layout->Add(&distinct_.end, n);
  });
  if (!has_memory) throw std::bad_alloc();
  const auto sort = [this](int64_t b, int64_t end) {
    for (; b < end; ++b) part_.SortBlock(static_cast<uint64_t>(b));
  };
  // By reference: std::function would allocate memory for a closure.
  parallel(static_cast<int64_t>(part_.blocks()),
           static_cast<int64_t>(kPartitionBlock) * kSortOccurrence,
           std::cref(sort));
  part_.EndSort();

  Scratch cells;
  if (!cells.Allocate([&](Layout* layout) { part_.AddCellsTo(layout); })) {
    throw std::bad_alloc();
  }
  first_[0] = 0;
  const auto deduplicate = [this](int64_t g, int64_t end) {
    for (; g < end; ++g) {
      const int group = static_cast<int>(g);
      first_[g + 1] =
          part_.Deduplicate(group, distinct_.From(part_.begin[group]));
    }
  };
  parallel(kStripes,
           static_cast<int64_t>(n) / kStripes * kDeduplicateOccurrence,
           std::cref(deduplicate));
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

}  // namespace rec_estimator
