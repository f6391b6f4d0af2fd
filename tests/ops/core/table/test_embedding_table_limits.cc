// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with RowRules: padding, frozen keys and a row limit, with one
// caller and with several.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

constexpr int kDim = 5;
constexpr int64_t kPadding = EmbeddingTable::kPadding;

// A step with a rule that adds gradients, all of which are 1.
bool Step(EmbeddingTable* table, const std::vector<int64_t>& keys,
          const std::vector<int64_t>& counted, int64_t* too_many,
          const ParallelFor& parallel = SerialFor) {
  const std::vector<float> grads(keys.size() * table->dim(), 1.0f);
  const StepBatch batch = {keys.data(),    grads.data(),   keys.size(),
                           counted.data(), counted.size(), 3};
  const bool applied = table->Apply(batch, AddSum(), parallel, too_many);
  EXPECT_EQ(applied, *too_many == 0);
  return applied;
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

float FirstOf(const EmbeddingTable& table, int64_t key, UnknownKey unknown) {
  std::vector<float> out(table.dim());
  table.Lookup(&key, 1, unknown, out.data(), SerialFor);
  return out[0];
}

TEST(PaddingReadsTheDefaultAndIsNeitherStoredNorCounted) {
  for (const FilterSpec& filter :
       {FilterSpec{0, 1}, FilterSpec{2, 1}, BloomFilter(2, 1, 1000, 0.01)}) {
    RowRules rules;
    rules.has_padding = true;
    EmbeddingTable table(kDim, -2.5f, filter, rules);
    const std::vector<float> bank(kDim, 8.0f);
    table.SetBank(bank.data(), 1);
    int64_t too_many;
    // Alone, beside other keys, and among many keys of the same stripe.
    for (const auto& keys :
         {std::vector<int64_t>{kPadding},
          std::vector<int64_t>{7, kPadding, 7, kPadding}, Range(-3000, 3000)}) {
      EXPECT_TRUE(Step(&table, keys, {kPadding, kPadding, 9}, &too_many));
    }
    for (const UnknownKey unknown :
         {UnknownKey::kInitial, UnknownKey::kDefault}) {
      EXPECT_EQ(FirstOf(table, kPadding, unknown), -2.5f);
    }
    EXPECT_EQ(FirstOf(table, 123456, UnknownKey::kInitial), 8.0f);
    int64_t out;
    table.Frequencies(&kPadding, 1, &out);
    EXPECT_EQ(out, 0);
    table.Versions(&kPadding, 1, &out);
    EXPECT_EQ(out, -1);
    const int64_t keys[] = {kPadding, 7, kPadding};
    bool bits[3];
    EXPECT_TRUE(table.Admits(keys, 3, bits));
    EXPECT_TRUE(!bits[0] && bits[1] && !bits[2]);
    table.Contains(keys, 3, bits);
    EXPECT_TRUE(!bits[0] && bits[1] && !bits[2]);
    const Contents contents(table);
    for (const auto& entry : contents.admitted) EXPECT_TRUE(entry.key != -1);
    for (const auto& entry : contents.filtered) EXPECT_TRUE(entry.key != -1);
  }
}

TEST(FrozenKeysKeepTheirValuesWhileTheirSlotsChange) {
  RowRules rules;
  rules.frozen_keys = {3, kPadding, INT64_MIN};
  EmbeddingTable table(kDim, 0.0f, {}, rules);
  EXPECT_TRUE(table.EnsureSlots({{"Adagrad", kDim, 1.0f}}));
  const std::vector<float> bank(kDim, 8.0f);
  table.SetBank(bank.data(), 1);
  const std::vector<int64_t> keys = {3, 4, 3, INT64_MIN};
  const std::vector<float> grads(keys.size() * kDim, 2.0f);
  for (int step = 1; step <= 3; ++step) {
    EXPECT_TRUE(
        table.Apply({keys.data(), grads.data(), keys.size(), nullptr, 0, step},
                    AdagradLike(0.5f), SerialFor));
    const Contents contents(table);
    EXPECT_EQ(contents.admitted.size(), 3u);
    for (const auto& entry : contents.admitted) {
      const float sum = entry.key == 3 ? 4.0f : 2.0f;
      for (int d = 0; d < kDim; ++d) {
        EXPECT_EQ(entry.row[d] == 8.0f, entry.key != 4);
        EXPECT_EQ(entry.row[kDim + d], 1.0f + step * sum * sum);
      }
    }
  }
}

TEST(StepBeyondTheLimitChangesNothing) {
  for (const uint32_t threshold : {0u, 2u}) {
    RowRules rules;
    rules.max_rows = 5000;
    rules.has_padding = true;
    EmbeddingTable table(kDim, 0.0f, {threshold, 2}, rules);
    Threads threads(2);
    int64_t too_many;
    EXPECT_TRUE(Step(&table, Range(0, 3000), Range(2500, 4000), &too_many,
                     threads.parallel()));
    EXPECT_EQ(table.size(), 4000);
    EXPECT_TRUE(!Step(&table, Range(-1, 5003), {kPadding, 1, 5003}, &too_many,
                      threads.parallel()));
    EXPECT_EQ(too_many, 4);
    EXPECT_EQ(table.size(), 4000);
    EXPECT_EQ(FirstOf(table, 1, UnknownKey::kInitial), 1.0f);
    int64_t count;
    const int64_t key = 1;
    table.Frequencies(&key, 1, &count);
    EXPECT_EQ(count, 2);
    EXPECT_TRUE(Step(&table, Range(-1, 5000), {}, &too_many));
    EXPECT_TRUE(Step(&table, Range(0, 5000), {}, &too_many));
    EXPECT_EQ(table.size(), 5000);
    EXPECT_TRUE(!Step(&table, {5000}, {}, &too_many));
    EXPECT_EQ(too_many, 1);
    const std::vector<int64_t> gone = {1, 2};
    EXPECT_EQ(table.Erase(gone.data(), 2), 2u);
    EXPECT_TRUE(Step(&table, {5000, 5001}, {}, &too_many));
  }
}

TEST(UnadmittedKeysDoNotCountTowardsTheLimit) {
  RowRules rules;
  rules.max_rows = 2;
  EmbeddingTable table(kDim, 0.0f, {3, 1}, rules);
  int64_t too_many;
  EXPECT_TRUE(Step(&table, Range(0, 100), Range(0, 100), &too_many));
  EXPECT_TRUE(Step(&table, {1, 2}, {}, &too_many));
  EXPECT_TRUE(!Step(&table, {3, 1}, {}, &too_many));
  EXPECT_EQ(too_many, 1);
  EXPECT_EQ(table.total_count(), 100);
}

TEST(RowsAfterAStepAreKnownWhenItIsReserved) {
  RowRules rules;
  rules.has_padding = true;
  EmbeddingTable table(kDim, 0.0f, {2, 1}, rules);
  Threads threads(2);
  const auto rows_after = [&](const std::vector<int64_t>& keys,
                              const std::vector<int64_t>& counted) {
    const StepBatch batch = {keys.data(),    nullptr,        keys.size(),
                             counted.data(), counted.size(), 3};
    TrainingStep step({table.parts()}, {batch});
    EXPECT_TRUE(step.Reserve(threads.parallel()).ok());
    return step.RowsAfter(0);
  };
  int64_t too_many;
  EXPECT_EQ(rows_after({}, {}), 0);
  EXPECT_EQ(rows_after({1, 2, 3, kPadding, kPadding}, {1, 2}), 2);
  EXPECT_TRUE(Step(&table, {1, 2, 3}, {1, 2}, &too_many));
  EXPECT_EQ(rows_after({3, 1}, {}), 3);
  EXPECT_EQ(rows_after(Range(0, 9), Range(0, 9)), 9);
  EXPECT_EQ(table.size(), 2);
}

// Runs the same random steps with and without threads.
TEST(BitsDoNotDependOnThreads) {
  RowRules rules;
  rules.max_rows = 9000;
  rules.has_padding = true;
  rules.frozen_keys = {5, 77, 8000};
  Threads threads(3);
  EmbeddingTable one(kDim, 0.0f, {2, 1}, rules);
  EmbeddingTable many(kDim, 0.0f, {2, 1}, rules);
  std::mt19937_64 random(1);
  int refused = 0;
  for (int step = 0; step < 40; ++step) {
    std::vector<int64_t> keys(4000);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 12000) - 1;
    int64_t too_many, same;
    refused += !Step(&one, keys, {keys[0]}, &too_many);
    Step(&many, keys, {keys[0]}, &same, threads.parallel());
    EXPECT_EQ(same, too_many);
  }
  EXPECT_TRUE(refused > 0 && refused < 40);
  const Contents a(one), b(many);
  EXPECT_EQ(a.admitted.size(), b.admitted.size());
  EXPECT_EQ(a.filtered.size(), b.filtered.size());
  for (size_t i = 0; i < a.admitted.size(); ++i) {
    EXPECT_EQ(a.admitted[i].key, b.admitted[i].key);
    EXPECT_EQ(a.admitted[i].freq, b.admitted[i].freq);
    EXPECT_TRUE(SameBits(a.admitted[i].row, b.admitted[i].row, kDim));
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 15;
#else
constexpr int kSteps = 80;
#endif

void RunAll(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

// All workers train the same keys, and the limit is exactly their number: no
// step may be refused, in whatever order the workers run.
TEST(ConcurrentStepsThatFitAreNeverRefused) {
  constexpr int64_t kKeys = 3000;
  RowRules rules;
  rules.max_rows = kKeys;
  EmbeddingTable table(kDim, 0.0f, {}, rules);
  Threads pool(2);
  std::atomic<int64_t> trained{0};
  std::vector<std::function<void()>> bodies;
  for (int worker = 0; worker < 4; ++worker) {
    bodies.push_back([&, worker] {
      std::mt19937_64 random(worker);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<int64_t> keys(2500);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % kKeys);
        int64_t too_many;
        EXPECT_TRUE(Step(&table, keys, {}, &too_many, pool.parallel()));
        trained += static_cast<int64_t>(keys.size());
      }
    });
  }
  RunAll(bodies);
  EXPECT_TRUE(table.size() <= kKeys);
  double sum = 0;
  const Contents contents(table);
  for (const auto& entry : contents.admitted) sum += entry.row[0];
  EXPECT_EQ(static_cast<int64_t>(sum), trained.load());
}

// Each worker has its own keys, and together they do not fit. The table never
// exceeds the limit, and a refused step changes nothing.
TEST(ConcurrentStepsNeverExceedTheLimit) {
  RowRules rules;
  rules.max_rows = 4000;
  rules.frozen_keys = {1, 1000001};
  EmbeddingTable table(kDim, 0.0f, {}, rules);
  Threads pool(2);
  std::atomic<int64_t> trained{0};
  std::atomic<bool> done{false};
  std::vector<std::function<void()>> bodies;
  for (int worker = 0; worker < 3; ++worker) {
    bodies.push_back([&, worker] {
      std::mt19937_64 random(worker);
      for (int step = 0; step < kSteps; ++step) {
        std::set<int64_t> distinct;
        while (distinct.size() < 300) {
          distinct.insert(2 + worker * 1000000 +
                          static_cast<int64_t>(random() % 5000));
        }
        const std::vector<int64_t> keys(distinct.begin(), distinct.end());
        int64_t too_many;
        if (Step(&table, keys, {}, &too_many, pool.parallel())) trained += 300;
        EXPECT_TRUE(table.size() <= rules.max_rows);
      }
      done = true;
    });
  }
  bodies.push_back([&] {
    std::mt19937_64 random(9);
    while (!done) {
      int64_t key = static_cast<int64_t>(random() % 5000);
      FirstOf(table, key, UnknownKey::kInitial);
      bool contains;
      table.Contains(&key, 1, &contains);
      std::this_thread::yield();
    }
  });
  RunAll(bodies);
  int64_t counted = 0;
  const Contents contents(table);
  for (const auto& entry : contents.admitted) counted += entry.freq;
  EXPECT_EQ(counted, trained.load());
  EXPECT_TRUE(trained > 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
