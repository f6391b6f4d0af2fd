// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with one caller, compared with a std::unordered_map bit for
// bit.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

// The definition of an EmbeddingTable, one key at a time.
class Oracle {
 public:
  struct Row {
    std::vector<float> floats;
    int64_t count = 0;
    int64_t version = -1;
  };

  Oracle(int dim, float default_value) : dim_(dim), default_(default_value) {}

  void SetBank(const std::vector<float>& bank) { bank_ = bank; }

  void EnsureSlots(const std::vector<SlotSpec>& slots) {
    for (size_t s = slots_.size(); s < slots.size(); ++s) {
      slots_.push_back(slots[s]);
      for (auto& row : rows) {
        row.second.floats.insert(row.second.floats.end(), slots[s].width,
                                 slots[s].initial);
      }
    }
  }

  std::vector<float> Initial(int64_t key) const {
    const int64_t n = static_cast<int64_t>(bank_.size()) / dim_;
    if (n == 0) return std::vector<float>(dim_, 0.0f);
    const float* row = bank_.data() + ((key % n + n) % n) * dim_;
    return std::vector<float>(row, row + dim_);
  }

  Row* Admit(int64_t key) {
    const auto known = rows.find(key);
    if (known != rows.end()) return &known->second;
    Row& row = rows[key];
    row.floats = Initial(key);
    for (const SlotSpec& slot : slots_) {
      row.floats.insert(row.floats.end(), slot.width, slot.initial);
    }
    return &row;
  }

  void Apply(const StepBatch& batch, const RowUpdate& update) {
    std::unordered_map<int64_t, std::vector<float>> sums;
    const auto touch = [&](int64_t key) {
      Row* row = Admit(key);
      row->version = batch.version;
      row->count = std::min<int64_t>(row->count + 1, UINT32_MAX);
      return row->floats.data();
    };
    for (size_t i = 0; i < batch.n; ++i) {
      float* row = touch(batch.keys[i]);
      const float* grad = batch.grads + i * dim_;
      if (update.per_occurrence()) {
        update.Update(&row, &grad, 1, dim_);
        continue;
      }
      std::vector<float>& sum = sums[batch.keys[i]];
      sum.resize(dim_, 0.0f);
      for (int d = 0; d < dim_; ++d) sum[d] = sum[d] + grad[d];
    }
    for (size_t i = 0; i < batch.n_counted; ++i) touch(batch.counted_keys[i]);
    for (const auto& sum : sums) {
      float* row = rows[sum.first].floats.data();
      const float* grad = sum.second.data();
      update.Update(&row, &grad, 1, dim_);
    }
  }

  std::vector<float> Read(int64_t key, UnknownKey unknown) const {
    const auto known = rows.find(key);
    if (known != rows.end()) {
      return std::vector<float>(known->second.floats.begin(),
                                known->second.floats.begin() + dim_);
    }
    if (unknown == UnknownKey::kInitial) return Initial(key);
    return std::vector<float>(dim_, default_);
  }

  std::unordered_map<int64_t, Row> rows;

 private:
  const int dim_;
  const float default_;
  std::vector<float> bank_;
  std::vector<SlotSpec> slots_;
};

// A table and its oracle, with the same operations.
class Pair {
 public:
  Pair(int dim, uint64_t seed, const ParallelFor& parallel)
      : dim_(dim),
        random_(seed),
        parallel_(parallel),
        table(dim, -2.5f),
        oracle(dim, -2.5f) {}

  // Few keys, so that they repeat: small ones, large ones and the edges.
  int64_t RandomKey() {
    static const int64_t kEdges[] = {0, -1, 1, kMin, kMax, kMin + 1, kMax - 1};
    switch (random_() % 4) {
      case 0:
        return kEdges[random_() % 7];
      case 1:
        return static_cast<int64_t>(MixKey(random_() % 3000));
      default:
        return static_cast<int64_t>(random_() % 2000) - 1000;
    }
  }

  std::vector<int64_t> RandomKeys(size_t most) {
    std::vector<int64_t> keys(random_() % (most + 1));
    for (int64_t& key : keys) key = RandomKey();
    return keys;
  }

  std::vector<float> RandomFloats(size_t n) {
    std::vector<float> floats(n);
    for (float& f : floats) {
      // Includes -0, which a sum from +0 must turn into +0.
      f = random_() % 16 == 0
              ? -0.0f
              : static_cast<float>(random_() % 4001) * 1e-3f - 2;
    }
    return floats;
  }

  void Apply(size_t most, const RowUpdate& update, bool counted) {
    const std::vector<int64_t> keys = RandomKeys(most);
    const std::vector<int64_t> also =
        counted ? RandomKeys(most / 4) : std::vector<int64_t>();
    const std::vector<float> grads = RandomFloats(keys.size() * dim_);
    const StepBatch batch = {keys.data(), grads.data(), keys.size(),
                             also.data(), also.size(),  ++version_};
    EXPECT_TRUE(table.Apply(batch, update, parallel_));
    oracle.Apply(batch, update);
  }

