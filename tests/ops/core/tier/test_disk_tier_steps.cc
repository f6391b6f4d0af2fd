// SPDX-License-Identifier: Apache-2.0
// Steps of several tables whose rows are mostly on disk, with the rules that
// users have, equal those of tables in memory, bit for bit.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

// The range of keys. kStripes rows, which are the fewest that may be in memory,
// are 2 % of them.
constexpr int64_t kKeys = 3200;

// Twins of every kind, which share steps.
class Families {
 public:
  Families(uint64_t seed, const ParallelFor& parallel)
      : random_(seed), parallel_(parallel) {
    RowRules special;
    special.has_padding = true;
    special.frozen_keys = {0, 1000003, -2000006};
    RowRules narrow, half;
    narrow.value = {ValueType::kBFloat16, 5, true};
    half.value = {ValueType::kHalf, 7, false};
    const FilterSpec counter{3, 1, {}}, early{2, 1, {}};
    const FilterSpec bloom = BloomFilter(3, 1, 5000, 0.01);
    const auto oldest = Victims::kOldest;
    const auto least = Victims::kLeastCounted;
    Add(250, {}, {}, least, "Adagrad", {0.1f});
    Add(130, counter, {}, oldest, "Ftrl", {0.1f, -0.5f, 0.01f, 0.1f, 0.1f});
    Add(190, bloom, {}, least, "Momentum", {0.1f, 0.9f, 1});
    Add(100, {}, special, oldest, "Adam",
        {0.01f, 0.9f, 0.999f, 1e-8f, 0.9f, 0.999f});
    Add(300, bloom, special, oldest, "RowwiseAdagrad", {0.1f});
    Add(220, early, {}, least, "GradientDescent", {0.1f});
    Add(251, counter, narrow, least, "Momentum", {0.1f, 0.9f, 0});
    Add(240, bloom, half, oldest, "RowwiseAdagrad", {0.1f});
  }

  // A step of all tables. In every other step, lookups tell where the keys are.
  // is_disturbed: rows of other keys come from the disk meanwhile.
  void Step(bool is_disturbed) {
    const bool is_told = random_() % 2 == 0;
    std::vector<Twins::Step> steps;
    std::vector<StepBatch> batches = RandomBatches(&steps);
    std::vector<std::vector<float>> values[2];
    for (const auto side : {&Twins::memory, &Twins::spilling}) {
      std::vector<EmbeddingTable*> tables;
      for (const auto& twins : twins_) tables.push_back(&(twins.get()->*side));
      const bool on_disk = side == &Twins::spilling;
      std::vector<std::shared_ptr<const RowHints>> found(tables.size());
      for (size_t i = 0; is_told && i < tables.size(); ++i) {
        StepBatch& batch = batches[i];
        if (batch.n == 0 || batch.n_counted > 0) continue;
        values[on_disk].emplace_back(batch.n * tables[i]->dim());
        found[i] = tables[i]->LookupListed(
            std::make_shared<DeduplicatedList>(batch.keys, batch.n, parallel_),
            UnknownKey::kInitial, values[on_disk].back().data(), parallel_);
        batch.hints = found[i].get();
      }
      const auto disturb = [&](uint64_t seed) {
        if (!is_disturbed || !on_disk) return;
        std::mt19937_64 random(seed);
        for (size_t i = 0; i < tables.size(); ++i) {
          const Keys keys = Twins::RandomKeys(300, kKeys, &random);
          EXPECT_TRUE(tables[i]->BringInAhead({{keys.data(), keys.size()}}, 2));
        }
      };
      std::vector<TableParts> parts;
      for (EmbeddingTable* table : tables) parts.push_back(table->parts());
      TrainingStep step(parts, batches);
      disturb(2 * version_);
      EXPECT_TRUE(step.Reserve(parallel_).ok());
      disturb(2 * version_ + 1);
      std::vector<TrainingStep::Gradients> gradients;
      for (size_t i = 0; i < tables.size(); ++i) {
        gradients.push_back(
            {batches[i].grads, updates_[i].get(), version_ + 1});
      }
      EXPECT_TRUE(step.Apply(gradients.data(), parallel_).ok());
    }
    for (size_t i = 0; i < values[0].size(); ++i) {
      EXPECT_TRUE(SameBits(values[0][i].data(), values[1][i].data(),
                           values[0][i].size()));
    }
    ++version_;
    for (const auto& twins : twins_) twins->NextVersion();
  }

