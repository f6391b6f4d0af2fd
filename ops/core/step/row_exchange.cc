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
constexpr size_t kBucketsAhead = 24;
// Keys whose buckets are fetched before they are searched.
constexpr size_t kKeysAhead = 16;

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
    : store_(*table.store), stripes_(*table.stripes) {}

RowExchange::~RowExchange() {
  for (int s = 0; s < kStripes; ++s) {
    if (changes_[s].written.empty() && changes_[s].erased.empty()) continue;
    const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
    CleanUp(s);
  }
}

bool RowExchange::Add(const RestoredRows& rows) {
  std::array<size_t, kStripes> first;
  for (int s = 0; s < kStripes; ++s) first[s] = changes_[s].written.size();
  std::vector<std::pair<uint8_t, uint32_t>> places(rows.n);
  uint64_t n = 0;
  for (size_t i = 0; i < rows.n; ++i) {
    const int64_t key = rows.keys[i];
    const int s = StripeOf(MixKey(key));
    std::vector<Change>& written = changes_[s].written;
    places[i] = {static_cast<uint8_t>(s),
                 static_cast<uint32_t>(written.size())};
    if (stripes_.IsPadding(key)) {
      places[i].first = kStripes;
      continue;
    }
    const int64_t freq = rows.freqs == nullptr ? 0 : rows.freqs[i];
    const int64_t version = rows.versions == nullptr ? -1 : rows.versions[i];
    written.push_back({key,
                       EntryRef(),
                       {version, HashIndex::kNoRow, FilterRule::CountOf(freq)},
                       false});
    ++n;
  }
  if (!TakeRows(first, n)) return false;
  // Nobody knows these rows, so no lock is needed.
  const RowArena::View view = store_.view();
  const int dim = store_.dim();
  const std::vector<float>& slots = store_.slot_initials();
  for (size_t i = 0; i < rows.n; ++i) {
    const auto [s, place] = places[i];
    if (s == kStripes) continue;
    float* const row = view.Row(changes_[s].written[place].content.row);
    CopyRow(rows.values + i * static_cast<size_t>(dim), dim, row);
    std::copy(slots.begin(), slots.end(), row + dim);
  }
  written_ += static_cast<int64_t>(n);
  return true;
}

bool RowExchange::TakeRows(const std::array<size_t, kStripes>& first,
                           uint64_t n) {
  const RowArena::View view = store_.view();
  for (int s = 0; s < kStripes; ++s) {
    std::vector<Change>& written = changes_[s].written;
    if (first[s] == written.size()) continue;
    Stripe& stripe = stripes_[s];
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    Stripe::RowSource free(view, 0);
    for (size_t i = first[s]; i < written.size(); ++i) {
      if (stripe.n_free_rows() == 0) break;
      written[i].content.row = free.Next(&stripe);
      --n;
    }
  }
  uint32_t next;
  if (n == 0) return true;
  if (!store_.arena().Take(n, 0, &next)) return false;
  for (int s = 0; s < kStripes; ++s) {
    std::vector<Change>& written = changes_[s].written;
    for (size_t i = first[s]; i < written.size(); ++i) {
      uint32_t& row = written[i].content.row;
      if (row == HashIndex::kNoRow) row = next++;
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
    if (changes.written.empty() && changes.erased_keys.empty()) continue;
    changes.erased.reserve(changes.erased_keys.size());
    std::sort(changes.erased_keys.begin(), changes.erased_keys.end());
    const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
    if (!Find(s)) return false;
    FindErased(s);
  }
  return true;
}

bool RowExchange::Find(int s) {
  Stripe& stripe = stripes_[s];
  std::vector<Change>& written = changes_[s].written;
  const auto fetch = [&](size_t i) {
    PrefetchLines(stripe.index().Home(HashKey(written[i].key)), sizeof(Bucket));
  };
  uint32_t absent = 0;
  ForEachAhead<kKeysAhead>(written.size(), fetch, [&](size_t i) {
    absent += !stripe.Find(written[i].key).found();
  });
  if (!stripe.MakeRoom({absent, 0, 0})) return false;
  ForEachAhead<kKeysAhead>(written.size(), fetch, [&](size_t i) {
    Change& change = written[i];
    change.entry = stripe.Find(change.key);
    if (!change.entry.found()) {
      change.entry = stripe.Insert(change.key);
      change.is_new = true;
      stripe.AddToKeys(1);
    }
    changes_[s].growth += !change.entry.has_row();
  });
  inserted_ += changes_[s].growth;
  return true;
}

void RowExchange::FindErased(int s) {
  Changes& changes = changes_[s];
  std::vector<int64_t>& keys = changes.erased_keys;
  if (keys.empty()) return;
  std::vector<bool> is_written(keys.size());
  for (const Change& change : changes.written) {
    const auto it = std::lower_bound(keys.begin(), keys.end(), change.key);
    if (it != keys.end() && *it == change.key) {
      is_written[static_cast<size_t>(it - keys.begin())] = true;
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (is_written[i] || (i > 0 && keys[i] == keys[i - 1])) continue;
    const EntryRef entry = stripes_[s].Find(keys[i]);
    if (!entry.found()) continue;
    changes.erased.push_back(
        {keys[i], entry, {-1, HashIndex::kNoRow, 0}, false});
    erased_ += entry.has_row();
    changes.growth -= entry.has_row();
  }
}

void RowExchange::Exchange(Change* change, bool is_tracked) {
  const EntryRef entry = change->entry;
  Content& content = change->content;
  std::swap(entry.row(), content.row);
  std::swap(entry.count(), content.count);
  std::swap(entry.version(), content.version);
  if (is_tracked) entry.MarkChanged();
}

void RowExchange::Commit() {
  const ExclusiveLocks locks(stripes_, kAllStripes);
  const bool is_tracked = stripes_.tracks_changes();
  for (int s = 0; s < kStripes; ++s) {
    Changes& changes = changes_[s];
    for (std::vector<Change>* list : {&changes.erased, &changes.written}) {
      const auto fetch = [&](size_t i) {
        Bucket* const bucket = (*list)[i].entry.bucket();
        PrefetchLineToWrite(bucket);
        PrefetchLineToWrite(&bucket->version);
      };
      ForEachAhead<kBucketsAhead>(list->size(), fetch, [&](size_t i) {
        Exchange(&(*list)[i], is_tracked);
      });
    }
    stripes_[s].AddToRows(changes.growth);
  }
  is_committed_ = true;
}

void RowExchange::CleanUp(int s) {
  Stripe& stripe = stripes_[s];
  Changes& changes = changes_[s];
  for (const Change& change : changes.written) {
    // The old row, or the new one that was not needed.
    if (change.content.row != HashIndex::kNoRow) {
      stripe.FreeRow(change.content.row);
    }
    if (is_committed_ || !change.is_new) continue;
    try {
      stripe.Erase(change.entry);
    } catch (const std::bad_alloc&) {
      // A key without a row is left, which reads as an unknown key does.
    }
  }
  if (!is_committed_) return;
  for (const Change& change : changes.erased) {
    if (change.content.row != HashIndex::kNoRow) {
      stripe.FreeRow(change.content.row);
    }
    try {
      stripe.Erase(change.entry);
    } catch (const std::bad_alloc&) {
      // As above.
    }
  }
}

}  // namespace rec_estimator
