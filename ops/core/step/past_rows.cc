// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/past_rows.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "ops/core/base/read_once.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {

PastRows::PastRows(const TableParts& table)
    : store_(*table.store), stripes_(*table.stripes) {}

PastRows::~PastRows() {
  if (!owns_rows_) return;
  for (int s = 0; s < kStripes; ++s) {
    if (rows_[s].empty()) continue;
    const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
    for (const Row& past : rows_[s]) {
      if (past.row != HashIndex::kNoRow) stripes_[s].FreeRow(past.row);
    }
  }
}

void PastRows::Set(int stripe, std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.key < b.key; });
  size_ += rows.size();
  rows_[stripe] = std::move(rows);
}

template <typename Visit>
void PastRows::ForEach(const int64_t* keys, size_t n,
                       const Visit& visit) const {
  for (size_t i = 0; i < n; ++i) {
    const int64_t key = ReadOnce(keys[i]);
    const std::vector<Row>& rows = rows_[StripeOf(MixKey(key))];
    const auto it = std::lower_bound(
        rows.begin(), rows.end(), key,
        [](const Row& each, int64_t wanted) { return each.key < wanted; });
    if (it != rows.end() && it->key == key) visit(i, *it);
  }
}

const float* PastRows::Vector(const Row& past, UnknownKey unknown) const {
  if (past.row != HashIndex::kNoRow) return store_.view().Row(past.row);
  // The key is no padding, which has no entry.
  return unknown == UnknownKey::kInitial ? store_.initial().Of(past.key)
                                         : store_.default_vector();
}

void PastRows::Correct(const int64_t* keys, size_t n, UnknownKey unknown,
                       float* out) const {
  const RowFormat& format = store_.format();
  ForEach(keys, n, [&](size_t i, const Row& past) {
    format.ReadValue(Vector(past, unknown),
                     out + i * static_cast<size_t>(format.dim()));
  });
}

void PastRows::Correct(const int64_t* keys, size_t n, bool* owns_row) const {
  ForEach(keys, n, [&](size_t i, const Row& past) {
    owns_row[i] = past.row != HashIndex::kNoRow;
  });
}

}  // namespace rec_estimator
