// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with a filter, evictions and incremental saves, compared with
// an oracle bit for bit. One caller.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/table_oracle.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 40;  // About ten times slower there.
#else
constexpr int kSteps = 160;
#endif

constexpr int kDim = 3;
constexpr int kSlot = 2;  // Width of the one slot.
constexpr float kDefault = -2.5f;
const std::vector<SlotSpec> kSlots = {{"slot", kSlot, 0.5f}};

// Vectors for 7 keys, and so for all.
std::vector<float> Bank() {
  std::vector<float> bank;
  for (int row = 0; row < 7; ++row) {
    bank.insert(bank.end(), kDim, static_cast<float>(row));
  }
  return bank;
}

std::unique_ptr<EmbeddingTable> NewTable(const FilterSpec& filter) {
  auto table = std::make_unique<EmbeddingTable>(kDim, kDefault, filter);
  table->SetBank(Bank().data(), 7);
  EXPECT_TRUE(table->EnsureSlots(kSlots));
  return table;
}

void ExpectSameEntries(const EmbeddingTable& a, const EmbeddingTable& b) {
  const Contents of_a(a), of_b(b);
  for (auto list : {&Contents::admitted, &Contents::filtered}) {
    EXPECT_EQ((of_a.*list).size(), (of_b.*list).size());
    for (size_t i = 0; i < std::min((of_a.*list).size(), (of_b.*list).size());
         ++i) {
      const Contents::Entry& x = (of_a.*list)[i];
      const Contents::Entry& y = (of_b.*list)[i];
      EXPECT_EQ(x.key, y.key);
      EXPECT_EQ(x.freq, y.freq);
      EXPECT_EQ(x.version, y.version);
      EXPECT_TRUE(x.row == nullptr || SameBits(x.row, y.row, kDim + kSlot));
    }
  }
}

// The contents of a checkpoint, as a table into which saves are restored.
class Copy {
 public:
  explicit Copy(const FilterSpec& filter)
      : filter_(filter), table_(NewTable(filter)) {}

  // Saves the changes since the last save, or everything. `fails`: the save
  // fails at its end, so nothing is restored and nothing is committed.
  void Save(EmbeddingTable* live, Contents::Keys keys, bool fails) {
    {
      Contents contents(*live, keys);
      live->TrackChanges();
      contents.snapshot.MarkSaved();
      if (!fails) Play(*live, contents, keys);
    }
    if (!fails) live->CommitSaved();
  }

  void ExpectSameAs(const EmbeddingTable& live) const {
    ExpectSameEntries(live, *table_);
    const std::unique_ptr<EmbeddingTable> with_cells = NewTable(filter_);
    EXPECT_TRUE(cells_.RestoreTo(with_cells.get()));
    EXPECT_TRUE(SketchOf(live) == SketchOf(*with_cells));
  }

 private:
  void Play(const EmbeddingTable& live, const Contents& contents,
            Contents::Keys keys) {
    if (keys == Contents::Keys::kAll) table_->Clear();
    const std::vector<int64_t>& erased = contents.snapshot.erased();
    EXPECT_TRUE(std::is_sorted(erased.begin(), erased.end()));
    EXPECT_TRUE(keys == Contents::Keys::kChanged || erased.empty());
    table_->Erase(erased.data(), erased.size());
    std::vector<int64_t> key_list, freqs, versions;
    std::vector<float> values, slots;
    for (const auto& entry : contents.admitted) {
      key_list.push_back(entry.key);
      freqs.push_back(entry.freq);
      versions.push_back(entry.version);
      values.insert(values.end(), entry.row, entry.row + kDim);
      slots.insert(slots.end(), entry.row + kDim, entry.row + kDim + kSlot);
    }
    EXPECT_TRUE(table_->Insert({key_list.data(),
                                key_list.size(),
                                values.data(),
                                {slots.data()},
                                freqs.data(),
                                versions.data()}));
    key_list.clear();
    freqs.clear();
    versions.clear();
    for (const auto& entry : contents.filtered) {
      key_list.push_back(entry.key);
      freqs.push_back(entry.freq);
      versions.push_back(entry.version);
    }
    EXPECT_TRUE(table_->InsertFiltered(key_list.data(), key_list.size(),
                                       freqs.data(), versions.data(), false));
    cells_.Save(live, contents.snapshot, keys);
  }

  const FilterSpec filter_;
  std::unique_ptr<EmbeddingTable> table_;  // Rows and entries.
  SavedCounts cells_;
};

