// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/training_step.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <numeric>
#include <tuple>
#include <utility>

#include "ops/core/evict/capacity.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/key_groups.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/row_updater.h"
#include "ops/core/step/step_plan.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

// Costs in cycles. An occurrence costs this much if it is in the caches.
constexpr int64_t kSortOccurrence = 16;
constexpr int64_t kFindOccurrence = 60;
constexpr int64_t kUpdateOccurrence = 60;  // And 8 per float.
constexpr int64_t kGrowStripe = 100000;
constexpr int64_t kEvictionRow = 24;  // A row of a window.
// Least cost of a loop that is worth waking threads for, about 100 µs. Each of
// the two loops of a step would cost a wake of about 20 µs.
constexpr int64_t kMinLoop = 300000;

TrainingStep::Outcome NoMemory(size_t table) {
  return {TrainingStep::Refusal::kNoMemory, table, 0, {}};
}

}  // namespace

struct TrainingStep::TableStep {
  // owned: nullptr if `shared` belongs to another table.
  TableStep(const TableParts& table, const StepBatch& batch,
            std::unique_ptr<KeyGroups> owned, KeyGroups* shared,
            const RowHints* hints)
      : owned_keys(std::move(owned)),
        keys(*shared),
        plan(table.stripes, table.store, table.rule, keys, hints),
        updater(table.stripes, table.store, table.rule, batch, keys, &plan) {}

  const std::unique_ptr<KeyGroups> owned_keys;
  KeyGroups& keys;
  StepPlan plan;
  RowUpdater updater;
  TableStep* next = nullptr;  // The next table with the same keys.
  std::optional<Capacity::Trim> trim;
};

