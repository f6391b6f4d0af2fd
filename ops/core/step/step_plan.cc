// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/step_plan.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/shared_mutex.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/rows/row_arena.h"

namespace rec_estimator {
namespace {

// The distance, in keys, at which buckets, and counts for a filter, are
// prefetched.
constexpr uint32_t kKeysAhead = 16;

}  // namespace

// -------------------------------------------------------------------- finding

void StepPlan::AddTo(Layout* layout) {
  const uint64_t n = keys_.n();
  layout->Add(&without_row_, n);
  layout->Add(&entries_, n);
  layout->Add(&rows_, n);
  if (stripes_.sketch() != nullptr) layout->Add(&estimates_, n);
}

void StepPlan::Find(int g) {
  const SharedLocks locks(stripes_, keys_[g].stripes);
  FindAll(g);
}

void StepPlan::FindAll(int g) {
  const KeyGroup& group = keys_[g];
  EntryRef* const entries = entries_ + group.begin;
  uint32_t* const rows = rows_ + group.begin;
  if (hints_ != nullptr && hints_->IsCurrent(stripes_, group.stripes)) {
    std::copy_n(hints_->entries() + group.first, group.size, entries);
    std::copy_n(hints_->rows() + group.first, group.size, rows);
  } else {
    stripes_.FindEach(group.keys, group.size, [&](uint32_t u, EntryRef entry) {
      entries[u] = entry;
      rows[u] = HashIndex::RowWordOf(entry);
    });
  }
  FindKeysWithoutRow(g);
}

void StepPlan::FindOthers(int g) {
  const KeyGroup& group = keys_[g];
  const int64_t* const keys = group.keys;
  EntryRef* const entries = entries_ + group.begin;
  uint32_t* const rows = rows_ + group.begin;
  uint32_t* const others = without_row_ + group.begin;
  uint32_t n = 0;
  for (uint32_t u = 0; u < group.size; ++u) {
    others[n] = u;
    n += rows[u] >= HashIndex::kSpilled;
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kKeysAhead < n) {
      PrefetchLine(stripes_.Home(keys[others[i + kKeysAhead]]));
    }
    const uint32_t u = others[i];
    entries[u] = stripes_.Of(keys[u]).Find(keys[u]);
    rows[u] = HashIndex::RowWordOf(entries[u]);
  }
  FindKeysWithoutRow(g);
}

void StepPlan::FindKeysWithoutRow(int g) {
  const KeyGroup& group = keys_[g];
  const int64_t* const keys = group.keys;
  const uint32_t* const rows = rows_ + group.begin;
  uint32_t* const without_row = without_row_ + group.begin;
  uint32_t n = 0, n_beyond_memory = 0;
  for (uint32_t u = 0; u < group.size; ++u) {
    without_row[n] = u;
    n += rows[u] == HashIndex::kNoRow;
    n_beyond_memory += rows[u] >= HashIndex::kSpilled;
  }
  GroupPlan& plan = groups_[g];
  plan.entries = entries_ + group.begin;
  plan.rows = rows_ + group.begin;
  plan.without_row = without_row;
  plan.estimates = estimates_ == nullptr ? nullptr : estimates_ + group.begin;
  plan.n_spilled = n_beyond_memory - n;
  plan.n_in_memory = group.size - n_beyond_memory;
  plan.n_padding = 0;
  plan.all_have_rows = true;
  const int padding = stripes_.padding_stripe();
  if (padding >= 0 && (group.stripes >> padding & 1) != 0) {
    const auto is_padding = [&](uint32_t u) {
      if (keys[u] != kPaddingKey) return false;
      plan.n_padding += group.Count(u);
      return true;
    };
    n = static_cast<uint32_t>(
        std::remove_if(without_row, without_row + n, is_padding) - without_row);
    plan.all_have_rows = false;
  }
  plan.n_without_row = n;
  ForEachStripe(group.stripes, [this](int s) {
    needs_[s] = StripeNeeds();
    times_.Note(stripes_, s);
  });
  if (n > 0) ChooseKeysToAdmit(g);
}

void StepPlan::ChooseKeysToAdmit(int g) {
  const KeyGroup& group = keys_[g];
  const GroupPlan& plan = groups_[g];
  const int64_t* const keys = group.keys;
  const EntryRef* const entries = plan.entries;
  uint32_t* const rows = plan.rows;
  const uint32_t* const without_row = plan.without_row;
  const uint32_t n = plan.n_without_row;
  const FilterRule rule = rule_;
  const auto needs_of = [&](uint32_t u) -> StripeNeeds& {
    return needs_[StripeOf(MixKey(keys[u]))];
  };
  if (rule.admits_all()) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t u = without_row[i];
      rows[u] = GroupPlan::kToAdmit;
      needs_of(u).entries += !entries[u].found();
      ++needs_of(u).rows;
    }
    return;
  }
  const Sketch* const sketch = stripes_.sketch();
  if (sketch != nullptr) sketch->Estimate(keys, without_row, n, plan.estimates);
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
    } else if (sketch != nullptr) {
      count = plan.estimates[u];
    }
    const bool admitted =
        rule.IsAdmitted(rule.CountAfterBatch(count, group.Count(u)));
    if (admitted) rows[u] = GroupPlan::kToAdmit;
    StripeNeeds& needs = needs_of(u);
    const bool in_sketch = sketch != nullptr && !found && !admitted;
    needs.sketched += in_sketch;
    needs.rows += admitted;
    needs.entries += !found && !in_sketch;
  }
}

