// SPDX-License-Identifier: Apache-2.0
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {

void Stripe::Initialize(int number, RowStore* rows, Sketch* sketch,
                        const std::atomic<bool>* tracks_changes,
                        double stagger) {
  number_ = number;
  store_ = rows;
  sketch_ = sketch;
  tracks_changes_ = tracks_changes;
  stagger_ = stagger;
}

void Stripe::AddFrozenKey(int64_t key) {
  frozen_keys_.push_back(key);
  frozen_values_.resize(frozen_keys_.size() *
                        static_cast<size_t>(store_->format().value_words()));
}

// ----------------------------------------------------------------------- room

bool Stripe::ReserveEntries(int64_t entries) {
  if (entries <= capacity_.load(std::memory_order_relaxed)) return true;
  const bool reserved =
      index_.Reserve(static_cast<uint64_t>(entries), stagger_);
  capacity_.store(static_cast<int64_t>(index_.capacity()),
                  std::memory_order_release);
  return reserved;
}

bool Stripe::GrowToQuota(int64_t more_entries) {
  return ReserveEntries(n_keys() + quota_.load(std::memory_order_acquire) +
                        more_entries) &&
         (sketch_ == nullptr || sketch_->GrowToQuota(number_));
}

bool Stripe::MakeRoom(const StripeNeeds& needs) {
  return ReserveEntries(n_keys() + needs.entries) &&
         (needs.sketched == 0 || sketch_->MakeRoom(number_, needs.sketched));
}

// --------------------------------------------------------------- single rows

void Stripe::FreeRow(uint32_t row) {
  std::memcpy(store_->view().Row(row), &first_free_row_, sizeof(uint32_t));
  first_free_row_ = row;
  ++n_free_rows_;
}

void Stripe::FreeSpilledRow(EntryRef entry) {
  const uint32_t place = entry.place();
  tier_->Free(number_, &place, 1);
}

template <typename Visit>
void Stripe::ForEachFrozen(const Visit& visit) {
  for (size_t i = 0; i < frozen_keys_.size(); ++i) {
    const EntryRef entry = Find(frozen_keys_[i]);
    // An apply does not change rows on disk.
    if (!entry.found() || !entry.in_memory()) continue;
    const auto words = static_cast<size_t>(store_->format().value_words());
    visit(store_->view().Row(entry.row()), frozen_values_.data() + i * words);
  }
}

void Stripe::SaveFrozenValues() {
  ForEachFrozen([this](const float* row, float* saved) {
    std::copy_n(row, store_->format().value_words(), saved);
  });
}

void Stripe::RestoreFrozenValues() {
  ForEachFrozen([this](float* row, const float* saved) {
    std::copy_n(saved, store_->format().value_words(), row);
  });
}

bool Stripe::SetSlot(size_t slot, int64_t key, const float* values) {
  const EntryRef entry = Find(key);
  // The caller has brought the row in.
  if (!entry.found() || !entry.in_memory()) return false;
  const std::vector<SlotSpec>& slots = store_->slots();
  const RowFormat& format = store_->format();
  float* to = store_->view().Row(entry.row()) + format.value_words();
  for (size_t s = 0; s < slot; ++s) to += format.slot_words(slots[s].width);
  format.WriteSlot(values, slots[slot].width, to);
  if (tracks_changes()) entry.MarkChanged();
  return true;
}

// ------------------------------------------------------------------- eviction

void Stripe::NoteErased(int64_t key) {
  if (!tracks_changes()) return;
  if (erased_.size() == erased_.capacity()) {
    // A key that is erased again and again is listed once.
    const auto begin =
        erased_.begin() + static_cast<std::ptrdiff_t>(n_erased_pending_);
    std::sort(begin, erased_.end());
    erased_.erase(std::unique(begin, erased_.end()), erased_.end());
    if (erased_.size() > erased_.capacity() / 2) {
      erased_.reserve(2 * erased_.capacity());
    }
  }
  erased_.push_back(key);
}

void Stripe::FreeRowOf(EntryRef entry) {
  entry.in_memory() ? FreeRow(entry.row()) : FreeSpilledRow(entry);
  rows_.fetch_sub(1, std::memory_order_relaxed);
  removed_rows_.fetch_add(1, std::memory_order_relaxed);
}

void Stripe::Erase(EntryRef entry) {
  const int64_t key = entry.key();
  NoteErased(key);
  if (entry.has_row()) FreeRowOf(entry);
  index_.Erase(index_.Home(HashKey(key)), entry);
  keys_.fetch_sub(1, std::memory_order_acq_rel);
}

void Stripe::Evict(EntryRef entry, int64_t stamp) {
  if (CountInSketch(entry.key()) == 0) return Erase(entry);
  NoteErased(entry.key());
  if (entry.has_row()) FreeRowOf(entry);
  entry.row() = HashIndex::kNoRow;
  entry.count() = 0;
  entry.version() = stamp;
  if (tracks_changes()) entry.MarkChanged();
}

bool Stripe::Erase(int64_t key) {
  const EntryRef entry = Find(key);
  if (entry.found()) Erase(entry);
  return entry.found();
}

bool Stripe::EvictSpilled(int64_t key, uint32_t place, int64_t stamp) {
  const EntryRef entry = Find(key);
  if (!entry.found() || !entry.is_spilled() || entry.place() != place) {
    return false;
  }
  Evict(entry, stamp);
  return true;
}

void Stripe::Clear() {
  index_.Clear();
  keys_ = 0;
  rows_ = 0;
  capacity_ = 0;
  first_free_row_ = HashIndex::kNoRow;
  n_free_rows_ = 0;
  erased_ = {};
  n_erased_pending_ = 0;
}

// ---------------------------------------------------------------------- saves

void Stripe::MarkSaved() {
  index_.MarkPending();
  if (sketch_ != nullptr) sketch_->MarkPending(number_);
  n_erased_pending_ = erased_.size();
}

void Stripe::CommitSaved() {
  index_.ForgetPending();
  if (sketch_ != nullptr) sketch_->ForgetPending(number_);
  erased_.erase(erased_.begin(), erased_.begin() + static_cast<std::ptrdiff_t>(
                                                       n_erased_pending_));
  n_erased_pending_ = 0;
}

}  // namespace rec_estimator
