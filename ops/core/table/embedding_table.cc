// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/embedding_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/evict/capacity.h"
#include "ops/core/evict/eviction.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch_admission.h"
#include "ops/core/step/batch_insert.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/training_step.h"
#include "ops/core/stripes/row_budget.h"
#include "ops/core/stripes/stripe.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/table/row_lookup.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

// Splitting a smaller lookup over threads costs more than it gains.
constexpr uint64_t kSerialBelow = 2048;

// Copies the values of keys (n), n <= kLockBlock, to out, those on disk too. If
// hints are given, they are for a lookup in which these keys begin at `at`.
void CopyValues(const StripeSet& stripes, const RowStore& store, DiskTier* tier,
                UnknownKey unknown, const int64_t* changing_keys, size_t n,
                float* out, const RowHints* hints = nullptr, size_t at = 0) {
  // Another thread may write to the keys of a lookup (read_once.h).
  int64_t keys[kLockBlock];
  std::copy_n(changing_keys, n, keys);
  std::optional<PinnedRows> pinned;
  {
    const SharedLocks locks(stripes, StripesOf(keys, n));
    RowLookup lookup(stripes, store, unknown);
    const bool has_rows = hints != nullptr && hints->AreRowsInPlace(stripes);
    lookup.Copy(keys, n, out, has_rows ? hints->rows() + at : nullptr);
    if (lookup.spilled().empty()) return;
    pinned.emplace(tier);
    lookup.PinSpilled(out, &*pinned);
  }
  tier->ReadForLookup(*pinned);
}

// All keys of an array.
class KeyArray final : public KeyHolder {
 public:
  KeyArray(DiskTier* tier, const int64_t* keys, size_t n)
      : tier_(*tier), keys_{keys, static_cast<uint32_t>(n)} {
    tier_.Hold(this);
  }
  ~KeyArray() { tier_.Release(this); }
  Keys KeysIn(int) const override { return keys_; }

 private:
  DiskTier& tier_;
  const Keys keys_;
};

}  // namespace

EmbeddingTable::EmbeddingTable(int dim, float default_value,
                               const FilterSpec& filter, const RowRules& rules)
    : dim_(dim),
      filter_(filter),
      rules_(rules),
      rule_(filter),
      store_(new RowStore(dim, default_value, rules.value)),
      stripes_(new StripeSet(store_.get(), filter, rules)),
      budget_(new RowBudget(*stripes_, rules.max_rows)),
      capacity_(rules.capacity.max_rows > 0
                    ? new Capacity(rules.capacity, stripes_.get(), store_.get(),
                                   nullptr)
                    : nullptr) {}

EmbeddingTable::~EmbeddingTable() = default;

void EmbeddingTable::Clear() {
  const ExclusiveLocks locks(*stripes_, kAllStripes);
  for (Stripe& stripe : *stripes_) stripe.Clear();
  stripes_->set_tracks_changes(false);
  if (stripes_->sketch() != nullptr) stripes_->mutable_sketch()->Clear();
  store_->Clear();
  if (tier_ != nullptr) tier_->Clear();
}

void EmbeddingTable::ShareMemory(std::shared_ptr<MemoryBudget> budget) {
  capacity_.reset(new Capacity(rules_.capacity, stripes_.get(), store_.get(),
                               std::move(budget)));
}

bool EmbeddingTable::OpenTier(const TierSpec& spec, std::unique_ptr<DiskIo> io,
                              DiskError* error) {
  tier_ =
      DiskTier::Open(stripes_.get(), store_.get(), spec, std::move(io), error);
  for (Stripe& stripe : *stripes_) stripe.set_tier(tier_.get());
  return tier_ != nullptr;
}

bool EmbeddingTable::BringInAhead(const std::vector<KeySpan>& lists,
                                  uint32_t batches) {
  DiskError error;
  return tier_ == nullptr || tier_->BringInAhead(lists, batches, &error);
}

void EmbeddingTable::MakeRoomInMemory() {
  DiskError error;
  if (tier_ != nullptr && !tier_->SpillExcess(&error)) ThrowStorageError(error);
}

