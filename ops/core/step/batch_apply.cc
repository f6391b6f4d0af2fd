// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/batch_apply.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <shared_mutex>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/keys/grouped_keys.h"
#include "ops/core/math/gradient_sum.h"
#include "ops/core/math/indexed_rows.h"
#include "ops/core/rows/row_arena.h"

namespace rec_estimator {
namespace {

// Occurrences of the largest batch that is one group without a list of its
// distinct keys (docs/decisions.md).
constexpr uint64_t kOneGroup = 4096;
// The distance, in keys, at which an apply prefetches buckets.
constexpr uint32_t kBucketsAhead = 16;
// The most rows of one call of RowUpdate::Update, and the most floats of their
// summed gradients, which are on the stack.
constexpr size_t kTileRows = 64;
constexpr size_t kTileFloats = 4096;
// The most floats of the sums of a whole list of keys, which are on the stack,
// and the gradients that are added between two prefetches of rows.
constexpr size_t kListFloats = 24576;
constexpr uint32_t kListBlock = 32;
// The distance, in rows, at which an update prefetches.
constexpr uint32_t kRowsAhead = 16;

// What an update writes to an entry. A copy of its own, so that the loops need
// not read it again after each write.
struct Stamp {
  const FilterRule admission;
  const int64_t version;
  const bool tracks_changes;

