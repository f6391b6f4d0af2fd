// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with one caller, one behaviour per test.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

std::vector<float> Bank(int64_t rows, int dim) {
  std::vector<float> bank(static_cast<size_t>(rows * dim));
  for (size_t i = 0; i < bank.size(); ++i) bank[i] = static_cast<float>(i);
  return bank;
}

std::vector<float> Read(const EmbeddingTable& table, int64_t key,
                        UnknownKey unknown = UnknownKey::kInitial) {
  std::vector<float> out(table.dim());
  table.Lookup(&key, 1, unknown, out.data(), SerialFor);
  return out;
}

TEST(EmptyTableIsSmall) {
  EmbeddingTable table(16);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.total_count(), 0);
  EXPECT_EQ(table.capacity(), 0);
  EXPECT_TRUE(table.memory_bytes() < 100 << 10);
}

TEST(EmptyBatchesAreAccepted) {
  EmbeddingTable table(4);
  table.Lookup(nullptr, 0, UnknownKey::kInitial, nullptr, SerialFor);
  EXPECT_TRUE(
      table.Apply({nullptr, nullptr, 0, nullptr, 0, 0}, AddSum(), SerialFor));
  RestoredRows rows = {nullptr, 0, nullptr, {}, nullptr, nullptr};
  EXPECT_TRUE(table.Insert(rows));
  EXPECT_EQ(table.Erase(nullptr, 0), 0u);
  table.Frequencies(nullptr, 0, nullptr);
  table.Versions(nullptr, 0, nullptr);
  const RowReader reader(table, nullptr, 0);
  reader.Rows(nullptr, 0, UnknownKey::kInitial, nullptr);
  EXPECT_EQ(Contents(table).admitted.size(), 0u);
  table.Clear();
  EXPECT_TRUE(table.EnsureSlots({}));
}

TEST(EdgeKeysReadTheBankByFloorModulus) {
  EmbeddingTable table(2);
  for (const int64_t bank_rows : {1, 7, 1000, 4096}) {
    const std::vector<float> bank = Bank(bank_rows, 2);
    table.SetBank(bank.data(), bank_rows);
    for (const int64_t key : {int64_t{0}, int64_t{-1}, kMin, kMax}) {
      const int64_t row = (key % bank_rows + bank_rows) % bank_rows;
      EXPECT_EQ(Read(table, key)[0], bank[row * 2]);
      EXPECT_EQ(Read(table, key)[1], bank[row * 2 + 1]);
    }
  }
}

TEST(LookupsInsertNothing) {
  EmbeddingTable table(3, 9.0f);
  EXPECT_EQ(Read(table, 5)[2], 0.0f);
  EXPECT_EQ(Read(table, 5, UnknownKey::kDefault)[2], 9.0f);
  EXPECT_EQ(table.total_count(), 0);
  EXPECT_EQ(table.memory_bytes(), 0);
}

TEST(EdgeKeysOwnDistinctRows) {
  EmbeddingTable table(1);
  const std::vector<int64_t> keys = {0, -1, kMin, kMax, 0, kMin};
  EXPECT_TRUE(ApplyOnes(&table, keys, 3));
  EXPECT_EQ(table.size(), 4);
  EXPECT_EQ(Read(table, 0)[0], 2.0f);
  EXPECT_EQ(Read(table, -1)[0], 1.0f);
  EXPECT_EQ(Read(table, kMin)[0], 2.0f);
  EXPECT_EQ(Read(table, kMax)[0], 1.0f);
  EXPECT_EQ(table.Erase(keys.data(), keys.size()), 4u);
  EXPECT_EQ(table.size(), 0);
}

TEST(LoneNegativeZeroGradientIsSummedToPositiveZero) {
  // 1 / gradient distinguishes the zeros.
  class Reciprocal : public AddSum {
    void Update(float* const* rows, const float* const* grads, size_t n,
                int dim) const override {
      for (size_t i = 0; i < n; ++i) {
        for (int d = 0; d < dim; ++d) rows[i][d] = 1.0f / grads[i][d];
      }
    }
  };
  for (int dim : {1, 8, 19}) {
    EmbeddingTable table(dim);
    const std::vector<float> grads(dim, -0.0f);
    const int64_t key = 4;
    EXPECT_TRUE(table.Apply({&key, grads.data(), 1, nullptr, 0, 0},
                            Reciprocal(), SerialFor));
    for (float f : Read(table, key)) {
      EXPECT_EQ(f, std::numeric_limits<float>::infinity());
    }
  }
}

