// SPDX-License-Identifier: Apache-2.0
// TrainingStep: one step of several tables, applied in all of them or in none.
//
// Two phases. Reserve needs the keys only. It sorts and deduplicates them,
// finds out which are new, checks the row limits and gets all the memory that
// the step will need in any table: scratch, rows, entries and the sketch. If
// it fails, no table has changed. Apply uses what was reserved and cannot fail
// for lack of memory.
//
// Any time may pass between the two, and other threads may use the tables. An
// apply finds its keys anew in a stripe whose entries may have moved since, and
// new keys in one that was locked exclusively at all. Row limits are reserved
// only while Apply runs: a step that waited for the Apply of another could wait
// forever. So Apply may still refuse a step if other steps run at the same
// time. It has then changed nothing either.
// The one exception: keys of the step are erased, or a table is cleared, after
// Reserve, and memory then runs out. Then parts of the step are not applied.
//
// Work is split by table and, in a large batch, by stripe. The order of a key's
// occurrences is that of the batch, so the bits do not depend on the number of
// threads, and they are those of one step per table.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_TRAINING_STEP_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_TRAINING_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/filter/filter_rule.h"
#include "ops/core/keys/key_partition.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/batch.h"
#include "ops/core/storage/disk_error.h"
#include "ops/core/stripes/row_budget.h"

namespace rec_estimator {

class Capacity;
class DiskTier;
class KeyGroups;
class RowHints;
class RowStore;
class StripeSet;

// What a step uses of one table.
struct TableParts {
  RowStore* store;
  StripeSet* stripes;
  FilterRule rule;
  RowBudget* budget;             // nullptr: no row limit.
  DiskTier* tier;                // nullptr: all rows are in memory.
  Capacity* capacity = nullptr;  // nullptr: no row gives way to others.
};

class TrainingStep {
 public:
  // Why a step was refused.
  enum class Refusal { kNone, kNoMemory, kTooManyRows, kStorage };
  struct Outcome {
    Refusal refusal = Refusal::kNone;
    size_t table = 0;         // The position of the table that refused.
    int64_t excess_rows = 0;  // kTooManyRows: the number of rows too many.
    // kStorage: which file, why, and the remedy.
    std::string message = {};
    StorageFault fault = StorageFault::kFailed;

    bool ok() const { return refusal == Refusal::kNone; }
  };

  // What Apply needs for one table besides its keys.
  struct Gradients {
    const float* grads;       // (n, dim)
    const RowUpdate* update;  // Outlives Apply.
    int64_t version;          // As in Batch.
  };

  // A step of tables, all distinct, each with the keys and counted keys of its
  // batch. Tables and keys outlive this object. Throws std::bad_alloc.
  TrainingStep(std::vector<TableParts> tables, std::vector<StepBatch> batches);
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  size_t size() const { return batches_.size(); }
  const StepBatch& batch(size_t i) const { return batches_[i]; }

  // Called once. What was reserved is kept until the step ends.
  Outcome Reserve(const ParallelFor& parallel);

  // After a Reserve that succeeded, before Apply: the rows that table i would
  // have after the step. A concurrent step may be counted or not.
  int64_t RowsAfter(size_t i) const;
  // At the same time: hints for a lookup of the keys of batch i, then of its
  // counted keys, then of `more` keys, which the step has not searched. The
  // batch has no hints. nullptr: the table keeps rows on disk, and may spill
  // these once the step has ended. Throws std::bad_alloc.
  std::shared_ptr<const RowHints> HintsForLookup(size_t i, size_t more) const;

  // Called at most once, after a Reserve that succeeded. gradients: one for
  // each table. Ends the step.
  Outcome Apply(const Gradients* gradients, const ParallelFor& parallel);

 private:
  // What is done in one table.
  struct TableStep;
  // A group of keys of a table, or a block of its batch, or a stripe, or a
  // window of rows to evict.
  struct Unit {
    uint32_t table;
    int32_t number;
  };

  // Calls attempt(table, number) for all units_ in parallel, then, for those
  // for which it returned false, finish(table, number) on this thread.
  template <typename Try, typename Finish>
  void ForEachUnit(const ParallelFor& parallel, int64_t cycles,
                   const Try& attempt, const Finish& finish);
  // What a lookup of the keys of batch i has found; nullptr: nothing.
  const RowHints* HintsOf(size_t i) const;
  // Set steps_. Tables with the same lists of keys share their groups.
  void MakeSteps();
  void MakeStepsOf(const uint32_t* begin, const uint32_t* end);
  // Calls work(i, step) for one of the tables that share keys, if any.
  template <typename Work>
  void ForEachKeys(const Work& work);
  void AddUnits(size_t table, int64_t n);
  // What an occurrence costs, spread over the units.
  int64_t CyclesPerUnit(int64_t per_occurrence) const;

  Outcome ReserveAll(const ParallelFor& parallel);
  // Calls work(i, &error) for the tables whose rows are partly on disk, until
  // it returns false or throws std::bad_alloc. An empty error: out of memory.
  template <typename Work>
  Outcome ForEachTier(const Work& work);
  // Spills what is beyond the limit, and holds the step's keys from then on.
  Outcome HoldKeys();
  // Evicts from the tables that are full. The step's keys are held.
  void TrimTables(const Gradients* gradients, const ParallelFor& parallel);
  // Sets units_: the next windows of these tables, if any. Returns their rows.
  int64_t PlanEvictions();
  // Brings the held keys' rows in.
  Outcome BringIn();
  // Adds the step to the counts of each table.
  void CountLookedUp() const;
  void ReleaseKeys();

  bool GetMemory(const ParallelFor& parallel);
  Outcome CheckLimits(const ParallelFor& parallel);
  Outcome GetRoom(const ParallelFor& parallel);
  // Holds the row limits of all tables until the end of the step.
  Outcome ClaimRows(const ParallelFor& parallel);
  // The rows that table i would have beyond its limit. Its claim is held.
  int64_t ExcessRows(size_t i, const ParallelFor& parallel);

  std::vector<TableParts> tables_;
  std::vector<StepBatch> batches_;
  std::vector<std::unique_ptr<TableStep>> steps_;  // By table.
  bool holds_keys_ = false;
  std::vector<std::optional<RowBudget::Claim>> claims_;
  // The positions of the tables in the order in which they are claimed, which
  // is the same for all steps.
  std::vector<uint32_t> claim_order_;
  std::vector<Unit> units_;
  std::vector<char> left_;  // By unit: whether its first try failed.
  uint64_t occurrences_ = 0;
  int64_t dims_ = 0;  // Sum over the tables.
  Scratch scratch_;
  Scratch unusual_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_TRAINING_STEP_H_
