// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/window_plan.h"

#include <algorithm>

namespace rec_estimator {
namespace {

// The part of a window of a limit that is evicted, at least.
constexpr int64_t kLeastPart = 64;
// Windows for a budget: how many rows they have for each row to be evicted, and
// how many at least.
constexpr int64_t kRowsPerEvicted = 32;
constexpr int64_t kLeastWindowRows = 512;

// How many stripes of a table have the rows of a window. A power of two.
int StripesPerWindow(int64_t rows, int64_t window_rows) {
  int stripes = 1;
  while (stripes < kStripes && rows / kStripes * stripes < window_rows / 2) {
    stripes *= 2;
  }
  return stripes;
}

}  // namespace

WindowPlan::Size WindowPlan::SizeForLimit() const {
  return {StripesPerWindow(max_rows_, kWindowRows), kPartRows, kLeastPart};
}

WindowPlan::Size WindowPlan::SizeForBudget(int64_t excess, int64_t rows) {
  const int64_t window_rows = std::min(
      std::max(kLeastWindowRows, excess * kRowsPerEvicted), kWindowRows);
  return {StripesPerWindow(rows, window_rows), window_rows, INT64_MAX};
}

void WindowPlan::BeginStep(int64_t step) {
  size_ = 0;
  if (step == step_) return;
  step_ = step;
  const uint64_t begin = static_cast<uint64_t>(step) * EvictionWindow::kSpread;
  next_ = static_cast<int>(FastRange(begin, kStripes));
  round_ = begin >> 32;
}

void WindowPlan::PlanRound(const StripeSet& stripes, int64_t shared,
                           int64_t most) {
  size_ = 0;
  uint64_t planned = 0;
  for (int64_t rows = stripes.n_rows();;) {
    const int64_t beyond_limit = max_rows_ == 0 ? 0 : rows - max_rows_;
    const int64_t excess = std::min(std::max(beyond_limit, shared), most);
    if (excess <= 0) return;
    const Size size =
        beyond_limit > 0 ? SizeForLimit() : SizeForBudget(excess, rows);
    const EvictionWindow window = Next(stripes, size, excess);
    if ((window.stripes & planned) != 0) return;
    planned |= window.stripes;
    next_ = (next_ / size.stripes + 1) * size.stripes % kStripes;
    round_ += next_ == 0;
    windows_[static_cast<size_t>(size_++)] = window;
    rows -= window.excess;
    shared -= window.excess;
    most -= window.excess;
  }
}

EvictionWindow WindowPlan::Next(const StripeSet& stripes, const Size& size,
                                int64_t excess) const {
  // Windows of a budget may be of other sizes each time.
  const int begin = next_ / size.stripes * size.stripes;
  EvictionWindow window{};
  for (int s = begin; s < begin + size.stripes; ++s) {
    window.stripes |= uint64_t{1} << s;
    window.rows += stripes[s].rows();
  }
  // A part of a stripe, or, of several, all rows.
  if (size.stripes == 1) {
    const int64_t parts =
        std::clamp<int64_t>(window.rows / size.rows, 1, kMostParts);
    window.rows /= parts;
    window.parts = static_cast<uint64_t>(parts);
    window.part = round_ % window.parts;
  }
  // A long scan takes all that it may, so that there are few.
  const bool takes_all =
      window.rows > kWindowRows && size.least_part == kLeastPart;
  window.excess =
      std::max(excess, window.rows / (takes_all ? kMostPart : size.least_part));
  // All stripes are the whole table.
  if (size.stripes < kStripes) {
    window.excess =
        std::min(window.excess, std::max<int64_t>(1, window.rows / kMostPart));
  }
  return window;
}

}  // namespace rec_estimator
