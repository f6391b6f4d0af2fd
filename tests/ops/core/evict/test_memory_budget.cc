// SPDX-License-Identifier: Apache-2.0
// Tables that share memory: it stays level, whatever tables need it, and the
// rows of each step are there.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/evict/memory_budget.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

using Keys = std::vector<int64_t>;

Keys Range(int64_t begin, int64_t n) {
  Keys keys(static_cast<size_t>(n));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// The memory of a table, as the budget counts it.
int64_t BytesOf(const EmbeddingTable& table) {
  return table.total_count() * 35 + table.size() * table.dim() * 4;
}

bool Contains(const EmbeddingTable& table, const Keys& keys) {
  const std::unique_ptr<bool[]> found(new bool[keys.size()]);
  table.Contains(keys.data(), keys.size(), found.get());
  return std::all_of(found.get(), found.get() + keys.size(),
                     [](bool is_there) { return is_there; });
}

// Tables of these dims with one budget.
class Tables {
 public:
  Tables(int64_t bytes, const std::vector<int>& dims)
      : budget_(std::make_shared<MemoryBudget>(bytes)) {
    RowRules rules;
    rules.capacity.policy = CapacitySpec::kOldest;
    for (const int dim : dims) {
      tables_.push_back(
          std::make_unique<EmbeddingTable>(dim, 0.0f, FilterSpec{}, rules));
      tables_.back()->ShareMemory(budget_);
    }
  }

  EmbeddingTable& operator[](size_t i) { return *tables_[i]; }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& table : tables_) bytes += BytesOf(*table);
    return bytes;
  }

  // One step over all tables, each with its keys. All of them have rows then.
  void Train(const std::vector<Keys>& keys) {
    const AddSum rule;
    std::vector<TableParts> parts;
    std::vector<StepBatch> batches;
    std::vector<std::vector<float>> ones;
    std::vector<TrainingStep::Gradients> gradients;
    ++version_;
    for (size_t i = 0; i < tables_.size(); ++i) {
      parts.push_back(tables_[i]->parts());
      ones.emplace_back(keys[i].size() * tables_[i]->dim(), 1.0f);
      batches.push_back(
          {keys[i].data(), nullptr, keys[i].size(), nullptr, 0, version_});
      gradients.push_back({ones[i].data(), &rule, version_});
    }
    TrainingStep step(parts, batches);
    EXPECT_TRUE(step.Reserve(SerialFor).ok());
    EXPECT_TRUE(step.Apply(gradients.data(), SerialFor).ok());
    for (size_t i = 0; i < tables_.size(); ++i) {
      EXPECT_TRUE(Contains(*tables_[i], keys[i]));
    }
  }

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  int64_t version_ = 0;
};

TEST_WITHOUT_TSAN(MemoryStaysLevelInALongRunWithNewKeys) {
  constexpr int64_t kBudget = 1 << 20;
  constexpr int64_t kBatch = 100;
  Tables tables(kBudget, {1, 8, 30});
  std::mt19937_64 random(1);
  int64_t rows = 0;  // The real memory of rows, once it is in use.
  for (int64_t step = 0; step < 600; ++step) {
    std::vector<Keys> keys;
    for (size_t i = 0; i < 3; ++i) {
      keys.push_back(Range(step * 50, kBatch / 2));
      std::geometric_distribution<int64_t> hot(0.01);
      for (int64_t k = 0; k < kBatch / 2; ++k) keys[i].push_back(-hot(random));
    }
    tables.Train(keys);
    // A row is not divided.
    EXPECT_TRUE(tables.bytes() <= kBudget + 3 * (35 + 30 * 4));
    if (step < 300) continue;
    EXPECT_TRUE(tables.bytes() > kBudget - kBudget / 50);
    int64_t now = 0;
    for (size_t i = 0; i < 3; ++i) now += tables[i].memory_bytes();
    if (step == 300) rows = now;
    EXPECT_TRUE(now <= rows + rows / 10);
  }
}

