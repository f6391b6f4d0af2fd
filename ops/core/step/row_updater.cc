// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/row_updater.h"

#include <algorithm>
#include <mutex>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/math/gradient_sum.h"
#include "ops/core/math/indexed_rows.h"
#include "ops/core/math/regularization.h"
#include "ops/core/rows/row_arena.h"

namespace rec_estimator {
namespace {

// The distance, in keys, at which an insertion prefetches buckets.
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
// Floats on the stack for widened rows: one of the largest dim with as many
// slots as a rule may have, or many small ones.
constexpr size_t kWideFloats = 8 * size_t{kMaxNarrowDim};

// What an update writes to an entry. A copy of its own, so that the loop need
// not read it again after each write.
struct Stamp {
  const FilterRule rule;
  const int64_t version;
  const bool tracks_changes;

  void operator()(EntryRef entry, uint64_t occurrences) const {
    entry.count() = rule.CountAfterBatch(entry.count(), occurrences);
    entry.version() = version;
    if (tracks_changes) entry.MarkChanged();
  }
};

// Prefetches what an update reads and writes, key after key.
template <bool kAllHaveRows>
class RowPrefetcher {
 public:
  RowPrefetcher(const GroupPlan& plan, const RowStore& store)
      : entries_(plan.entries),
        rows_(plan.rows),
        view_(store.view()),
        row_bytes_(store.row_bytes()) {}

  // Fetches the rows of all keys before `end`.
  void FetchTo(uint32_t end) {
    for (; fetched_ < end; ++fetched_) {
      if (kAllHaveRows || entries_[fetched_].found()) {
        PrefetchLine(entries_[fetched_].bucket()->version);
      }
      if (kAllHaveRows || rows_[fetched_] != HashIndex::kNoRow) {
        PrefetchLines(view_.Row(rows_[fetched_]), row_bytes_);
      }
    }
  }

 private:
  const EntryRef* const entries_;
  const uint32_t* const rows_;
  const RowArena::View view_;
  const size_t row_bytes_;
  uint32_t fetched_ = 0;
};

// The two sources of gradients have the same methods, in this order for each
// key u, whose occurrences are [begin, end) of KeyGroup::grouped:
//   Fetch       prefetches for this key and the next ones
//   AddTo       calls add(row, gradient) for what updates the key's row
// and once, after all keys:
//   AddRestTo   calls add(u, gradient) for what is left

// The gradients of a key are summed when its row is updated.
template <bool kAllHaveRows>
class GradientsByKey {
 public:
  // sums (tile_rows, dim): memory for a tile of sums.
  GradientsByKey(const StepBatch& batch, const KeyGroup& group,
                 const GroupPlan& plan, const RowStore& store, bool each,
                 float* sums, size_t tile_rows)
      : rows_(plan, store),
        grads_(batch.grads),
        n_grads_(batch.n),
        occurrences_(group.grouped),
        n_(group.n),
        unique_(group.size),
        dim_(store.dim()),
        each_(each),
        l2_scale_(batch.regularization.l2_scale),
        sums_(sums),
        tile_rows_(tile_rows) {}

  size_t tile_rows() const { return tile_rows_; }

  void Fetch(uint32_t u, uint32_t begin, uint32_t end) {
    rows_.FetchTo(std::min(unique_, u + kRowsAhead + 1));
    // SumOccurrences prefetches for a long run of one key.
    fetched_ = std::max(fetched_, begin);
    const uint32_t fetch =
        std::min(n_, std::min(end, begin + kGradsAhead) + kGradsAhead);
    for (; fetched_ < fetch; ++fetched_) {
      if (occurrences_[fetched_] < n_grads_) {
        PrefetchLines(Of(fetched_), stride() * sizeof(float));
      }
    }
  }

  // filled: the rows in the tile.
  template <typename Add>
  void AddTo(uint32_t, uint32_t begin, uint32_t end, size_t filled, float* row,
             const Add& add) {
    // Occurrences without a gradient are behind all others of the batch.
    while (end > begin && occurrences_[end - 1] >= n_grads_) --end;
    if (each_) {
      for (; begin < end; ++begin) add(row, Of(begin));
    } else if (end > begin) {
      float* const sum = sums_ + filled * stride();
      SumOccurrences(grads_, occurrences_ + begin, end - begin, dim_, sum);
      if (l2_scale_ != 0.0f) AddL2Gradient(row, l2_scale_, dim_, sum);
      add(row, sum);
    }
  }

  template <typename Add>
  void AddRestTo(const Add&) const {}

 private:
  size_t stride() const { return static_cast<size_t>(dim_); }
  const float* Of(uint32_t occurrence) const {
    return grads_ + occurrences_[occurrence] * stride();
  }

