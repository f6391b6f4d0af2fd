// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/row_reader.h"

#include <memory>
#include <utility>

#include "ops/core/rows/row_store.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_lookup.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

RowReader::RowReader(const EmbeddingTable& table, const int64_t* keys, size_t n)
    : RowReader(table.parts(), keys, n) {}

RowReader::RowReader(const TableParts& table, const int64_t* keys, size_t n)
    : stripes_(*table.stripes),
      store_(*table.store),
      tier_(table.tier),
      locks_(stripes_, StripesOf(keys, n)) {}

void RowReader::Rows(const int64_t* keys, size_t n, UnknownKey unknown,
                     const float** rows) const {
  RowLookup lookup(stripes_, store_, unknown);
  lookup.Find(keys, n, rows);
  const RowFormat& format = store_.format();
  if (lookup.spilled().empty() && !format.is_narrow()) return;
  const size_t dim = static_cast<size_t>(format.dim());
  const size_t n_widened = format.is_narrow() ? n : 0;
  std::unique_ptr<float[]> values(
      new float[(n_widened + lookup.spilled().size()) * dim]);
  float* value = values.get();
  format.WithReader([=](auto read) __attribute__((always_inline)) {
    for (size_t i = 0; i < n_widened; ++i) {
      read(rows[i], value + i * dim);
      rows[i] = value + i * dim;
    }
  });
  value += n_widened * dim;
  if (!lookup.spilled().empty()) {
    PinnedRows pinned(tier_);
    for (const RowLookup::Spilled& spilled : lookup.spilled()) {
      rows[spilled.i] = value;
      pinned.Add(spilled.place, spilled.key, value);
      value += dim;
    }
    tier_->ReadForLookup(pinned);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  copies_.push_back(std::move(values));
}

void RowReader::Copy(const int64_t* keys, size_t n, UnknownKey unknown,
                     float* out) const {
  RowLookup lookup(stripes_, store_, unknown);
  lookup.Copy(keys, n, out);
  if (lookup.spilled().empty()) return;
  PinnedRows pinned(tier_);
  lookup.PinSpilled(out, &pinned);
  tier_->ReadForLookup(pinned);
}

}  // namespace rec_estimator
