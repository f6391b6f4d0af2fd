// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/batch_apply.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <shared_mutex>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/math/gradient_sum.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"

namespace rec_estimator {
namespace {

// Occurrences of the largest batch that is one group
// (docs/core_measurements.md).
constexpr uint64_t kOneGroup = 4096;
// Occurrences of a group up to which its hash table is on the stack.
constexpr uint32_t kSmallDedup = 4096;
// The distance, in keys, at which an apply prefetches buckets.
constexpr uint32_t kBucketsAhead = 16;
// The most rows of one call of RowUpdate::Update, and the most floats of their
// summed gradients, which are on the stack.
constexpr size_t kTileRows = 64;
constexpr size_t kTileFloats = 4096;
// The distance, in rows, at which an update prefetches.
constexpr uint32_t kRowsAhead = 16;
// The distance, in keys, at which a filter prefetches counts.
constexpr uint32_t kCountsAhead = 16;
// The row word of a key that is about to get a row.
constexpr uint32_t kToAdmit = HashIndex::kNoRow - 1;
static_assert(kToAdmit >= HashIndex::kMaxRows, "not the number of a row");

}  // namespace

bool BatchApply::Prepare(const ParallelFor& parallel) {
  part_.head = batch_.keys;
  part_.n_head = batch_.n;
  part_.tail = batch_.counted_keys;
  part_.n = batch_.n + batch_.n_counted;
  if (part_.n >= kMaxBatch) return false;
  part_.groups = part_.n <= kOneGroup ? 1 : kShards;
  const bool has_memory = scratch_.Allocate([this](Layout* layout) {
    part_.AddTo(layout);
    layout->Add(&key_, part_.n);
    layout->Add(&id_, part_.n);
    layout->Add(&grouped_, part_.n);
    layout->Add(&end_, part_.n);
    layout->Add(&entry_, part_.n);
    layout->Add(&row_, part_.n);
    if (shards_.sketch() != nullptr) layout->Add(&estimate_, part_.n);
  });
  if (!has_memory) return false;
  part_.Run(parallel);
  per_group_ = static_cast<int64_t>(part_.n) / part_.groups + 1;
  return AllocateWide();
}

bool BatchApply::AllocateWide() {
  return wide_scratch_.Allocate([this](Layout* layout) {
    for (int g = 0; g < part_.groups; ++g) {
      const uint32_t n = part_.size_of(g);
      dedup_[g] = nullptr;
      if (n > kSmallDedup) layout->Add(&dedup_[g], Partition::DedupSlots(n));
    }
    const size_t dim = static_cast<size_t>(store_.dim());
    if (dim > kTileFloats) layout->Add(&wide_sums_, part_.groups * dim);
  });
}

void BatchApply::Deduplicate(int g) {
  const uint32_t begin = part_.begin[g];
  uint32_t small[2 * kSmallDedup];
  unique_[g] = part_.Deduplicate(
      g, {key_ + begin, id_ + begin, grouped_ + begin, end_ + begin},
      dedup_[g] != nullptr ? dedup_[g] : small);
  shards_of_[g] = part_.groups == 1 ? ShardSet::MaskOf(key_ + begin, unique_[g])
                                    : uint64_t{unique_[g] > 0} << g;
}

int64_t BatchApply::CountNewRows(const ParallelFor& parallel) {
  std::atomic<int64_t> rows{0};
  parallel(part_.groups, per_group_ * 60, [&](int64_t begin, int64_t end) {
    for (int g = static_cast<int>(begin); g < end; ++g) {
      Deduplicate(g);
      const SharedLocks locks(shards_, shards_of_[g]);
      Classify(g);
      ForEachShard(shards_of_[g], [&](int s) { rows += needs_[s].rows; });
    }
  });
  is_deduplicated_ = true;
  return rows;
}

bool BatchApply::Run(const RowUpdate& update, const ParallelFor& parallel) {
  update_ = &update;
  return part_.groups == 1 ? RunAtOnce() : RunByShard(parallel);
}

// ------------------------------------------------------- a group is one shard

bool BatchApply::RunByShard(const ParallelFor& parallel) {
  parallel(kShards, per_group_ * 30, [this](int64_t begin, int64_t end) {
    for (int s = static_cast<int>(begin); s < end; ++s) {
      if (!is_deduplicated_) Deduplicate(s);
      ReserveQuota(s);
    }
  });
  ForEachShard(try_lock_failed_.exchange(0), [this](int s) {
    const std::unique_lock<SharedMutex> lock(shards_[s].mutex());
    GrowToQuota(s);
  });
  uint64_t rows = 0;
  for (const uint32_t quota : row_quota_) rows += quota;
  if (failed_.load() || !store_.arena().ReserveQuota(rows)) {
    for (int s = 0; s < kShards; ++s) ReleaseQuota(s);
    return false;
  }

  const int64_t per_key = 100 + 8 * store_.dim();  // Cycles.
  parallel(kShards, per_group_ * per_key, [this](int64_t begin, int64_t end) {
    for (int s = static_cast<int>(begin); s < end; ++s) {
      if (unique_[s] == 0) continue;
      const std::unique_lock<SharedMutex> lock(shards_[s].mutex(),
                                               std::try_to_lock);
      if (lock.owns_lock()) {
        Update(s);
      } else {
        try_lock_failed_.fetch_or(uint64_t{1} << s);
      }
    }
  });
  ForEachShard(try_lock_failed_.exchange(0), [this](int s) {
    const std::unique_lock<SharedMutex> lock(shards_[s].mutex());
    Update(s);
  });
  uint64_t left = 0;
  for (const uint32_t quota : row_quota_) left += quota;
  store_.arena().ReleaseQuota(left);
  return !failed_.load();
}

void BatchApply::ReserveQuota(int s) {
  const uint32_t unique = unique_[s];
  entry_quota_[s] = row_quota_[s] = sketch_quota_[s] = unique;
  if (unique == 0 || shards_[s].ReserveQuota(unique, unique)) return;
  const std::unique_lock<SharedMutex> lock(shards_[s].mutex(),
                                           std::try_to_lock);
  if (lock.owns_lock()) {
    GrowToQuota(s);
  } else {
    try_lock_failed_.fetch_or(uint64_t{1} << s);
  }
}

void BatchApply::GrowToQuota(int s) {
  Shard& shard = shards_[s];
  // With a sketch few keys enter the index, so room for the new keys of
  // this batch would be too little for all keys of the next one, and every
  // batch would have to count. Therefore all keys get room.
  if (shards_.sketch() == nullptr) {
    uint32_t keys = 0;
    uint32_t rows = 0;
    shards_.FindEach(key_ + part_.begin[s], unique_[s],
                     [&](uint32_t, EntryRef entry) {
                       keys += !entry.found();
                       rows += !entry.found() || !entry.has_row();
                     });
    shard.ReleaseQuota(entry_quota_[s] - keys, 0);
    entry_quota_[s] = keys;
    row_quota_[s] = rows;
    if (keys == 0) return;
  }
  if (!shard.GrowToQuota()) failed_.store(true);
}

void BatchApply::ReleaseQuota(int s) {
  shards_[s].ReleaseQuota(entry_quota_[s], sketch_quota_[s]);
  entry_quota_[s] = sketch_quota_[s] = 0;
}

void BatchApply::Update(int s) {
  Classify(s);
  bool has_room = shards_[s].HasRoom(needs_[s]);
  if (!has_room) {
    has_room = shards_[s].MakeRoom(needs_[s]);
    Classify(s);  // Entries have moved.
  }
  if (has_room && InsertAdmitted(s)) {
    UpdateRows(s);
  } else {
    failed_.store(true);
  }
  ReleaseQuota(s);
}

// --------------------------------------------------- the batch is one group

bool BatchApply::RunAtOnce() {
  if (!is_deduplicated_) Deduplicate(0);
  const ExclusiveLocks locks(shards_, shards_of_[0]);
  Classify(0);
  if (n_without_row_[0] > 0) {
    row_quota_[0] = 0;
    const bool inserted = ReserveNeeds() && InsertAdmitted(0);
    ForEachShard(shards_of_[0], [this](int s) { ReleaseQuota(s); });
    if (!inserted) return false;
  }
  UpdateRows(0);
  return true;
}

bool BatchApply::ReserveNeeds() {
  bool has_grown = false;
  bool has_memory = true;
  ForEachShard(shards_of_[0], [&](int s) {
    Shard& shard = shards_[s];
    entry_quota_[s] = needs_[s].entries;
    sketch_quota_[s] = needs_[s].sketched;
    if (entry_quota_[s] == 0 && sketch_quota_[s] == 0) return;
    if (shard.ReserveQuota(entry_quota_[s], sketch_quota_[s])) return;
    has_memory = shard.GrowToQuota() && has_memory;
    has_grown = true;
  });
  if (has_grown) Classify(0);  // Entries have moved.
  return has_memory;
}

// --------------------------------------------------------------------- either

void BatchApply::Classify(int g) {
  const uint32_t begin = part_.begin[g];
  const int64_t* keys = key_ + begin;
  EntryRef* entries = entry_ + begin;
  uint32_t* rows = row_ + begin;
  uint32_t* without_row = id_ + begin;
  uint32_t n = 0;
  shards_.FindEach(keys, unique_[g], [&](uint32_t u, EntryRef entry) {
    entries[u] = entry;
    rows[u] = entry.found() ? entry.row() : HashIndex::kNoRow;
    without_row[n] = u;
    n += rows[u] == HashIndex::kNoRow;
  });
  all_have_rows_[g] = true;
  const int padding = shards_.padding_shard();
  if (padding >= 0 && (shards_of_[g] >> padding & 1) != 0) {
    n = static_cast<uint32_t>(
        std::remove_if(without_row, without_row + n,
                       [&](uint32_t u) { return keys[u] == kPaddingKey; }) -
        without_row);
    all_have_rows_[g] = false;
  }
  n_without_row_[g] = n;
  ForEachShard(shards_of_[g], [this](int s) { needs_[s] = ShardNeeds(); });
  if (n > 0) DecideAdmission(g, without_row, n);
}

uint32_t BatchApply::RowsToTake(int g) const {
  uint32_t rows = 0;
  ForEachShard(shards_of_[g], [&](int s) {
    const uint32_t freed = shards_[s].n_free_rows();
    rows += needs_[s].rows - std::min(freed, needs_[s].rows);
  });
  return rows;
}

bool BatchApply::InsertAdmitted(int g) {
  Sketch* const sketch = shards_.mutable_sketch();
  const uint32_t begin = part_.begin[g];
  const int64_t* keys = key_ + begin;
  EntryRef* entries = entry_ + begin;
  uint32_t* rows = row_ + begin;
  const uint32_t* end = end_ + begin;
  uint32_t* without_row = id_ + begin;
  const Admission admission = admission_;
  const uint32_t n = n_without_row_[g];
  if (n == 0) return true;

  uint32_t first = 0;
  const uint32_t taken = RowsToTake(g);
  if (taken > 0) {
    const uint32_t from_quota = std::min(taken, row_quota_[g]);
    if (!store_.arena().Take(taken, from_quota, &first)) return false;
    row_quota_[g] -= from_quota;
  }

  const RowArena::View view = store_.view();
  Shard::RowSource source(view, first);
  uint32_t n_sketched = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kBucketsAhead < n) {
      const uint32_t later = without_row[i + kBucketsAhead];
      if (rows[later] == kToAdmit || sketch == nullptr) {
        PrefetchLines(shards_.Home(keys[later]), sizeof(Bucket));
      }
    }
    const uint32_t u = without_row[i];
    Shard& shard = shards_.Of(keys[u]);
    const bool admitted = rows[u] == kToAdmit;
    all_have_rows_[g] &= admitted;
    if (!entries[u].found()) {
      if (sketch != nullptr && !admitted) {
        uint32_t& count = estimate_[begin + u];
        count = admission.CountAfterBatch(count, Occurrences(end, u));
        without_row[n_sketched++] = u;  // Read already: n_sketched <= i.
        continue;
      }
      entries[u] = shard.Insert(keys[u]);
      if (sketch != nullptr) entries[u].count() = estimate_[begin + u];
    }
    if (!admitted) continue;
    rows[u] = source.Next(&shard);
    entries[u].row() = rows[u];
    store_.InitializeRow(keys[u], view.Row(rows[u]));
  }
  if (n_sketched > 0) {
    sketch->Raise(keys, without_row, n_sketched, estimate_ + begin,
                  shards_.tracks_changes());
  }
  ForEachShard(shards_of_[g], [this](int s) {
    shards_[s].AddToKeys(needs_[s].entries);
    shards_[s].AddToRows(needs_[s].rows);
  });
  return true;
}

