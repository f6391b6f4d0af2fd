// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/snapshot.h"

#include <algorithm>
#include <cstddef>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/training_step.h"
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

// nullptr: all rows are in memory.
std::unique_ptr<OrderedReader> MakeDiskReader(const EmbeddingTable& table,
                                              bool only_changed) {
  if (table.tier() == nullptr) return nullptr;
  // Changed rows lie too far apart for pages to be held.
  const size_t bytes =
      only_changed
          ? 0
          : kHeldBytes + static_cast<size_t>(table.memory_bytes() / kHeldShare);
  return std::make_unique<OrderedReader>(
      table.tier()->log(), table.parts().store->arena().row_floats(), bytes);
}

}  // namespace

Snapshot::Snapshot(const EmbeddingTable& table, Keys keys)
    : table_(table),
      only_changed_(keys == Keys::kChanged),
      disk_reader_(MakeDiskReader(table, only_changed_)) {
  const StripeSet& stripes = *table.parts().stripes;
  // Before the stripes' locks: its holder must not wait for any of those.
  if (only_changed_) {
    save_lock_ = std::unique_lock<std::mutex>(stripes.save_mutex());
  }
  locks_ = std::make_unique<const SharedLocks>(stripes, kAllStripes);
  only_changed_ = only_changed_ && stripes.tracks_changes();
  Count();
}

Snapshot::~Snapshot() = default;

void Snapshot::Count() {
  const StripeSet& stripes = *table_.parts().stripes;
  admitted_offsets_.assign(kKeyClasses + 1, 0);
  filtered_offsets_.assign(kKeyClasses + 1, 0);
  const auto count = [this](const Bucket& bucket, int e, int64_t key_class) {
    const bool has_row = bucket.row[e] != HashIndex::kNoRow;
    ++(has_row ? admitted_offsets_ : filtered_offsets_)[key_class + 1];
  };
  for (const Stripe& stripe : stripes) {
    stripe.index().ForEachInRange(KeyClassRange(0, kKeyClasses), only_changed_,
                                  count);
  }
  for (int64_t c = 0; c < kKeyClasses; ++c) {
    admitted_offsets_[c + 1] += admitted_offsets_[c];
    filtered_offsets_[c + 1] += filtered_offsets_[c];
  }
  if (const Sketch* sketch = table_.sketch()) {
    sketch_heads_ = sketch->SaveHeads(only_changed_);
    sketch_rows_ = sketch->RowsToSave(only_changed_);
  }
  if (!only_changed_) return;
  for (const Stripe& stripe : stripes) {
    erased_.insert(erased_.end(), stripe.erased().begin(),
                   stripe.erased().end());
  }
  std::sort(erased_.begin(), erased_.end());
  erased_.erase(std::unique(erased_.begin(), erased_.end()), erased_.end());
}

void Snapshot::MarkSaved() {
  StripeSet& stripes = *table_.parts().stripes;
  std::unique_lock<std::mutex> lock(stripes.save_mutex(), std::defer_lock);
  if (!save_lock_.owns_lock()) lock.lock();
  for (Stripe& stripe : stripes) stripe.MarkSaved();
}

void Snapshot::ForEachSketchRow(const Sketch::VisitRow& visit) const {
  table_.sketch()->SaveRows(only_changed_, visit);
}

}  // namespace rec_estimator