  RowPrefetcher<kAllHaveRows> rows_;
  const float* const grads_;
  const size_t n_grads_;
  const uint32_t* const occurrences_;
  const uint32_t n_;
  const uint32_t unique_;
  const int dim_;
  const bool each_;  // RowUpdater::updates_each
  const float l2_scale_;
  float* const sums_;
  const size_t tile_rows_;
  uint32_t fetched_ = 0;  // Occurrences whose gradients were prefetched.
};

// The gradients of a short list are summed in batch order, before any row is
// updated. Rows come from memory meanwhile.
class GradientsOfList {
 public:
  // positions: KeyGroups::positions. sums (unique, dim): memory for the sums.
  template <bool kAllHaveRows>
  GradientsOfList(const StepBatch& batch, const uint16_t* positions,
                  uint32_t unique, RowPrefetcher<kAllHaveRows> rows, int dim,
                  bool each, float* sums)
      : grads_(batch.grads),
        n_(static_cast<uint32_t>(batch.n)),
        positions_(positions),
        dim_(dim),
        stride_(static_cast<size_t>(dim)),
        each_(each),
        l2_scale_(batch.regularization.l2_scale),
        sums_(sums) {
    if (!each) std::fill_n(sums, unique * stride_, 0.0f);
    for (uint32_t i = 0; i < n_; i += kListBlock) {
      const uint32_t size = std::min(kListBlock, n_ - i);
      rows.FetchTo(static_cast<uint32_t>(uint64_t{i + size} * unique / n_));
      if (each) continue;
      AddIndexedRows(grads_ + i * stride_, positions + i, size, dim, sums);
    }
  }

  static constexpr size_t tile_rows() { return kTileRows; }

  void Fetch(uint32_t, uint32_t, uint32_t) const {}

  template <typename Add>
  void AddTo(uint32_t u, uint32_t, uint32_t, size_t, float* row,
             const Add& add) const {
    if (each_) return;
    float* const sum = sums_ + u * stride_;
    if (l2_scale_ != 0.0f) AddL2Gradient(row, l2_scale_, dim_, sum);
    add(row, sum);
  }

  template <typename Add>
  void AddRestTo(const Add& add) const {
    if (!each_) return;
    for (uint32_t i = 0; i < n_; ++i) add(positions_[i], grads_ + i * stride_);
  }

 private:
  const float* const grads_;
  const uint32_t n_;
  const uint16_t* const positions_;
  const int dim_;
  const size_t stride_;
  const bool each_;  // RowUpdater::updates_each
  const float l2_scale_;
  float* const sums_;
};

// The two ways to get at rows have the same methods:
//   is_full     whether Close must come before the next Open
//   Open        the value of key u's row, then its slots, as floats
//   Close       stores all opened rows after their update

// Rows of floats are updated where they are.
class RowsInPlace {
 public:
  RowsInPlace(const GroupPlan& plan, const RowStore& store)
      : rows_(plan.rows), view_(store.view()) {}

  static constexpr bool is_full() { return false; }
  float* Open(uint32_t u) const { return view_.Row(rows_[u]); }
  void Close() const {}

 private:
  const uint32_t* const rows_;
  const RowArena::View view_;
};

// Rows with values or slots of 16 bits are widened, and rounded when they are
// closed. A row that no gradient has changed stays as it is. Each key that has
// a row is opened once, in order, before its entry is stamped.
class WidenedRows {
 public:
  // wide (kWideFloats): memory for opened rows. tile_rows: the most rows that
  // are opened before Close.
  WidenedRows(const KeyGroup& group, const GroupPlan& plan,
              const RowStore& store, const RowUpdate& update, int64_t version,
              size_t tile_rows, float* wide)
      : keys_(group.keys),
        size_(group.size),
        entries_(plan.entries),
        rows_(plan.rows),
        store_(store),
        view_(store.view()),
        version_(version),
        wide_(wide),
        n_slots_(static_cast<size_t>(update.slots())),
        stride_(static_cast<size_t>(store.dim())) {
    for (size_t s = 0; s < n_slots_; ++s) {
      stride_ += static_cast<size_t>(store.slots()[s].width);
    }
    // Rows begin at a multiple of a Float8, as loads and stores of one line are
    // faster.
    stride_ = (stride_ + kFloat8 - 1) / kFloat8 * kFloat8;
    most_ = std::min(tile_rows, kWideFloats / stride_);
  }

  bool is_full() const { return n_ == most_; }

  float* Open(uint32_t u) {
    if (n_ == n_widened_) WidenFrom(u);
    return wide_ + n_++ * stride_;
  }

  void Close() {
    store_.format().WithTrained([this](
        const auto& format) __attribute__((always_inline)) {
      const float* wide = wide_;
      for (size_t i = 0, n = n_; i < n; ++i, wide += stride_) {
        store_.WriteTrainedRow(format, wide, n_slots_, noise_[i], stored_[i]);
      }
    });
    n_ = n_widened_ = 0;
  }

