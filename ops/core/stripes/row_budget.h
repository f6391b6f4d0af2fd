// SPDX-License-Identifier: Apache-2.0
// How concurrent applies share the rows that a table with a limit may still
// get.
//
// An apply that fits, whatever its keys are, announces that many rows and runs
// at the same time as others. An apply that may not fit waits until it is
// alone, counts the keys that are new, and then either changes the table or
// fails. So a step that fits is never refused because of rows that another step
// only might have added. The cost is two atomic additions and a sum over the
// stripes per batch. Near the limit, applies of one table run one after the
// other and counting adds about a tenth to an apply's time.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_ROW_BUDGET_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_ROW_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

class RowBudget {
 public:
  // `stripes` outlives this. max_rows 0: no limit.
  RowBudget(const StripeSet& stripes, int64_t max_rows)
      : stripes_(stripes), max_rows_(max_rows) {}
  RowBudget(const RowBudget&) = delete;
  RowBudget& operator=(const RowBudget&) = delete;

  // How many rows the table would have beyond the limit with `new_rows` more.
  int64_t Excess(int64_t new_rows) const {
    const int64_t excess = stripes_.n_rows() + new_rows - max_rows_;
    return excess > 0 ? excess : 0;
  }

  // The share of one apply, which may add up to `max_new_rows` rows. While it
  // lives, no other apply takes that room.
  class Claim {
   public:
    Claim(RowBudget* limit, int64_t max_new_rows)
        : limit_(*limit), announced_(max_new_rows) {
      if (limit_.max_rows_ == 0) return;
      beside_others_ = std::shared_lock<std::shared_mutex>(limit_.mutex_);
      // The apply adds its rows to the stripes before it subtracts them from
      // announced_rows_. So an apply that ends between these two reads is
      // counted twice rather than never.
      const int64_t announced =
          limit_.announced_rows_.fetch_add(announced_) + announced_;
      if (limit_.Excess(announced) == 0) return;
      limit_.announced_rows_.fetch_sub(announced_);
      beside_others_.unlock();
      alone_ = std::unique_lock<std::shared_mutex>(limit_.mutex_);
    }
    ~Claim() {
      if (beside_others_.owns_lock()) {
        limit_.announced_rows_.fetch_sub(announced_);
      }
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    // Whether there is room even if every occurrence is a new key. If not, no
    // other apply runs, so the new keys can be counted.
    bool is_certain() const { return !alone_.owns_lock(); }

   private:
    RowBudget& limit_;
    const int64_t announced_;
    std::shared_lock<std::shared_mutex> beside_others_;
    std::unique_lock<std::shared_mutex> alone_;
  };

 private:
  const StripeSet& stripes_;
  const int64_t max_rows_;
  // Applies that are certain to fit hold it shared, and announced_rows_ counts
  // the rows they may add. Near the limit, an apply holds it exclusively.
  std::shared_mutex mutex_;
  std::atomic<int64_t> announced_rows_{0};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_ROW_BUDGET_H_
