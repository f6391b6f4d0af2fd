// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/batch_insert.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_arena.h"

namespace rec_estimator {

bool BatchInsert::Run() {
  part_.head = batch_.keys;
  part_.n_head = part_.n = batch_.n;
  part_.tail = nullptr;
  if (part_.n >= kMaxBatch) return false;
  if (!scratch_.Allocate([this](Layout* layout) { part_.AddTo(layout); })) {
    return false;
  }
  for (uint64_t b = 0; b < part_.blocks(); ++b) part_.SortBlock(b);
  part_.EndSort();

  // Each thread begins at another stripe. Otherwise two threads that restore
  // one table would wait for each other's locks all the time.
  const int first = static_cast<int>(MixKey(batch_.keys[0]) % kStripes);
  const auto stripe_at = [first](int i) { return (first + i) % kStripes; };
  uint64_t rows = 0;
  bool reserved = true;
  for (int i = 0; i < kStripes; ++i) {
    const int s = stripe_at(i);
    if (reserved && part_.size_of(s) > 0) {
      const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
      reserved = ReserveQuota(s);
    }
    rows += quota_[s].rows;
  }
  if (rows_first_) {
    reserved = reserved && WriteRows();
  } else {
    reserved = reserved && store_.arena().ReserveQuota(rows);
    row_quota_ = reserved ? rows : 0;
  }
  bool inserted = reserved;
  for (int i = 0; i < kStripes; ++i) {
    const int s = stripe_at(i);
    Stripe& stripe = stripes_[s];
    if (reserved && part_.size_of(s) > 0) {
      const std::unique_lock<SharedMutex> lock(stripe.mutex());
      inserted = InsertAll(s) && inserted;
    }
    stripe.ReleaseQuota(quota_[s].entries, quota_[s].sketched);
  }
  store_.arena().ReleaseQuota(row_quota_);
  return inserted;
}

template <typename Visit>
void BatchInsert::FindAll(int s, const Visit& visit) const {
  const Stripe& stripe = stripes_[s];
  part_.ForEachRun(s, [&](const Occurrence* run, uint32_t n) {
    // Both lines of a bucket: a new entry also writes the second.
    const auto prefetch = [&](uint32_t begin) {
      const uint32_t end = std::min(n, begin + kFound);
      for (uint32_t i = begin; i < end; ++i) {
        PrefetchLines(stripe.index().Home(HashKey(run[i].key)), sizeof(Bucket));
      }
    };
    int64_t keys[kFound];
    prefetch(0);
    for (uint32_t at = 0; at < n; at += kFound) {
      prefetch(at + kFound);
      const uint32_t size = std::min(n - at, kFound);
      for (uint32_t i = 0; i < size; ++i) keys[i] = run[at + i].key;
      stripes_.FindEach(keys, size, [&](uint32_t i, EntryRef entry) {
        visit(run[at + i], entry);
      });
    }
  });
}

StripeNeeds BatchInsert::CountNeeds(int s) const {
  StripeNeeds needs;
  FindAll(s, [&](const Occurrence& one, EntryRef entry) {
    const bool row = OwnsRow(CountAt(one.index));
    const bool in_sketch = !entry.found() && CountsInSketch(row);
    needs.entries += !entry.found() && !in_sketch;
    needs.rows += row && (!entry.found() || !entry.in_memory());
    needs.sketched += in_sketch;
  });
  return needs;
}

bool BatchInsert::ReserveQuota(int s) {
  Stripe& stripe = stripes_[s];
  const uint32_t n = part_.size_of(s);
  if (AllGetEntries() && stripe.ReserveQuota(n, 0)) {
    quota_[s] = {n, n, 0};
    return true;
  }
  if (AllGetEntries()) stripe.ReleaseQuota(n, 0);
  quota_[s] = CountNeeds(s);
  return stripe.ReserveQuota(quota_[s].entries, quota_[s].sketched) ||
         stripe.GrowToQuota();
}

bool BatchInsert::WriteRows() {
  if (!store_.arena().Take(part_.n, 0, &first_row_)) return false;
  const RowArena::View view = store_.view();
  for (uint32_t i = 0; i < part_.n; ++i) {
    SetRow(batch_.keys[i], i, StreamRow, view.Row(first_row_ + i));
  }
  EndStreams();
  return true;
}

bool BatchInsert::InsertAll(int s) {
  Stripe& stripe = stripes_[s];
  // There is room, unless another thread cleared the table since ReserveQuota.
  // InsertOne must not make it: FindEach would go on in the old index.
  if (!AllGetEntries() || !stripe.HasRoom({part_.size_of(s), 0, 0})) {
    if (!stripe.MakeRoom(CountNeeds(s))) return false;
  }
  tracking_ = stripe.tracks_changes();
  run_rows_ = 0;
  bool done = true;
  part_.ForEachRun(s, [&](const Occurrence* run, uint32_t n) {
    for (uint32_t i = 0; i < std::min(n, kBucketsAhead); ++i) {
      PrefetchBucket(stripe, run[i].key);
    }
    for (uint32_t i = 0; !rows_first_ && i < std::min(n, kRowsAhead); ++i) {
      PrefetchRow(run[i].index);
    }
    for (uint32_t i = 0; i < n; ++i) {
      if (n - i > kBucketsAhead) {
        PrefetchBucket(stripe, run[i + kBucketsAhead].key);
      }
      if (rows_first_) {
        InsertWritten(s, run[i].key, run[i].index);
        continue;
      }
      if (n - i > kRowsAhead) PrefetchRow(run[i + kRowsAhead].index);
      done = InsertOne(s, run[i].key, run[i].index) && done;
    }
  });
  for (; run_rows_ > 0; --run_rows_) stripe.FreeRow(next_row_++);
  return done;
}

void BatchInsert::PrefetchBucket(const Stripe& stripe, int64_t key) {
  // Both lines: a new entry also writes the second.
  PrefetchLines(stripe.index().Home(HashKey(key)), sizeof(Bucket));
}

void BatchInsert::PrefetchRow(size_t i) const {
  const auto prefetch = [i](const float* rows, size_t width) {
    if (rows != nullptr) PrefetchLines(rows + i * width, width * sizeof(float));
  };
  prefetch(batch_.values, static_cast<size_t>(store_.dim()));
  for (size_t t = 0; t < batch_.slots.size(); ++t) {
    prefetch(batch_.slots[t], static_cast<size_t>(store_.slots()[t].width));
  }
}

bool BatchInsert::InsertOne(int s, int64_t key, uint32_t i) {
  Stripe& stripe = stripes_[s];
  EntryRef entry = stripe.Find(key);
  const bool is_new = !entry.found();
  const bool had_row = !is_new && entry.has_row();
  const uint32_t count = CountAt(i);
  // A row on disk is overwritten as a whole, so it need not be read.
  const bool is_spilled = had_row && entry.is_spilled() && mode_ == kRows;
  const bool needs_row = is_spilled || (!had_row && OwnsRow(count));
  if (is_new && CountsInSketch(needs_row)) {
    const uint32_t first = 0;
    stripes_.mutable_sketch()->Raise(&key, &first, 1, &count, tracking_);
    return true;
  }
  if (needs_row && stripe.n_free_rows() == 0 && run_rows_ == 0 && !TakeRun(s)) {
    return false;
  }
  const RowArena::View view = store_.view();
  if (is_new) {
    entry = stripe.Insert(key);
    stripe.AddToKeys(1);
  }
  if (needs_row) {
    const bool from_run = stripe.n_free_rows() == 0;
    if (is_spilled) stripe.FreeSpilledRow(entry);
    entry.row() = Stripe::RowSource(view, next_row_).Next(&stripe);
    next_row_ += from_run;
    run_rows_ -= from_run;
    stripe.AddToRows(is_spilled ? 0 : 1);
  }
  if (needs_row || mode_ == kRows)
    SetRow(key, i, CopyRow, view.Row(entry.row()));
  SetCounts(entry, i);
  return true;
}

void BatchInsert::InsertWritten(int s, int64_t key, uint32_t i) {
  Stripe& stripe = stripes_[s];
  EntryRef entry = stripe.Find(key);
  if (!entry.found()) {
    entry = stripe.Insert(key);
    stripe.AddToKeys(1);
  }
  const uint32_t written = first_row_ + i;
  if (!entry.has_row()) {
    entry.row() = written;
    stripe.AddToRows(1);
  } else {
    const RowArena::View view = store_.view();
    std::copy_n(view.Row(written), store_.arena().row_floats(),
                view.Row(entry.row()));
    stripe.FreeRow(written);
  }
  SetCounts(entry, i);
}

void BatchInsert::SetCounts(EntryRef entry, uint32_t i) const {
  entry.count() = CountAt(i);
  entry.version() = batch_.versions != nullptr ? batch_.versions[i] : -1;
  if (tracking_) entry.MarkChanged();
}

bool BatchInsert::TakeRun(int s) {
  constexpr uint32_t kRun = 16;
  const uint32_t from_quota = std::min(kRun, quota_[s].rows);
  const uint32_t n = std::max(from_quota, 1u);
  if (!store_.arena().Take(n, from_quota, &next_row_)) return false;
  quota_[s].rows -= from_quota;
  row_quota_ -= from_quota;
  run_rows_ = n;
  return true;
}

template <typename Copy>
void BatchInsert::SetRow(int64_t key, uint32_t i, const Copy& copy,
                         float* row) const {
  const RowFormat& format = store_.format();
  const float* const value =
      batch_.values == nullptr
          ? nullptr
          : batch_.values + i * static_cast<size_t>(format.dim());
  if (value != nullptr && format.is_narrow()) {
    format.WriteValue(value, row);
  } else {
    copy(value != nullptr ? value : store_.initial().Of(key),
         format.value_words(), row);
  }
  float* slot = row + format.value_words();
  const float* initial = store_.slot_initials().data();
  const std::vector<SlotSpec>& slots = store_.slots();
  for (size_t t = 0; t < slots.size(); ++t) {
    const int width = slots[t].width, words = format.slot_words(width);
    const bool given = t < batch_.slots.size() && batch_.slots[t] != nullptr;
    const float* const from =
        given ? batch_.slots[t] + i * static_cast<size_t>(width) : initial;
    if (given && format.IsNarrowSlot(width)) {
      format.WriteSlot(from, width, slot);
    } else {
      copy(from, words, slot);
    }
    slot += words;
    initial += words;
  }
}

}  // namespace rec_estimator
