// SPDX-License-Identifier: Apache-2.0
// RowHints for a lookup: lookups that use the rows that a step has found, and
// steps whose keys other steps, evictions and spills have moved since.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

// Random orders of steps, and steps of a thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kOrders = 3;  // About ten times slower there.
constexpr int kSteps = 20;
#else
constexpr uint64_t kOrders = 20;
constexpr int kSteps = 150;
#endif

// A step of distinct keys with counts, as a worker packs them, and the memory
// of it. Each list of keys continues with some that are only read.
struct PackedStep {
  struct List {
    std::vector<int64_t> keys;  // With a gradient, counted, read.
    std::vector<uint32_t> counts;
    std::vector<float> grads;
    size_t n_gradient, n_counted;

    size_t n_read() const { return keys.size() - n_gradient - n_counted; }
  };

  PackedStep(const Tables& tables, int64_t range, uint64_t seed) {
    constexpr size_t kSizes[] = {6000, 300, 2000, 5000, 40};
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < tables.size(); ++i) {
      lists.emplace_back();
      List& list = lists.back();
      std::vector<int64_t>& keys = list.keys;
      // -1 is padding.
      for (int64_t key = -1; key < range; ++key) keys.push_back(key);
      std::shuffle(keys.begin(), keys.end(), random);
      keys.resize(std::min(keys.size(), kSizes[i % std::size(kSizes)]));
      list.n_gradient = keys.size() / 2;
      list.n_counted = keys.size() / 4;
      for (size_t k = 0; k < list.n_gradient + list.n_counted; ++k) {
        list.counts.push_back(static_cast<uint32_t>(random() % 3 + 1));
      }
      for (size_t f = 0; f < list.n_gradient * tables[i]->dim(); ++f) {
        list.grads.push_back(static_cast<float>(random() % 512) / 256 - 1);
      }
    }
  }

  std::vector<StepBatch> Batches() const {
    std::vector<StepBatch> batches;
    for (const List& list : lists) {
      batches.push_back({list.keys.data(), nullptr, list.n_gradient,
                         list.keys.data() + list.n_gradient, list.n_counted, 0,
                         list.counts.data()});
    }
    return batches;
  }

  std::unique_ptr<TrainingStep> Reserve(const Tables& tables,
                                        const ParallelFor& parallel) {
    auto step = std::make_unique<TrainingStep>(PartsOf(tables), Batches());
    EXPECT_TRUE(step->Reserve(parallel).ok());
    rows.clear();
    for (size_t i = 0; i < lists.size(); ++i) {
      rows.push_back(step->HintsForLookup(i, lists[i].n_read()));
    }
    return step;
  }

  void Apply(TrainingStep* step, int64_t version,
             const ParallelFor& parallel) const {
    const AdagradLike rule(0.5f);
    std::vector<TrainingStep::Gradients> gradients;
    for (const List& list : lists) {
      gradients.push_back({list.grads.data(), &rule, version});
    }
    EXPECT_TRUE(step->Apply(gradients.data(), parallel).ok());
  }

  // Lookups with and without what was reserved read the same.
  void ExpectSameLookups(const Tables& tables,
                         const ParallelFor& parallel) const {
    for (size_t i = 0; i < tables.size(); ++i) {
      const std::vector<int64_t>& keys = lists[i].keys;
      const size_t floats = keys.size() * tables[i]->dim();
      for (const UnknownKey unknown :
           {UnknownKey::kInitial, UnknownKey::kDefault}) {
        std::vector<float> searched(floats), reserved(floats);
        tables[i]->Lookup(keys.data(), keys.size(), unknown, searched.data(),
                          SerialFor);
        tables[i]->Lookup(keys.data(), keys.size(), unknown, reserved.data(),
                          parallel, rows[i].get());
        EXPECT_TRUE(SameBits(searched.data(), reserved.data(), floats));
      }
    }
  }

  std::vector<List> lists;
  std::vector<std::shared_ptr<const RowHints>> rows;
};

