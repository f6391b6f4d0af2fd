// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/training_step.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <numeric>
#include <tuple>
#include <utility>

#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch_apply.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

// Costs in cycles. Those of an occurrence are for one in the caches.
constexpr int64_t kSortOccurrence = 16;
constexpr int64_t kFindOccurrence = 60;
constexpr int64_t kUpdateOccurrence = 60;  // And 8 per float.
constexpr int64_t kGrowStripe = 100000;
// Least cost of a loop that is worth waking threads for, about 100 µs. Each of
// the two loops of a step would cost a wake of about 20 µs.
constexpr int64_t kMinLoop = 300000;

TrainingStep::Outcome NoMemory(size_t table) {
  return {TrainingStep::Refusal::kNoMemory, table, 0, {}};
}

}  // namespace

TrainingStep::TrainingStep(std::vector<TableParts> tables,
                           std::vector<StepBatch> batches)
    : tables_(std::move(tables)),
      batches_(std::move(batches)),
      applies_(tables_.size()),
      claims_(tables_.size()),
      claim_order_(tables_.size()) {
  size_t units = 0;
  for (size_t i = 0; i < size(); ++i) {
    const TableParts& table = tables_[i];
    const StepBatch& batch = batches_[i];
    applies_[i] = std::make_unique<BatchApply>(table.stripes, table.store,
                                               table.rule, batch);
    dims_ += table.store->dim();
    occurrences_ += batch.n + batch.n_counted;
    // Begin refuses larger batches.
    const uint64_t most = std::min(batch.n + batch.n_counted, kMaxBatch);
    units += std::max<size_t>(kStripes, most / kPartitionBlock + 1);
  }
  std::iota(claim_order_.begin(), claim_order_.end(), 0);
  std::sort(
      claim_order_.begin(), claim_order_.end(), [this](uint32_t a, uint32_t b) {
        return std::less<RowBudget*>()(tables_[a].budget, tables_[b].budget);
      });
  units_.reserve(units);
  left_.resize(units);
  if (size() > 1) LinkSameKeys();
}

TrainingStep::~TrainingStep() { ReleaseKeys(); }

TrainingStep::Outcome TrainingStep::Reserve(const ParallelFor& parallel) {
  for (size_t i = 0; i < size(); ++i) {
    if (!applies_[i]->Begin()) return NoMemory(i);
  }
  if (occurrences_ == 0) return {};
  Outcome outcome = ReserveAll(parallel);
  if (!outcome.ok()) {
    for (const auto& apply : applies_) apply->ReleaseQuotas();
    ReleaseKeys();
  }
  return outcome;
}

TrainingStep::Outcome TrainingStep::ReserveAll(const ParallelFor& parallel) {
  if (!GetMemory(parallel)) {
    const auto largest =
        std::max_element(batches_.begin(), batches_.end(),
                         [](const StepBatch& a, const StepBatch& b) {
                           return a.n + a.n_counted < b.n + b.n_counted;
                         });
    return NoMemory(static_cast<size_t>(largest - batches_.begin()));
  }
  Outcome outcome = HoldKeys();
  if (!outcome.ok()) return outcome;
  ListGroups(false);
  ForEachUnit(
      parallel, CyclesPerUnit(kFindOccurrence),
      [this](uint32_t table, int g) {
        applies_[table]->Find(g);
        return true;
      },
      [](uint32_t, int) {});
  outcome = CheckLimits(parallel);
  if (outcome.ok()) outcome = GetRoom(parallel);
  if (outcome.ok()) outcome = BringIn();
  return outcome;
}

template <typename Work>
TrainingStep::Outcome TrainingStep::ForEachTier(const Work& work) {
  for (size_t i = 0; i < size(); ++i) {
    if (tables_[i].tier == nullptr) continue;
    DiskError error;
    try {
      if (work(i, &error)) continue;
    } catch (const std::bad_alloc&) {
      error.text.clear();
    }
    if (error.text.empty()) return NoMemory(i);
    return {Refusal::kStorage, i, 0, error.text, error.fault};
  }
  return {};
}

TrainingStep::Outcome TrainingStep::HoldKeys() {
  const Outcome outcome = ForEachTier([this](size_t i, DiskError* error) {
    return tables_[i].tier->SpillExcess(error);
  });
  if (!outcome.ok()) return outcome;
  holds_keys_ = true;
  return ForEachTier([this](size_t i, DiskError*) {
    tables_[i].tier->Hold(applies_[i].get());
    return true;
  });
}