 private:
  // Widens the rows of key u and the next ones, fewer than are prefetched. None
  // is left when the tile is full.
  void WidenFrom(uint32_t u) {
    const uint32_t end = std::min(size_, u + kRowsAhead / 2);
    const size_t first = n_widened_;
    for (; u < end && n_widened_ < most_; ++u) {
      if (rows_[u] == HashIndex::kNoRow) continue;
      stored_[n_widened_] = view_.Row(rows_[u]);
      noise_[n_widened_++] =
          store_.format().NoiseOf(keys_[u], version_, entries_[u].count());
    }
    store_.format().WithTrained(
        [ this, first ](const auto& format) __attribute__((always_inline)) {
          for (size_t i = first; i < n_widened_; ++i) {
            store_.ReadRow(format, stored_[i], n_slots_, wide_ + i * stride_);
          }
        });
  }

  const int64_t* const keys_;
  const uint32_t size_;
  const EntryRef* const entries_;
  const uint32_t* const rows_;
  const RowStore& store_;
  const RowArena::View view_;
  const int64_t version_;
  float* const wide_;
  const size_t n_slots_;  // The slots that the rule updates.
  size_t stride_;         // Floats from one widened row to the next.
  size_t most_ = 0;
  size_t n_ = 0;          // Opened rows.
  size_t n_widened_ = 0;  // These and the next ones.
  float* stored_[kTileRows];
  uint64_t noise_[kTileRows];
};

}  // namespace

bool RowUpdater::SumsInBatchOrder(uint32_t n_distinct, int dim) {
  return n_distinct * static_cast<size_t>(dim) <= kListFloats;
}

void RowUpdater::AddTo(Layout* layout) {
  const size_t dim = static_cast<size_t>(store_.dim());
  if (dim > kTileFloats) {
    layout->Add(&wide_sums_, static_cast<size_t>(keys_.size()) * dim);
  }
}

bool RowUpdater::TryUpdate(int g, bool* done) {
  const ExclusiveLocks locks(stripes_, keys_[g].stripes, std::try_to_lock);
  if (locks.owns_all()) *done = UpdateLocked(g);
  return locks.owns_all();
}

void RowUpdater::Update(int g, bool* done) {
  const ExclusiveLocks locks(stripes_, keys_[g].stripes);
  *done = UpdateLocked(g);
}

bool RowUpdater::UpdateLocked(int g) {
  plan_.Refresh(g);
  const GroupPlan& plan = plan_[g];
  if (plan.n_spilled > 0) return false;  // Impossible while the keys are held.
  bool has_grown = false;
  if (plan.n_without_row > 0 &&
      !(plan_.MakeRoom(g, &has_grown) && InsertAdmitted(g))) {
    return false;
  }
  UpdateRows(g);
  if (!has_grown) {
    ForEachStripe(keys_[g].stripes,
                  [this](int s) { stripes_[s].LeaveInPlace(); });
  }
  return true;
}

bool RowUpdater::InsertAdmitted(int g) {
  const KeyGroup& group = keys_[g];
  GroupPlan& plan = plan_[g];
  Sketch* const sketch = stripes_.mutable_sketch();
  const int64_t* const keys = group.keys;
  EntryRef* const entries = plan.entries;
  uint32_t* const rows = plan.rows;
  uint32_t* const without_row = plan.without_row;
  const FilterRule rule = rule_;
  const uint32_t n = plan.n_without_row;

  uint32_t first = 0;
  if (!plan_.TakeRows(g, &first)) return false;
  const RowArena::View view = store_.view();
  Stripe::RowSource source(view, first);
  uint32_t n_sketched = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kBucketsAhead < n) {
      const uint32_t later = without_row[i + kBucketsAhead];
      if (rows[later] == GroupPlan::kToAdmit || sketch == nullptr) {
        PrefetchLines(stripes_.Home(keys[later]), sizeof(Bucket));
      }
    }
    const uint32_t u = without_row[i];
    Stripe& stripe = stripes_.Of(keys[u]);
    const bool admitted = rows[u] == GroupPlan::kToAdmit;
    plan.all_have_rows &= admitted;
    if (!entries[u].found()) {
      if (sketch != nullptr && !admitted) {
        uint32_t& count = plan.estimates[u];
        count = rule.CountAfterBatch(count, group.Count(u));
        without_row[n_sketched++] = u;  // Read already: n_sketched <= i.
        continue;
      }
      entries[u] = stripe.Insert(keys[u]);
      if (sketch != nullptr) entries[u].count() = plan.estimates[u];
    } else if (admitted) {
      entries[u].version() = -1;  // The row is new, although the key is not.
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
    sketch->Raise(keys, without_row, n_sketched, plan.estimates,
                  stripes_.tracks_changes());
  }
  ForEachStripe(group.stripes, [this](int s) {
    stripes_[s].AddToKeys(plan_.needs(s).entries);
    stripes_[s].AddToRows(plan_.needs(s).rows);
  });
  return true;
}

