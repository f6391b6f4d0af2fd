// SPDX-License-Identifier: Apache-2.0
// The phases of a step of one table, one by one, for tests.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_STEP_PHASES_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_STEP_PHASES_H_

#include <cstdint>
#include <memory>

#include "ops/core/base/scratch.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/batch.h"
#include "ops/core/step/key_groups.h"
#include "ops/core/step/row_updater.h"
#include "ops/core/step/step_plan.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {

// Keys that are sorted and deduplicated.
struct GroupedBatch {
  std::unique_ptr<KeyGroups> groups;
  Scratch scratch, cells, ids;

  GroupedBatch(const StepBatch& batch, const DeduplicatedList* list,
               bool group_occurrences = true)
      : groups(KeyGroups::Of(batch, list)) {
    if (group_occurrences) groups->GroupOccurrences();
    EXPECT_TRUE(
        scratch.Allocate([this](Layout* layout) { groups->AddTo(layout); }));
    for (int64_t b = 0; b < groups->blocks(); ++b) groups->SortBlock(b);
    groups->EndSort();
    EXPECT_TRUE(
        cells.Allocate([this](Layout* layout) { groups->AddCellsTo(layout); }));
    uint32_t* memory = nullptr;
    EXPECT_TRUE(ids.Allocate(
        [&](Layout* layout) { layout->Add(&memory, groups->n()); }));
    for (int g = 0; g < groups->size(); ++g) {
      groups->Deduplicate(g, memory + (*groups)[g].begin);
    }
  }
};

// And what a table does with them.
struct PlannedBatch {
  const TableParts parts;
  StepPlan plan;
  RowUpdater updater;
  Scratch scratch;

  PlannedBatch(EmbeddingTable* table, const StepBatch& batch,
               const GroupedBatch& grouped, const RowHints* hints = nullptr)
      : parts(table->parts()),
        plan(parts.stripes, parts.store, parts.rule, *grouped.groups, hints),
        updater(parts.stripes, parts.store, parts.rule, batch, *grouped.groups,
                &plan) {
    EXPECT_TRUE(scratch.Allocate([this](Layout* layout) {
      plan.AddTo(layout);
      updater.AddTo(layout);
    }));
    for (int g = 0; g < grouped.groups->size(); ++g) plan.Find(g);
  }

  // Room for what is new.
  void Reserve() {
    uint64_t to_grow;
    EXPECT_TRUE(plan.ReserveQuotas(&to_grow));
    ForEachStripe(to_grow, [this](int s) { EXPECT_TRUE(plan.Grow(s)); });
  }
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_STEP_PHASES_H_