TrainingStep::TrainingStep(std::vector<TableParts> tables,
                           std::vector<StepBatch> batches)
    : tables_(std::move(tables)),
      batches_(std::move(batches)),
      steps_(tables_.size()),
      claims_(tables_.size()),
      claim_order_(tables_.size()) {
  MakeSteps();
  size_t units = 0;
  for (size_t i = 0; i < size(); ++i) {
    const StepBatch& batch = batches_[i];
    dims_ += tables_[i].store->dim();
    occurrences_ += batch.n + batch.n_counted;
    // Reserve refuses larger batches.
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
}

TrainingStep::~TrainingStep() { ReleaseKeys(); }

TrainingStep::Outcome TrainingStep::Reserve(const ParallelFor& parallel) {
  for (size_t i = 0; i < size(); ++i) {
    if (!KeyGroups::CanNumber(batches_[i])) return NoMemory(i);
  }
  if (occurrences_ == 0) return {};
  Outcome outcome = ReserveAll(parallel);
  if (!outcome.ok()) {
    for (const auto& step : steps_) step->plan.ReleaseQuotas();
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
  units_.clear();
  ForEachKeys(
      [this](size_t i, TableStep* step) { AddUnits(i, step->keys.size()); });
  ForEachUnit(
      parallel, CyclesPerUnit(kFindOccurrence),
      [this](uint32_t table, int g) {
        TableStep* step = steps_[table].get();
        step->keys.Deduplicate(g, step->plan.scratch(g));
        for (; step != nullptr; step = step->next) step->plan.Find(g);
        return true;
      },
      [](uint32_t, int) {});
  outcome = CheckLimits(parallel);
  if (outcome.ok()) outcome = GetRoom(parallel);
  if (outcome.ok()) outcome = BringIn();
  if (outcome.ok()) CountLookedUp();
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
  for (size_t i = 0; i < size(); ++i) {
    if (tables_[i].capacity != nullptr) {
      tables_[i].capacity->Hold(&steps_[i]->keys);
    }
  }
  return ForEachTier([this](size_t i, DiskError*) {
    tables_[i].tier->Hold(&steps_[i]->keys);
    return true;
  });
}

TrainingStep::Outcome TrainingStep::BringIn() {
  return ForEachTier([this](size_t i, DiskError* error) {
    if (steps_[i]->keys.n() == 0) return true;
    PinnedRows spilled(tables_[i].tier);
    const int64_t hits = steps_[i]->plan.ListSpilled(&spilled);
    tables_[i].tier->AddToHits(hits,
                               static_cast<int64_t>(spilled.items().size()));
    return tables_[i].tier->BringIn(&spilled, error);
  });
}

void TrainingStep::CountLookedUp() const {
  for (size_t i = 0; i < size(); ++i) {
    if (steps_[i]->keys.n() == 0) continue;
    int64_t looked_up = 0, found = 0;
    steps_[i]->plan.CountLookedUp(&looked_up, &found);
    tables_[i].stripes->AddLookedUp(looked_up, found);
  }
}

void TrainingStep::ReleaseKeys() {
  if (!holds_keys_) return;
  holds_keys_ = false;
  for (size_t i = 0; i < size(); ++i) {
    const KeyGroups* const keys = &steps_[i]->keys;
    if (tables_[i].tier != nullptr) tables_[i].tier->Release(keys);
    if (tables_[i].capacity != nullptr) tables_[i].capacity->Release(keys);
  }
}

void TrainingStep::TrimTables(const Gradients* gradients,
                              const ParallelFor& parallel) {
  // All tables divide the excess before one of them evicts.
  const MemoryBudget* budget = nullptr;
  MemoryBudget::Use use;
  for (size_t i = 0; i < size(); ++i) {
    Capacity* const capacity = tables_[i].capacity;
    if (capacity == nullptr) continue;
    int64_t shared = 0;
    if (capacity->budget() != nullptr) {
      if (capacity->budget() != budget) {
        budget = capacity->budget();
        use = budget->Measure();
      }
      shared = use.RowsToEvict(*tables_[i].stripes);
    }
    steps_[i]->trim.emplace(capacity, static_cast<int64_t>(steps_[i]->keys.n()),
                            shared, gradients[i].version);
  }
  for (;;) {
    const int64_t rows = PlanEvictions();
    if (units_.empty()) return;
    ForEachUnit(
        parallel, rows / static_cast<int64_t>(units_.size()) * kEvictionRow,
        [this](uint32_t table, int w) {
          return steps_[table]->trim->TryEvict(w);
        },
        [this](uint32_t table, int w) { steps_[table]->trim->Evict(w); });
  }
}

int64_t TrainingStep::PlanEvictions() {
  units_.clear();
  int64_t rows = 0;
  for (size_t i = 0; i < size(); ++i) {
    std::optional<Capacity::Trim>& trim = steps_[i]->trim;
    if (!trim.has_value()) continue;
    const int64_t windows = trim->PlanRound();
    AddUnits(i, windows);
    if (windows > 0) {
      rows += trim->rows();
    } else {
      trim.reset();
    }
  }
  return rows;
}

int64_t TrainingStep::RowsAfter(size_t i) const {
  return tables_[i].stripes->n_rows() +
         (steps_[i]->keys.n() == 0 ? 0 : steps_[i]->plan.new_rows());
}

std::shared_ptr<const RowHints> TrainingStep::HintsForLookup(
    size_t i, size_t more) const {
  if (tables_[i].tier != nullptr) return nullptr;
  auto hints = std::make_shared<RowHints>(steps_[i]->keys.n() + more);
  if (steps_[i]->keys.n() > 0) steps_[i]->plan.ListRows(hints.get());
  return hints;
}

TrainingStep::Outcome TrainingStep::Apply(const Gradients* gradients,
                                          const ParallelFor& parallel) {
  if (occurrences_ == 0) return {};
  for (size_t i = 0; i < size(); ++i) {
    batches_[i].grads = gradients[i].grads;
    batches_[i].version = gradients[i].version;
    steps_[i]->updater.set_update(gradients[i].update);
  }
  Outcome outcome = ClaimRows(parallel);
  if (outcome.ok()) {
    units_.clear();
    for (size_t i = 0; i < size(); ++i) {
      if (steps_[i]->keys.n() > 0) AddUnits(i, steps_[i]->keys.size());
    }
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
          const bool tried = steps_[table]->updater.TryUpdate(g, &done);
          note(table, done);
          return tried;
        },
        [&](uint32_t table, int g) {
          bool done;
          steps_[table]->updater.Update(g, &done);
          note(table, done);
        });
    if (failed >= 0) outcome = NoMemory(static_cast<size_t>(failed.load()));
  }
  for (auto& claim : claims_) claim.reset();
  for (const auto& step : steps_) step->plan.ReleaseQuotas();
  if (outcome.ok()) TrimTables(gradients, parallel);
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

const RowHints* TrainingStep::HintsOf(size_t i) const {
  const StepBatch& batch = batches_[i];
  const bool are_of_keys = batch.hints != nullptr && batch.n_counted == 0 &&
                           batch.counts == nullptr &&
                           batch.hints->list()->IsOf(batch.keys, batch.n);
  return are_of_keys ? batch.hints : nullptr;
}

void TrainingStep::MakeSteps() {
  if (size() == 1) {
    const uint32_t only = 0;
    return MakeStepsOf(&only, &only + 1);
  }
  const auto lists = [this](uint32_t i) {
    const StepBatch& batch = batches_[i];
    return std::make_tuple(batch.keys, batch.n,
                           batch.n_counted > 0 ? batch.counted_keys : nullptr,
                           batch.n_counted, batch.counts);
  };
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::make_pair(lists(a), a) < std::make_pair(lists(b), b);
  });
  const uint32_t* const last = order.data() + size();
  for (const uint32_t *begin = order.data(), *end; begin < last; begin = end) {
    end = std::find_if(begin, last,
                       [&](uint32_t i) { return lists(i) != lists(*begin); });
    MakeStepsOf(begin, end);
  }
}

