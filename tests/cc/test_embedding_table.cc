// EmbeddingTable by one caller, against a std::unordered_map, bit for bit.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../ops/core/embedding_table.h"
#include "../../ops/core/hash_index.h"
#include "rules.h"
#include "testing.h"
#include "threads.h"

namespace rec_estimator {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

bool SameBits(const float* a, const float* b, size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0;
}

// What an EmbeddingTable means, one key at a time.
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

  void Apply(const EmbeddingTable::Batch& batch, const RowUpdate& update) {
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
    for (size_t i = 0; i < batch.m; ++i) touch(batch.counted_keys[i]);
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

// A table and its oracle, given the same operations.
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
      // -0 too, which a sum from +0 must turn into +0.
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
    const EmbeddingTable::Batch batch = {keys.data(), grads.data(), keys.size(),
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
    EmbeddingTable::Rows rows;
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
    const EmbeddingTable::Snapshot snapshot(table);
    EXPECT_EQ(snapshot.filtered().size(), 0u);
    EXPECT_EQ(snapshot.admitted().size(), oracle.rows.size());
    EXPECT_EQ(table.size(), static_cast<int64_t>(oracle.rows.size()));
    EXPECT_EQ(table.total_count(), table.size());
    EXPECT_TRUE(table.capacity() >= table.size());
    int64_t last_part = -1;
    int64_t last_key = kMin;
    for (const EmbeddingTable::Snapshot::Entry& entry : snapshot.admitted()) {
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
    const size_t most = random() % 3 == 0 ? 4000 : 60;
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
    if (step == 60) {  // Mid-way: rows are laid out anew.
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

TEST(RandomOperationsAgreeWithTheOracleForWideRows) {
  RandomOperations(300, 1, false, 41);
  RandomOperations(4101, 0, false, 42);  // Sums do not fit the stack.
}

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

bool ApplyOnes(EmbeddingTable* table, const std::vector<int64_t>& keys,
               int64_t version = 0) {
  const std::vector<float> grads(keys.size() * table->dim(), 1.0f);
  return table->Apply(
      {keys.data(), grads.data(), keys.size(), nullptr, 0, version}, AddSum(),
      SerialFor);
}

TEST(AnEmptyTableIsSmall) {
  EmbeddingTable table(16);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.total_count(), 0);
  EXPECT_EQ(table.capacity(), 0);
  EXPECT_TRUE(table.memory_bytes() < 100 << 10);
}

TEST(NothingMayBeGivenForNothing) {
  EmbeddingTable table(4);
  table.Lookup(nullptr, 0, UnknownKey::kInitial, nullptr, SerialFor);
  EXPECT_TRUE(
      table.Apply({nullptr, nullptr, 0, nullptr, 0, 0}, AddSum(), SerialFor));
  EmbeddingTable::Rows rows = {nullptr, 0, nullptr, {}, nullptr, nullptr};
  EXPECT_TRUE(table.Insert(rows));
  EXPECT_EQ(table.Erase(nullptr, 0), 0u);
  table.Frequencies(nullptr, 0, nullptr);
  table.Versions(nullptr, 0, nullptr);
  const EmbeddingTable::Reader reader(table, nullptr, 0);
  reader.Rows(nullptr, 0, UnknownKey::kInitial, nullptr);
  EXPECT_EQ(EmbeddingTable::Snapshot(table).admitted().size(), 0u);
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

TEST(EdgeKeysOwnRowsOfTheirOwn) {
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

TEST(ALoneNegativeZeroGradientIsSummedToPositiveZero) {
  // 1 / gradient tells the zeros apart.
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

TEST(CountsStopAtTheLargestAndVersionsStamp) {
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

TEST(APerOccurrenceRuleGetsRawGradientsInOrderOfOccurrence) {
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

// Every way to split work that a ParallelFor may choose.
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
        // A tenth of the batch is one key: one shard has most of the work.
        key = random() % 10 == 0 ? -7 : static_cast<int64_t>(random() % 30000);
      }
      for (float& g : grads) g = static_cast<float>(random() % 1000) * 1e-3f;
      EXPECT_TRUE(table.Apply(
          {keys.data(), grads.data(), 30000, keys.data() + 30000, 10000, step},
          adagrad, parallel));
    }
    std::vector<float> result;
    const EmbeddingTable::Snapshot snapshot(table);
    for (const auto& entry : snapshot.admitted()) {
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

TEST(LargeLookupsReadTheSameHoweverTheyAreSplit) {
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

TEST(OneShardMayHoldTheWholeBatch) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 12000; ++key) {
    if (MixKey(key) % EmbeddingTable::kShards == 17) keys.push_back(key);
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

TEST(GrowthKeepsEveryRowAndItsAddress) {
  EmbeddingTable table(5);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 1000; ++key) keys.push_back(key * key * key);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  std::vector<const float*> before(keys.size()), after(keys.size());
  const auto read = [&](std::vector<const float*>* rows) {
    const EmbeddingTable::Reader reader(table, keys.data(), keys.size());
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

TEST(AReaderOfSomeShardsLetsTheOthersGrow) {
  EmbeddingTable table(2);
  const int64_t key = 0;  // Shard 0.
  EXPECT_TRUE(ApplyOnes(&table, {key}));
  const EmbeddingTable::Reader reader(table, &key, 1);
  const float* row;
  reader.Rows(&key, 1, UnknownKey::kInitial, &row);
  std::vector<int64_t> others;
  for (int64_t k = 1; others.size() < 100000; ++k) {
    if (MixKey(k) % EmbeddingTable::kShards != 0) others.push_back(k);
  }
  EXPECT_TRUE(ApplyOnes(&table, others));
  EXPECT_EQ(row[0], 1.0f);
  const float* again;
  reader.Rows(&key, 1, UnknownKey::kInitial, &again);
  EXPECT_TRUE(row == again);
}

TEST(ErasedRowsAreReusedAndStartAfresh) {
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
  // Shards differ in size from round to round, so some take a few rows more.
  EXPECT_TRUE(table.memory_bytes() < full + full / 4);
  const EmbeddingTable::Snapshot snapshot(table);
  for (const auto& entry : snapshot.admitted()) {
    EXPECT_EQ(entry.row[7], 0.5f);
    EXPECT_EQ(entry.freq, 1u);
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
  const EmbeddingTable::Snapshot snapshot(table);
  EXPECT_EQ(snapshot.admitted()[0].row[4], 1.0f);  // Key 1 was there before.
  EXPECT_EQ(snapshot.admitted()[1].row[4], 3.0f);
  EXPECT_EQ(snapshot.admitted()[1].row[8], 2.0f);
  EXPECT_EQ(snapshot.admitted()[1].row[0], 1.0f);
}

TEST(AKeyInsertedTwiceAtOnceIsThereOnce) {
  EmbeddingTable table(1);
  const int64_t keys[] = {5, 5, 6};
  const float values[] = {1, 2, 3};
  EXPECT_TRUE(table.Insert({keys, 3, values, {}, nullptr, nullptr}));
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(Read(table, 5)[0], 2.0f);
}

TEST(AKeyCostsAtMostFortyBytesBeyondItsFloats) {
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

TEST(ABatchThatCannotBeNumberedIsRefused) {
  EmbeddingTable table(1);
  const size_t n = size_t{1} << 31;
  EXPECT_FALSE(
      table.Apply({nullptr, nullptr, n, nullptr, 0, 0}, AddSum(), SerialFor));
  EXPECT_FALSE(table.Insert({nullptr, n, nullptr, {}, nullptr, nullptr}));
  EXPECT_EQ(table.size(), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers reserve terabytes of address space, which a limit would forbid.
TEST(WithoutMemoryAnApplyAndAnInsertChangeNothing) {
  EmbeddingTable table(64);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 3000; ++key) keys.push_back(key);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  for (int64_t key = 3000; key < 600000; ++key) keys.push_back(key);
  const std::vector<float> grads(keys.size() * 64, 1.0f);
  const int64_t bytes = table.memory_bytes();

  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  int refused = 0;
  bool done = false;
  // Ever more memory, so that each allocation is the first to fail once.
  for (rlim_t megabytes = 1; !done && megabytes < 600; megabytes += 7) {
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    EXPECT_EQ(std::fscanf(file, "%lu", &pages), 1);
    std::fclose(file);
    rlimit limit = before;
    limit.rlim_cur = pages * 4096 + (megabytes << 20);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const bool inserted =
        megabytes % 2 == 0
            ? table.Insert(
                  {keys.data(), keys.size(), nullptr, {}, nullptr, nullptr})
            : table.Apply(
                  {keys.data(), grads.data(), keys.size(), nullptr, 0, 1},
                  AddSum(), SerialFor);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    done = inserted;
    if (done) break;
    ++refused;
    EXPECT_EQ(table.size(), 3000);
    EXPECT_EQ(Read(table, 7)[63], 1.0f);
    int64_t count;
    table.Frequencies(&keys[7], 1, &count);
    EXPECT_EQ(count, 1);
  }
  EXPECT_TRUE(done);
  EXPECT_TRUE(refused > 5);
  EXPECT_EQ(table.size(), static_cast<int64_t>(keys.size()));
  EXPECT_TRUE(table.memory_bytes() > bytes);
  // Nothing stays promised: there is room for as much as the keys need.
  EXPECT_TRUE(ApplyOnes(&table, keys));
}
#endif

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