TEST(AStepListsTheRowsOfItsKeysInTheirOrder) {
  const Tables tables = MakeTables();
  PackedStep first(tables, 7000, 1);
  const auto step = first.Reserve(tables, SerialFor);
  for (size_t i = 0; i < tables.size(); ++i) {
    for (size_t k = 0; k < first.lists[i].keys.size(); ++k) {
      EXPECT_TRUE(first.rows[i]->rows()[k] >= HashIndex::kSpilled);
    }
  }
  first.Apply(step.get(), 1, SerialFor);
  const auto second = first.Reserve(tables, SerialFor);
  for (size_t i = 0; i < tables.size(); ++i) {
    const PackedStep::List& list = first.lists[i];
    const auto has_row = std::make_unique<bool[]>(list.keys.size());
    tables[i]->Contains(list.keys.data(), list.keys.size(), has_row.get());
    std::vector<uint32_t> rows;
    for (size_t k = 0; k < list.keys.size(); ++k) {
      const uint32_t row = first.rows[i]->rows()[k];
      const bool in_step = k < list.n_gradient + list.n_counted;
      EXPECT_EQ(row < HashIndex::kSpilled, in_step && has_row[k]);
      if (row < HashIndex::kSpilled) rows.push_back(row);
    }
    std::sort(rows.begin(), rows.end());
    EXPECT_TRUE(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
  }
}

TEST(AStepWithoutKeysListsNoRows) {
  const Tables tables = MakeTables();
  PackedStep step(tables, 0, 1);
  for (PackedStep::List& list : step.lists) {
    list.n_gradient = list.n_counted = 0;
  }
  step.Reserve(tables, SerialFor);
  step.ExpectSameLookups(tables, SerialFor);
}

TEST(LookupsThatUseHintsReadTheSame) {
  const Tables tables = MakeTables();
  Threads threads(4);
  const int64_t n_steps = testing::kUnderTsan ? 2 : 5;
  for (int64_t s = 0; s < n_steps; ++s) {
    // A part of the keys is new.
    PackedStep packed(tables, 2000 * (s + 1), s);
    const auto step = packed.Reserve(tables, threads.parallel());
    packed.ExpectSameLookups(tables, threads.parallel());
    packed.Apply(step.get(), s, threads.parallel());
    packed.ExpectSameLookups(tables, threads.parallel());
  }
}

TEST_WITHOUT_TSAN(StepsThatOthersOvertookHaveTheBitsOfStepsInOneOrder) {
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    std::mt19937_64 random(seed);
    Tables expected = MakeTables();
    Tables tables = MakeTables();
    expected.pop_back();  // Wide rows take too long under sanitizers.
    tables.pop_back();
    struct Running {
      PackedStep packed;
      std::unique_ptr<TrainingStep> step;
    };
    std::vector<std::unique_ptr<Running>> running;
    for (int64_t version = 0; version < 12; ++version) {
      running.push_back(std::make_unique<Running>(
          Running{PackedStep(tables, 1500 * (version + 2), random()), {}}));
      Running& last = *running.back();
      last.step = last.packed.Reserve(tables, SerialFor);
      if (random() % 4 == 0) {
        const int how = static_cast<int>(random() % 6);
        const PackedStep& some = running[random() % running.size()]->packed;
        for (size_t i = 0; i < tables.size(); ++i) {
          Disturb(tables[i].get(), how, some.lists[i].keys);
          Disturb(expected[i].get(), how, some.lists[i].keys);
        }
      }
      // Up to three steps run at a time, and end in any order.
      while (running.size() > (version == 11 ? 0 : random() % 4)) {
        const size_t which = random() % running.size();
        for (const auto& each : running) {
          each->packed.ExpectSameLookups(tables, SerialFor);
        }
        Running& one = *running[which];
        one.packed.Apply(one.step.get(), version, SerialFor);
        TrainingStep alone(PartsOf(expected), one.packed.Batches());
        EXPECT_TRUE(alone.Reserve(SerialFor).ok());
        one.packed.Apply(&alone, version, SerialFor);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
      }
      EXPECT_TRUE(BitsOf(tables) == BitsOf(expected));
    }
  }
}

// A table whose rows tell their keys: a value is the key's residue, which its
// initial vector has, and the key's count, which steps of AddSum add.
class TellingTable {
 public:
  static constexpr int kDim = 19;
  static constexpr int64_t kKeys = 9000;
  static constexpr int64_t kResidues = 251;
  static constexpr float kUnit = 65536;  // Above all counts.

  TellingTable() : table_(kDim) {
    std::vector<float> bank;
    for (int64_t b = 0; b < kResidues; ++b) {
      bank.insert(bank.end(), kDim, kUnit * static_cast<float>(b));
    }
    table_.SetBank(bank.data(), kResidues);
    // The bank's row of each key.
    std::vector<int64_t> keys(kKeys);
    for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
    std::vector<float> out(kKeys * kDim);
    table_.Lookup(keys.data(), keys.size(), UnknownKey::kInitial, out.data(),
                  SerialFor);
    for (int64_t key = 0; key < kKeys; ++key) {
      initial_.push_back(out[key * kDim]);
    }
  }
  EmbeddingTable& table() { return table_; }

