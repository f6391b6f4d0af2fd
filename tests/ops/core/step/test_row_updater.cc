// SPDX-License-Identifier: Apache-2.0
// RowUpdater: both sources of gradients give the bits of one update per key in
// the order of the batch, and no group waits for a lock in TryUpdate.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/math/regularization.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/row_updater.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/step/phases.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// One update after the other, until all groups are done.
void Update(EmbeddingTable* table, const StepBatch& batch,
            const DeduplicatedList* list, const RowUpdate& rule) {
  const bool in_order = list != nullptr && RowUpdater::SumsInBatchOrder(
                                               list->size(), table->dim());
  const GroupedBatch grouped(batch, list, !in_order);
  PlannedBatch planned(table, batch, grouped);
  planned.Reserve();
  planned.updater.set_update(&rule);
  for (int g = 0; g < grouped.groups->size(); ++g) {
    bool done = false;
    EXPECT_TRUE(planned.updater.TryUpdate(g, &done));
    EXPECT_TRUE(done);
  }
}

void CompareSources(size_t n, const RowUpdate& rule,
                    const Regularization& regularization) {
  Tables tables = MakeTables(), listed = MakeTables(), applied = MakeTables();
  for (uint64_t step = 0; step < 3; ++step) {
    std::mt19937_64 random(step);
    for (size_t i = 0; i < tables.size(); ++i) {
      const int dim = tables[i]->dim();
      if (dim > 1000 && n > 300) continue;  // Too slow under sanitizers.
      Occurrences occurrences(n, 3000, dim, &random);
      StepBatch batch = occurrences.batch(static_cast<int64_t>(3 * step));
      batch.n_counted = 0;  // A list has none.
      batch.regularization = regularization;
      const DeduplicatedList list(batch.keys, batch.n, SerialFor);
      Update(tables[i].get(), batch, nullptr, rule);
      Update(listed[i].get(), batch, &list, rule);
      EXPECT_TRUE(applied[i]->Apply(batch, rule, SerialFor));
    }
  }
  EXPECT_TRUE(BitsOf(tables) == BitsOf(listed));
  EXPECT_TRUE(BitsOf(tables) == BitsOf(applied));
}

TEST(BothSourcesOfGradientsGiveTheSameBits) {
  const AdagradLike sums(0.5f);
  const SgdEach each(0.5f);
  // 2000 keys of dim 16 have too many sums for the stack.
  for (const size_t n : {size_t{1}, size_t{300}, size_t{4000}}) {
    for (const RowUpdate* rule : {static_cast<const RowUpdate*>(&sums),
                                  static_cast<const RowUpdate*>(&each)}) {
      for (const Regularization& regularization :
           {Regularization{}, {0.1f, 0.0f}, {0.0f, 0.1f}}) {
        CompareSources(n, *rule, regularization);
      }
    }
  }
}

TEST(ListsWhoseSumsFitOnTheStackAreSummedInBatchOrder) {
  EXPECT_TRUE(RowUpdater::SumsInBatchOrder(1536, 16));
  EXPECT_TRUE(!RowUpdater::SumsInBatchOrder(1537, 16));
  EXPECT_TRUE(RowUpdater::SumsInBatchOrder(8192, 1));
  EXPECT_TRUE(!RowUpdater::SumsInBatchOrder(UINT32_MAX, 1 << 30));
}

TEST(AGroupWhoseLocksAreTakenIsLeftAsItWas) {
  EmbeddingTable table(4);
  std::vector<int64_t> keys = {1, 2, 3, 2};
  const std::vector<float> grads(keys.size() * 4, 1.0f);
  const StepBatch batch = {
      keys.data(), grads.data(), keys.size(), nullptr, 0, 0};
  const GroupedBatch grouped(batch, nullptr);
  PlannedBatch planned(&table, batch, grouped);
  planned.Reserve();
  const AddSum rule;
  planned.updater.set_update(&rule);
  bool done = false;
  {
    const RowReader reader(table, keys.data(), 1);
    EXPECT_TRUE(!planned.updater.TryUpdate(0, &done));
  }
  EXPECT_EQ(table.size(), 0);
  planned.updater.Update(0, &done);
  EXPECT_TRUE(done);
  EXPECT_EQ(table.size(), 3);
  std::vector<int64_t> counts(3);
  table.Frequencies(keys.data(), 3, counts.data());
  EXPECT_TRUE((counts == std::vector<int64_t>{1, 2, 1}));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