  void operator()(EntryRef entry, uint64_t occurrences) const {
    entry.count() = admission.CountAfterBatch(entry.count(), occurrences);
    entry.version() = version;
    if (tracks_changes) entry.MarkChanged();
  }
};

}  // namespace

bool BatchApply::Begin() {
  if (batch_.n >= kMaxBatch || batch_.n_counted >= kMaxBatch) return false;
  part_.head = batch_.keys;
  part_.n_head = batch_.n;
  part_.tail = batch_.counted_keys;
  part_.n = batch_.n + batch_.n_counted;
  if (part_.n >= kMaxBatch) return false;
  if (batch_.hints != nullptr && batch_.n_counted == 0 &&
      batch_.counts == nullptr &&
      batch_.hints->list()->IsOf(batch_.keys, batch_.n)) {
    hints_ = batch_.hints;
    groups_ = hints_->list()->groups();
    if (groups_ == nullptr) list_ = hints_->list();
  }
  part_.groups = list_ != nullptr || part_.n <= kOneGroup ? 1 : kStripes;
  return true;
}

void BatchApply::AddTo(Layout* layout) {
  if (leader_ == nullptr && groups_ == nullptr) {
    part_.AddTo(layout);
    layout->Add(&key_, part_.n);
    layout->Add(&grouped_, part_.n);
    layout->Add(&end_, part_.n);
  }
  layout->Add(&id_, part_.n);
  layout->Add(&entry_, part_.n);
  layout->Add(&row_, part_.n);
  if (stripes_.sketch() != nullptr) layout->Add(&estimate_, part_.n);
}

void BatchApply::EndSort() {
  if (leader_ != nullptr) {
    list_ = leader_->list_;
    groups_ = leader_->groups_;
    if (list_ == nullptr && groups_ == nullptr) hints_ = nullptr;
    part_ = leader_->part_;
    key_ = leader_->key_;
    grouped_ = leader_->grouped_;
    end_ = leader_->end_;
  } else if (groups_ != nullptr) {
    part_ = groups_->partition();
    key_ = groups_->distinct().keys;
    grouped_ = groups_->distinct().grouped;
    end_ = groups_->distinct().end;
  } else {
    part_.EndSort();
  }
}

void BatchApply::AddUnusualTo(Layout* layout) {
  if (leader_ == nullptr && list_ == nullptr && groups_ == nullptr) {
    part_.AddCellsTo(layout);
  }
  const size_t dim = static_cast<size_t>(store_.dim());
  if (dim > kTileFloats) layout->Add(&wide_sums_, part_.groups * dim);
}

void BatchApply::Deduplicate(int g) {
  if (leader_ != nullptr) {
    unique_[g] = leader_->unique_[g];
    stripes_of_[g] = leader_->stripes_of_[g];
    return;
  }
  if (groups_ != nullptr) {
    unique_[g] = groups_->size(g);
    stripes_of_[g] = uint64_t{unique_[g] > 0} << g;
    return;
  }
  const uint32_t begin = part_.begin[g];
  const KeyPartition::Distinct distinct = {key_ + begin, id_ + begin,
                                           grouped_ + begin, end_ + begin};
  if (list_ != nullptr) {
    bool with_occurrences = false;
    for (const BatchApply* each = this; each != nullptr;
         each = each->next_follower_) {
      with_occurrences |= !each->SumsOf(*list_);
    }
    unique_[g] = part_.CopyDistinct(*list_, with_occurrences, distinct);
    stripes_of_[g] = list_->stripes();
    return;
  }
  unique_[g] = part_.Deduplicate(g, distinct);
  stripes_of_[g] = part_.groups == 1 ? StripesOf(key_ + begin, unique_[g])
                                     : uint64_t{unique_[g] > 0} << g;
}

bool BatchApply::SumsOf(const DeduplicatedList& list) const {
  return list.size() * static_cast<size_t>(store_.dim()) <= kListFloats;
}

// ------------------------------------------------------------------ reserving

int64_t BatchApply::new_rows() const {
  int64_t rows = 0;
  for (int g = 0; g < part_.groups; ++g) {
    if (n_without_row_[g] == 0) continue;
    ForEachStripe(stripes_of_[g], [&](int s) { rows += needs_[s].rows; });
  }
  return rows;
}

bool BatchApply::ReserveQuotas(uint64_t* to_grow) {
  *to_grow = 0;
  const int64_t rows = new_rows();
  if (rows > 0 && !store_.arena().ReserveQuota(static_cast<uint64_t>(rows))) {
    return false;
  }
  for (int g = 0; g < part_.groups; ++g) {
    if (n_without_row_[g] == 0) continue;
    ForEachStripe(stripes_of_[g], [&](int s) {
      row_quota_[g] += needs_[s].rows;
      entry_quota_[s] = needs_[s].entries;
      sketch_quota_[s] = needs_[s].sketched;
      if (entry_quota_[s] == 0 && sketch_quota_[s] == 0) return;
      has_quota_ |= uint64_t{1} << s;
      if (!stripes_[s].ReserveQuota(entry_quota_[s], sketch_quota_[s])) {
        *to_grow |= uint64_t{1} << s;
      }
    });
  }
  return true;
}

bool BatchApply::TryGrow(int s, bool* has_memory) {
  const std::unique_lock<SharedMutex> lock(stripes_[s].mutex(),
                                           std::try_to_lock);
  if (lock.owns_lock()) *has_memory = stripes_[s].GrowToQuota();
  return lock.owns_lock();
}

bool BatchApply::Grow(int s) {
  const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
  return stripes_[s].GrowToQuota();
}

void BatchApply::ReleaseQuotas() {
  ForEachStripe(has_quota_, [this](int s) {
    stripes_[s].ReleaseQuota(entry_quota_[s], sketch_quota_[s]);
  });
  has_quota_ = 0;
  uint64_t rows = 0;
  for (uint32_t& quota : row_quota_) {
    rows += quota;
    quota = 0;
  }
  if (rows > 0) store_.arena().ReleaseQuota(rows);
}

// ------------------------------------------------------------------- applying

bool BatchApply::TryUpdate(int g, bool* done) {
  const ExclusiveLocks locks(stripes_, stripes_of_[g], std::try_to_lock);
  if (locks.owns_all()) *done = UpdateLocked(g);
  return locks.owns_all();
}

void BatchApply::Update(int g, bool* done) {
  const ExclusiveLocks locks(stripes_, stripes_of_[g]);
  *done = UpdateLocked(g);
}

bool BatchApply::UpdateLocked(int g) {
  if (HaveMoved(g)) {
    Classify(g);
  } else if (HaveOthersChanged(g)) {
    ClassifyOthers(g);
  }
  if (n_spilled_[g] > 0) return false;  // Impossible while the keys are held.
  bool has_grown = false;
  if (n_without_row_[g] > 0 &&
      !(MakeRoom(g, &has_grown) && InsertAdmitted(g))) {
    return false;
  }
  UpdateRows(g);
  if (!has_grown) {
    ForEachStripe(stripes_of_[g],
                  [this](int s) { stripes_[s].LeaveInPlace(); });
  }
  return true;
}

bool BatchApply::MakeRoom(int g, bool* has_grown) {
  bool has_memory = true;
  ForEachStripe(stripes_of_[g], [&](int s) {
    if (stripes_[s].HasRoom(needs_[s])) return;
    has_memory = stripes_[s].MakeRoom(needs_[s]) && has_memory;
    *has_grown = true;
  });
  if (*has_grown) Classify(g);  // Entries have moved.
  return has_memory;
}

uint64_t BatchApply::SumCounts(int g, uint32_t begin, uint32_t end) const {
  const uint32_t* occurrences = grouped_ + part_.begin[g];
  uint64_t sum = 0;
  for (; begin < end; ++begin) sum += batch_.counts[occurrences[begin]];
  // So that the product with a filter's coefficient does not overflow.
  return std::min<uint64_t>(sum, UINT32_MAX);
}

void BatchApply::ListRows(RowHints* hints) const {
  uint64_t stripes = 0;
  for (int g = 0; g < part_.groups; ++g) {
    const uint32_t begin = part_.begin[g];
    uint32_t at = begin;
    for (uint32_t u = begin; u < begin + unique_[g]; ++u) {
      for (const uint32_t end = begin + end_[u]; at < end; ++at) {
        hints->SetRow(grouped_[at], row_[u]);
      }
    }
    stripes |= stripes_of_[g];
  }
  hints->SetTimes(times_, stripes);
}

uint32_t BatchApply::RowsToTake(int g) const {
  uint32_t rows = 0;
  ForEachStripe(stripes_of_[g], [&](int s) {
    const uint32_t freed = stripes_[s].n_free_rows();
    rows += needs_[s].rows - std::min(freed, needs_[s].rows);
  });
  return rows;
}

bool BatchApply::InsertAdmitted(int g) {
  Sketch* const sketch = stripes_.mutable_sketch();
  const uint32_t begin = part_.begin[g];
  const int64_t* keys = key_ + begin;
  EntryRef* entries = entry_ + begin;
  uint32_t* rows = row_ + begin;
  uint32_t* without_row = id_ + begin;
  const FilterRule admission = rule_;
  const uint32_t n = n_without_row_[g];

  uint32_t first = 0;
  const uint32_t taken = RowsToTake(g);
  if (taken > 0) {
    const uint32_t from_quota = std::min(taken, row_quota_[g]);
    if (!store_.arena().Take(taken, from_quota, &first)) return false;
    row_quota_[g] -= from_quota;
  }

  const RowArena::View view = store_.view();
  Stripe::RowSource source(view, first);
  uint32_t n_sketched = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kBucketsAhead < n) {
      const uint32_t later = without_row[i + kBucketsAhead];
      if (rows[later] == kToAdmit || sketch == nullptr) {
        PrefetchLines(stripes_.Home(keys[later]), sizeof(Bucket));
      }
    }
    const uint32_t u = without_row[i];
    Stripe& stripe = stripes_.Of(keys[u]);
    const bool admitted = rows[u] == kToAdmit;
    all_have_rows_[g] &= admitted;
    if (!entries[u].found()) {
      if (sketch != nullptr && !admitted) {
        uint32_t& count = estimate_[begin + u];
        count = admission.CountAfterBatch(count, Occurrences(g, u));
        without_row[n_sketched++] = u;  // Read already: n_sketched <= i.
        continue;
      }
      entries[u] = stripe.Insert(keys[u]);
      if (sketch != nullptr) entries[u].count() = estimate_[begin + u];
    }
    if (!admitted) continue;
    rows[u] = source.Next(&stripe);
    entries[u].row() = rows[u];
    store_.InitializeRow(keys[u], view.Row(rows[u]));
    if (stripe.tier() != nullptr) {
      stripe.tier()->SpareNew(StripeOf(MixKey(keys[u])), rows[u]);
    }
  }
  if (n_sketched > 0) {
    sketch->Raise(keys, without_row, n_sketched, estimate_ + begin,
                  stripes_.tracks_changes());
  }
  ForEachStripe(stripes_of_[g], [this](int s) {
    stripes_[s].AddToKeys(needs_[s].entries);
    stripes_[s].AddToRows(needs_[s].rows);
  });
  return true;
}

