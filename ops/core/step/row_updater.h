// SPDX-License-Identifier: Apache-2.0
// RowUpdater: carries a StepPlan out. It inserts the keys that are admitted,
// counts and stamps all keys, sums their gradients and updates their rows.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_ROW_UPDATER_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_ROW_UPDATER_H_

#include <cstddef>
#include <cstdint>

#include "ops/core/base/scratch.h"
#include "ops/core/filter/filter_rule.h"
#include "ops/core/math/row_update.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch.h"
#include "ops/core/step/key_groups.h"
#include "ops/core/step/step_plan.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Only Update waits for an exclusive lock (see "THREAD RULE" in
// embedding_table.h).
class RowUpdater {
 public:
  // All of these outlive the object.
  RowUpdater(StripeSet* stripes, RowStore* store, const FilterRule& rule,
             const StepBatch& batch, const KeyGroups& keys, StepPlan* plan)
      : stripes_(*stripes),
        store_(*store),
        rule_(rule),
        batch_(batch),
        keys_(keys),
        plan_(*plan) {}

  // Whether the sums of a short list of so many distinct keys fit on the stack.
  // Then gradients are summed in batch order, as they are in memory. Otherwise
  // they are summed key by key, which needs KeyGroup::grouped.
  static bool SumsInBatchOrder(uint32_t n_distinct, int dim);

  // After KeyGroups::EndSort.
  void AddTo(Layout* layout);
  // How to update rows. It outlives the step.
  void set_update(const RowUpdate* update) { update_ = update; }

  // Inserts what is new in group g, then updates its rows. TryUpdate returns
  // whether it got the locks. *done = false, with the group as it was: there is
  // no memory in spite of the quota, which needs that another thread has erased
  // keys or cleared the table since.
  bool TryUpdate(int g, bool* done);
  void Update(int g, bool* done);

 private:
  // The locks of the group are held for all methods below.

  bool UpdateLocked(int g);
  // Gives entries and rows to the keys that need them. There is room. False: no
  // memory for rows, and nothing has changed.
  bool InsertAdmitted(int g);
  void UpdateRows(int g);
  // Whether the part of a row that the rule updates is of floats.
  bool updates_floats() const {
    return store_.AreFloats(static_cast<size_t>(update_->slots()));
  }
  // Whether each occurrence updates its row. An L2 penalty needs the sum of a
  // key's gradients, because a row gets it once, and a row of 16 bits is
  // rounded once.
  bool updates_each() const {
    return update_->per_occurrence() &&
           batch_.regularization.l2_scale == 0.0f && updates_floats();
  }
  // kAllHaveRows: no key has to be checked.
  template <bool kAllHaveRows>
  void UpdateFromList(int g);
  template <bool kAllHaveRows>
  void UpdateByKey(int g);
  // The loop of both, and how it gets at rows.
  template <bool kAllHaveRows, typename Gradients>
  void UpdateWith(int g, Gradients gradients);
  template <bool kAllHaveRows, typename Gradients, typename Rows>
  void UpdateOpened(int g, Gradients gradients, Rows opened);

  StripeSet& stripes_;
  RowStore& store_;
  const FilterRule rule_;
  const StepBatch& batch_;
  const KeyGroups& keys_;
  StepPlan& plan_;
  const RowUpdate* update_ = nullptr;
  // (groups, dim) for a sum that is too wide for the stack.
  float* wide_sums_ = nullptr;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_ROW_UPDATER_H_
