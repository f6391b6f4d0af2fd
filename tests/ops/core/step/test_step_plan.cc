// SPDX-License-Identifier: Apache-2.0
// StepPlan: which keys have a row, which get one, the room that is held for
// them, and what is looked at again if the table has changed since.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/step_plan.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/step/phases.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

using Keys = std::vector<int64_t>;

// n keys from `first` on, each of them twice.
Keys Twice(int64_t first, int64_t n) {
  Keys keys;
  for (int64_t i = 0; i < 2 * n; ++i) keys.push_back(first + i % n);
  return keys;
}

StepBatch BatchOf(const Keys& keys) {
  return {keys.data(), nullptr, keys.size(), nullptr, 0, 0};
}

// One group, and one for each stripe.
constexpr int64_t kSizes[] = {500, 5000};

// What a plan says of a key.
uint32_t RowOf(const GroupedBatch& grouped, StepPlan* plan, int64_t key) {
  const int g = grouped.groups->size() == 1 ? 0 : StripeOf(MixKey(key));
  const KeyGroup& group = (*grouped.groups)[g];
  const auto u = std::find(group.keys, group.keys + group.size, key);
  EXPECT_TRUE(u < group.keys + group.size);
  return (*plan)[g].rows[u - group.keys];
}

TEST(KeysWithoutARowAreNewOnceEach) {
  for (const int64_t n : kSizes) {
    EmbeddingTable table(4);
    const Keys old = Twice(0, n / 2), keys = Twice(0, n);
    EXPECT_TRUE(ApplyOnes(&table, old, 1));
    const StepBatch batch = BatchOf(keys);
    const GroupedBatch grouped(batch, nullptr);
    PlannedBatch planned(&table, batch, grouped);
    EXPECT_EQ(planned.plan.new_rows(), n - n / 2);
    for (int64_t key = 0; key < n; ++key) {
      const uint32_t row = RowOf(grouped, &planned.plan, key);
      EXPECT_EQ(row < HashIndex::kSpilled, key < n / 2);
      EXPECT_EQ(row == GroupPlan::kToAdmit, key >= n / 2);
    }
    EXPECT_EQ(table.size(), n / 2);  // Nothing has changed.
  }
}

TEST(PaddingGetsNoRow) {
  for (const int64_t n : kSizes) {
    RowRules rules;
    rules.has_padding = true;
    EmbeddingTable table(4, 0.0f, {}, rules);
    const Keys keys = Twice(kPaddingKey, n);
    const StepBatch batch = BatchOf(keys);
    const GroupedBatch grouped(batch, nullptr);
    PlannedBatch planned(&table, batch, grouped);
    EXPECT_EQ(planned.plan.new_rows(), n - 1);
    EXPECT_EQ(RowOf(grouped, &planned.plan, kPaddingKey), HashIndex::kNoRow);
  }
}

TEST(CountsBeforeTheBatchAndInItDecideOnAdmission) {
  for (const FilterSpec& filter :
       {FilterSpec{3, 1}, BloomFilter(3, 1, 20000, 0.0001)}) {
    for (const int64_t n : kSizes) {
      EmbeddingTable table(4, 0.0f, filter);
      Keys once(static_cast<size_t>(n / 2));
      for (int64_t key = 0; key < n / 2; ++key) once[key] = key;
      EXPECT_TRUE(ApplyOnes(&table, once, 1));
      const Keys keys = Twice(0, n);  // 3 occurrences of the first half now.
      const StepBatch batch = BatchOf(keys);
      const GroupedBatch grouped(batch, nullptr);
      PlannedBatch planned(&table, batch, grouped);
      EXPECT_EQ(planned.plan.new_rows(), n / 2);
      for (int64_t key = 0; key < n; ++key) {
        EXPECT_EQ(RowOf(grouped, &planned.plan, key),
                  key < n / 2 ? GroupPlan::kToAdmit : HashIndex::kNoRow);
      }
    }
  }
}

