// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/capacity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/stripes/memory_limit.h"

namespace rec_estimator {
namespace {

// Rows that are fetched before they are written.
constexpr size_t kRowsAhead = 12;
// Free rows that are not given back: a part of the rows, and a number.
constexpr int64_t kFreePart = 16;
constexpr int64_t kLeastFree = 1024;
// A step's occurrences are forgotten by this part with each later step.
constexpr int64_t kForgottenPart = 32;

// Windows that a step scans besides those that its own rows ask for.
constexpr int64_t kFewWindows = 4;

// Rows with less of it are evicted first.
uint64_t WarmthOf(const CapacitySpec& spec, EntryRef entry, int64_t now) {
  const uint64_t count = entry.count();
  // A version may be of a run that had come further.
  const int64_t then = std::max<int64_t>(entry.version(), -1);
  const uint64_t steps =
      static_cast<uint64_t>(now) - static_cast<uint64_t>(then);
  const uint64_t age = now <= then ? 0 : std::min<uint64_t>(steps, UINT32_MAX);
  const uint64_t youth = UINT32_MAX - age;
  switch (spec.policy) {
    case CapacitySpec::kLeastCounted:
      return count << 32 | youth;
    case CapacitySpec::kOldest:
      return youth << 32 | count;
    case CapacitySpec::kDecayed:
      break;
  }
  // The binary logarithm of the decayed count, in fixed point above 0.
  const double score =
      std::log2(static_cast<double>(count) + 1) -
      static_cast<double>(age) / static_cast<double>(spec.half_life);
  return static_cast<uint64_t>((score + UINT32_MAX) * (1 << 20));
}

// Parts are not exactly equal. Hashes of keys make far more rows improbable,
// and what is beyond stays.
size_t MostRowsIn(const EvictionWindow& window) {
  const auto rows = static_cast<size_t>(window.rows);
  return window.parts == 1 ? rows : rows + rows / 8 + 64;
}

}  // namespace

Capacity::Capacity(const CapacitySpec& spec, StripeSet* stripes,
                   RowStore* store, std::shared_ptr<MemoryBudget> budget)
    : spec_(spec),
      stripes_(*stripes),
      store_(*store),
      budget_(std::move(budget)),
      plan_(spec.max_rows) {
  if (budget_ != nullptr) budget_->Join(&stripes_);
}

Capacity::~Capacity() {
  if (budget_ != nullptr) budget_->Leave(&stripes_);
}

void Capacity::ListColdest(const EvictionWindow& window, int64_t now,
                           ColdRows* rows) {
  for (uint64_t rest = window.stripes; rest != 0; rest &= rest - 1) {
    const int s = __builtin_ctzll(rest);
    stripes_[s].index().ForEach([&](EntryRef entry) {
      if (!entry.has_row() || !window.Contains(entry.key())) return;
      if (!rows->is_full()) rows->Add(WarmthOf(spec_, entry, now), entry);
    });
  }
  const HeldKeys held = holders_.KeysIn(window.stripes);
  const auto n = static_cast<size_t>(window.excess);
  // Held rows may be among the coldest.
  rows->KeepColdest(n + held.size());
  rows->Remove(held);
  rows->KeepColdest(n);
}

void Capacity::EvictFrom(EvictionWindow* window, int64_t now) {
  int64_t evicted = 0;  // Other threads write into the line of *window.
  try {
    ColdRows coldest(MostRowsIn(*window));
    ListColdest(*window, now, &coldest);
    const ColdRows::Row* const rows = coldest.begin();
    const size_t n = coldest.size();
    const RowArena::View view = store_.view();
    const auto fetch = [&](size_t i) {
      if (i >= n || !rows[i].entry.in_memory()) return;
      PrefetchLineToWrite(view.Row(rows[i].entry.row()));
    };
    for (size_t i = 0; i < kRowsAhead; ++i) fetch(i);
    for (size_t i = 0; i < n; ++i) {
      fetch(i + kRowsAhead);
      stripes_.Of(rows[i].entry.key()).Evict(rows[i].entry, now);
      ++evicted;
    }
  } catch (const std::bad_alloc&) {
    // The next step tries again.
  }
  window->evicted = evicted;
}

void Capacity::GiveBack(int64_t occurrences) {
  most_occurrences_ -= most_occurrences_ / kForgottenPart;
  most_occurrences_ = std::max(most_occurrences_, occurrences);
  const int64_t needed = stripes_.n_rows() + most_occurrences_;
  const int64_t free = static_cast<int64_t>(store_.arena().taken()) - needed;
  if (free < std::max(needed / kFreePart, kLeastFree)) return;
  try {
    TrimRows(&stripes_, &store_, static_cast<uint64_t>(needed));
  } catch (const std::bad_alloc&) {
    // The next step tries again.
  }
}

Capacity::Trim::Trim(Capacity* capacity, int64_t occurrences, int64_t shared,
                     int64_t now)
    : capacity_(*capacity),
      lock_(capacity->trimming_, std::try_to_lock),
      occurrences_(occurrences),
      now_(now),
      left_(2 * occurrences +
            kFewWindows * WindowPlan::kWindowRows / WindowPlan::kMostPart),
      shared_(shared) {
  if (lock_.owns_lock()) capacity_.plan_.BeginStep(now);
}

Capacity::Trim::~Trim() {
  if (lock_.owns_lock()) capacity_.GiveBack(occurrences_);
}

int64_t Capacity::Trim::PlanRound() {
  if (!lock_.owns_lock()) return 0;
  EndRound();
  if (in_vain_ >= kStripes) return 0;
  WindowPlan& plan = capacity_.plan_;
  plan.PlanRound(capacity_.stripes_, shared_, left_);
  rows_ = 0;
  for (const EvictionWindow& window : plan) rows_ += window.rows;
  return plan.size();
}

void Capacity::Trim::EndRound() {
  int64_t evicted = 0;
  int stripes = 0;
  for (const EvictionWindow& window : capacity_.plan_) {
    evicted += window.evicted;
    stripes += __builtin_popcountll(window.stripes);
  }
  left_ -= evicted;
  shared_ -= evicted;
  in_vain_ = evicted > 0 ? 0 : in_vain_ + stripes;
}

bool Capacity::Trim::TryEvict(int64_t w) {
  EvictionWindow& window = capacity_.plan_[w];
  const ExclusiveLocks locks(capacity_.stripes_, window.stripes,
                             std::try_to_lock);
  if (locks.owns_all()) capacity_.EvictFrom(&window, now_);
  return locks.owns_all();
}

void Capacity::Trim::Evict(int64_t w) {
  EvictionWindow& window = capacity_.plan_[w];
  const ExclusiveLocks locks(capacity_.stripes_, window.stripes);
  capacity_.EvictFrom(&window, now_);
}

}  // namespace rec_estimator