TEST(CountsSaturateAndVersionsAreStamped) {
  EmbeddingTable table(1);
  const int64_t keys[] = {1, 2};
  const int64_t freqs[] = {int64_t{UINT32_MAX} - 1, -5};
  const int64_t versions[] = {10, 11};
  EXPECT_TRUE(table.Insert({keys, 2, nullptr, {}, freqs, versions}));
  int64_t out[2];
  table.Frequencies(keys, 2, out);
  EXPECT_EQ(out[0], int64_t{UINT32_MAX} - 1);
  EXPECT_EQ(out[1], 0);
  EXPECT_TRUE(ApplyOnes(&table, {1, 1, 1, 2}, 12));
  table.Frequencies(keys, 2, out);
  EXPECT_EQ(out[0], int64_t{UINT32_MAX});
  EXPECT_EQ(out[1], 1);
  table.Versions(keys, 2, out);
  EXPECT_EQ(out[0], 12);
  EXPECT_EQ(out[1], 12);
}

TEST(CountedKeysAreInsertedAndStampedButNotUpdated) {
  EmbeddingTable table(2);
  const std::vector<float> bank = Bank(10, 2);
  table.SetBank(bank.data(), 10);
  const int64_t key = 3;
  const int64_t counted[] = {3, 4, 4};
  const float grad[] = {1, 1};
  EXPECT_TRUE(table.Apply({&key, grad, 1, counted, 3, 8}, AddSum(), SerialFor));
  EXPECT_EQ(Read(table, 3)[0], bank[6] + 1);
  EXPECT_EQ(Read(table, 4)[0], bank[8]);
  int64_t out[2];
  const int64_t both[] = {3, 4};
  table.Frequencies(both, 2, out);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 2);
  table.Versions(both, 2, out);
  EXPECT_EQ(out[0], 8);
  EXPECT_EQ(out[1], 8);
}

TEST(PerOccurrenceRuleGetsRawGradientsInOrder) {
  // value = value * 2 + gradient: any other order or a sum gives another value.
  class Horner : public RowUpdate {
    int slots() const override { return 0; }
    bool per_occurrence() const override { return true; }
    void Update(float* const* rows, const float* const* grads, size_t n,
                int /*dim*/) const override {
      for (size_t i = 0; i < n; ++i) rows[i][0] = rows[i][0] * 2 + grads[i][0];
    }
  };
  EmbeddingTable table(1);
  std::vector<int64_t> keys;
  std::vector<float> grads;
  for (int i = 0; i < 20; ++i) {
    for (int64_t key = 0; key < 200; ++key) {
      keys.push_back(key);
      grads.push_back(static_cast<float>((i + key) % 3 == 0));
    }
  }
  Threads threads(3);
  EXPECT_TRUE(
      table.Apply({keys.data(), grads.data(), keys.size(), nullptr, 0, 0},
                  Horner(), threads.parallel()));
  for (int64_t key = 0; key < 200; ++key) {
    float expected = 0;
    for (int i = 0; i < 20; ++i) {
      expected = expected * 2 + static_cast<float>((i + key) % 3 == 0);
    }
    EXPECT_EQ(Read(table, key)[0], expected);
  }
}

// Different ways in which a ParallelFor may split work.
std::vector<ParallelFor> Splits(Threads* threads) {
  return {SerialFor,
          [](int64_t total, int64_t, const auto& work) {
            for (int64_t i = 0; i < total; ++i) work(i, i + 1);
          },
          [](int64_t total, int64_t, const auto& work) {
            for (int64_t i = total; i > 0; i -= std::min<int64_t>(i, 3)) {
              work(std::max<int64_t>(0, i - 3), i);
            }
          },
          threads->parallel()};
}