  // Returns the key's count.
  float Check(int64_t key, const float* row) const {
    EXPECT_EQ(std::count(row, row + kDim, row[0]), kDim);
    const float count = row[0] - initial_[key];
    EXPECT_TRUE(count >= 0 && count < kUnit);
    return count;
  }

  // Some steps, each of which reads its keys while it is reserved.
  void Train(int steps, std::mt19937_64* random, std::vector<int>* counts) {
    const AddSum rule;
    for (int s = 0; s < steps; ++s) {
      // Small batches lock all stripes at once.
      const size_t n = s % 3 == 0 ? 1000 : 5000;
      std::vector<int64_t> keys(kKeys);
      for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
      std::shuffle(keys.begin(), keys.end(), *random);
      keys.resize(n + 100);  // The last ones are only read.
      const std::vector<uint32_t> ones(n, 1);
      const std::vector<float> grads(n * kDim, 1.0f);
      StepBatch batch = {};
      batch.keys = keys.data();
      batch.n = n;
      batch.counts = ones.data();
      TrainingStep step({table_.parts()}, {batch});
      EXPECT_TRUE(step.Reserve(SerialFor).ok());
      const auto rows = step.HintsForLookup(0, keys.size() - n);
      std::this_thread::yield();
      std::vector<float> out(keys.size() * kDim);
      table_.Lookup(keys.data(), keys.size(), UnknownKey::kInitial, out.data(),
                    SerialFor, rows.get());
      for (size_t k = 0; k < keys.size(); ++k) Check(keys[k], &out[k * kDim]);
      std::this_thread::yield();
      const TrainingStep::Gradients gradients = {grads.data(), &rule, s};
      EXPECT_TRUE(step.Apply(&gradients, SerialFor).ok());
      for (size_t k = 0; k < n; ++k) ++(*counts)[keys[k]];
    }
  }

  // Takes away some of the keys that are odd, so that other keys get their rows
  // and entries.
  void Erase(std::mt19937_64* random) {
    std::vector<int64_t> keys;
    for (int k = 0; k < 300; ++k) {
      keys.push_back(static_cast<int64_t>((*random)() % (kKeys / 2)) * 2 + 1);
    }
    table_.Erase(keys.data(), keys.size());
  }

  // Inserts keys that no step has: indexes grow.
  void InsertOthers(std::mt19937_64* random) {
    std::vector<int64_t> keys;
    for (int k = 0; k < 500; ++k) {
      keys.push_back(kKeys + static_cast<int64_t>((*random)() % 100000));
    }
    EXPECT_TRUE(table_.Insert(
        {keys.data(), keys.size(), nullptr, {}, nullptr, nullptr}));
  }

  // When all threads have ended: no count of an even key was lost.
  void CheckCounts(const std::vector<std::vector<int>>& counts) const {
    const Contents contents(table_);
    int64_t kept = 0;
    for (const Contents::Entry& entry : contents.admitted) {
      if (entry.key >= kKeys) continue;
      const float count = Check(entry.key, entry.row);
      EXPECT_EQ(count, static_cast<float>(entry.freq));
      int trained = 0;
      for (const auto& each : counts) trained += each[entry.key];
      EXPECT_TRUE(entry.freq <= trained);
      if (entry.key % 2 != 0) continue;
      EXPECT_EQ(entry.freq, trained);
      ++kept;
    }
    int64_t expected = 0;
    for (int64_t key = 0; key < kKeys; key += 2) {
      expected += std::any_of(
          counts.begin(), counts.end(),
          [key](const std::vector<int>& each) { return each[key] > 0; });
    }
    EXPECT_EQ(kept, expected);
  }

 private:
  EmbeddingTable table_;
  std::vector<float> initial_;
};

void TrainWhileKeysMove(TellingTable* telling) {
  constexpr int kThreads = 3;
  std::atomic<int> training{kThreads};
  std::vector<std::vector<int>> counts(kThreads,
                                       std::vector<int>(TellingTable::kKeys));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      telling->Train(kSteps, &random, &counts[t]);
      --training;
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(kThreads);
    while (training > 0) {
      telling->Erase(&random);
      if (random() % 4 == 0) telling->InsertOthers(&random);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& thread : threads) thread.join();
  telling->CheckCounts(counts);
}

TEST(NoStepReadsOrTrainsTheRowOfAnotherKey) {
  TellingTable telling;
  TrainWhileKeysMove(&telling);
}

TEST(NoStepReadsOrTrainsTheRowOfAnotherKeyIfRowsMoveToTheDiskAndBack) {
  const Folder folder;
  TellingTable telling;
  OpenTier(&telling.table(), folder, 2000);
  TrainWhileKeysMove(&telling);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
