// SPDX-License-Identifier: Apache-2.0
#include "ops/core/rows/row_store.h"

#include <algorithm>
#include <utility>

namespace rec_estimator {

RowStore::RowStore(int dim, float default_value, const ValueSpec& value)
    : format_(dim, value),
      zeros_(static_cast<size_t>(format_.value_words()), 0.0f),
      defaults_(zeros_),
      initial_(zeros_.data(), 1, format_.value_words()),
      arena_(zeros_.size()) {
  const std::vector<float> defaults(static_cast<size_t>(dim), default_value);
  format_.WriteValue(defaults.data(), defaults_.data());
}

int RowStore::row_floats() const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  int floats = dim();
  for (const SlotSpec& slot : slots_) floats += slot.width;
  return floats;
}

int64_t RowStore::stored_bytes() const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  return static_cast<int64_t>(format_.value_bytes() +
                              slot_initials_.size() * sizeof(float));
}

int64_t RowStore::bank_rows() const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  return bank_ == nullptr ? 0 : initial_.rows();
}

std::vector<float> RowStore::CopyBank() const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  if (bank_ == nullptr) return {};
  std::vector<float> bank(static_cast<size_t>(initial_.rows()) *
                          static_cast<size_t>(dim()));
  for (int64_t r = 0; r < initial_.rows(); ++r) {
    format_.ReadValue(initial_.Of(r), &bank[static_cast<size_t>(r * dim())]);
  }
  return bank;
}

std::vector<SlotSpec> RowStore::CopySlots() const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  return slots_;
}

bool RowStore::BeginsWithSlots(const std::vector<SlotSpec>& wanted) const {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  return wanted.size() <= slots_.size() &&
         std::equal(wanted.begin(), wanted.end(), slots_.begin(),
                    [](const SlotSpec& x, const SlotSpec& y) {
                      return x.name == y.name && x.width == y.width &&
                             x.initial == y.initial;
                    });
}

void RowStore::SetBank(ZeroedMemory bank, int64_t rows) {
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  bank_ = std::move(bank);
  initial_ = InitialVectors(static_cast<const float*>(bank_.get()), rows,
                            format_.value_words());
}

bool RowStore::EnsureSlots(const std::vector<SlotSpec>& wanted,
                           const WidenOthers& widen_others) {
  std::vector<SlotSpec> slots = slots_;
  for (const SlotSpec& spec : wanted) {
    if (spec.width < 1) return false;
    const auto same = std::find_if(
        slots.begin(), slots.end(),
        [&](const SlotSpec& slot) { return slot.name == spec.name; });
    if (same == slots.end()) {
      slots.push_back(spec);
    } else if (same->width != spec.width) {
      return false;
    } else {
      same->initial = spec.initial;
    }
  }
  std::vector<float> initials;
  for (const SlotSpec& slot : slots) {
    const std::vector<float> initial(static_cast<size_t>(slot.width),
                                     slot.initial);
    const size_t begin = initials.size();
    initials.resize(begin +
                    static_cast<size_t>(format_.slot_words(slot.width)));
    format_.WriteSlot(initial.data(), slot.width, &initials[begin]);
  }
  const std::vector<float> added(
      initials.begin() + static_cast<std::ptrdiff_t>(slot_initials_.size()),
      initials.end());
  if (!added.empty() && !WidenRows(added, widen_others)) return false;
  std::lock_guard<std::mutex> lock(metadata_mutex_);
  slots_.swap(slots);
  slot_initials_.swap(initials);
  return true;
}

bool RowStore::WidenRows(const std::vector<float>& added,
                         const WidenOthers& widen_others) {
  const size_t old_floats = arena_.row_floats();
  const uint64_t rows = arena_.taken();
  RowArena wide(old_floats + added.size());
  uint32_t first;
  if (!wide.Take(rows, 0, &first) || !widen_others(added)) return false;
  // New slots are appended, so a row keeps its number and its beginning. The
  // beginning of a free row holds the link of its stripe's free list.
  const RowArena::View from = arena_.view();
  const RowArena::View to = wide.view();
  for (uint64_t r = 0; r < rows; ++r) {
    const float* old_row = from.Row(static_cast<uint32_t>(r));
    float* row = to.Row(static_cast<uint32_t>(r));
    std::copy(old_row, old_row + old_floats, row);
    std::copy(added.begin(), added.end(), row + old_floats);
  }
  arena_.Swap(&wide);
  return true;
}

}  // namespace rec_estimator
