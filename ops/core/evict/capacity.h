// SPDX-License-Identifier: Apache-2.0
// Capacity: a table that is full takes away its coldest rows.
//
// At the end of a step, a table that has more rows than it may looks at windows
// of its rows (window_plan.h), and evicts the coldest of each, an eighth at
// most. The keys of a window are as random as their hashes, so this is close to
// the coldest rows of the table.
//
// So a step pays for the rows that it has added, and no step pays for a scan of
// the table. Rows on disk are evicted without being read.
//
//   round    plan windows | evict from them, on the threads of the step
//   round    the same for rows that are left: of windows full of held keys, or
//            of more windows than go once around the table
//
// The plan says how many rows each window evicts, so the threads do not change
// which rows go. Nor does a restart: what decides is in the checkpoint. Another
// step may run at the same time; then it evicts nothing.
//
// A table may also share memory with others (memory_budget.h), besides such a
// limit or instead of it. Its part of what they take too much is often a few
// rows. Then windows are as much smaller, so that no more rows are evicted.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_

#include <cstdint>
#include <memory>
#include <mutex>

#include "ops/core/evict/cold_rows.h"
#include "ops/core/evict/memory_budget.h"
#include "ops/core/evict/window_plan.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/stripes/held_keys.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Thread rule: any thread may call any method at any time. No lock is held.
class Capacity {
 public:
  // stripes and store outlive the object. budget: nullptr if the table shares
  // no memory; then spec.max_rows >= 1. Throws std::bad_alloc.
  Capacity(const CapacitySpec& spec, StripeSet* stripes, RowStore* store,
           std::shared_ptr<MemoryBudget> budget);
  ~Capacity();
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

  // The rows of a holder's keys are not evicted until it is released.
  void Hold(const KeyHolder* holder) { holders_.Add(holder); }
  void Release(const KeyHolder* holder) { holders_.Remove(holder); }

  // nullptr: the table shares no memory.
  const MemoryBudget* budget() const { return budget_.get(); }

  // What a step evicts.
  class Trim;

 private:
  // Evicts the coldest rows of a window, whose stripes are locked exclusively.
  // If memory runs out, some of them stay.
  void EvictFrom(EvictionWindow* window, int64_t now);
  // Lists the rows of a window, without held ones, and leaves those that it
  // evicts. Throws std::bad_alloc.
  void ListColdest(const EvictionWindow& window, int64_t now, ColdRows* rows);
  // Gives the memory of free rows back, if it is much: what another table of
  // the budget needs, and rows that stripes kept free when they had more keys
  // than now. Called at the end of a step with so many occurrences.
  void GiveBack(int64_t occurrences);

  const CapacitySpec spec_;
  StripeSet& stripes_;
  RowStore& store_;
  const std::shared_ptr<MemoryBudget> budget_;
  KeyHolders holders_;
  std::mutex trimming_;  // Guards what follows. Taken before other locks.
  WindowPlan plan_;
  int64_t most_occurrences_ = 0;  // The most of late: a step takes rows first.
};

// Evicts the rows that the budget asks for, and until the table has at most
// max_rows, or has no rows but held ones, or until the rows of a few windows
// and twice the step's occurrences are gone. A step adds no more rows than it
// has occurrences, so a table that was restored too large shrinks by and by.
// Evicts nothing while another Trim of the table lives.
//
// All but TryEvict and Evict are called by one thread.
class Capacity::Trim {
 public:
  // shared: the rows that are evicted for the budget. now: the version of the
  // step. Does not wait.
  Trim(Capacity* capacity, int64_t occurrences, int64_t shared, int64_t now);
  // Gives memory back.
  ~Trim();
  Trim(const Trim&) = delete;
  Trim& operator=(const Trim&) = delete;

  // Plans a round, after all windows of the last one, and returns its windows.
  // 0: the trim is over.
  int64_t PlanRound();
  // The rows of the round's windows.
  int64_t rows() const { return rows_; }

  // Evict from window w of the round. Called once for each window, but once
  // more after TryEvict returned false: another thread has one of the locks.
  // Any thread may call these for different windows. Evict waits for locks.
  bool TryEvict(int64_t w);
  void Evict(int64_t w);

 private:
  // Takes what the last round has evicted into account.
  void EndRound();

  Capacity& capacity_;
  const std::unique_lock<std::mutex> lock_;  // Holds nothing if another trims.
  const int64_t occurrences_;
  const int64_t now_;
  int64_t left_;    // Rows that may still be evicted.
  int64_t shared_;  // Rows that are still evicted for the budget.
  int64_t rows_ = 0;
  int in_vain_ = 0;  // Stripes since which all rows were held.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_
