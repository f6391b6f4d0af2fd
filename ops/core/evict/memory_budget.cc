// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/memory_budget.h"

#include <algorithm>

namespace rec_estimator {
namespace {

constexpr int64_t kEntryBytes = 35;

int64_t BytesOf(const StripeSet& table) {
  int64_t entries = 0;
  for (const Stripe& stripe : table) entries += stripe.keys();
  return entries * kEntryBytes +
         table.n_rows() * table[0].store().stored_bytes();
}

}  // namespace

void MemoryBudget::Join(const StripeSet* table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.push_back(table);
}

void MemoryBudget::Leave(const StripeSet* table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.erase(std::remove(tables_.begin(), tables_.end(), table),
                tables_.end());
}

MemoryBudget::Use MemoryBudget::Measure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t taken = 0;
  for (const StripeSet* table : tables_) taken += BytesOf(*table);
  return Use(taken, bytes_);
}

int64_t MemoryBudget::Use::RowsToEvict(const StripeSet& table) const {
  if (taken_ <= budget_) return 0;
  const double part =
      static_cast<double>(BytesOf(table)) / static_cast<double>(taken_);
  const double bytes = part * static_cast<double>(taken_ - budget_);
  const int64_t of_row = kEntryBytes + table[0].store().stored_bytes();
  return std::min(static_cast<int64_t>(bytes) / of_row, table.n_rows());
}

}  // namespace rec_estimator
