// SPDX-License-Identifier: Apache-2.0
// Implements step_keys.h.
#include "ops/lookup/step_keys.h"

#include "ops/core/table/embedding_table.h"
#include "ops/kernel/step_resource.h"

namespace rec_estimator {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

StepKeys::Ptr StepKeys::Of(OpKernelContext* context) {
  return ResourceOfStep<StepKeys>(context, "step_keys");
}

StepKeys::KeyTensor* StepKeys::FindOrAdd(const Tensor& keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Memory memory = MemoryOf(keys);
  const auto known = lists_.find(memory);
  if (known != lists_.end()) return &known->second;
  if (lists_.size() == kMostLists) return nullptr;
  if (memory.second > static_cast<int64_t>(DeduplicatedList::kShort)) {
    if (memory.second > kMostKeys - long_keys_) return nullptr;
    long_keys_ += memory.second;
  }
  KeyTensor* const list = &lists_[memory];
  list->keys = keys;
  return list;
}

bool StepKeys::Lookup(TableResource* table, const Tensor& keys,
                      UnknownKey unknown, float* out,
                      const ParallelFor& parallel) {
  KeyTensor* const list = FindOrAdd(keys);
  if (list == nullptr) return false;
  std::shared_ptr<const DeduplicatedList> distinct;
  {
    // Another lookup of these keys waits for this one instead of doing the
    // same.
    const std::lock_guard<std::mutex> lock(list->mutex);
    if (list->distinct == nullptr) {
      const auto [data, n] = MemoryOf(keys);
      list->distinct = std::make_shared<DeduplicatedList>(
          data, static_cast<size_t>(n), parallel);
    }
    distinct = list->distinct;
  }
  std::shared_ptr<const RowHints> hints =
      table->table().LookupListed(std::move(distinct), unknown, out, parallel);
  table->mutable_hand_over()->NoteLookup();
  table->Ref();
  TableHints of_table = {TablePtr(table), std::move(hints)};
  const std::lock_guard<std::mutex> lock(mutex_);
  list->hints.push_back(std::move(of_table));
  return true;
}

std::shared_ptr<const RowHints> StepKeys::ForStep(TableResource* table,
                                                  const Tensor& keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = lists_.find(MemoryOf(keys));
  if (known == lists_.end()) return nullptr;
  const std::vector<TableHints>& hints = known->second.hints;
  // The last lookup found them last.
  for (auto each = hints.rbegin(); each != hints.rend(); ++each) {
    if (each->table.get() == table) return each->hints;
  }
  return nullptr;
}

void StepKeys::Keep(TableResource* table, const Tensor& packed,
                    const int64_t* keys,
                    std::shared_ptr<const RowHints> hints) {
  table->Ref();
  Reservation reservation = {TablePtr(table), packed, std::move(hints)};
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_[{table, keys}] = std::move(reservation);
}

std::shared_ptr<const RowHints> StepKeys::ForLookupOfPacked(
    TableResource* table, const int64_t* keys, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = reserved_.find({table, keys});
  // A slice of the tensor may have more keys there.
  if (known == reserved_.end() || known->second.hints->size() != n) {
    return nullptr;
  }
  return known->second.hints;
}

}  // namespace rec_estimator