TEST_WITHOUT_TSAN(ATableThatComesLaterGetsTheMemoryOfOthers) {
  constexpr int64_t kBudget = 1 << 20;
  Tables tables(kBudget, {8, 8});
  for (int64_t step = 0; step < 300; ++step) {
    tables.Train({Range(step * 100, 100), {}});
  }
  EXPECT_TRUE(BytesOf(tables[0]) > kBudget * 9 / 10);
  for (int64_t step = 300; step < 1500; ++step) {
    tables.Train({Range(step * 100, 100), Range(step * 100, 100)});
  }
  EXPECT_TRUE(tables.bytes() > kBudget * 9 / 10);
  EXPECT_TRUE(BytesOf(tables[0]) < BytesOf(tables[1]) * 11 / 10);
  EXPECT_TRUE(BytesOf(tables[1]) < BytesOf(tables[0]) * 11 / 10);
}

TEST_WITHOUT_TSAN(ASmallTableKeepsItsRowsBesideALargeOneWithNewKeys) {
  constexpr int64_t kBudget = 1 << 20;
  Tables tables(kBudget, {8, 8});
  const Keys few = Range(0, 50);
  tables.Train({few, {}});
  for (int64_t step = 0; step < 500; ++step) {
    tables.Train({{few[0]}, Range(step * 100, 100)});
  }
  EXPECT_EQ(tables[0].size(), 50);
}

TEST(OldestRowsOfATableGoFirst) {
  constexpr int64_t kBudget = 1 << 18;
  Tables tables(kBudget, {8});
  int64_t last = 0;
  for (; last < 300 * 50; last += 50) tables.Train({Range(last, 50)});
  const int64_t n = tables[0].size();
  // All but a few rows of the newest half, if not of all, are there.
  Keys newest = Range(last - n / 2, n / 2);
  std::vector<int64_t> versions(newest.size());
  tables[0].Versions(newest.data(), newest.size(), versions.data());
  const auto gone = std::count(versions.begin(), versions.end(), -1);
  EXPECT_TRUE(gone < n / 100);
}

TEST(ATableRestoredTooLargeShrinksAndGivesMemoryBack) {
  constexpr int64_t kBudget = 4 << 20;
  constexpr int kDim = 256;
  Tables tables(kBudget, {kDim});
  const Keys keys = Range(0, 20000);
  const std::vector<float> values(keys.size() * kDim, 1.0f);
  EXPECT_TRUE(tables[0].Insert(
      {keys.data(), keys.size(), values.data(), {}, nullptr, nullptr}));
  EXPECT_TRUE(tables[0].memory_bytes() > 4 * kBudget);
  for (int64_t step = 0; step < 10; ++step) tables.Train({{step}});
  EXPECT_TRUE(tables.bytes() <= kBudget + 4 * kDim + 35);
  EXPECT_TRUE(tables[0].memory_bytes() < kBudget * 3 / 2);
}

TEST(ThreadsTrainTablesThatShareMemory) {
  constexpr int64_t kBudget = 1 << 18;
  Tables tables(kBudget, {8, 8});
  std::atomic<bool> is_running{true};
  std::thread reader([&] {
    const Keys keys = Range(0, 3000);
    std::vector<float> values(keys.size() * 8);
    while (is_running) {
      for (size_t i = 0; i < 2; ++i) {
        tables[i].Lookup(keys.data(), keys.size(), UnknownKey::kDefault,
                         values.data(), SerialFor);
      }
    }
  });
  std::vector<std::thread> trainers;
  for (size_t t = 0; t < 3; ++t) {
    trainers.emplace_back([&tables, t] {
      for (int64_t step = 0; step < 150; ++step) {
        const int64_t begin =
            (step * 37 + static_cast<int64_t>(t) * 911) % 9000;
        EXPECT_TRUE(ApplyOnes(&tables[t % 2], Range(begin, 100), step));
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  is_running = false;
  reader.join();
  for (int64_t step = 0; step < 3; ++step) tables.Train({{1}, {1}});
  EXPECT_TRUE(tables.bytes() <= kBudget + 2 * (35 + 8 * 4));
}

TEST(ATableThatIsGoneTakesNoMemory) {
  const auto budget = std::make_shared<MemoryBudget>(1 << 16);
  EmbeddingTable one(8);
  one.ShareMemory(budget);
  {
    EmbeddingTable other(8);
    other.ShareMemory(budget);
    EXPECT_TRUE(ApplyOnes(&other, Range(0, 1000)));
  }
  EXPECT_TRUE(ApplyOnes(&one, Range(0, 900)));
  EXPECT_EQ(one.size(), 900);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