void BatchApply::DecideAdmission(int g, const uint32_t* without_row,
                                 uint32_t n) {
  const int64_t* keys = key_ + part_.begin[g];
  const EntryRef* entries = entry_ + part_.begin[g];
  uint32_t* rows = row_ + part_.begin[g];
  const uint32_t* end = end_ + part_.begin[g];
  const Admission admission = admission_;
  const auto needs_of = [&](uint32_t u) -> ShardNeeds& {
    return needs_[ShardOf(MixKey(keys[u]))];
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
  const Sketch* const sketch = shards_.sketch();
  const uint32_t* estimates = nullptr;
  if (sketch != nullptr) {
    sketch->Estimate(keys, without_row, n, estimate_ + part_.begin[g]);
    estimates = estimate_ + part_.begin[g];
  }
  const auto fetch = [&](uint32_t i) {
    const uint32_t u = without_row[i];
    if (entries[u].found()) PrefetchLine(entries[u].bucket()->version);
  };
  for (uint32_t i = 0; i < std::min(n, kCountsAhead); ++i) fetch(i);
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kCountsAhead < n) fetch(i + kCountsAhead);
    const uint32_t u = without_row[i];
    const bool found = entries[u].found();
    uint32_t count = 0;
    if (found) {
      count = entries[u].count();
    } else if (estimates != nullptr) {
      count = estimates[u];
    }
    const bool admitted = admission.DecideAdmission(
        admission.CountAfterBatch(count, Occurrences(end, u)));
    if (admitted) rows[u] = kToAdmit;
    ShardNeeds& needs = needs_of(u);
    const bool in_sketch = sketch != nullptr && !found && !admitted;
    needs.sketched += in_sketch;
    needs.rows += admitted;
    needs.entries += !found && !in_sketch;
  }
}

void BatchApply::UpdateRows(int g) {
  const uint64_t frozen = shards_.frozen_shards() & shards_of_[g];
  ForEachShard(frozen, [this](int s) { shards_[s].SaveFrozenValues(); });
  all_have_rows_[g] ? UpdateTiles<true>(g) : UpdateTiles<false>(g);
  ForEachShard(frozen, [this](int s) { shards_[s].RestoreFrozenValues(); });
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
  const Admission admission = admission_;
  const bool each = update_->per_occurrence();
  const bool tracking = shards_.tracks_changes();

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
      entries[u].count() =
          admission.CountAfterBatch(entries[u].count(), stop - at);
      entries[u].version() = batch_.version;
      if (tracking) entries[u].MarkChanged();
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

}  // namespace rec_estimator