// A table, its oracle and its saves, with the same random operations.
class Trial {
 public:
  Trial(const FilterSpec& filter, uint64_t seed, const ParallelFor& parallel)
      : filter_(filter),
        random_(seed),
        parallel_(parallel),
        table_(NewTable(filter)),
        oracle_(kDim, kDefault, filter),
        copy_(filter) {
    oracle_.SetBank(Bank());
    oracle_.EnsureSlots(kSlots);
  }

  void Run(const RowUpdate& update, int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (Random(16)) {
        case 0:
          Erase();
          break;
        case 1: {
          const int64_t version = version_ - static_cast<int64_t>(Random(6));
          EXPECT_EQ(EvictOlder(table_.get(), version, version_),
                    oracle_.EvictOlder(version, version_));
          break;
        }
        case 2: {
          const float limit = static_cast<float>(Random(20));
          EXPECT_EQ(EvictSmaller(table_.get(), limit, version_),
                    oracle_.EvictSmaller(limit, version_));
          break;
        }
        case 3:
          InsertFiltered();
          break;
        case 4:
          SetSlot();
          break;
        case 5:
          InsertRows();
          break;
        case 6:
          if (Random(12) == 0) {
            table_->Clear();
            oracle_.Clear();
            EXPECT_FALSE(table_->tracks_changes());
            copied_ = false;
          }
          break;
        case 7:
        case 8:
          Save();
          break;
        case 9:
          CheckReads();
          break;
        default:
          Apply(update);
      }
      if (step % 20 == 19) CheckAll();
    }
    CheckReads();
    CheckAll();
    copy_.Save(table_.get(),
               copied_ ? Contents::Keys::kChanged : Contents::Keys::kAll,
               false);
    copy_.ExpectSameAs(*table_);
  }

 private:
  uint64_t Random(uint64_t below) { return random_.Below(below); }
  // Beyond the largest batch that an apply does at once.
  size_t Most() { return Random(4) == 0 ? 7000 : 60; }

  void Apply(const RowUpdate& update) {
    const std::vector<int64_t> keys = random_.Keys(Most());
    const std::vector<int64_t> counted = random_.Keys(Random(2) * 300);
    const std::vector<float> grads = random_.Floats(keys.size() * kDim);
    const StepBatch batch = {keys.data(),    grads.data(),   keys.size(),
                             counted.data(), counted.size(), ++version_};
    // Admits predicts the apply.
    std::vector<int64_t> all = keys;
    all.insert(all.end(), counted.begin(), counted.end());
    std::unique_ptr<bool[]> admits(new bool[all.size()]);
    EXPECT_TRUE(table_->Admits(all.data(), all.size(), admits.get()));
    EXPECT_TRUE(table_->Apply(batch, update, parallel_));
    oracle_.Apply(batch, update);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(admits[i], oracle_.HasRow(all[i]));
    }
  }

  void Erase() {
    const std::vector<int64_t> keys = random_.DistinctKeys(Most());
    EXPECT_EQ(table_->Erase(keys.data(), keys.size()), oracle_.Erase(keys));
  }

  void InsertFiltered() {
    const std::vector<int64_t> keys = random_.DistinctKeys(Most());
    std::vector<int64_t> freqs, versions;
    for (size_t i = 0; i < keys.size(); ++i) {
      freqs.push_back(static_cast<int64_t>(Random(filter_.threshold + 2)) - 1);
      versions.push_back(version_ - static_cast<int64_t>(Random(4)));
    }
    const int64_t* f = Random(4) == 0 ? nullptr : freqs.data();
    const int64_t* v = Random(4) == 0 ? nullptr : versions.data();
    const bool into_bloom = Random(2) == 0;
    EXPECT_TRUE(
        table_->InsertFiltered(keys.data(), keys.size(), f, v, into_bloom));
    oracle_.InsertFiltered(keys, f, v, into_bloom);
  }

  void InsertRows() {
    const std::vector<int64_t> keys = random_.DistinctKeys(200);
    const std::vector<float> values = random_.Floats(keys.size() * kDim);
    const std::vector<int64_t> freqs(keys.size(), 1);
    const RestoredRows rows = {keys.data(), keys.size(),  values.data(),
                               {},          freqs.data(), nullptr};
    EXPECT_TRUE(table_->Insert(rows));
    oracle_.Insert(rows);
  }

  void SetSlot() {
    const std::vector<int64_t> keys = random_.DistinctKeys(Most() * 2);
    const std::vector<float> values = random_.Floats(keys.size() * kSlot);
    size_t set = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!oracle_.HasRow(keys[i])) continue;
      std::copy_n(&values[i * kSlot], kSlot,
                  oracle_.entries[keys[i]].row.begin() + kDim);
      ++set;
    }
    EXPECT_EQ(table_->SetSlot(0, keys.data(), keys.size(), values.data()), set);
  }

  void Save() {
    const bool full = !copied_ || Random(5) == 0;
    const bool fails = Random(3) == 0;
    copy_.Save(table_.get(),
               full ? Contents::Keys::kAll : Contents::Keys::kChanged, fails);
    if (fails) return;
    copied_ = true;
    copy_.ExpectSameAs(*table_);
    const Contents nothing(*table_, Contents::Keys::kChanged);
    EXPECT_EQ(nothing.admitted.size() + nothing.filtered.size() +
                  nothing.snapshot.erased().size(),
              0u);
    EXPECT_EQ(nothing.snapshot.sketch_rows(), 0);
  }

  void CheckReads() {
    const std::vector<int64_t> keys = random_.Keys(3000);
    const size_t n = keys.size();
    std::vector<float> out(n * kDim);
    table_->Lookup(keys.data(), n, UnknownKey::kDefault, out.data(), parallel_);
    std::vector<int64_t> counts(n), versions(n);
    table_->Frequencies(keys.data(), n, counts.data());
    table_->Versions(keys.data(), n, versions.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(counts[i], oracle_.Count(keys[i]));
      EXPECT_EQ(versions[i], oracle_.Version(keys[i]));
      const auto expected = oracle_.Read(keys[i], UnknownKey::kDefault);
      EXPECT_TRUE(SameBits(&out[i * kDim], expected.data(), kDim));
    }
  }

  void CheckAll() {
    const Contents contents(*table_);
    EXPECT_EQ(table_->size(), oracle_.rows());
    EXPECT_EQ(table_->total_count(),
              static_cast<int64_t>(oracle_.entries.size()));
    EXPECT_EQ(static_cast<int64_t>(contents.admitted.size()), oracle_.rows());
    EXPECT_EQ(contents.admitted.size() + contents.filtered.size(),
              oracle_.entries.size());
    const auto check = [&](const Contents::Entry& entry) {
      const auto known = oracle_.entries.find(entry.key);
      EXPECT_TRUE(known != oracle_.entries.end());
      if (known == oracle_.entries.end()) return;
      EXPECT_EQ(entry.freq, known->second.count);
      EXPECT_EQ(entry.version, known->second.version);
      EXPECT_EQ(entry.row == nullptr, known->second.row.empty());
      if (entry.row == nullptr || known->second.row.empty()) return;
      EXPECT_TRUE(SameBits(entry.row, known->second.row.data(), kDim + kSlot));
    };
    for (const auto& entry : contents.admitted) check(entry);
    for (const auto& entry : contents.filtered) check(entry);
  }

  const FilterSpec filter_;
  RandomInputs random_;
  const ParallelFor parallel_;
  std::unique_ptr<EmbeddingTable> table_;
  TableOracle oracle_;
  Copy copy_;
  bool copied_ = false;  // The copy has these rows: deltas may follow.
  int64_t version_ = 0;
};