void RowUpdater::UpdateRows(int g) {
  const uint64_t frozen = stripes_.frozen_stripes() & keys_[g].stripes;
  ForEachStripe(frozen, [this](int s) { stripes_[s].SaveFrozenValues(); });
  const bool all_have_rows = plan_[g].all_have_rows;
  if (keys_.positions() != nullptr &&
      SumsInBatchOrder(keys_[g].size, store_.dim())) {
    all_have_rows ? UpdateFromList<true>(g) : UpdateFromList<false>(g);
  } else {
    all_have_rows ? UpdateByKey<true>(g) : UpdateByKey<false>(g);
  }
  ForEachStripe(frozen, [this](int s) { stripes_[s].RestoreFrozenValues(); });
}

template <bool kAllHaveRows>
void RowUpdater::UpdateFromList(int g) {
  alignas(kCacheLine) float sums[kListFloats];
  UpdateWith<kAllHaveRows>(
      g, GradientsOfList(batch_, keys_.positions(), keys_[g].size,
                         RowPrefetcher<kAllHaveRows>(plan_[g], store_),
                         store_.dim(), updates_each(), sums));
}

template <bool kAllHaveRows>
void RowUpdater::UpdateByKey(int g) {
  const size_t dim = static_cast<size_t>(store_.dim());
  const bool each = updates_each();
  alignas(kCacheLine) float small_sums[kTileFloats];
  float* const sums = dim > kTileFloats
                          ? wide_sums_ + static_cast<size_t>(g) * dim
                          : small_sums;
  const size_t tile_rows =
      each ? kTileRows
           : std::max<size_t>(1, std::min(kTileRows, kTileFloats / dim));
  UpdateWith<kAllHaveRows>(
      g, GradientsByKey<kAllHaveRows>(batch_, keys_[g], plan_[g], store_, each,
                                      sums, tile_rows));
}

template <bool kAllHaveRows, typename Gradients>
void RowUpdater::UpdateWith(int g, Gradients gradients) {
  if (updates_floats()) {
    return UpdateOpened<kAllHaveRows>(g, gradients,
                                      RowsInPlace(plan_[g], store_));
  }
  alignas(kCacheLine) float wide[kWideFloats];
  UpdateOpened<kAllHaveRows>(
      g, gradients,
      WidenedRows(keys_[g], plan_[g], store_, *update_, batch_.version,
                  gradients.tile_rows(), wide));
}

template <bool kAllHaveRows, typename Gradients, typename Rows>
void RowUpdater::UpdateOpened(int g, Gradients gradients, Rows opened) {
  const KeyGroup group = keys_[g];
  const EntryRef* const entries = plan_[g].entries;
  const uint32_t* const rows = plan_[g].rows;
  const int dim = store_.dim();
  const Stamp stamp = {rule_, batch_.version, stripes_.tracks_changes()};
  const RowDecay decay(batch_.regularization.decay_rate);
  const auto has_row = [rows](uint32_t u) {
    return kAllHaveRows || rows[u] != HashIndex::kNoRow;
  };

  float* tile[kTileRows];
  const float* tile_grads[kTileRows];
  size_t filled = 0;
  const auto flush = [&] {
    if (filled > 0) update_->Update(tile, tile_grads, filled, dim);
    filled = 0;
    opened.Close();
  };
  const auto add = [&](float* row, const float* grad) {
    tile[filled] = row;
    tile_grads[filled] = grad;
    if (++filled == gradients.tile_rows()) flush();
  };
  uint32_t at = 0;
  for (uint32_t u = 0; u < group.size; ++u) {
    const uint32_t end = group.end[u];
    gradients.Fetch(u, at, end);
    float* row = nullptr;
    if (has_row(u)) {
      if (opened.is_full()) flush();
      row = opened.Open(u);
      if (decay.is_on()) {
        const int64_t last = entries[u].version();
        RowDecay::Apply(decay.Part(last, batch_.version), dim, row);
      }
    }
    if (kAllHaveRows || entries[u].found()) {
      stamp(entries[u], group.Count(at, end));
    }
    if (has_row(u)) gradients.AddTo(u, at, end, filled, row, add);
    at = end;
  }
  gradients.AddRestTo([&](uint32_t u, const float* grad) {
    if (has_row(u)) add(opened.Open(u), grad);
  });
  flush();
}

}  // namespace rec_estimator