  void Insert(size_t most) {
    std::set<int64_t> distinct;
    for (int64_t key : RandomKeys(most)) distinct.insert(key);
    const std::vector<int64_t> keys(distinct.begin(), distinct.end());
    const size_t n = keys.size();
    const std::vector<SlotSpec> slots = table.slots();
    const std::vector<float> values = RandomFloats(n * dim_);
    std::vector<std::vector<float>> slot_values;
    std::vector<int64_t> freqs(n), versions(n);
    for (size_t i = 0; i < n; ++i) {
      freqs[i] = static_cast<int64_t>(random_() % 3 == 0 ? uint64_t{1} << 40
                                                         : random_() % 100);
      versions[i] = static_cast<int64_t>(random_() % 1000);
    }
    RestoredRows rows;
    rows.keys = keys.data();
    rows.n = n;
    rows.values = random_() % 3 == 0 ? nullptr : values.data();
    rows.freqs = random_() % 3 == 0 ? nullptr : freqs.data();
    rows.versions = random_() % 3 == 0 ? nullptr : versions.data();
    for (const SlotSpec& slot : slots) {
      slot_values.push_back(RandomFloats(n * slot.width));
    }
    for (const auto& values_of_slot : slot_values) {
      rows.slots.push_back(random_() % 3 == 0 ? nullptr
                                              : values_of_slot.data());
    }
    rows.are_new = random_() % 2 == 0;
    EXPECT_TRUE(table.Insert(rows));
    for (size_t i = 0; i < n; ++i) {
      oracle.rows.erase(keys[i]);
      Oracle::Row* row = oracle.Admit(keys[i]);
      float* at = row->floats.data();
      if (rows.values != nullptr) std::copy_n(&values[i * dim_], dim_, at);
      at += dim_;
      for (size_t s = 0; s < slots.size(); ++s) {
        const size_t width = slots[s].width;
        if (rows.slots[s] != nullptr) {
          std::copy_n(rows.slots[s] + i * width, width, at);
        }
        at += width;
      }
      if (rows.freqs != nullptr) {
        row->count = std::min<int64_t>(freqs[i], UINT32_MAX);
      }
      if (rows.versions != nullptr) row->version = versions[i];
    }
  }

  void Erase(size_t most) {
    const std::vector<int64_t> keys = RandomKeys(most);
    size_t erased = 0;
    for (int64_t key : keys) erased += oracle.rows.erase(key);
    EXPECT_EQ(table.Erase(keys.data(), keys.size()), erased);
  }

  void SetBank(int64_t rows) {
    const std::vector<float> bank = RandomFloats(rows * dim_);
    table.SetBank(bank.data(), rows);
    oracle.SetBank(bank);
    EXPECT_EQ(table.bank_rows(), rows);
    EXPECT_TRUE(table.bank() == bank);
  }

  void CheckReads(size_t most) {
    const std::vector<int64_t> keys = RandomKeys(most);
    const size_t n = keys.size();
    for (const UnknownKey unknown :
         {UnknownKey::kInitial, UnknownKey::kDefault}) {
      std::vector<float> out(n * dim_, 777.0f);
      table.Lookup(keys.data(), n, unknown, out.data(), parallel_);
      std::vector<const float*> rows(n);
      const EmbeddingTable::Reader reader(table, keys.data(), n);
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
      const auto known = oracle.rows.find(keys[i]);
      const bool is_known = known != oracle.rows.end();
      EXPECT_EQ(counts[i], is_known ? known->second.count : 0);
      EXPECT_EQ(versions[i], is_known ? known->second.version : -1);
    }
  }

  void CheckAll() {
    const Contents snapshot(table);
    EXPECT_EQ(snapshot.filtered.size(), 0u);
    EXPECT_EQ(snapshot.admitted.size(), oracle.rows.size());
    EXPECT_EQ(table.size(), static_cast<int64_t>(oracle.rows.size()));
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
      const auto known = oracle.rows.find(entry.key);
      EXPECT_TRUE(known != oracle.rows.end());
      if (known == oracle.rows.end()) continue;
      EXPECT_EQ(entry.freq, known->second.count);
      EXPECT_EQ(entry.version, known->second.version);
      EXPECT_EQ(known->second.floats.size(),
                static_cast<size_t>(table.row_floats()));
      EXPECT_TRUE(SameBits(entry.row, known->second.floats.data(),
                           known->second.floats.size()));
    }
  }

 private:
  const int dim_;
  std::mt19937_64 random_;
  const ParallelFor parallel_;
  int64_t version_ = 0;

 public:
  EmbeddingTable table;
  Oracle oracle;
};

void RandomOperations(int dim, int slots, bool each, uint64_t seed) {
  Threads threads(2);
  Pair pair(dim, seed,
            seed % 2 == 0 ? ParallelFor(SerialFor) : threads.parallel());
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
  std::mt19937_64 random(seed * 31);
  pair.CheckReads(20);  // Before the first bank: zeros.
  pair.SetBank(64);
  for (int step = 0; step < 120; ++step) {
    // Fewer keys for wide rows, which take TSan minutes otherwise.
    const size_t many = dim < 1000 ? 4000 : 400;
    const size_t most = random() % 3 == 0 ? many : 60;
    switch (random() % 10) {
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
        if (random() % 8 == 0) {
          pair.table.Clear();
          pair.oracle.rows.clear();
        }
        break;
      case 4:
        if (random() % 4 == 0) {
          pair.SetBank(1 + static_cast<int64_t>(random() % 100));
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

TEST_WITHOUT_TSAN(RandomOperationsAgreeWithTheOracleForWideRows) {
  RandomOperations(300, 1, false, 41);
  RandomOperations(4101, 0, false, 42);  // Sums do not fit the stack.
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