TEST(BitsDoNotDependOnHowWorkIsSplit) {
  Threads threads(4);
  std::vector<std::vector<float>> results;
  for (const ParallelFor& parallel : Splits(&threads)) {
    std::mt19937_64 random(5);
    EmbeddingTable table(5);
    EXPECT_TRUE(table.EnsureSlots({{"Adagrad", 5, 0.1f}}));
    const AdagradLike adagrad(0.3f);
    for (int step = 0; step < 4; ++step) {
      std::vector<int64_t> keys(40000);
      std::vector<float> grads(keys.size() * 5);
      for (int64_t& key : keys) {
        // A tenth of the batch is one key: one stripe has most of the work.
        key = random() % 10 == 0 ? -7 : static_cast<int64_t>(random() % 30000);
      }
      for (float& g : grads) g = static_cast<float>(random() % 1000) * 1e-3f;
      EXPECT_TRUE(table.Apply(
          {keys.data(), grads.data(), 30000, keys.data() + 30000, 10000, step},
          adagrad, parallel));
    }
    std::vector<float> result;
    const Contents snapshot(table);
    for (const auto& entry : snapshot.admitted) {
      result.push_back(static_cast<float>(entry.key));
      result.push_back(static_cast<float>(entry.freq));
      result.insert(result.end(), entry.row, entry.row + 10);
    }
    results.push_back(result);
  }
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(result.size(), results[0].size());
    EXPECT_TRUE(SameBits(result.data(), results[0].data(), result.size()));
  }
}

TEST(LargeLookupsDoNotDependOnHowWorkIsSplit) {
  EmbeddingTable table(3);
  const std::vector<float> bank = Bank(100, 3);
  table.SetBank(bank.data(), 100);
  std::vector<int64_t> keys;
  for (int64_t key = -9000; key < 9000; ++key) keys.push_back(key * 7);
  EXPECT_TRUE(ApplyOnes(&table, {keys.begin(), keys.begin() + 9000}));
  std::vector<float> expected(keys.size() * 3);
  table.Lookup(keys.data(), keys.size(), UnknownKey::kInitial, expected.data(),
               SerialFor);
  for (size_t i = 0; i < keys.size(); i += 97) {
    EXPECT_TRUE(SameBits(Read(table, keys[i]).data(), &expected[i * 3], 3));
  }
  Threads threads(3);
  for (const ParallelFor& parallel : Splits(&threads)) {
    std::vector<float> out(keys.size() * 3);
    table.Lookup(keys.data(), keys.size(), UnknownKey::kInitial, out.data(),
                 parallel);
    EXPECT_TRUE(SameBits(out.data(), expected.data(), out.size()));
  }
}

TEST(LookupsOfRepeatedKeysReadEachOfThem) {
  for (const int dim : {1, 3, 16}) {
    EmbeddingTable table(dim);
    const std::vector<float> bank = Bank(100, dim);
    table.SetBank(bank.data(), 100);
    std::vector<int64_t> known;
    for (int64_t key = -300; key < 300; ++key) known.push_back(key);
    EXPECT_TRUE(ApplyOnes(&table, known));
    std::mt19937_64 random(1);
    for (const size_t n : {64, 511, 512, 513, 4095, 4096, 4097, 9000}) {
      // From one distinct key to nearly as many as keys.
      for (const int64_t range : {1, 40, 200, 1000000}) {
        std::vector<int64_t> keys(n);
        for (int64_t& key : keys) {
          key = static_cast<int64_t>(random() % range) - range / 2;
        }
        keys[n / 2] = std::numeric_limits<int64_t>::min();
        std::vector<float> out(n * dim);
        table.Lookup(keys.data(), n, UnknownKey::kInitial, out.data(),
                     SerialFor);
        for (size_t i = 0; i < n; i += 1 + i % 7) {
          EXPECT_TRUE(
              SameBits(Read(table, keys[i]).data(), &out[i * dim], dim));
        }
      }
    }
  }
}

TEST(OneStripeMayHoldTheWholeBatch) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 12000; ++key) {
    if (MixKey(key) % kStripes == 17) keys.push_back(key);
  }
  std::vector<int64_t> batch = keys;
  batch.insert(batch.end(), keys.begin(), keys.end());
  EmbeddingTable table(2);
  Threads threads(2);
  const std::vector<float> grads(batch.size() * 2, 1.0f);
  EXPECT_TRUE(
      table.Apply({batch.data(), grads.data(), batch.size(), nullptr, 0, 0},
                  AddSum(), threads.parallel()));
  EXPECT_EQ(table.size(), 12000);
  for (size_t i = 0; i < keys.size(); i += 101) {
    EXPECT_EQ(Read(table, keys[i])[1], 2.0f);
  }
}

