// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with a capacity: windows of all sizes, threads, erased keys.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/evict/memory_budget.h"
#include "ops/core/evict/window_plan.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kMostRows = 40000;  // About ten times slower there.
#else
constexpr int64_t kMostRows = 1500000;
#endif

RowRules Keeping(int64_t max_rows, CapacitySpec::Policy policy) {
  RowRules rules;
  rules.capacity = {max_rows, policy, 10};
  return rules;
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

TEST_WITHOUT_TSAN(OldestRowsGoWhateverTheSizeOfAWindow) {
  // All stripes, several, one, and a part of one.
  for (const int64_t max_rows : {1, 64, 5000, 40000, 600000, 1500000}) {
    if (max_rows > kMostRows) break;
    EmbeddingTable table(1, 0.0f, {}, Keeping(max_rows, CapacitySpec::kOldest));
    const int64_t step = max_rows / 3 + 1;
    for (int64_t version = 0; version < 9; ++version) {
      const auto keys = Range(version * step, (version + 1) * step);
      EXPECT_TRUE(ApplyOnes(&table, keys, version));
      EXPECT_TRUE(table.size() <= std::max(max_rows, step));
    }
    // A sixteenth of a window may be too many, and a window is not the table.
    EXPECT_TRUE(table.size() >= max_rows - max_rows / 8 - 1);
    std::vector<int64_t> versions(9 * step);
    const auto all = Range(0, 9 * step);
    table.Versions(all.data(), all.size(), versions.data());
    int64_t old = 0;
    for (int64_t i = 0; i < 5 * step; ++i) old += versions[i] >= 0;
    EXPECT_TRUE(old <= max_rows / 20);
    // The last step still owns all of its rows.
    for (int64_t i = 8 * step; i < 9 * step; ++i) EXPECT_EQ(versions[i], 8);
  }
}

TEST(EvictedAndErasedKeysAreCountedFromZeroUnderEveryFilter) {
  for (const FilterSpec& filter :
       {FilterSpec{}, FilterSpec{2, 1}, BloomFilter(2, 1, 20000, 0.01)}) {
    EmbeddingTable table(2, 0.0f, filter,
                         Keeping(1, CapacitySpec::kLeastCounted));
    EXPECT_TRUE(ApplyOnes(&table, {7, 7}, 0));
    EXPECT_TRUE(ApplyOnes(&table, {8, 8, 8}, 1));
    EXPECT_EQ(table.size(), 1);
    const int64_t keys[] = {7, 8, 9};
    int64_t counts[3];
    table.Frequencies(keys, 3, counts);
    EXPECT_EQ(counts[0], 0);
    EXPECT_EQ(counts[1], 3);
    EXPECT_EQ(table.EvictKeys(keys, 3, 5), 1u);
    table.Frequencies(keys, 3, counts);
    EXPECT_EQ(counts[1], 0);
    EXPECT_EQ(table.size(), 0);
  }
}

TEST(WindowsOfARoundHaveNoStripeInCommonAndTheExcessOnce) {
  EmbeddingTable table(1);
  EXPECT_TRUE(ApplyOnes(&table, Range(0, 40000)));
  const StripeSet& stripes = *table.parts().stripes;
  struct Case {
    int64_t max_rows, shared, most;
    int64_t excess;  // Rows that all windows of a round have too many.
  };
  for (const Case& at : {Case{40000, 0, 99, 0}, Case{0, 700, 9999, 700},
                         Case{37000, 0, 9999, 3000}, Case{37000, 0, 99, 156},
                         Case{38000, 3500, 9999, 3500},
                         // Once around: an eighth of all.
                         Case{20000, 0, 30000, 5000}}) {
    WindowPlan plan(at.max_rows);
    for (int round = 0; round < 5; ++round) {
      plan.PlanRound(stripes, at.shared, at.most);
      uint64_t planned = 0;
      int64_t excess = 0;
      for (const EvictionWindow& window : plan) {
        EXPECT_EQ(window.stripes & planned, 0u);
        EXPECT_TRUE(window.excess <= window.rows / 8);
        planned |= window.stripes;
        excess += window.excess;
      }
      // Keys spread at random over the stripes.
      EXPECT_TRUE(std::abs(excess - at.excess) <= 5);
    }
  }
}

// A stripe keeps the rows of the most keys that it had, and each stripe has its
// most at another time.
TEST_WITHOUT_TSAN(AFullTableGivesTheMemoryOfFreeRowsBack) {
  constexpr int64_t kKept = 20000, kNew = 100, kKnown = 400;
  EmbeddingTable table(1, 0.0f, {}, Keeping(kKept, CapacitySpec::kOldest));
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> age(1, kKept / 2);
  int64_t most = 0;
  for (int64_t step = 0; step < 1000; ++step) {
    const int64_t next = kKept + step * kNew;
    auto keys = Range(next, next + kNew);
    for (int64_t i = 0; i < kKnown; ++i) keys.push_back(next - age(random));
    EXPECT_TRUE(ApplyOnes(&table, keys, step));
    most = std::max<int64_t>(most, table.parts().store->arena().taken());
  }
  // The rows of a step, and a 16th of all.
  EXPECT_TRUE(most <= (kKept + kNew + kKnown) * 17 / 16);
  EXPECT_TRUE(table.size() > kKept - kKept / 100);
}

// The rows of a table, in an order of their own, as a checkpoint has them.
class SavedRows {
 public:
  explicit SavedRows(const EmbeddingTable& table) {
    const Contents contents(table);
    for (const Contents::Entry& entry : contents.admitted) {
      keys_.push_back(entry.key);
      counts_.push_back(entry.freq);
      versions_.push_back(entry.version);
      values_.push_back(entry.row[0]);
      slots_.push_back(entry.row[1]);
    }
  }
  bool RestoreTo(EmbeddingTable* table) const {
    return table->Insert({keys_.data(),
                          keys_.size(),
                          values_.data(),
                          {slots_.data()},
                          counts_.data(),
                          versions_.data()});
  }

 private:
  std::vector<int64_t> keys_, counts_, versions_;
  std::vector<float> values_, slots_;
};

// Two tables with limits, of which one has rows of 16 bits, and two that share
// memory.
Tables FullTables() {
  Tables tables;
  for (const int64_t max_rows : {20000, 3000, 0, 0}) {
    RowRules rules = Keeping(max_rows, CapacitySpec::kLeastCounted);
    if (max_rows == 3000) {
      rules.capacity.policy = CapacitySpec::kDecayed;
      rules.value = {ValueType::kBFloat16, 5, true};
    }
    tables.push_back(
        std::make_unique<EmbeddingTable>(3, 0.0f, FilterSpec{}, rules));
    tables.back()->EnsureSlots({{"Adagrad", 3, 0.1f}});
  }
  const auto budget = std::make_shared<MemoryBudget>(20000 * 59);
  tables[2]->ShareMemory(budget);
  tables[3]->ShareMemory(budget);
  return tables;
}

TEST(FullTablesHaveTheSameBitsWhateverTheThreads) {
  std::vector<std::vector<int64_t>> expected;
  for (const int n : {1, 4}) {
    Threads threads(n);
    const Tables tables = FullTables();
    for (int64_t step = 0; step < 5; ++step) {
      std::mt19937_64 random(step);
      Batches batches;
      for (const size_t size : {10000, 1000, 8000, 2000}) {
        batches.emplace_back(size, 100000, 3, &random);
      }
      EXPECT_TRUE(Apply(tables, batches, step, threads.parallel()).ok());
    }
    EXPECT_TRUE(tables[0]->size() <= 20000);
    EXPECT_TRUE(tables[1]->size() <= 3000);
    EXPECT_TRUE(tables[2]->size() + tables[3]->size() <= 20002);
    if (n == 1) expected = BitsOf(tables);
    EXPECT_TRUE(BitsOf(tables) == expected);
  }
}

// A table that keeps the coldest of all rows, of some stripes, of one and of a
// part of one.
struct FullTable {
  int64_t max_rows;  // 0: it shares memory.
  CapacitySpec::Policy policy;
  int64_t keys, batch;

  Tables Make() const {
    Tables tables;
    tables.push_back(std::make_unique<EmbeddingTable>(
        1, 0.0f, FilterSpec{}, Keeping(max_rows, policy)));
    tables[0]->EnsureSlots({{"Adagrad", 1, 0.1f}});
    if (max_rows == 0) {
      tables[0]->ShareMemory(std::make_shared<MemoryBudget>(keys / 2 * 43));
    }
    return tables;
  }
  // A step with keys at random. The first fills the table.
  void Train(const Tables& tables, int64_t step) const {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    const int64_t n = step == 0 ? keys : batch;
    Batches batches;
    batches.emplace_back(static_cast<size_t>(n), keys, 1, &random);
    EXPECT_TRUE(Apply(tables, batches, step, SerialFor).ok());
  }
};

// What a table has after these steps, of which those from `restart` on are
// those of another process, whose index has another order.
std::vector<int64_t> BitsAfter(const FullTable& full, int64_t restart) {
  constexpr int64_t kSteps = 40;
  auto secret = std::make_unique<WithSecret>(1);
  Tables tables = full.Make();
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == restart) {
      const Tables before = std::move(tables);
      const SavedRows saved(*before[0]);
      secret = std::make_unique<WithSecret>(2);
      tables = full.Make();
      EXPECT_TRUE(saved.RestoreTo(tables[0].get()));
    }
    full.Train(tables, step);
  }
  return BitsOf(*tables[0]);
}