void BatchApply::UpdateRows(int g) {
  const uint64_t frozen = stripes_.frozen_stripes() & stripes_of_[g];
  ForEachStripe(frozen, [this](int s) { stripes_[s].SaveFrozenValues(); });
  if (list_ != nullptr && SumsOf(*list_)) {
    all_have_rows_[g] ? UpdateList<true>() : UpdateList<false>();
  } else {
    all_have_rows_[g] ? UpdateTiles<true>(g) : UpdateTiles<false>(g);
  }
  ForEachStripe(frozen, [this](int s) { stripes_[s].RestoreFrozenValues(); });
}

template <bool kAllHaveRows>
void BatchApply::UpdateTiles(int g) {
  const uint32_t begin = part_.begin[g];
  const uint32_t unique = unique_[g];
  const EntryRef* entries = entry_ + begin;
  const uint32_t* rows = row_ + begin;
  const uint32_t* end = end_ + begin;
  const uint32_t* occurrences = grouped_ + begin;
  const uint32_t n = part_.size_of(g);
  const RowArena::View view = store_.view();
  const int dim = store_.dim();
  const size_t stride = static_cast<size_t>(dim);
  const size_t row_bytes = store_.row_bytes();
  const bool each = update_->per_occurrence();
  const Stamp stamp = {rule_, batch_.version, stripes_.tracks_changes()};

  alignas(kCacheLine) float small_sums[kTileFloats];
  float* sums = stride > kTileFloats ? wide_sums_ + g * stride : small_sums;
  const size_t tile_rows =
      each ? kTileRows
           : std::max<size_t>(1, std::min(kTileRows, kTileFloats / stride));
  float* tile[kTileRows];
  const float* tile_grads[kTileRows];
  size_t filled = 0;
  const auto flush = [&] {
    if (filled > 0) update_->Update(tile, tile_grads, filled, dim);
    filled = 0;
  };

  uint32_t fetched_rows = 0;
  uint32_t fetched = 0;  // Occurrences whose gradients were prefetched.
  uint32_t at = 0;
  for (uint32_t u = 0; u < unique; ++u) {
    const uint32_t rows_end = std::min(unique, u + kRowsAhead + 1);
    for (; fetched_rows < rows_end; ++fetched_rows) {
      if (kAllHaveRows || entries[fetched_rows].found()) {
        PrefetchLine(entries[fetched_rows].bucket()->version);
      }
      if (kAllHaveRows || rows[fetched_rows] != HashIndex::kNoRow) {
        PrefetchLines(view.Row(rows[fetched_rows]), row_bytes);
      }
    }
    const uint32_t stop = end[u];
    // SumOccurrences prefetches for a long run of one key.
    fetched = std::max(fetched, at);
    const uint32_t fetch =
        std::min(n, std::min(stop, at + kGradsAhead) + kGradsAhead);
    for (; fetched < fetch; ++fetched) {
      if (occurrences[fetched] < batch_.n) {
        PrefetchLines(batch_.grads + occurrences[fetched] * stride,
                      stride * sizeof(float));
      }
    }

    if (kAllHaveRows || entries[u].found()) {
      stamp(entries[u], CountRange(g, at, stop));
    }
    if (!kAllHaveRows && rows[u] == HashIndex::kNoRow) {
      at = stop;
      continue;
    }

    // Occurrences without a gradient are behind all others of the batch.
    uint32_t with_grad = stop;
    while (with_grad > at && occurrences[with_grad - 1] >= batch_.n) {
      --with_grad;
    }
    float* row = view.Row(rows[u]);
    if (each) {
      for (uint32_t j = at; j < with_grad; ++j) {
        tile[filled] = row;
        tile_grads[filled] = batch_.grads + occurrences[j] * stride;
        if (++filled == tile_rows) flush();
      }
    } else if (with_grad > at) {
      float* sum = sums + filled * stride;
      SumOccurrences(batch_.grads, occurrences + at, with_grad - at, dim, sum);
      tile[filled] = row;
      tile_grads[filled] = sum;
      if (++filled == tile_rows) flush();
    }
    at = stop;
  }
  flush();
}

