// SPDX-License-Identifier: Apache-2.0
// How a BatchApply finds its keys, and decides which of them get a row.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/keys/grouped_keys.h"
#include "ops/core/step/batch_apply.h"

namespace rec_estimator {
namespace {

// The distance, in keys, at which buckets, and counts for a filter, are
// prefetched.
constexpr uint32_t kKeysAhead = 16;

}  // namespace

void BatchApply::Find(int g) {
  for (BatchApply* each = this; each != nullptr; each = each->next_follower_) {
    each->Deduplicate(g);
    each->is_listed_[g].store(true, std::memory_order_release);
    each->FindAgain(g);
  }
}

void BatchApply::FindAgain(int g) {
  const SharedLocks locks(stripes_, stripes_of_[g]);
  Classify(g);
}

void BatchApply::Classify(int g) {
  const uint32_t begin = part_.begin[g];
  EntryRef* entries = entry_ + begin;
  uint32_t* rows = row_ + begin;
  if (hints_ != nullptr && hints_->IsCurrent(stripes_, stripes_of_[g])) {
    const uint32_t first = groups_ != nullptr ? groups_->first(g) : 0;
    std::copy_n(hints_->entries() + first, unique_[g], entries);
    std::copy_n(hints_->rows() + first, unique_[g], rows);
  } else {
    stripes_.FindEach(key_ + begin, unique_[g],
                      [&](uint32_t u, EntryRef entry) {
                        entries[u] = entry;
                        rows[u] = HashIndex::RowWordOf(entry);
                      });
  }
  FindKeysWithoutRow(g);
}

void BatchApply::ClassifyOthers(int g) {
  const uint32_t begin = part_.begin[g];
  const int64_t* keys = key_ + begin;
  uint32_t* rows = row_ + begin;
  uint32_t* others = id_ + begin;
  uint32_t n = 0;
  for (uint32_t u = 0; u < unique_[g]; ++u) {
    others[n] = u;
    n += rows[u] >= HashIndex::kSpilled;
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kKeysAhead < n) {
      PrefetchLine(stripes_.Home(keys[others[i + kKeysAhead]]));
    }
    const uint32_t u = others[i];
    entry_[begin + u] = stripes_.Of(keys[u]).Find(keys[u]);
    rows[u] = HashIndex::RowWordOf(entry_[begin + u]);
  }
  FindKeysWithoutRow(g);
}

void BatchApply::FindKeysWithoutRow(int g) {
  const uint32_t begin = part_.begin[g];
  const int64_t* keys = key_ + begin;
  const uint32_t* rows = row_ + begin;
  uint32_t* without_row = id_ + begin;
  uint32_t n = 0, n_beyond_memory = 0;
  for (uint32_t u = 0; u < unique_[g]; ++u) {
    without_row[n] = u;
    n += rows[u] == HashIndex::kNoRow;
    n_beyond_memory += rows[u] >= HashIndex::kSpilled;
  }
  n_spilled_[g] = n_beyond_memory - n;
  n_in_memory_[g] = unique_[g] - n_beyond_memory;
  all_have_rows_[g] = true;
  const int padding = stripes_.padding_stripe();
  if (padding >= 0 && (stripes_of_[g] >> padding & 1) != 0) {
    n = static_cast<uint32_t>(
        std::remove_if(without_row, without_row + n,
                       [&](uint32_t u) { return keys[u] == kPaddingKey; }) -
        without_row);
    all_have_rows_[g] = false;
  }
  n_without_row_[g] = n;
  ForEachStripe(stripes_of_[g], [this](int s) { needs_[s] = StripeNeeds(); });
  times_.Note(stripes_, stripes_of_[g]);
  if (n > 0) DecideAdmission(g, without_row, n);
}

void BatchApply::DecideAdmission(int g, const uint32_t* without_row,
                                 uint32_t n) {
  const int64_t* keys = key_ + part_.begin[g];
  const EntryRef* entries = entry_ + part_.begin[g];
  uint32_t* rows = row_ + part_.begin[g];
  const FilterRule admission = rule_;
  const auto needs_of = [&](uint32_t u) -> StripeNeeds& {
    return needs_[StripeOf(MixKey(keys[u]))];
  };
  if (admission.admits_all()) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t u = without_row[i];
      rows[u] = kToAdmit;
      needs_of(u).entries += !entries[u].found();
      ++needs_of(u).rows;
    }
    return;
  }
  const Sketch* const sketch = stripes_.sketch();
  const uint32_t* estimates = nullptr;
  if (sketch != nullptr) {
    sketch->Estimate(keys, without_row, n, estimate_ + part_.begin[g]);
    estimates = estimate_ + part_.begin[g];
  }
  const auto fetch = [&](uint32_t i) {
    const uint32_t u = without_row[i];
    if (entries[u].found()) PrefetchLine(entries[u].bucket()->version);
  };
  for (uint32_t i = 0; i < std::min(n, kKeysAhead); ++i) fetch(i);
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kKeysAhead < n) fetch(i + kKeysAhead);
    const uint32_t u = without_row[i];
    const bool found = entries[u].found();
    uint32_t count = 0;
    if (found) {
      count = entries[u].count();
    } else if (estimates != nullptr) {
      count = estimates[u];
    }
    const bool admitted = admission.IsAdmitted(
        admission.CountAfterBatch(count, Occurrences(g, u)));
    if (admitted) rows[u] = kToAdmit;
    StripeNeeds& needs = needs_of(u);
    const bool in_sketch = sketch != nullptr && !found && !admitted;
    needs.sketched += in_sketch;
    needs.rows += admitted;
    needs.entries += !found && !in_sketch;
  }
}

// This thread took each lock once since Classify.

bool BatchApply::HaveMoved(int g) const {
  return times_.HaveEntriesMoved(stripes_, stripes_of_[g], 1);
}

bool BatchApply::HaveOthersChanged(int g) const {
  // Another step may insert keys that had no row, and its counts decide on the
  // admission of such keys. Rows that were on disk have been brought in.
  if (n_without_row_[g] == 0 && n_spilled_[g] == 0) return false;
  return times_.HaveStripesChanged(stripes_, stripes_of_[g], 1);
}

}  // namespace rec_estimator
