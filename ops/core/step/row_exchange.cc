// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/row_exchange.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {
namespace {

// Entries whose buckets are fetched before they are written.
constexpr size_t kSwapsAhead = 24;
// Keys whose buckets are fetched before they are searched.
constexpr size_t kStampsAhead = 16;

// Calls visit(i) for i < n, and fetch(i) kAhead calls before.
template <size_t kAhead, typename Fetch, typename Visit>
void ForEachAhead(size_t n, const Fetch& fetch, const Visit& visit) {
  for (size_t i = 0; i < std::min(n, kAhead); ++i) fetch(i);
  for (size_t i = 0; i < n; ++i) {
    if (n - i > kAhead) fetch(i + kAhead);
    visit(i);
  }
}

}  // namespace

RowExchange::RowExchange(const TableParts& table)
    : store_(*table.store),
      stripes_(*table.stripes),
      past_(std::make_shared<PastRows>(table)) {}

RowExchange::~RowExchange() {
  for (int s = 0; s < kStripes; ++s) {
    if (changes_[s].empty()) continue;
    const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
    CleanUp(s);
  }
}

bool RowExchange::Add(const RestoredRows& rows) {
  Sizes first;
  for (int s = 0; s < kStripes; ++s) first[s] = changes_[s].swaps.size();
  uint64_t n = 0;
  for (size_t i = 0; i < rows.n; ++i) {
    const int64_t key = rows.keys[i];
    if (stripes_.IsPadding(key)) continue;
    const int64_t freq = rows.freqs == nullptr ? 0 : rows.freqs[i];
    const int64_t version = rows.versions == nullptr ? -1 : rows.versions[i];
    Changes& changes = changes_[StripeOf(MixKey(key))];
    changes.stamps.push_back({key, version, FilterRule::CountOf(freq), false});
    changes.swaps.push_back({EntryRef(), HashIndex::kNoRow});
    ++n;
  }
  if (!TakeRows(first, n)) return false;
  // Nobody knows these rows, so no lock is needed.
  const RowArena::View view = store_.view();
  const RowFormat& format = store_.format();
  const std::vector<float>& slots = store_.slot_initials();
  const float* value = rows.values;
  for (size_t i = 0; i < rows.n; ++i, value += format.dim()) {
    if (stripes_.IsPadding(rows.keys[i])) continue;
    const int s = StripeOf(MixKey(rows.keys[i]));
    float* const row = view.Row(changes_[s].swaps[first[s]++].row);
    format.WriteValue(value, row);
    std::copy(slots.begin(), slots.end(), row + format.value_words());
  }
  written_ += static_cast<int64_t>(n);
  return true;
}

bool RowExchange::TakeRows(const Sizes& first, uint64_t n) {
  const RowArena::View view = store_.view();
  for (int s = 0; s < kStripes; ++s) {
    std::vector<Swap>& swaps = changes_[s].swaps;
    if (first[s] == swaps.size()) continue;
    Stripe& stripe = stripes_[s];
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    Stripe::RowSource free(view, 0);
    for (size_t i = first[s]; i < swaps.size(); ++i) {
      if (stripe.n_free_rows() == 0) break;
      swaps[i].row = free.Next(&stripe);
      --n;
    }
  }
  uint32_t next;
  if (n == 0) return true;
  if (!store_.arena().Take(n, 0, &next)) return false;
  for (int s = 0; s < kStripes; ++s) {
    std::vector<Swap>& swaps = changes_[s].swaps;
    for (size_t i = first[s]; i < swaps.size(); ++i) {
      if (swaps[i].row == HashIndex::kNoRow) swaps[i].row = next++;
    }
  }
  return true;
}

void RowExchange::AddErased(const int64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    changes_[StripeOf(MixKey(keys[i]))].erased_keys.push_back(keys[i]);
  }
}

bool RowExchange::Prepare() {
  for (int s = 0; s < kStripes; ++s) {
    Changes& changes = changes_[s];
    if (changes.empty()) continue;
    changes.erased.reserve(changes.erased_keys.size());
    std::sort(changes.erased_keys.begin(), changes.erased_keys.end());
    const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
    if (!Find(s)) return false;
    FindErased(s);
    NotePast(s);
  }
  return true;
}

