// SPDX-License-Identifier: Apache-2.0
// TrainingStep: several tables in one step, with the bits of one step per
// table, and in none of them if one has no room.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/failing_new.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

TEST(OneStepHasTheBitsOfAStepPerTableWhateverTheThreads) {
  const Tables one_by_one = MakeTables();
  for (int step = 0; step < 6; ++step) {
    const Batches batches = MakeBatches(one_by_one, step, 4000);
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(one_by_one[i]->Apply(batches[i].batch(step),
                                       AdagradLike(0.5f), SerialFor));
    }
  }
  const auto expected = BitsOf(one_by_one);
  for (const int n : {1, 4}) {
    Threads threads(n);
    const Tables tables = MakeTables();
    for (int step = 0; step < 6; ++step) {
      const Batches batches = MakeBatches(tables, step, 4000);
      EXPECT_TRUE(Apply(tables, batches, step, threads.parallel()).ok());
    }
    EXPECT_TRUE(BitsOf(tables) == expected);
  }
}

// All tables read the keys of the first one, two of them not all of these.
std::vector<StepBatch> RawOfSameLists(const Batches& batches, int64_t version) {
  std::vector<StepBatch> raw;
  for (size_t i = 0; i < batches.size(); ++i) {
    raw.push_back(batches[0].batch(version));
    raw.back().grads = batches[i].grads.data();
    if (i == 1) raw.back().n_counted = 0;  // Not quite the same lists.
    if (i == 2) --raw.back().n;
  }
  return raw;
}

TEST(TablesThatReadOneListOfKeysHaveTheBitsOfAStepPerTable) {
  const int n_steps = testing::kUnderTsan ? 2 : 4;
  for (const size_t n : {size_t{70}, size_t{3000}, size_t{9000}}) {
    Tables one_by_one = MakeTables();
    Threads threads(4);
    Tables tables = MakeTables();
    if (n > 70) {  // Random rows of 4,100 floats take minutes.
      one_by_one.pop_back();
      tables.pop_back();
    }
    for (int step = 0; step < n_steps; ++step) {
      std::mt19937_64 random(step);
      Batches batches;
      for (const auto& table : tables) {
        batches.emplace_back(n, 2000, table->dim(), &random);
      }
      const auto raw = RawOfSameLists(batches, step);
      for (size_t i = 0; i < raw.size(); ++i) {
        EXPECT_TRUE(one_by_one[i]->Apply(raw[i], AdagradLike(0.5f), SerialFor));
      }
      TrainingStep together(PartsOf(tables), raw);
      EXPECT_TRUE(together.Reserve(threads.parallel()).ok());
      EXPECT_TRUE(
          ApplyReserved(&together, batches, step, threads.parallel()).ok());
    }
    EXPECT_TRUE(BitsOf(tables) == BitsOf(one_by_one));
  }
}

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kStride = 40;  // About ten times slower there.
#else
constexpr int64_t kStride = 1;
#endif

