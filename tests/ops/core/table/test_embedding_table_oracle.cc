// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with one caller and no filter, compared with an oracle bit for
// bit, in rows of all widths and types.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/table_oracle.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

// A table and its oracle, with the same operations.
class Pair {
 public:
  Pair(int dim, uint64_t seed, const ParallelFor& parallel,
       const RowRules& rules)
      : dim_(dim),
        random_(seed),
        parallel_(parallel),
        table(dim, -2.3f, {}, rules),
        oracle(dim, -2.3f, {}, rules.value) {}

  void Apply(size_t most, const RowUpdate& update, bool counted) {
    const std::vector<int64_t> keys = random_.Keys(most);
    const std::vector<int64_t> also =
        counted ? random_.Keys(most / 4) : std::vector<int64_t>();
    const std::vector<float> grads = random_.Floats(keys.size() * dim_);
    const StepBatch batch = {keys.data(), grads.data(), keys.size(),
                             also.data(), also.size(),  ++version_};
    EXPECT_TRUE(table.Apply(batch, update, parallel_));
    oracle.Apply(batch, update);
  }

  void Insert(size_t most) {
    const std::vector<int64_t> keys = random_.DistinctKeys(most);
    const size_t n = keys.size();
    const std::vector<SlotSpec> slots = table.slots();
    const std::vector<float> values = random_.Floats(n * dim_);
    std::vector<std::vector<float>> slot_values;
    std::vector<int64_t> freqs(n), versions(n);
    for (size_t i = 0; i < n; ++i) {
      freqs[i] = static_cast<int64_t>(
          random_.Below(3) == 0 ? uint64_t{1} << 40 : random_.Below(100));
      versions[i] = static_cast<int64_t>(random_.Below(1000));
    }
    RestoredRows rows;
    rows.keys = keys.data();
    rows.n = n;
    rows.values = random_.Below(3) == 0 ? nullptr : values.data();
    rows.freqs = random_.Below(3) == 0 ? nullptr : freqs.data();
    rows.versions = random_.Below(3) == 0 ? nullptr : versions.data();
    for (const SlotSpec& slot : slots) {
      slot_values.push_back(random_.Floats(n * slot.width));
    }
    for (const auto& values_of_slot : slot_values) {
      rows.slots.push_back(random_.Below(3) == 0 ? nullptr
                                                 : values_of_slot.data());
    }
    rows.are_new = random_.Below(2) == 0;
    EXPECT_TRUE(table.Insert(rows));
    oracle.Insert(rows);
  }

  void Erase(size_t most) {
    const std::vector<int64_t> keys = random_.Keys(most);
    EXPECT_EQ(table.Erase(keys.data(), keys.size()), oracle.Erase(keys));
  }

  void SetBank(int64_t rows) {
    const std::vector<float> bank = random_.Floats(rows * dim_);
    table.SetBank(bank.data(), rows);
    oracle.SetBank(bank);
    EXPECT_EQ(table.bank_rows(), rows);
    if (table.rules().value.type != ValueType::kFloat32) return;
    EXPECT_TRUE(table.bank() == bank);
  }

  void CheckReads(size_t most) {
    const std::vector<int64_t> keys = random_.Keys(most);
    const size_t n = keys.size();
    for (const UnknownKey unknown :
         {UnknownKey::kInitial, UnknownKey::kDefault}) {
      std::vector<float> out(n * dim_, 777.0f);
      table.Lookup(keys.data(), n, unknown, out.data(), parallel_);
      std::vector<const float*> rows(n);
      const RowReader reader(table, keys.data(), n);
      reader.Rows(keys.data(), n, unknown, rows.data());
      for (size_t i = 0; i < n; ++i) {
        const std::vector<float> expected = oracle.Read(keys[i], unknown);
        EXPECT_TRUE(SameBits(expected.data(), &out[i * dim_], dim_));
        EXPECT_TRUE(SameBits(expected.data(), rows[i], dim_));
      }
    }
    std::vector<int64_t> counts(n), versions(n);
    table.Frequencies(keys.data(), n, counts.data());
    table.Versions(keys.data(), n, versions.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(counts[i], oracle.Count(keys[i]));
      EXPECT_EQ(versions[i], oracle.Version(keys[i]));
    }
  }

  void CheckAll() {
    const Contents snapshot(table);
    EXPECT_EQ(snapshot.filtered.size(), 0u);
    EXPECT_EQ(snapshot.admitted.size(), oracle.entries.size());
    EXPECT_EQ(table.size(), static_cast<int64_t>(oracle.entries.size()));
    EXPECT_EQ(table.total_count(), table.size());
    EXPECT_TRUE(table.capacity() >= table.size());
    int64_t last_part = -1;
    int64_t last_key = kMin;
    for (const Contents::Entry& entry : snapshot.admitted) {
      const int64_t part = (entry.key % 1000 + 1000) % 1000;
      EXPECT_TRUE(part > last_part ||
                  (part == last_part && entry.key > last_key));
      last_part = part;
      last_key = entry.key;
      const auto known = oracle.entries.find(entry.key);
      EXPECT_TRUE(known != oracle.entries.end());
      if (known == oracle.entries.end()) continue;
      EXPECT_EQ(entry.freq, known->second.count);
      EXPECT_EQ(entry.version, known->second.version);
      EXPECT_EQ(known->second.row.size(),
                static_cast<size_t>(table.row_floats()));
      EXPECT_TRUE(SameBits(entry.row, known->second.row.data(),
                           known->second.row.size()));
    }
  }

 private:
  const int dim_;
  RandomInputs random_;
  const ParallelFor parallel_;
  int64_t version_ = 0;

 public:
  EmbeddingTable table;
  TableOracle oracle;
};