  void DoAny() {
    if (random_() % 3 == 0) return Step(random_() % 3 == 0);
    twins_[random_() % twins_.size()]->DoAnyButApply(kKeys);
  }

  // More slots, as another optimizer brings them in the middle of a run.
  void AddSlots() {
    for (const auto& twins : twins_) twins->AddSlot({"late", 3, -0.5f});
  }

  void Check() {
    for (int s = 0; s < 4; ++s) Step(false);  // Rows ahead are given up.
    for (const auto& twins : twins_) {
      EXPECT_TRUE(InMemory(twins->spilling) <= kStripes);
      EXPECT_TRUE(twins->spilling.tier()->log()->counters().pages_read > 0);
      ExpectSameContents(twins->memory, twins->spilling);
    }
  }

 private:
  // A batch for each table, which points into `steps`. Some have the keys of
  // the first one, and some have none.
  std::vector<StepBatch> RandomBatches(std::vector<Twins::Step>* steps) {
    std::vector<StepBatch> batches;
    for (const auto& twins : twins_) steps->push_back(twins->RandomStep(kKeys));
    for (size_t i = 0; i < steps->size(); ++i) {
      const uint64_t how = random_() % 8;
      const bool is_shared = how < 4;
      if (is_shared)
        (*steps)[i].grads = twins_[i]->RandomGrads((*steps)[0].keys.size());
      batches.push_back((*steps)[is_shared ? 0 : i].batch(0));
      batches.back().grads = (*steps)[i].grads.data();
      if (how == 5) {
        Lengthen(&(*steps)[i], twins_[i].get());
        batches.back() = (*steps)[i].batch(0);
      }
      if (how == 3 || how >= 5) batches.back().n_counted = 0;
      if (how == 4) batches.back().n = 0;
    }
    return batches;
  }

  // So that the list of keys is in groups.
  static void Lengthen(Twins::Step* step, Twins* twins) {
    const Keys once = step->keys;
    while (!once.empty() && step->keys.size() <= DeduplicatedList::kShort) {
      step->keys.insert(step->keys.end(), once.begin(), once.end());
    }
    step->grads = twins->RandomGrads(step->keys.size());
  }

  void Add(int dim, const FilterSpec& filter, const RowRules& rules,
           Victims victims, const std::string& rule,
           const std::vector<float>& hyper) {
    twins_.push_back(std::make_unique<Twins>(dim, filter, rules, kStripes,
                                             victims, random_(), parallel_));
    updates_.push_back(MakeRowUpdate(rule, hyper));
    const RowUpdate& update = *updates_.back();
    for (int s = 0; s < update.slots(); ++s) {
      twins_.back()->AddSlot(
          {"slot" + std::to_string(s), update.slot_width(s, dim), 0.125f});
    }
  }

  std::mt19937_64 random_;
  const ParallelFor parallel_;
  std::vector<std::unique_ptr<Twins>> twins_;
  std::vector<std::unique_ptr<RowUpdate>> updates_;
  int64_t version_ = 0;
};

void CompareFamilies(int operations, uint64_t seed,
                     const ParallelFor& parallel) {
  Families families(seed, parallel);
  for (int o = 0; o < operations && testing::Failures() == 0; ++o) {
    families.DoAny();
    if (o == operations / 2) families.AddSlots();
  }
  families.Check();
}

TEST_WITHOUT_TSAN(StepsOfSeveralTablesGiveTheBitsOfTablesInMemory) {
  CompareFamilies(300, 1, SerialFor);
}

TEST(StepsOfSeveralTablesByThreadsGiveTheBitsOfTablesInMemory) {
  Threads threads(3);
  CompareFamilies(150, 2, threads.parallel());
}

SLOW_TEST(TenThousandOperationsGiveTheBitsOfTablesInMemory) {
  Threads threads(2);
  CompareFamilies(10000, 3, threads.parallel());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