// Makes the allocations of a step fail, from the n-th on, for each kStride-th n
// until it succeeds, and expects that it then has changed nothing. Returns the
// number of allocations.
int64_t FailEachAllocation(const std::function<void(int64_t)>& limit) {
  const Tables expected = MakeTables();
  const Batches first = MakeBatches(expected, 1, 500);
  const Batches second = MakeBatches(expected, 2, 9000);
  EXPECT_TRUE(Apply(expected, first, 1, SerialFor).ok());
  const auto before = BitsOf(expected);
  EXPECT_TRUE(Apply(expected, second, 2, SerialFor).ok());
  const auto after = BitsOf(expected);
  for (int64_t n = 0;; n += kStride) {
    const Tables tables = MakeTables();
    EXPECT_TRUE(Apply(tables, first, 1, SerialFor).ok());
    bool refused = false;
    {
      const auto parts = PartsOf(tables);
      auto raw = Raw(second);
      std::unique_ptr<TrainingStep> step;
      limit(n);
      try {
        step = std::make_unique<TrainingStep>(parts, std::move(raw));
        refused = !step->Reserve(SerialFor).ok();
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      limit(-1);
    }
    EXPECT_TRUE(BitsOf(tables) == before);
    if (testing::Failures() > 0) return n;
    if (refused && n % 16 != 0) continue;
    // The step that was not applied gave back what it had reserved.
    EXPECT_TRUE(Apply(tables, second, 2, SerialFor).ok());
    EXPECT_TRUE(BitsOf(tables) == after);
    if (!refused) return n;
  }
}

TEST_WITHOUT_TSAN(AStepWhoseMemoryFailsAnywhereChangesNoTable) {
  // At least the 64 indexes of the large batches.
  EXPECT_TRUE(FailEachAllocation(LimitAllocations) > 100);
}

TEST_WITHOUT_TSAN(AStepWhoseSmallAllocationsFailChangesNoTable) {
  EXPECT_TRUE(FailEachAllocation([](int64_t n) { news_left = n; }) > 5);
}

TEST_WITHOUT_TSAN(AReservedStepNeedsNoMoreMemory) {
  const Tables expected = MakeTables();
  const Tables tables = MakeTables();
  for (int64_t s = 1; s <= 4; ++s) {
    const Batches batches = MakeBatches(tables, s, 3000 * s);
    EXPECT_TRUE(Apply(expected, batches, s, SerialFor).ok());
    TrainingStep step(PartsOf(tables), Raw(batches));
    EXPECT_TRUE(step.Reserve(SerialFor).ok());
    LimitAllocations(0);
    const bool applied = ApplyReserved(&step, batches, s, SerialFor).ok();
    LimitAllocations(-1);
    EXPECT_TRUE(applied);
  }
  EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
}

// Two tables, the second with a limit of 100 rows.
Tables MakeTablesOneOf100Rows() {
  RowRules limited;
  limited.max_rows = 100;
  Tables tables;
  tables.push_back(std::make_unique<EmbeddingTable>(4));
  tables.push_back(
      std::make_unique<EmbeddingTable>(4, 0.0f, FilterSpec(), limited));
  for (const auto& table : tables) table->EnsureSlots({{"Adagrad", 4, 0.1f}});
  return tables;
}

TEST(AFullTableRefusesTheStepOfAll) {
  const Tables tables = MakeTablesOneOf100Rows();
  std::mt19937_64 random(5);
  Batches batches;
  for (int i = 0; i < 2; ++i) batches.emplace_back(900, 102, 4, &random);
  const auto before = BitsOf(tables);
  const TrainingStep::Outcome outcome = Apply(tables, batches, 1, SerialFor);
  EXPECT_TRUE(outcome.refusal == TrainingStep::Refusal::kTooManyRows);
  EXPECT_EQ(outcome.table, 1u);
  EXPECT_EQ(outcome.excess_rows, 2);
  EXPECT_TRUE(BitsOf(tables) == before);
}

TEST(RowsThatAnotherStepTookInBetweenRefuseTheStepOfAll) {
  const Tables tables = MakeTablesOneOf100Rows();
  std::mt19937_64 random(5);
  Batches batches;
  for (int i = 0; i < 2; ++i) batches.emplace_back(900, 60, 4, &random);
  TrainingStep step(PartsOf(tables), Raw(batches));
  EXPECT_TRUE(step.Reserve(SerialFor).ok());
  std::vector<int64_t> others;
  for (int64_t key = 1000; key < 1050; ++key) others.push_back(key);
  EXPECT_TRUE(ApplyOnes(tables[1].get(), others));
  const auto before = BitsOf(tables);
  const TrainingStep::Outcome outcome =
      ApplyReserved(&step, batches, 1, SerialFor);
  EXPECT_TRUE(outcome.refusal == TrainingStep::Refusal::kTooManyRows);
  EXPECT_EQ(outcome.table, 1u);
  EXPECT_EQ(outcome.excess_rows, 10);
  EXPECT_TRUE(BitsOf(tables) == before);
}

TEST_WITHOUT_TSAN(AStepSeesWhatChangedSinceItReserved) {
  for (int how = 0; how < 6; ++how) {
    const Tables expected = MakeTables();
    const Tables tables = MakeTables();
    const Batches first = MakeBatches(tables, 1, 3000);
    const Batches second = MakeBatches(tables, 2, 3000);
    EXPECT_TRUE(Apply(expected, first, 0, SerialFor).ok());
    EXPECT_TRUE(Apply(tables, first, 0, SerialFor).ok());
    TrainingStep step(PartsOf(tables), Raw(second));
    EXPECT_TRUE(step.Reserve(SerialFor).ok());
    for (size_t i = 0; i < tables.size(); ++i) {
      Disturb(expected[i].get(), how, second[i].keys);
      Disturb(tables[i].get(), how, second[i].keys);
    }
    EXPECT_TRUE(ApplyReserved(&step, second, 2, SerialFor).ok());
    EXPECT_TRUE(Apply(expected, second, 2, SerialFor).ok());
    EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
  }
}

TEST(StepsOfSharedTablesInAnyOrderLoseNoCountAndNeverWaitForEachOther) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 25;
  constexpr size_t kKeys = 3000;
  RowRules limited;  // Near its limit, so that claims are exclusive.
  limited.max_rows = 1000;
  Tables tables;
  for (int i = 0; i < 3; ++i) {
    tables.push_back(
        std::make_unique<EmbeddingTable>(3, 0.0f, FilterSpec(), limited));
  }
  Threads pool(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<TableParts> order = PartsOf(tables);
      const AddSum rule;
      for (int s = 0; s < kSteps; ++s) {
        std::shuffle(order.begin(), order.end(), random);
        Batches batches;
        for (int i = 0; i < 3; ++i) {
          batches.emplace_back(s % 2 ? kKeys : 2 * kKeys, 1000, 3, &random);
          batches.back().counted.clear();
          batches.back().grads.assign(batches.back().grads.size(), 1.0f);
        }
        TrainingStep step(order, Raw(batches));
        EXPECT_TRUE(step.Reserve(pool.parallel()).ok());
        std::vector<TrainingStep::Gradients> gradients;
        for (const Occurrences& each : batches) {
          gradients.push_back({each.grads.data(), &rule, s});
        }
        EXPECT_TRUE(step.Apply(gradients.data(), pool.parallel()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& table : tables) {
    const Contents contents(*table);
    int64_t counts = 0;
    for (const Contents::Entry& entry : contents.admitted) {
      counts += entry.freq;
      // Gradients of 1 add exactly, so the sum is the count.
      EXPECT_EQ(entry.row[0], static_cast<float>(entry.freq));
    }
    EXPECT_EQ(counts, kThreads * (13 * 2 + 12) * static_cast<int64_t>(kKeys));
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
