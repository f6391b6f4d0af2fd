// SPDX-License-Identifier: Apache-2.0
// WindowPlan: from which rows a full table evicts, and how many.
//
//   a large table   a window is one stripe, locked alone, or a part of it
//   a small table   a window is several stripes, or all of them
//
// The windows of a round have no stripe in common. They are planned from the
// numbers of rows and from the step, and a part of a stripe is chosen by the
// hashes of the keys. So their rows depend neither on the threads that evict
// nor on the order of the index, which differs from process to process: a
// training that is restored evicts what it would have evicted.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_WINDOW_PLAN_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_WINDOW_PLAN_H_

#include <array>
#include <cstdint>

#include "ops/core/base/key_hash.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Rows of which the coldest are evicted.
struct EvictionWindow {
  uint64_t stripes;     // Bit s: they are in stripe s.
  int64_t rows;         // How many there are; of a part, about how many.
  int64_t excess;       // How many of them are too many.
  uint64_t parts = 1;   // Into so many parts the rows of a stripe are divided,
  uint64_t part = 0;    // and this one is the window.
  int64_t evicted = 0;  // How many were evicted.

  bool Contains(int64_t key) const {
    return FastRange(static_cast<uint64_t>(key) * kSpread, parts) == part;
  }
  // 2^64 over the golden ratio: multiples of it are spread evenly.
  static constexpr uint64_t kSpread = 0x9E3779B97F4A7C15u;
};

class WindowPlan {
 public:
  // Rows of a window of a limit, if the table has as many: far more than its
  // eighth needs to be a fair sample, and few enough to be scanned in 100 µs.
  static constexpr int64_t kWindowRows = int64_t{1} << 14;
  // A stripe with twice as many rows is divided, and into at most so many
  // parts: each of them reads all keys of the stripe.
  static constexpr int64_t kPartRows = int64_t{1} << 17;
  static constexpr int64_t kMostParts = 4;
  // The part of a window that is evicted, at most.
  static constexpr int64_t kMostPart = 8;

  // max_rows: those that the table may have; 0: any number.
  explicit WindowPlan(int64_t max_rows) : max_rows_(max_rows) {}

  // Begins the windows of a step at a stripe that the step tells: steps in a
  // sequence begin all over the table. Without steps, and if several have the
  // same number, they go on where the last one ended.
  void BeginStep(int64_t step);

  // Plans a round, from where the last one ended and once around the stripes at
  // most: windows with the rows that the table has beyond its limit, and with
  // `shared` rows, but with about `most` rows at most. No lock is held.
  void PlanRound(const StripeSet& stripes, int64_t shared, int64_t most);

  // Its windows.
  int64_t size() const { return size_; }
  EvictionWindow& operator[](int64_t w) {
    return windows_[static_cast<size_t>(w)];
  }
  EvictionWindow* begin() { return windows_.data(); }
  EvictionWindow* end() { return windows_.data() + size_; }

 private:
  struct Size {
    int stripes;         // A power of two, so that it divides kStripes.
    int64_t rows;        // About, if it is a part of one stripe.
    int64_t least_part;  // At least such a part of them is evicted.
  };
  Size SizeForLimit() const;
  static Size SizeForBudget(int64_t excess, int64_t rows);
  // The next window, if the table has `excess` rows too many.
  EvictionWindow Next(const StripeSet& stripes, const Size& size,
                      int64_t excess) const;

  const int64_t max_rows_;
  int64_t step_ = -1;
  int next_ = 0;        // A stripe of the next window.
  uint64_t round_ = 0;  // Which part of it.
  int64_t size_ = 0;
  std::array<EvictionWindow, kStripes> windows_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_WINDOW_PLAN_H_