TrainingStep::Outcome TrainingStep::BringIn() {
  return ForEachTier([this](size_t i, DiskError* error) {
    if (applies_[i]->occurrences() == 0) return true;
    PinnedRows spilled(tables_[i].tier);
    const int64_t hits = applies_[i]->ListSpilled(&spilled);
    tables_[i].tier->AddToHits(hits,
                               static_cast<int64_t>(spilled.items().size()));
    return tables_[i].tier->BringIn(&spilled, error);
  });
}

void TrainingStep::ReleaseKeys() {
  if (!holds_keys_) return;
  holds_keys_ = false;
  for (size_t i = 0; i < size(); ++i) {
    if (tables_[i].tier != nullptr) tables_[i].tier->Release(applies_[i].get());
  }
}

int64_t TrainingStep::RowsAfter(size_t i) const {
  const BatchApply& apply = *applies_[i];
  return tables_[i].stripes->n_rows() +
         (apply.occurrences() == 0 ? 0 : apply.new_rows());
}

std::shared_ptr<const RowHints> TrainingStep::HintsForLookup(
    size_t i, size_t more) const {
  if (tables_[i].tier != nullptr) return nullptr;
  const BatchApply& apply = *applies_[i];
  auto hints = std::make_shared<RowHints>(apply.occurrences() + more);
  if (apply.occurrences() > 0) apply.ListRows(hints.get());
  return hints;
}

TrainingStep::Outcome TrainingStep::Apply(const Gradients* gradients,
                                          const ParallelFor& parallel) {
  if (occurrences_ == 0) return {};
  for (size_t i = 0; i < size(); ++i) {
    batches_[i].grads = gradients[i].grads;
    batches_[i].version = gradients[i].version;
    applies_[i]->set_update(gradients[i].update);
  }
  Outcome outcome = ClaimRows(parallel);
  if (outcome.ok()) {
    ListGroups(true);
    std::atomic<int64_t> failed{-1};
    const auto note = [&failed](uint32_t table, bool done) {
      if (!done) failed.store(table);
    };
    ForEachUnit(
        parallel,
        CyclesPerUnit(kUpdateOccurrence +
                      8 * dims_ / static_cast<int64_t>(size())),
        [&](uint32_t table, int g) {
          bool done = true;
          const bool tried = applies_[table]->TryUpdate(g, &done);
          note(table, done);
          return tried;
        },
        [&](uint32_t table, int g) {
          bool done;
          applies_[table]->Update(g, &done);
          note(table, done);
        });
    if (failed >= 0) outcome = NoMemory(static_cast<size_t>(failed.load()));
  }
  for (auto& claim : claims_) claim.reset();
  for (const auto& apply : applies_) apply->ReleaseQuotas();
  ReleaseKeys();
  ForEachTier([this](size_t i, DiskError* error) {
    tables_[i].tier->SpillExcess(
        error);  // If it fails, the next step is refused.
    return true;
  });
  return outcome;
}

template <typename Try, typename Finish>
void TrainingStep::ForEachUnit(const ParallelFor& parallel, int64_t cycles,
                               const Try& attempt, const Finish& finish) {
  const auto run = [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const Unit& unit = units_[static_cast<size_t>(i)];
      left_[static_cast<size_t>(i)] = !attempt(unit.table, unit.number);
    }
  };
  const int64_t n = static_cast<int64_t>(units_.size());
  if (n * cycles < kMinLoop) {
    run(0, n);
  } else {
    // By reference: std::function would allocate memory for this closure.
    parallel(n, cycles, std::cref(run));
  }
  for (size_t i = 0; i < units_.size(); ++i) {
    if (left_[i]) finish(units_[i].table, units_[i].number);
  }
}

void TrainingStep::LinkSameKeys() {
  const auto lists = [this](uint32_t i) {
    const StepBatch& batch = batches_[i];
    return std::make_tuple(batch.keys, batch.n,
                           batch.n_counted > 0 ? batch.counted_keys : nullptr,
                           batch.n_counted);
  };
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::make_pair(lists(a), a) < std::make_pair(lists(b), b);
  });
  uint32_t leader = order[0];
  for (const uint32_t i : order) {
    if (lists(i) != lists(leader)) leader = i;
    if (i != leader) applies_[leader]->ShareKeysWith(applies_[i].get());
  }
}