void RandomOperations(int dim, int slots, bool each, uint64_t seed,
                      const RowRules& rules = {}) {
  const bool is_serial = seed % 2 == 0;
  if (is_serial && testing::kUnderTsan) return;
  Threads threads(2);
  Pair pair(dim, seed, is_serial ? ParallelFor(SerialFor) : threads.parallel(),
            rules);
  const SgdEach sgd(0.25f);
  const AddSum add;
  const AdagradLike adagrad(0.05f);
  const RowUpdate& update = each         ? static_cast<const RowUpdate&>(sgd)
                            : slots == 0 ? static_cast<const RowUpdate&>(add)
                                         : adagrad;
  std::vector<SlotSpec> specs;
  if (slots >= 1) specs.push_back({"Adagrad", dim, 0.1f});
  if (slots >= 2) specs.push_back({"norm", 1, 7.0f});
  const size_t before = slots == 2 ? 1 : specs.size();
  EXPECT_TRUE(pair.table.EnsureSlots({specs.begin(), specs.begin() + before}));
  pair.oracle.EnsureSlots({specs.begin(), specs.begin() + before});
  RandomInputs random(seed * 31);
  pair.CheckReads(20);  // Before the first bank: zeros.
  pair.SetBank(64);
  for (int step = 0; step < 120; ++step) {
    // Fewer keys for wide rows, which take TSan minutes otherwise.
    const size_t many = dim < 1000 ? 4000 : 400;
    const size_t most = random.Below(3) == 0 ? many : 60;
    switch (random.Below(10)) {
      case 0:
        pair.Erase(most);
        break;
      case 1:
        pair.Insert(most);
        break;
      case 2:
        pair.CheckReads(most);
        break;
      case 3:
        if (random.Below(8) == 0) {
          pair.table.Clear();
          pair.oracle.Clear();
        }
        break;
      case 4:
        if (random.Below(4) == 0) {
          pair.SetBank(1 + static_cast<int64_t>(random.Below(100)));
        }
        break;
      default:
        pair.Apply(most, update, step % 2 == 0);
    }
    if (step == 60) {  // Rows get a new layout halfway.
      EXPECT_TRUE(pair.table.EnsureSlots(specs));
      pair.oracle.EnsureSlots(specs);
    }
    if (step % 20 == 19) pair.CheckAll();
  }
  pair.CheckReads(5000);
  pair.CheckAll();
}

TEST(RandomOperationsAgreeWithTheOracleWithoutSlots) {
  uint64_t seed = 0;
  for (int dim : {1, 5, 8, 16, 33}) RandomOperations(dim, 0, false, ++seed);
}

TEST(RandomOperationsAgreeWithTheOracleWithOneSlot) {
  uint64_t seed = 10;
  for (int dim : {1, 5, 8, 16, 33}) RandomOperations(dim, 1, false, ++seed);
}

TEST(RandomOperationsAgreeWithTheOracleWithTwoSlots) {
  uint64_t seed = 20;
  for (int dim : {1, 5, 8, 16, 33}) RandomOperations(dim, 2, false, ++seed);
}

TEST(RandomOperationsAgreeWithTheOraclePerOccurrence) {
  uint64_t seed = 30;
  for (int dim : {1, 5, 8, 16, 33}) RandomOperations(dim, 0, true, ++seed);
}

TEST(RandomOperationsAgreeWithTheOracleInSixteenBits) {
  uint64_t seed = 50;
  for (const ValueSpec& spec : {ValueSpec{ValueType::kBFloat16, 17},
                                ValueSpec{ValueType::kHalf, 17, true},
                                ValueSpec{ValueType::kFloat32, 17, true}}) {
    RowRules rules;
    rules.value = spec;
    for (int dim : {1, 5, 16, 33}) {
      RandomOperations(dim, 2 - dim % 3 / 2, false, ++seed, rules);
      RandomOperations(dim, 0, true, ++seed, rules);
    }
  }
}

TEST(TheBitsOfSixteenDependOnTheTableTheKeyAndTheStep) {
  constexpr int64_t kKeys[] = {1, 2};
  constexpr int kDim = 64;
  const auto train = [&](uint64_t seed, int64_t version, int steps) {
    RowRules rules;
    rules.value = {ValueType::kBFloat16, seed};
    EmbeddingTable table(kDim, 0.0f, {}, rules);
    const std::vector<float> grads(2 * kDim, 0.3f);
    for (int step = 0; step < steps; ++step) {
      EXPECT_TRUE(table.Apply({kKeys, grads.data(), 2, nullptr, 0, version},
                              AddSum(), SerialFor));
    }
    std::vector<float> out(2 * kDim);
    table.Lookup(kKeys, 2, UnknownKey::kDefault, out.data(), SerialFor);
    return out;
  };
  const std::vector<float> values = train(1, 7, 1);
  EXPECT_TRUE(values == train(1, 7, 1));
  EXPECT_TRUE(values != train(2, 7, 1));
  EXPECT_TRUE(values != train(1, 8, 1));
  EXPECT_TRUE(!std::equal(&values[0], &values[kDim], &values[kDim]));
  // The mean of rows is right although all steps have one version.
  double mean = 0;
  for (const float x : train(1, -1, 100)) mean += x / 30.0 / (2 * kDim);
  EXPECT_TRUE(std::abs(mean - 1) < 0.01);
}

TEST_WITHOUT_TSAN(RandomOperationsAgreeWithTheOracleForWideRows) {
  RandomOperations(300, 1, false, 41);
  RandomOperations(4101, 0, false, 42);  // Sums do not fit the stack.
  RowRules rules;
  rules.value = {ValueType::kBFloat16, 17, true};
  RandomOperations(kMaxNarrowDim, 2, false, 43, rules);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
