// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/l2_weight_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {
namespace {

bool IsAgeingDue(const StripeSet& stripes) {
  const SharedLocks locks(stripes, kAllStripes);
  return stripes.sketch()->IsAgeingDue();
}

// Calls visit(entry) for the entries of a stripe that have no row.
template <typename Visit>
void ForEachCount(const Stripe& stripe, const Visit& visit) {
  stripe.index().ForEach([&](EntryRef entry) {
    if (!entry.has_row()) visit(entry);
  });
}

// Erases the oldest of the entries without a row, if they are too many for the
// number of rows, and returns how many it erased. Keys of one version stay or
// go together.
int64_t EraseOldestCounts(Stripe* stripe, int64_t stamp) {
  const int64_t counts = stripe->keys() - stripe->rows();
  const int64_t kept =
      std::max(kLeastCounts / kStripes, kCountsPerRow * stripe->rows());
  if (counts <= kept) return 0;
  if (stamp < 0) {
    // Without steps, evictions are the clock: keys that an apply has stamped
    // with -1 since the last one are the youngest.
    ForEachCount(*stripe, [&](EntryRef entry) {
      stamp = std::max(stamp, entry.version());
    });
    stamp = std::min(stamp, INT64_MAX - 1) + 1;
  }
  std::vector<int64_t> versions;
  versions.reserve(static_cast<size_t>(counts));
  ForEachCount(*stripe, [&](EntryRef entry) {
    stripe->LimitVersion(entry, stamp);
    versions.push_back(entry.version());
  });
  const auto oldest_kept = versions.end() - static_cast<std::ptrdiff_t>(kept);
  std::nth_element(versions.begin(), oldest_kept, versions.end());
  int64_t erased = 0;
  ForEachCount(*stripe, [&, first = *oldest_kept](EntryRef entry) {
    if (entry.version() >= first) return;
    stripe->Erase(entry);
    ++erased;
  });
  return erased;
}

}  // namespace

void L2WeightRule::AgeSketch(StripeSet* stripes) {
  const bool is_due = IsAgeingDue(*stripes);
  const ExclusiveLocks locks(*stripes, kAllStripes);
  Sketch* sketch = stripes->mutable_sketch();
  if (is_due) sketch->AgeByKeys(stamp());
  forgotten_ = sketch->forgotten();
  // Versions do not lag behind the sketch, without steps either.
  set_stamp(std::max(stamp(), sketch->youngest()));
}

bool L2WeightRule::EvictsValue(const float* value, int dim) const {
  // Squares of finite floats cannot overflow a double, so the sum is finite iff
  // all values are.
  double sum = 0;
  for (int d = 0; d < dim; ++d) {
    sum += static_cast<double>(value[d]) * static_cast<double>(value[d]);
  }
  return sum < limit_ || !std::isfinite(sum);
}

int64_t L2WeightRule::EvictFrom(Stripe* stripe) const {
  const RowArena::View view = stripe->store().view();
  const RowFormat& format = stripe->store().format();
  ValueView values(format);
  int64_t evicted = 0;
  const auto evict_if_small = [&](EntryRef entry) {
    const float* const value = values.Of(view.Row(entry.row()));
    if (!EvictsValue(value, format.dim())) return;
    stripe->Evict(entry, stamp());
    ++evicted;
  };
  const auto age_count = [&](EntryRef entry) {
    if (entry.version() >= 0 && entry.version() < forgotten_) {
      stripe->Erase(entry);
    } else {
      stripe->LimitVersion(entry, stamp());
    }
  };
  // Entries wait here while their rows are prefetched.
  constexpr size_t kAhead = 16;
  std::array<EntryRef, kAhead> waiting;
  size_t n = 0;
  stripe->index().ForEach([&](EntryRef entry) {
    if (!entry.has_row()) {
      if (stripe->has_sketch()) age_count(entry);
      return;
    }
    if (!entry.in_memory()) return;
    PrefetchLines(view.Row(entry.row()), format.value_bytes());
    EntryRef& oldest = waiting[n++ % kAhead];
    if (oldest.found()) evict_if_small(oldest);
    oldest = entry;
  });
  for (const EntryRef entry : waiting) {
    if (entry.found()) evict_if_small(entry);
  }
  return stripe->has_sketch() ? evicted
                              : evicted + EraseOldestCounts(stripe, stamp());
}

}  // namespace rec_estimator