TEST_WITHOUT_TSAN(GrowthKeepsEveryRowAndItsAddress) {
  EmbeddingTable table(5);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 1000; ++key) keys.push_back(key * key * key);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  std::vector<const float*> before(keys.size()), after(keys.size());
  const auto read = [&](std::vector<const float*>* rows) {
    const RowReader reader(table, keys.data(), keys.size());
    reader.Rows(keys.data(), keys.size(), UnknownKey::kInitial, rows->data());
  };
  read(&before);
  const int64_t capacity = table.capacity();
  for (int64_t first = 0; first < 400000; first += 20000) {
    std::vector<int64_t> more;
    for (int64_t i = 0; i < 20000; ++i) more.push_back(-1 - first - i);
    EXPECT_TRUE(ApplyOnes(&table, more));
  }
  EXPECT_TRUE(table.capacity() > 100 * capacity);
  EXPECT_EQ(table.size(), 401000);
  read(&after);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(before[i] == after[i]);
    EXPECT_EQ(after[i][4], 1.0f);
  }
}

TEST(ReaderOfSomeStripesLetsTheOthersGrow) {
  EmbeddingTable table(2);
  const int64_t key = 0;  // Stripe 0.
  EXPECT_TRUE(ApplyOnes(&table, {key}));
  const RowReader reader(table, &key, 1);
  const float* row;
  reader.Rows(&key, 1, UnknownKey::kInitial, &row);
  std::vector<int64_t> others;
  for (int64_t k = 1; others.size() < 100000; ++k) {
    if (MixKey(k) % kStripes != 0) others.push_back(k);
  }
  EXPECT_TRUE(ApplyOnes(&table, others));
  EXPECT_EQ(row[0], 1.0f);
  const float* again;
  reader.Rows(&key, 1, UnknownKey::kInitial, &again);
  EXPECT_TRUE(row == again);
}

TEST(ErasedRowsAreReusedAndInitialized) {
  EmbeddingTable table(4);
  EXPECT_TRUE(table.EnsureSlots({{"a", 4, 0.5f}}));
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 20000; ++key) keys.push_back(key);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  const int64_t full = table.memory_bytes();
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(table.Erase(keys.data(), keys.size()), keys.size());
    EXPECT_EQ(table.size(), 0);
    for (int64_t& key : keys) key = key * 3 + round;
    EXPECT_TRUE(ApplyOnes(&table, keys));
    EXPECT_EQ(Read(table, keys[5])[3], 1.0f);
  }
  // Stripe sizes differ from round to round, so some stripes take a few more
  // rows.
  EXPECT_TRUE(table.memory_bytes() < full + full / 4);
  const Contents snapshot(table);
  for (const auto& entry : snapshot.admitted) {
    EXPECT_EQ(entry.row[7], 0.5f);
    EXPECT_EQ(entry.freq, 1);
  }
}

TEST(EnsureSlotsAddsOnceAndRefusesAnotherWidth) {
  EmbeddingTable table(4);
  EXPECT_TRUE(ApplyOnes(&table, {1}));
  EXPECT_TRUE(table.EnsureSlots({{"m", 4, 1.0f}, {"v", 1, 2.0f}}));
  EXPECT_EQ(table.row_floats(), 9);
  EXPECT_TRUE(table.EnsureSlots({{"m", 4, 3.0f}}));
  EXPECT_EQ(table.row_floats(), 9);
  EXPECT_EQ(table.slots()[0].initial, 3.0f);
  EXPECT_FALSE(table.EnsureSlots({{"new", 4, 0.0f}, {"v", 4, 0.0f}}));
  EXPECT_FALSE(table.EnsureSlots({{"zero", 0, 0.0f}}));
  EXPECT_EQ(table.slots().size(), 2u);
  EXPECT_TRUE(ApplyOnes(&table, {2}));
  const Contents snapshot(table);
  EXPECT_EQ(snapshot.admitted[0].row[4], 1.0f);  // Key 1 existed before.
  EXPECT_EQ(snapshot.admitted[1].row[4], 3.0f);
  EXPECT_EQ(snapshot.admitted[1].row[8], 2.0f);
  EXPECT_EQ(snapshot.admitted[1].row[0], 1.0f);
}

