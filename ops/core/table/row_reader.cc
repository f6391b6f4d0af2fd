// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/row_reader.h"

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
  if (lookup.spilled().empty()) return;
  const size_t dim = static_cast<size_t>(store_.dim());
  std::vector<float> values(lookup.spilled().size() * dim);
  PinnedRows pinned(tier_);
  for (const RowLookup::Spilled& spilled : lookup.spilled()) {
    float* const value = values.data() + pinned.items().size() * dim;
    rows[spilled.i] = value;
    pinned.Add(spilled.place, spilled.key, value);
  }
  tier_->ReadForLookup(pinned, dim);
  const std::lock_guard<std::mutex> lock(mutex_);
  from_disk_.push_back(std::move(values));  // Does not move the floats.
}

void RowReader::Copy(const int64_t* keys, size_t n, UnknownKey unknown,
                     float* out) const {
  RowLookup lookup(stripes_, store_, unknown);
  lookup.Copy(keys, n, out);
  if (lookup.spilled().empty()) return;
  PinnedRows pinned(tier_);
  lookup.PinSpilled(out, &pinned);
  tier_->ReadForLookup(pinned, static_cast<size_t>(store_.dim()));
}

}  // namespace rec_estimator