void RunTrials(const std::vector<FilterSpec>& filters, uint64_t seed) {
  Threads threads(2);
  const SgdEach sgd(0.25f);
  const AddSum add;
  for (const FilterSpec& filter : filters) {
    Trial(filter, ++seed, SerialFor).Run(add, kSteps);
    Trial(filter, ++seed, threads.parallel()).Run(sgd, kSteps);
  }
}

TEST(RandomOperationsAgreeWithTheOracleWithoutFilter) {
  RunTrials({{0, 1}, {0, 5}, {1, 1}}, 0);
}

TEST(RandomOperationsAgreeWithTheOracleWithACounterFilter) {
  RunTrials({{2, 1}, {3, 1}, {7, 2}, {40, 3}}, 20);
}

TEST_WITHOUT_TSAN(RandomOperationsAgreeWithTheOracleWithALargeBloomFilter) {
  // So large that no two keys share all cells.
  RunTrials(
      {BloomFilter(2, 1, 1 << 20, 1e-6), BloomFilter(3, 1, 1 << 20, 1e-7),
       BloomFilter(20, 3, 1 << 18, 1e-6), BloomFilter(300, 20, 1 << 18, 1e-6),
       BloomFilter(70000, 9000, 1 << 18, 1e-6),
       BloomFilter(UINT32_MAX, 1u << 30, 1 << 18, 1e-6),
       BloomFilter(1, 1, 1 << 18, 1e-6)},
      40);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