void TrainingStep::ListGroups(bool with_followers) {
  units_.clear();
  for (uint32_t i = 0; i < size(); ++i) {
    if (applies_[i]->occurrences() == 0) continue;
    if (applies_[i]->has_leader() && !with_followers) continue;
    for (int g = 0; g < applies_[i]->groups(); ++g) units_.push_back({i, g});
  }
}

int64_t TrainingStep::CyclesPerUnit(int64_t per_occurrence) const {
  return static_cast<int64_t>(occurrences_ / units_.size() + 1) *
         per_occurrence;
}

bool TrainingStep::GetMemory(const ParallelFor& parallel) {
  const bool has_memory = scratch_.Allocate([this](Layout* layout) {
    for (const auto& apply : applies_) apply->AddTo(layout);
  });
  if (!has_memory) return false;
  units_.clear();
  for (uint32_t i = 0; i < size(); ++i) {
    const int64_t blocks = applies_[i]->blocks();
    for (int32_t b = 0; b < blocks; ++b) units_.push_back({i, b});
  }
  if (!units_.empty()) {
    ForEachUnit(
        parallel, static_cast<int64_t>(kPartitionBlock) * kSortOccurrence,
        [this](uint32_t table, int b) {
          applies_[table]->SortBlock(b);
          return true;
        },
        [](uint32_t, int) {});
  }
  for (const auto& apply : applies_) apply->EndSort();
  return unusual_.Allocate([this](Layout* layout) {
    for (const auto& apply : applies_) apply->AddUnusualTo(layout);
  });
}

TrainingStep::Outcome TrainingStep::CheckLimits(const ParallelFor& parallel) {
  for (size_t i = 0; i < size(); ++i) {
    if (tables_[i].budget == nullptr) continue;
    const RowBudget::Claim claim(
        tables_[i].budget, static_cast<int64_t>(applies_[i]->occurrences()));
    if (claim.is_certain()) continue;
    const int64_t excess = ExcessRows(i, parallel);
    if (excess > 0) return {Refusal::kTooManyRows, i, excess};
  }
  return {};
}

TrainingStep::Outcome TrainingStep::ClaimRows(const ParallelFor& parallel) {
  for (const uint32_t i : claim_order_) {
    if (tables_[i].budget == nullptr) continue;
    claims_[i].emplace(tables_[i].budget,
                       static_cast<int64_t>(applies_[i]->occurrences()));
    if (claims_[i]->is_certain()) continue;
    const int64_t excess = ExcessRows(i, parallel);
    if (excess > 0) return {Refusal::kTooManyRows, i, excess};
  }
  return {};
}

int64_t TrainingStep::ExcessRows(size_t i, const ParallelFor& parallel) {
  BatchApply& apply = *applies_[i];
  if (apply.occurrences() == 0) return 0;
  const int64_t per_group =
      static_cast<int64_t>(apply.occurrences()) / apply.groups() + 1;
  const auto find = [&apply](int64_t g, int64_t end) {
    for (; g < end; ++g) apply.FindAgain(static_cast<int>(g));
  };
  parallel(apply.groups(), per_group * kFindOccurrence, std::cref(find));
  return tables_[i].budget->Excess(apply.new_rows());
}

TrainingStep::Outcome TrainingStep::GetRoom(const ParallelFor& parallel) {
  units_.clear();
  for (uint32_t i = 0; i < size(); ++i) {
    if (applies_[i]->occurrences() == 0) continue;
    uint64_t to_grow;
    if (!applies_[i]->ReserveQuotas(&to_grow)) return NoMemory(i);
    for (; to_grow != 0; to_grow &= to_grow - 1) {
      units_.push_back({i, __builtin_ctzll(to_grow)});
    }
  }
  if (units_.empty()) return {};
  std::atomic<int64_t> failed{-1};
  ForEachUnit(
      parallel, kGrowStripe,
      [&](uint32_t table, int s) {
        bool has_memory = true;
        const bool tried = applies_[table]->TryGrow(s, &has_memory);
        if (!has_memory) failed.store(table);
        return tried;
      },
      [&](uint32_t table, int s) {
        if (!applies_[table]->Grow(s)) failed.store(table);
      });
  if (failed >= 0) return NoMemory(static_cast<size_t>(failed.load()));
  return {};
}

}  // namespace rec_estimator