void EmbeddingTable::SpillExcess() {
  // If it fails, the next call of MakeRoomInMemory tells.
  DiskError error;
  if (tier_ != nullptr) tier_->SpillExcess(&error);
}

// --------------------------------------------------------------------- lookup

void EmbeddingTable::Lookup(const int64_t* keys, size_t n, UnknownKey unknown,
                            float* out, const ParallelFor& parallel,
                            const RowHints* hints) const {
  if (n < kSerialBelow) {
    CopyValues(*stripes_, *store_, tier_.get(), unknown, keys, n, out, hints);
    return;
  }
  const int64_t blocks =
      static_cast<int64_t>((n + kLockBlock - 1) / kLockBlock);
  const auto read = [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const size_t at = static_cast<size_t>(block) * kLockBlock;
      CopyValues(*stripes_, *store_, tier_.get(), unknown, keys + at,
                 std::min(kLockBlock, n - at),
                 out + at * static_cast<size_t>(dim_), hints, at);
    }
  };
  // By reference: std::function would allocate memory for this closure.
  parallel(blocks, static_cast<int64_t>(kLockBlock) * CyclesPerKey(),
           std::cref(read));
}

std::shared_ptr<const RowHints> EmbeddingTable::LookupListed(
    std::shared_ptr<const DeduplicatedList> list, UnknownKey unknown,
    float* out, const ParallelFor& parallel) const {
  auto hints = std::make_shared<RowHints>(std::move(list));
  std::optional<PinnedRows> pinned;
  if (tier_ != nullptr) pinned.emplace(tier_.get());
  std::mutex pinned_mutex;
  const auto copy = [&](uint64_t mask, const auto& copy_with) {
    const SharedLocks locks(*stripes_, mask);
    RowLookup lookup(*stripes_, *store_, unknown);
    copy_with(&lookup);
    if (lookup.spilled().empty()) return;
    const std::lock_guard<std::mutex> lock(pinned_mutex);
    lookup.PinSpilled(out, &*pinned);
  };
  if (hints->list()->groups() == nullptr) {
    copy(hints->list()->stripes(),
         [&](RowLookup* lookup) { lookup->CopyListed(hints.get(), out); });
  } else {
    const auto read = [&](int64_t g, int64_t end) {
      for (; g < end; ++g) {
        copy(uint64_t{1} << g, [&](RowLookup* lookup) {
          lookup->CopyGroup(hints.get(), static_cast<int>(g), out);
        });
      }
    };
    const auto keys = static_cast<int64_t>(hints->list()->n());
    parallel(kStripes, keys / kStripes * CyclesPerKey(), std::cref(read));
  }
  if (pinned.has_value() && !pinned->items().empty()) {
    tier_->ReadForLookup(*pinned);
  }
  return hints;
}

// ---------------------------------------------------------------------- apply

bool EmbeddingTable::Apply(const StepBatch& batch, const RowUpdate& update,
                           const ParallelFor& parallel, int64_t* excess_rows) {
  if (excess_rows != nullptr) *excess_rows = 0;
  try {
    TrainingStep step({parts()}, {batch});
    TrainingStep::Outcome outcome = step.Reserve(parallel);
    if (outcome.ok()) {
      const TrainingStep::Gradients gradients = {batch.grads, &update,
                                                 batch.version};
      outcome = step.Apply(&gradients, parallel);
    }
    if (excess_rows != nullptr) *excess_rows = outcome.excess_rows;
    return outcome.ok();
  } catch (const std::bad_alloc&) {  // Thrown by the constructor.
    return false;
  }
}

TableParts EmbeddingTable::parts() const {
  return {store_.get(), stripes_.get(),
          rule_,        rules_.max_rows > 0 ? budget_.get() : nullptr,
          tier_.get(),  capacity_.get()};
}

bool EmbeddingTable::Admits(const int64_t* keys, size_t n, bool* out) const {
  return AdmitsAfterBatch(*stripes_, rule_, keys, n, out);
}