TEST_WITHOUT_TSAN(ARestartDoesNotChangeWhichRowsAFullTableKeeps) {
  for (const FullTable& full :
       {FullTable{500, CapacitySpec::kLeastCounted, 2000, 200},
        FullTable{500, CapacitySpec::kOldest, 2000, 200},
        FullTable{500, CapacitySpec::kDecayed, 2000, 200},
        FullTable{30000, CapacitySpec::kLeastCounted, 100000, 9000},
        FullTable{30000, CapacitySpec::kOldest, 100000, 9000},
        FullTable{0, CapacitySpec::kLeastCounted, 400000, 60}}) {
    if (full.keys > kMostRows) break;
    const std::vector<int64_t> bits = BitsAfter(full, -1);
    for (const int64_t restart : {39, 30, 7}) {
      EXPECT_TRUE(BitsAfter(full, restart) == bits);
    }
  }
}

TEST(ThreadsShareAFullTable) {
  Threads pool(2);
  // A window, and several.
  for (const int64_t max_rows : {500, 20000}) {
    const int64_t new_rows = max_rows / 5;
    EmbeddingTable table(4, 0.0f, {},
                         Keeping(max_rows, CapacitySpec::kLeastCounted));
    std::atomic<bool> is_running{true};
    std::thread reader([&] {
      const auto keys = Range(0, 3000);
      std::vector<float> values(keys.size() * 4);
      while (is_running) {
        table.Lookup(keys.data(), keys.size(), UnknownKey::kDefault,
                     values.data(), SerialFor);
      }
    });
    std::vector<std::thread> trainers;
    for (int t = 0; t < 3; ++t) {
      trainers.emplace_back([&, t] {
        for (int64_t step = 0; step < 30000 / new_rows; ++step) {
          const int64_t begin =
              (step * 37 + t * 911) * new_rows / 100 % (6 * max_rows);
          EXPECT_TRUE(ApplyOnes(&table, Range(begin, begin + new_rows), step,
                                pool.parallel()));
        }
      });
    }
    for (std::thread& trainer : trainers) trainer.join();
    is_running = false;
    reader.join();
    // The last steps may have left what they added.
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(ApplyOnes(&table, {1}, 1000));
    EXPECT_TRUE(table.size() <= max_rows);
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