TEST(WithRoomThatIsHeldAnUpdateNeedsNoMemory) {
  for (const int64_t n : kSizes) {
    EmbeddingTable table(4);
    const Keys keys = Twice(0, n);
    const std::vector<float> grads(keys.size() * 4, 1.0f);
    StepBatch batch = BatchOf(keys);
    batch.grads = grads.data();
    const GroupedBatch grouped(batch, nullptr);
    PlannedBatch planned(&table, batch, grouped);
    planned.Reserve();
    const AddSum rule;
    planned.updater.set_update(&rule);
    LimitAllocations(0);
    for (int g = 0; g < grouped.groups->size(); ++g) {
      bool done = false;
      planned.updater.Update(g, &done);
      EXPECT_TRUE(done);
    }
    LimitAllocations(-1);
    EXPECT_EQ(table.size(), n);
  }
}

TEST(RoomIsGivenBack) {
  EmbeddingTable table(4);
  const Keys keys = Twice(0, 5000);
  const StepBatch batch = BatchOf(keys);
  const GroupedBatch grouped(batch, nullptr);
  int64_t capacity = 0;
  for (int round = 0; round < 20; ++round) {
    PlannedBatch planned(&table, batch, grouped);
    planned.Reserve();
    if (round == 0) capacity = table.capacity();
    if (round % 2 == 0) planned.plan.ReleaseQuotas();  // Or the destructor.
  }
  EXPECT_EQ(table.capacity(), capacity);
}

TEST(GrowWaitsForALockAndTryGrowDoesNot) {
  EmbeddingTable table(4);
  const Keys keys = Twice(0, 5000);
  const StepBatch batch = BatchOf(keys);
  const GroupedBatch grouped(batch, nullptr);
  PlannedBatch planned(&table, batch, grouped);
  uint64_t to_grow;
  EXPECT_TRUE(planned.plan.ReserveQuotas(&to_grow));
  EXPECT_EQ(to_grow, kAllStripes);
  bool has_memory = false;
  {
    const SharedLocks locks(*planned.parts.stripes, 1);
    EXPECT_TRUE(!planned.plan.TryGrow(0, &has_memory));
  }
  EXPECT_TRUE(planned.plan.TryGrow(0, &has_memory));
  EXPECT_TRUE(has_memory);
  EXPECT_TRUE(planned.plan.Grow(1));
}

TEST(ARefreshFindsWhatOthersHaveInsertedOrErased) {
  for (const int64_t n : kSizes) {
    for (const bool erases : {false, true}) {
      EmbeddingTable table(4);
      const Keys old = Twice(0, n / 2), keys = Twice(0, n);
      EXPECT_TRUE(ApplyOnes(&table, old, 1));
      const StepBatch batch = BatchOf(keys);
      const GroupedBatch grouped(batch, nullptr);
      PlannedBatch planned(&table, batch, grouped);
      if (erases) {
        table.Erase(old.data(), old.size());
      } else {
        EXPECT_TRUE(ApplyOnes(&table, keys, 2));
      }
      for (int g = 0; g < grouped.groups->size(); ++g) {
        const ExclusiveLocks locks(*planned.parts.stripes,
                                   (*grouped.groups)[g].stripes);
        planned.plan.Refresh(g);
      }
      EXPECT_EQ(planned.plan.new_rows(), erases ? n : 0);
    }
  }
}

TEST(HintsForALookupHaveTheRowsOfAllOccurrences) {
  for (const int64_t n : kSizes) {
    EmbeddingTable table(4);
    const Keys old = Twice(0, n / 2), keys = Twice(0, n);
    EXPECT_TRUE(ApplyOnes(&table, old, 1));
    const StepBatch batch = BatchOf(keys);
    const GroupedBatch grouped(batch, nullptr);
    PlannedBatch planned(&table, batch, grouped);
    RowHints hints(keys.size() + 3);
    planned.plan.ListRows(&hints);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(hints.rows()[i], RowOf(grouped, &planned.plan, keys[i]));
    }
    for (size_t i = keys.size(); i < hints.size(); ++i) {
      EXPECT_EQ(hints.rows()[i], HashIndex::kNoRow);
    }
    const StripeSet& stripes = *planned.parts.stripes;
    const SharedLocks locks(stripes, kAllStripes);
    EXPECT_TRUE(hints.AreRowsInPlace(stripes));
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