// ------------------------------------------------------- restore and eviction

void EmbeddingTable::Reserve(int64_t keys) {
  if (keys <= 0) return;
  const int64_t each = keys / kStripes + 1;
  // Keys spread at random: the mean and five standard deviations.
  const double spare = 5 * std::sqrt(static_cast<double>(each));
  for (Stripe& stripe : *stripes_) {
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    stripe.GrowToQuota(each + static_cast<int64_t>(spare));
  }
}

bool EmbeddingTable::Insert(const RestoredRows& rows) {
  if (rows.n == 0) return true;
  MakeRoomInMemory();
  const bool inserted =
      BatchInsert(stripes_.get(), store_.get(), rule_, rows, BatchInsert::kRows)
          .Run();
  SpillExcess();
  return inserted;
}

bool EmbeddingTable::InsertFiltered(const int64_t* keys, size_t n,
                                    const int64_t* freqs,
                                    const int64_t* versions, bool into_sketch) {
  if (n == 0) return true;
  MakeRoomInMemory();
  const bool inserted = BatchInsert(stripes_.get(), store_.get(), rule_,
                                    {keys, n, nullptr, {}, freqs, versions},
                                    into_sketch && stripes_->sketch() != nullptr
                                        ? BatchInsert::kFilteredIntoSketch
                                        : BatchInsert::kFiltered)
                            .Run();
  SpillExcess();
  return inserted;
}

size_t EmbeddingTable::SetSlot(size_t slot, const int64_t* keys, size_t n,
                               const float* values) {
  std::optional<KeyArray> held;
  if (tier_ != nullptr) {
    MakeRoomInMemory();
    held.emplace(tier_.get(), keys, n);
    tier_->BringInKeys(keys, n);
  }
  size_t set = 0;
  stripes_->VisitExclusively(keys, n, [&](Stripe* stripe, size_t i) {
    const size_t width = static_cast<size_t>(store_->slots()[slot].width);
    set += stripe->SetSlot(slot, keys[i], values + i * width);
  });
  held.reset();
  SpillExcess();
  return set;
}

size_t EmbeddingTable::Erase(const int64_t* keys, size_t n) {
  size_t erased = 0;
  stripes_->VisitExclusively(keys, n, [&](Stripe* stripe, size_t i) {
    erased += stripe->Erase(keys[i]);
  });
  return erased;
}

Evicted EmbeddingTable::Evict(EvictionRule* rule) {
  return rec_estimator::Evict(stripes_.get(), tier_.get(), rule);
}

size_t EmbeddingTable::EvictKeys(const int64_t* keys, size_t n, int64_t stamp) {
  size_t rows = 0;
  stripes_->VisitExclusively(keys, n, [&](Stripe* stripe, size_t i) {
    const EntryRef entry = stripe->Find(keys[i]);
    if (!entry.found()) return;
    const bool has_row = entry.has_row();
    stripe->Evict(entry, stamp);
    rows += has_row;
  });
  return rows;
}

const Sketch* EmbeddingTable::sketch() const { return stripes_->sketch(); }

bool EmbeddingTable::MergeSketch(const Sketch::StoredRows& rows) {
  const ExclusiveLocks locks(*stripes_, kAllStripes);
  return stripes_->mutable_sketch()->MergeRows(rows,
                                               stripes_->tracks_changes());
}

void EmbeddingTable::MergeSketchHeads(const Sketch::Heads& last,
                                      int64_t total) {
  const ExclusiveLocks locks(*stripes_, kAllStripes);
  stripes_->mutable_sketch()->MergeHeads(last, total);
}

// -------------------------------------------------------------- bank and slots

std::vector<SlotSpec> EmbeddingTable::slots() const {
  return store_->CopySlots();
}

int EmbeddingTable::row_floats() const { return store_->row_floats(); }