template <bool kAllHaveRows>
void BatchApply::UpdateList() {
  const uint32_t unique = unique_[0];
  const uint32_t n = static_cast<uint32_t>(batch_.n);
  const uint16_t* position = list_->position();
  const EntryRef* entries = entry_;
  const uint32_t* rows = row_;
  const RowArena::View view = store_.view();
  const int dim = store_.dim();
  const size_t stride = static_cast<size_t>(dim);
  const size_t row_bytes = store_.row_bytes();
  const bool each = update_->per_occurrence();
  const Stamp stamp = {rule_, batch_.version, stripes_.tracks_changes()};
  const auto has_row = [rows](uint32_t u) {
    return kAllHaveRows || rows[u] != HashIndex::kNoRow;
  };

  // Rows come while gradients are summed.
  alignas(kCacheLine) float sums[kListFloats];
  if (!each) std::fill_n(sums, unique * stride, 0.0f);
  uint32_t fetched = 0;
  for (uint32_t i = 0; i < n; i += kListBlock) {
    const uint32_t size = std::min(kListBlock, n - i);
    const uint64_t fetch = uint64_t{i + size} * unique / n;
    for (; fetched < fetch; ++fetched) {
      if (kAllHaveRows || entries[fetched].found()) {
        PrefetchLine(entries[fetched].bucket()->version);
      }
      if (has_row(fetched)) PrefetchLines(view.Row(rows[fetched]), row_bytes);
    }
    if (each) continue;
    AddIndexedRows(batch_.grads + i * stride, position + i, size, dim, sums);
  }

  float* tile[kTileRows];
  const float* tile_grads[kTileRows];
  size_t filled = 0;
  const auto flush = [&] {
    if (filled > 0) update_->Update(tile, tile_grads, filled, dim);
    filled = 0;
  };
  const auto update = [&](uint32_t u, const float* grad) {
    if (!has_row(u)) return;
    tile[filled] = view.Row(rows[u]);
    tile_grads[filled] = grad;
    if (++filled == kTileRows) flush();
  };
  uint32_t at = 0;
  for (uint32_t u = 0; u < unique; ++u) {
    if (kAllHaveRows || entries[u].found()) {
      stamp(entries[u], CountRange(0, at, end_[u]));
    }
    at = end_[u];
    if (!each) update(u, sums + u * stride);
  }
  for (uint32_t i = 0; each && i < n; ++i) {
    update(position[i], batch_.grads + i * stride);
  }
  flush();
}

}  // namespace rec_estimator