void TrainingStep::MakeStepsOf(const uint32_t* begin, const uint32_t* end) {
  const DeduplicatedList* list = nullptr;
  for (const uint32_t* i = begin; i < end && list == nullptr; ++i) {
    if (HintsOf(*i) != nullptr) list = HintsOf(*i)->list();
  }
  std::unique_ptr<KeyGroups> owned = KeyGroups::Of(batches_[*begin], list);
  KeyGroups* const keys = owned.get();
  TableStep* last = nullptr;
  for (const uint32_t* i = begin; i < end; ++i) {
    if (list != nullptr &&
        !RowUpdater::SumsInBatchOrder(list->size(), tables_[*i].store->dim())) {
      keys->GroupOccurrences();
    }
    steps_[*i] = std::make_unique<TableStep>(
        tables_[*i], batches_[*i], std::move(owned), keys, HintsOf(*i));
    if (last != nullptr) last->next = steps_[*i].get();
    last = steps_[*i].get();
  }
}

template <typename Work>
void TrainingStep::ForEachKeys(const Work& work) {
  for (size_t i = 0; i < size(); ++i) {
    TableStep& step = *steps_[i];
    if (step.owned_keys != nullptr && step.keys.n() > 0) work(i, &step);
  }
}

void TrainingStep::AddUnits(size_t table, int64_t n) {
  for (int32_t number = 0; number < n; ++number) {
    units_.push_back({static_cast<uint32_t>(table), number});
  }
}

int64_t TrainingStep::CyclesPerUnit(int64_t per_occurrence) const {
  return static_cast<int64_t>(occurrences_ / units_.size() + 1) *
         per_occurrence;
}

bool TrainingStep::GetMemory(const ParallelFor& parallel) {
  const bool has_memory = scratch_.Allocate([this](Layout* layout) {
    ForEachKeys([&](size_t, TableStep* step) { step->keys.AddTo(layout); });
    for (const auto& step : steps_) step->plan.AddTo(layout);
  });
  if (!has_memory) return false;
  units_.clear();
  ForEachKeys(
      [this](size_t i, TableStep* step) { AddUnits(i, step->keys.blocks()); });
  if (!units_.empty()) {
    ForEachUnit(
        parallel, static_cast<int64_t>(kPartitionBlock) * kSortOccurrence,
        [this](uint32_t table, int b) {
          steps_[table]->keys.SortBlock(b);
          return true;
        },
        [](uint32_t, int) {});
  }
  ForEachKeys([](size_t, TableStep* step) { step->keys.EndSort(); });
  return unusual_.Allocate([this](Layout* layout) {
    ForEachKeys(
        [&](size_t, TableStep* step) { step->keys.AddCellsTo(layout); });
    for (const auto& step : steps_) step->updater.AddTo(layout);
  });
}

TrainingStep::Outcome TrainingStep::CheckLimits(const ParallelFor& parallel) {
  for (size_t i = 0; i < size(); ++i) {
    if (tables_[i].budget == nullptr) continue;
    const RowBudget::Claim claim(tables_[i].budget,
                                 static_cast<int64_t>(steps_[i]->keys.n()));
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
                       static_cast<int64_t>(steps_[i]->keys.n()));
    if (claims_[i]->is_certain()) continue;
    const int64_t excess = ExcessRows(i, parallel);
    if (excess > 0) return {Refusal::kTooManyRows, i, excess};
  }
  return {};
}

int64_t TrainingStep::ExcessRows(size_t i, const ParallelFor& parallel) {
  const KeyGroups& keys = steps_[i]->keys;
  StepPlan& plan = steps_[i]->plan;
  if (keys.n() == 0) return 0;
  const int64_t per_group = static_cast<int64_t>(keys.n()) / keys.size() + 1;
  const auto find = [&plan](int64_t g, int64_t end) {
    for (; g < end; ++g) plan.Find(static_cast<int>(g));
  };
  parallel(keys.size(), per_group * kFindOccurrence, std::cref(find));
  return tables_[i].budget->Excess(plan.new_rows());
}

TrainingStep::Outcome TrainingStep::GetRoom(const ParallelFor& parallel) {
  units_.clear();
  for (uint32_t i = 0; i < size(); ++i) {
    if (steps_[i]->keys.n() == 0) continue;
    uint64_t to_grow;
    if (!steps_[i]->plan.ReserveQuotas(&to_grow)) return NoMemory(i);
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
        const bool tried = steps_[table]->plan.TryGrow(s, &has_memory);
        if (!has_memory) failed.store(table);
        return tried;
      },
      [&](uint32_t table, int s) {
        if (!steps_[table]->plan.Grow(s)) failed.store(table);
      });
  if (failed >= 0) return NoMemory(static_cast<size_t>(failed.load()));
  return {};
}

}  // namespace rec_estimator