void EmbeddingTable::SetBank(const float* bank, int64_t rows) {
  const RowFormat& format = store_->format();
  ZeroedMemory copy = AllocateZeroed(
      static_cast<size_t>(rows) * format.value_bytes(), Pages::kHuge);
  if (copy == nullptr) throw std::bad_alloc();
  float* to = static_cast<float*>(copy.get());
  for (int64_t r = 0; r < rows; ++r, to += format.value_words()) {
    format.WriteValue(bank + r * dim_, to);
  }
  const ExclusiveLocks locks(*stripes_, kAllStripes);
  store_->SetBank(std::move(copy), rows);
}

int64_t EmbeddingTable::bank_rows() const { return store_->bank_rows(); }

std::vector<float> EmbeddingTable::bank() const { return store_->CopyBank(); }

bool EmbeddingTable::BeginsWithSlots(
    const std::vector<SlotSpec>& wanted) const {
  return store_->BeginsWithSlots(wanted);
}

bool EmbeddingTable::EnsureSlots(const std::vector<SlotSpec>& wanted) {
  // The common case needs no stripe's lock.
  if (store_->BeginsWithSlots(wanted)) return true;
  const ExclusiveLocks locks(*stripes_, kAllStripes);
  return store_->EnsureSlots(wanted, [this](const std::vector<float>& added) {
    return tier_ == nullptr || tier_->Widen(added);
  });
}

// ----------------------------------------------------------------- inspection

void EmbeddingTable::Frequencies(const int64_t* keys, size_t n,
                                 int64_t* out) const {
  stripes_->Inspect(keys, n, [&](size_t i, EntryRef entry) {
    out[i] = stripes_->Of(keys[i]).CountOf(keys[i], entry);
  });
}

void EmbeddingTable::Versions(const int64_t* keys, size_t n,
                              int64_t* out) const {
  stripes_->Inspect(keys, n, [&](size_t i, EntryRef entry) {
    out[i] = entry.found() ? entry.version() : -1;
  });
}

void EmbeddingTable::Contains(const int64_t* keys, size_t n, bool* out) const {
  stripes_->Inspect(keys, n, [&](size_t i, EntryRef entry) {
    out[i] = entry.found() && entry.has_row();
  });
}

int64_t EmbeddingTable::size() const { return stripes_->n_rows(); }

int64_t EmbeddingTable::total_count() const {
  int64_t keys = 0;
  for (const Stripe& stripe : *stripes_) keys += stripe.keys();
  return keys;
}

int64_t EmbeddingTable::capacity() const {
  int64_t keys = 0;
  for (const Stripe& stripe : *stripes_) keys += stripe.capacity();
  return keys;
}

int64_t EmbeddingTable::memory_bytes() const {
  size_t bytes = store_->arena().bytes();
  for (const Stripe& stripe : *stripes_) {
    const std::shared_lock<SharedMutex> lock(stripe.mutex());
    bytes += stripe.bytes();
  }
  if (tier_ != nullptr) bytes += tier_->memory_bytes();
  return static_cast<int64_t>(bytes);
}

TierCounts EmbeddingTable::tier_counts() const {
  if (tier_ != nullptr) return tier_->counts();
  TierCounts counts;
  counts.memory_rows = size();
  return counts;
}

TableActivity EmbeddingTable::activity() const {
  TableActivity activity;
  activity.rows = size();
  activity.entries = total_count();
  activity.memory_bytes = memory_bytes();
  activity.looked_up = stripes_->looked_up();
  activity.found = stripes_->found();
  activity.removed_rows = stripes_->removed_rows();
  if (tier_ == nullptr) return activity;
  activity.disk_rows = tier_->spilled();
  activity.hits = tier_->hits();
  activity.misses = tier_->misses();
  return activity;
}

void EmbeddingTable::TrackChanges() { stripes_->set_tracks_changes(true); }

bool EmbeddingTable::tracks_changes() const {
  return stripes_->tracks_changes();
}

void EmbeddingTable::CommitSaved() {
  for (Stripe& stripe : *stripes_) {
    const std::unique_lock<SharedMutex> lock(stripe.mutex());
    stripe.CommitSaved();
  }
}

}  // namespace rec_estimator