bool RowExchange::Find(int s) {
  Stripe& stripe = stripes_[s];
  Changes& changes = changes_[s];
  std::vector<Stamp>& stamps = changes.stamps;
  const auto fetch = [&](size_t i) {
    PrefetchLines(stripe.index().Home(HashKey(stamps[i].key)), sizeof(Bucket));
  };
  uint32_t absent = 0;
  ForEachAhead<kStampsAhead>(stamps.size(), fetch, [&](size_t i) {
    absent += !stripe.Find(stamps[i].key).found();
  });
  if (!stripe.MakeRoom({absent, 0, 0})) return false;
  ForEachAhead<kStampsAhead>(stamps.size(), fetch, [&](size_t i) {
    EntryRef entry = stripe.Find(stamps[i].key);
    if (!entry.found()) {
      entry = stripe.Insert(stamps[i].key);
      stamps[i].is_new = true;
      stripe.AddToKeys(1);
    }
    changes.growth += !entry.has_row();
    changes.swaps[i].entry = entry;
  });
  inserted_ += changes.growth;
  return true;
}

void RowExchange::FindErased(int s) {
  Changes& changes = changes_[s];
  const std::vector<int64_t>& keys = changes.erased_keys;
  if (keys.empty()) return;
  std::vector<bool> is_written(keys.size());
  for (const Stamp& stamp : changes.stamps) {
    const auto it = std::lower_bound(keys.begin(), keys.end(), stamp.key);
    if (it != keys.end() && *it == stamp.key) {
      is_written[static_cast<size_t>(it - keys.begin())] = true;
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && keys[i] == keys[i - 1]) continue;
    const EntryRef entry = stripes_[s].Find(keys[i]);
    if (is_written[i] || !entry.found()) continue;
    changes.erased.push_back({entry, HashIndex::kNoRow});
    erased_ += entry.has_row();
    changes.growth -= entry.has_row();
  }
}

void RowExchange::NotePast(int s) {
  const Changes& changes = changes_[s];
  std::vector<PastRows::Row> rows;
  rows.reserve(changes.swaps.size() + changes.erased.size());
  for (const auto* swaps : {&changes.swaps, &changes.erased}) {
    for (const Swap& swap : *swaps) {
      rows.push_back({swap.entry.key(), swap.entry.row()});
    }
  }
  past_->Set(s, std::move(rows));
}

void RowExchange::Exchange(std::vector<Swap>* swaps) {
  Swap* const all = swaps->data();
  const auto fetch = [all](size_t i) {
    PrefetchLineToWrite(all[i].entry.bucket());
  };
  ForEachAhead<kSwapsAhead>(swaps->size(), fetch, [all](size_t i) {
    std::swap(all[i].entry.row(), all[i].row);
  });
}

void RowExchange::Commit() {
  const ExclusiveLocks locks(stripes_, kAllStripes);
  for (int s = 0; s < kStripes; ++s) {
    Exchange(&changes_[s].erased);
    Exchange(&changes_[s].swaps);
    stripes_[s].AddToRows(changes_[s].growth);
  }
  is_committed_ = true;
  past_->Own();
}

void RowExchange::CleanUp(int s) {
  Stripe& stripe = stripes_[s];
  Changes& changes = changes_[s];
  const bool is_tracked = stripe.tracks_changes();
  for (size_t i = 0; i < changes.swaps.size(); ++i) {
    const Swap& swap = changes.swaps[i];
    const Stamp& stamp = changes.stamps[i];
    if (is_committed_) {
      swap.entry.count() = stamp.count;
      swap.entry.version() = stamp.version;
      if (is_tracked) swap.entry.MarkChanged();
      continue;
    }
    // The new row, which no key got.
    if (swap.row != HashIndex::kNoRow) stripe.FreeRow(swap.row);
    if (stamp.is_new) Erase(&stripe, swap.entry);
  }
  if (!is_committed_) return;
  for (const Swap& swap : changes.erased) Erase(&stripe, swap.entry);
}

void RowExchange::Erase(Stripe* stripe, EntryRef entry) {
  try {
    stripe->Erase(entry);
  } catch (const std::bad_alloc&) {
    // The entry is left without a row: its key reads as an unknown one.
  }
}

}  // namespace rec_estimator
