// SPDX-License-Identifier: Apache-2.0
// RowHints for a step: lookups of a list that several tables share,
// and steps that use what these lookups have found.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

// One list of keys that all tables read, and the gradients of each.
struct SharedStep {
  std::vector<int64_t> keys;
  std::vector<std::vector<float>> grads;
  std::shared_ptr<const DeduplicatedList> list;
  std::vector<std::shared_ptr<const RowHints>> found;

  SharedStep(const Tables& tables, size_t n, int64_t range, uint64_t seed)
      : found(tables.size()) {
    std::mt19937_64 random(seed);
    // The smallest of five, so that some keys are frequent. -1 is padding.
    std::uniform_int_distribution<int64_t> key(-1, range - 1);
    std::uniform_real_distribution<float> grad(-1, 1);
    for (size_t i = 0; i < n; ++i) {
      int64_t least = key(random);
      for (int k = 0; k < 4; ++k) least = std::min(least, key(random));
      keys.push_back(i % 2 == 0 ? least : key(random));
    }
    for (const auto& table : tables) {
      grads.emplace_back();
      for (size_t i = 0; i < n * table->dim(); ++i) {
        grads.back().push_back(grad(random));
      }
    }
    list =
        std::make_shared<DeduplicatedList>(keys.data(), keys.size(), SerialFor);
  }

  // Looks the keys up in all tables, as one lookup and as one of a list.
  void Lookup(const Tables& tables) {
    for (size_t i = 0; i < tables.size(); ++i) {
      const EmbeddingTable& table = *tables[i];
      const UnknownKey unknown =
          i % 2 == 0 ? UnknownKey::kInitial : UnknownKey::kDefault;
      const size_t floats = keys.size() * table.dim();
      std::vector<float> values(floats), listed(floats);
      table.Lookup(keys.data(), keys.size(), unknown, values.data(), SerialFor);
      found[i] = table.LookupListed(list, unknown, listed.data(), SerialFor);
      EXPECT_TRUE(values == listed);
    }
  }

  std::vector<StepBatch> Batches(int64_t version) const {
    std::vector<StepBatch> batches;
    for (size_t i = 0; i < grads.size(); ++i) {
      batches.push_back({keys.data(), grads[i].data(), keys.size(), nullptr, 0,
                         version, nullptr, found[i].get()});
    }
    return batches;
  }

  void Apply(const Tables& tables, const RowUpdate& rule, int64_t version,
             const ParallelFor& parallel) const {
    TrainingStep step(PartsOf(tables), Batches(version));
    EXPECT_TRUE(step.Reserve(parallel).ok());
    Finish(&step, rule, version, parallel);
  }

  void Finish(TrainingStep* step, const RowUpdate& rule, int64_t version,
              const ParallelFor& parallel) const {
    std::vector<TrainingStep::Gradients> gradients;
    for (const auto& each : grads) {
      gradients.push_back({each.data(), &rule, version});
    }
    EXPECT_TRUE(step->Apply(gradients.data(), parallel).ok());
  }

  // The same, in one step per table that finds its keys by itself.
  void ApplyOneByOne(const Tables& tables, const RowUpdate& rule,
                     int64_t version) const {
    std::vector<StepBatch> batches = Batches(version);
    for (size_t i = 0; i < tables.size(); ++i) {
      batches[i].hints = nullptr;
      EXPECT_TRUE(tables[i]->Apply(batches[i], rule, SerialFor));
    }
  }
};

// Without the wide one, for long lists.
Tables MakeNarrowTables() {
  Tables tables = MakeTables();
  tables.pop_back();
  return tables;
}

TEST(StepsThatUseHintsHaveTheBitsOfStepsThatDoNot) {
  const int64_t n_steps = testing::kUnderTsan ? 2 : 4;
  const AdagradLike sums(0.5f);
  const SgdEach each(0.5f);
  const RowUpdate* const rules[] = {&sums, &each};
  // 4000 keys of dim 16 have too many sums for the stack.
  for (const size_t n :
       {size_t{1}, size_t{300}, size_t{4000}, DeduplicatedList::kShort,
        3 * DeduplicatedList::kShort}) {
    for (const RowUpdate* rule : rules) {
      const Tables expected = n > 300 ? MakeNarrowTables() : MakeTables();
      const Tables tables = n > 300 ? MakeNarrowTables() : MakeTables();
      Threads threads(4);
      for (int64_t s = 0; s < n_steps; ++s) {
        SharedStep step(tables, n, 1000 * (s + 1), n + s);
        step.Lookup(tables);
        step.Apply(tables, *rule, s, threads.parallel());
        step.ApplyOneByOne(expected, *rule, s);
      }
      EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
    }
  }
}