TEST(KeyInsertedTwiceInABatchIsStoredOnce) {
  EmbeddingTable table(1);
  const int64_t keys[] = {5, 5, 6};
  const float values[] = {1, 2, 3};
  for (const bool are_new : {false, true}) {
    table.Clear();
    EXPECT_TRUE(table.Insert({keys, 3, values, {}, nullptr, nullptr, are_new}));
    EXPECT_EQ(table.size(), 2);
    EXPECT_EQ(Read(table, 5)[0], 2.0f);
    EXPECT_EQ(Read(table, 6)[0], 3.0f);
  }
}

TEST(RowsOfKeysThatWereNotNewAreUsedAgain) {
  constexpr int64_t kKeys = 20000;
  EmbeddingTable table(16);
  table.Reserve(2 * kKeys);  // So that only rows take new memory.
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  const auto insert = [&](bool are_new) {
    EXPECT_TRUE(table.Insert(
        {keys.data(), keys.size(), nullptr, {}, nullptr, nullptr, are_new}));
  };
  insert(true);
  const int64_t first = table.memory_bytes();
  insert(true);
  const int64_t second = table.memory_bytes();
  EXPECT_EQ(table.size(), kKeys);
  EXPECT_EQ(second - first, kKeys * 16 * int64_t{sizeof(float)});
  // As many keys of the same stripes as there are free rows.
  std::vector<int64_t> free(kStripes);
  for (const int64_t key : keys) ++free[StripeOf(MixKey(key))];
  int64_t next = kKeys;
  for (int64_t& key : keys) {
    while (free[StripeOf(MixKey(next))] == 0) ++next;
    --free[StripeOf(MixKey(next))];
    key = next++;
  }
  insert(false);
  EXPECT_EQ(table.size(), 2 * kKeys);
  EXPECT_EQ(table.memory_bytes(), second);
}

TEST(InsertTakesRowsForNewKeysOnly) {
  EmbeddingTable table(16);
  table.Reserve(20000);  // So that only rows take new memory.
  std::vector<int64_t> keys;
  const auto insert = [&](int64_t more) {
    for (; more > 0; --more) keys.push_back(static_cast<int64_t>(keys.size()));
    EXPECT_TRUE(table.Insert(
        {keys.data(), keys.size(), nullptr, {}, nullptr, nullptr}));
  };
  insert(10000);
  const int64_t row_bytes = 16 * sizeof(float);
  const int64_t before = table.memory_bytes();
  for (int round = 0; round < 50; ++round) insert(10);
  EXPECT_EQ(table.size(), 10500);
  // A stripe keeps the rest of a run for later.
  const int64_t runs = kStripes * 16;
  EXPECT_TRUE(table.memory_bytes() - before <= (500 + runs) * row_bytes);
}

TEST_WITHOUT_TSAN(KeyCostsAtMostFortyBytesBeyondItsFloats) {
  for (const int dim : {1, 16}) {
    EmbeddingTable table(dim);
    double sum = 0;
    int samples = 0;
    std::vector<int64_t> keys;
    // Evenly on the logarithmic scale, from 20,000 keys to 400,000.
    for (double n = 20000; n < 400000; n *= 1.05) {
      keys.clear();
      for (int64_t key = table.size(); key < static_cast<int64_t>(n); ++key) {
        keys.push_back(key);
      }
      EXPECT_TRUE(ApplyOnes(&table, keys));
      const double bytes = static_cast<double>(table.memory_bytes()) /
                               static_cast<double>(table.size()) -
                           4.0 * dim;
      EXPECT_TRUE(bytes < 40);
      sum += bytes;
      ++samples;
    }
    EXPECT_TRUE(sum / samples < 36);
    EXPECT_TRUE(sum / samples > 24);
  }
}

TEST(BatchWithTooManyOccurrencesIsRefused) {
  EmbeddingTable table(1);
  const size_t n = size_t{1} << 31;
  EXPECT_FALSE(
      table.Apply({nullptr, nullptr, n, nullptr, 0, 0}, AddSum(), SerialFor));
  EXPECT_FALSE(table.Insert({nullptr, n, nullptr, {}, nullptr, nullptr}));
  EXPECT_EQ(table.size(), 0);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