void StepPlan::Refresh(int g) {
  const uint64_t stripes = keys_[g].stripes;
  const GroupPlan& plan = groups_[g];
  if (times_.HaveEntriesMoved(stripes_, stripes, 1)) {
    FindAll(g);
  } else if (plan.n_without_row + plan.n_spilled > 0 &&
             times_.HaveStripesChanged(stripes_, stripes, 1)) {
    // Another step may insert keys that had no row, and its counts decide on
    // the admission of such keys. Rows that were on disk have been brought in.
    FindOthers(g);
  }
}

int64_t StepPlan::new_rows() const {
  int64_t rows = 0;
  for (int g = 0; g < keys_.size(); ++g) {
    if (groups_[g].n_without_row == 0) continue;
    ForEachStripe(keys_[g].stripes, [&](int s) { rows += needs_[s].rows; });
  }
  return rows;
}

void StepPlan::CountLookedUp(int64_t* looked_up, int64_t* found) const {
  for (int g = 0; g < keys_.size(); ++g) {
    const KeyGroup& group = keys_[g];
    const GroupPlan& plan = groups_[g];
    uint64_t without_row = 0;
    for (uint32_t i = 0; i < plan.n_without_row; ++i) {
      without_row += group.Count(plan.without_row[i]);
    }
    uint64_t all = group.counts == nullptr ? group.n : 0;
    // A parameter server gets each key once, with its occurrences.
    if (group.counts != nullptr) {
      for (uint32_t u = 0; u < group.size; ++u) all += group.Count(u);
    }
    *looked_up += static_cast<int64_t>(all - plan.n_padding);
    *found += static_cast<int64_t>(all - plan.n_padding - without_row);
  }
}

int64_t StepPlan::ListSpilled(PinnedRows* spilled) const {
  int64_t in_memory = 0;
  for (int g = 0; g < keys_.size(); ++g) {
    const KeyGroup& group = keys_[g];
    const GroupPlan& plan = groups_[g];
    in_memory += plan.n_in_memory;
    if (plan.n_spilled == 0) continue;
    std::vector<int64_t> listed;
    listed.reserve(plan.n_spilled);
    for (uint32_t u = 0; u < group.size; ++u) {
      const uint32_t row = plan.rows[u];
      if (row < HashIndex::kSpilled || row >= GroupPlan::kToAdmit) continue;
      listed.push_back(group.keys[u]);
    }
    const SharedLocks locks(stripes_, group.stripes);
    const auto add = [&](size_t i, EntryRef entry) {
      // It may have been brought in since, but it was not spilled.
      if (entry.found() && entry.is_spilled()) {
        spilled->Add(entry.place(), listed[i]);
      } else if (entry.found() && entry.in_memory()) {
        ++in_memory;
      }
    };
    stripes_.InspectLocked(listed.data(), listed.size(), add);
  }
  return in_memory;
}

void StepPlan::ListRows(RowHints* hints) const {
  uint64_t stripes = 0;
  for (int g = 0; g < keys_.size(); ++g) {
    const KeyGroup& group = keys_[g];
    const uint32_t* const rows = groups_[g].rows;
    uint32_t at = 0;
    for (uint32_t u = 0; u < group.size; ++u) {
      for (; at < group.end[u]; ++at) hints->SetRow(group.grouped[at], rows[u]);
    }
    stripes |= group.stripes;
  }
  hints->SetTimes(times_, stripes);
}

// ----------------------------------------------------------------------- room

bool StepPlan::ReserveQuotas(uint64_t* to_grow) {
  *to_grow = 0;
  const int64_t rows = new_rows();
  if (rows > 0 && !store_.arena().ReserveQuota(static_cast<uint64_t>(rows))) {
    return false;
  }
  for (int g = 0; g < keys_.size(); ++g) {
    if (groups_[g].n_without_row == 0) continue;
    ForEachStripe(keys_[g].stripes, [&](int s) {
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

bool StepPlan::TryGrow(int s, bool* has_memory) {
  const std::unique_lock<SharedMutex> lock(stripes_[s].mutex(),
                                           std::try_to_lock);
  if (lock.owns_lock()) *has_memory = stripes_[s].GrowToQuota();
  return lock.owns_lock();
}

bool StepPlan::Grow(int s) {
  const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
  return stripes_[s].GrowToQuota();
}

void StepPlan::ReleaseQuotas() {
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

bool StepPlan::MakeRoom(int g, bool* has_grown) {
  bool has_memory = true;
  ForEachStripe(keys_[g].stripes, [&](int s) {
    if (stripes_[s].HasRoom(needs_[s])) return;
    has_memory = stripes_[s].MakeRoom(needs_[s]) && has_memory;
    *has_grown = true;
  });
  if (*has_grown) FindAll(g);  // Entries have moved.
  return has_memory;
}

bool StepPlan::TakeRows(int g, uint32_t* first) {
  uint32_t n = 0;
  ForEachStripe(keys_[g].stripes, [&](int s) {
    const uint32_t freed = stripes_[s].n_free_rows();
    n += needs_[s].rows - std::min(freed, needs_[s].rows);
  });
  if (n == 0) return true;
  const uint32_t from_quota = std::min(n, row_quota_[g]);
  if (!store_.arena().Take(n, from_quota, first)) return false;
  row_quota_[g] -= from_quota;
  return true;
}

}  // namespace rec_estimator