TEST_WITHOUT_TSAN(SomeTablesOfAStepMayHaveFoundTheirKeys) {
  // Without a list, a step takes the second batch in parts.
  for (const size_t n :
       {size_t{2000}, DeduplicatedList::kShort, 3 * DeduplicatedList::kShort}) {
    for (const size_t missing : {size_t{0}, size_t{1}, size_t{3}}) {
      const Tables expected = MakeNarrowTables();
      const Tables tables = MakeNarrowTables();
      for (int64_t s = 0; s < 3; ++s) {
        SharedStep step(tables, n, 3000, s);
        step.Lookup(tables);
        step.found[missing] = nullptr;
        step.Apply(tables, AdagradLike(0.5f), s, SerialFor);
        step.ApplyOneByOne(expected, AdagradLike(0.5f), s);
      }
      EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
    }
  }
}

TEST(WhatWasFoundInOtherMemoryIsNotUsed) {
  const Tables expected = MakeNarrowTables();
  const Tables tables = MakeNarrowTables();
  SharedStep other(tables, 2000, 3000, 1);
  other.Lookup(tables);
  SharedStep step(tables, 2000, 3000, 2);
  step.found = other.found;
  step.Apply(tables, AdagradLike(0.5f), 1, SerialFor);
  step.ApplyOneByOne(expected, AdagradLike(0.5f), 1);
  EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
}

TEST_WITHOUT_TSAN(AStepFindsKeysAnewThatMovedSinceTheLookup) {
  const AdagradLike rule(0.5f);
  for (const auto& [n, reserved] : std::vector<std::pair<size_t, bool>>{
           {2000, false},
           {2000, true},
           {DeduplicatedList::kShort + 1, false},
           {DeduplicatedList::kShort + 1, true}}) {
    for (int how = 0; how < 6; ++how) {
      const Tables expected = MakeNarrowTables();
      const Tables tables = MakeNarrowTables();
      const SharedStep first(tables, 3000, 2000, 1);
      first.Apply(tables, rule, 0, SerialFor);
      first.ApplyOneByOne(expected, rule, 0);
      SharedStep second(tables, n, 3000, 2);
      second.Lookup(tables);
      TrainingStep step(PartsOf(tables), second.Batches(2));
      if (reserved) EXPECT_TRUE(step.Reserve(SerialFor).ok());
      for (size_t i = 0; i < tables.size(); ++i) {
        Disturb(expected[i].get(), how, second.keys);
        Disturb(tables[i].get(), how, second.keys);
      }
      if (!reserved) EXPECT_TRUE(step.Reserve(SerialFor).ok());
      second.Finish(&step, rule, 2, SerialFor);
      second.ApplyOneByOne(expected, rule, 2);
      EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
    }
  }
}

void ExpectThatThreadsLoseNoCount(int n_steps, size_t n_keys) {
  constexpr int kThreads = 4;
  Tables tables;
  for (const int dim : {3, 1}) {
    tables.push_back(std::make_unique<EmbeddingTable>(dim));
  }
  const AddSum rule;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int s = 0; s < n_steps; ++s) {
        // Keys of a step are partly new, so that tables grow.
        SharedStep step(tables, n_keys, 100 * (s + 1), t * n_steps + s);
        for (auto& grads : step.grads) grads.assign(grads.size(), 1.0f);
        for (size_t i = 0; i < tables.size(); ++i) {
          std::vector<float> values(n_keys * tables[i]->dim());
          step.found[i] = tables[i]->LookupListed(
              step.list, UnknownKey::kInitial, values.data(), SerialFor);
        }
        step.Apply(tables, rule, s, SerialFor);
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
    EXPECT_EQ(counts, kThreads * n_steps * static_cast<int64_t>(n_keys));
  }
}

TEST(StepsOfSeveralThreadsThatUseHintsLoseNoCount) {
  ExpectThatThreadsLoseNoCount(25, 600);
}

TEST(StepsOfSeveralThreadsWithLongListsLoseNoCount) {
  ExpectThatThreadsLoseNoCount(4, DeduplicatedList::kShort + 1);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
