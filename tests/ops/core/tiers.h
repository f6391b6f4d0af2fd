// SPDX-License-Identifier: Apache-2.0
// Tables with rows on disk beside tables with the same rows in memory, for
// tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_TIERS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_TIERS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/storage/disk_rows.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {

using Keys = std::vector<int64_t>;

// Operations, or steps, of a random test.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kOperations = 20;  // About thirty times slower there.
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kOperations = 50;  // About ten times slower there.
#else
inline constexpr int kOperations = 300;
#endif

inline void OpenTier(EmbeddingTable* table, const Folder& folder,
                     int64_t memory_rows,
                     Victims victims = Victims::kLeastCounted,
                     FaultyIo::Faults* faults = nullptr) {
  static FaultyIo::Faults none;
  DiskError error;
  EXPECT_TRUE(table->OpenTier(
      {{{folder.path()}}, memory_rows, victims},
      std::make_unique<FaultyIo>(faults != nullptr ? faults : &none), &error));
  EXPECT_EQ(error.text, "");
}

inline int64_t InMemory(const EmbeddingTable& table) {
  return table.size() - table.tier()->spilled();
}

inline void ExpectSameEntries(const std::vector<Contents::Entry>& a,
                              const std::vector<Contents::Entry>& b,
                              size_t floats) {
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_EQ(a[i].key, b[i].key);
    EXPECT_EQ(a[i].version, b[i].version);
    EXPECT_EQ(a[i].freq, b[i].freq);
    EXPECT_TRUE(a[i].row == nullptr || SameBits(a[i].row, b[i].row, floats));
  }
}

// What a save of `keys` would write.
inline void ExpectSameContents(const EmbeddingTable& a, const EmbeddingTable& b,
                               Contents::Keys keys = Contents::Keys::kAll) {
  const Contents x(a, keys), y(b, keys);
  const size_t floats = static_cast<size_t>(a.row_floats());
  ExpectSameEntries(x.admitted, y.admitted, floats);
  ExpectSameEntries(x.filtered, y.filtered, floats);
  EXPECT_TRUE(x.snapshot.erased() == y.snapshot.erased());
  if (a.sketch() == nullptr) return;
  EXPECT_TRUE(SavedSketch(a, x.snapshot) == SavedSketch(b, y.snapshot));
}

// Two tables with the same settings, of which one spills its rows. Every
// operation is done to both.
class Twins {
 public:
  Twins(int dim, const FilterSpec& filter, const RowRules& rules,
        int64_t memory_rows, Victims victims, uint64_t seed,
        const ParallelFor& parallel)
      : memory(dim, 0.5f, filter, rules),
        spilling(dim, 0.5f, filter, rules),
        dim_(static_cast<size_t>(dim)),
        random_(seed),
        parallel_(parallel) {
    OpenTier(&spilling, folder_, memory_rows, victims);
    std::vector<float> bank(64 * dim_);
    for (float& x : bank) x = RandomFloat();
    ForBoth([&](EmbeddingTable* table) { table->SetBank(bank.data(), 64); });
  }

  // Low keys are more frequent.
  static Keys RandomKeys(size_t n, int64_t keys, std::mt19937_64* random) {
    Keys drawn(n);
    for (int64_t& key : drawn) {
      const auto r = static_cast<int64_t>((*random)() % keys);
      key = (r * r / keys - keys / 4) * 1000003;
    }
    return drawn;
  }

  // One of all operations.
  void DoAny(int64_t keys, const RowUpdate& update) {
    random_() % 5 < 3 ? Apply(keys, update) : DoAnyButApply(keys);
  }

  void DoAnyButApply(int64_t keys) {
    const uint64_t what = random_() % 40;
    if (what < 20) return Lookup(RandomKeys(random_() % 1500, keys));
    if (what < 24) return Insert(RandomKeys(random_() % 300, keys));
    if (what < 26) return InsertFiltered(RandomKeys(random_() % 300, keys));
    if (what < 28) return SetSlot(RandomKeys(random_() % 100, keys));
    if (what < 32) return Erase(RandomKeys(random_() % 50, keys));
    if (what < 33) return EvictOlder();
    if (what < 34) return EvictSmaller();
    if (what < 36) return Save();
    if (what < 37) return Inspect(RandomKeys(200, keys));
    if (what < 38) return ExpectSameContents(memory, spilling);
    if (random_() % 40 == 0) {
      ForBoth([](EmbeddingTable* table) { table->Clear(); });
    }
  }

  // What a step reads of one table, with its memory.
  struct Step {
    Keys keys, counted;
    std::vector<float> grads;

    StepBatch batch(int64_t version) const {
      return {keys.data(),    grads.data(),   keys.size(),
              counted.data(), counted.size(), version};
    }
  };
  Step RandomStep(int64_t keys) {
    const size_t most = random_() % 8 == 0 ? 6000 : 400;
    Step step;
    step.keys = RandomKeys(random_() % most, keys);
    step.counted = RandomKeys(random_() % 30, keys);
    step.grads = RandomGrads(step.keys.size());
    return step;
  }
  std::vector<float> RandomGrads(size_t n) { return RandomFloats(n * dim_); }
  // The version of the next step.
  int64_t NextVersion() { return ++version_; }

  void Apply(int64_t keys, const RowUpdate& update) {
    const Step step = RandomStep(keys);
    const StepBatch batch = step.batch(NextVersion());
    ForBoth([&](EmbeddingTable* table) {
      EXPECT_TRUE(table->Apply(batch, update, parallel_));
    });
  }

  void AddSlot(const SlotSpec& slot) {
    slots_.push_back(slot);
    ForBoth([&](EmbeddingTable* table) {
      EXPECT_TRUE(table->EnsureSlots(slots_));
    });
  }

  EmbeddingTable memory;
  EmbeddingTable spilling;

 private:
  template <typename Do>
  void ForBoth(const Do& act) {
    act(&memory);
    act(&spilling);
  }

  float RandomFloat() {
    return static_cast<float>(static_cast<int64_t>(random_() % 2001) - 1000) /
           512;
  }
  std::vector<float> RandomFloats(size_t n) {
    std::vector<float> floats(n);
    for (float& x : floats) x = RandomFloat();
    return floats;
  }
  Keys RandomKeys(size_t n, int64_t keys) {
    return RandomKeys(n, keys, &random_);
  }

  void Lookup(const Keys& keys) {
    for (const UnknownKey unknown :
         {UnknownKey::kInitial, UnknownKey::kDefault}) {
      std::vector<float> a(keys.size() * dim_), b(keys.size() * dim_);
      memory.Lookup(keys.data(), keys.size(), unknown, a.data(), parallel_);
      spilling.Lookup(keys.data(), keys.size(), unknown, b.data(), parallel_);
      EXPECT_TRUE(SameBits(a.data(), b.data(), a.size()));
      const RowReader reader(spilling, keys.data(), keys.size());
      std::vector<const float*> rows(keys.size());
      reader.Rows(keys.data(), keys.size(), unknown, rows.data());
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_TRUE(SameBits(rows[i], &a[i * dim_], dim_));
      }
      reader.Copy(keys.data(), keys.size(), unknown, b.data());
      EXPECT_TRUE(SameBits(a.data(), b.data(), a.size()));
    }
  }

  void Insert(const Keys& keys) {
    const std::vector<float> values = RandomFloats(keys.size() * dim_);
    std::vector<int64_t> freqs(keys.size());
    for (int64_t& freq : freqs) freq = static_cast<int64_t>(random_() % 9);
    std::vector<const float*> slots;
    const std::vector<float> slot = RandomFloats(keys.size() * dim_);
    if (!slots_.empty() && random_() % 2 == 0) slots.push_back(slot.data());
    ForBoth([&](EmbeddingTable* table) {
      EXPECT_TRUE(table->Insert({keys.data(), keys.size(), values.data(), slots,
                                 freqs.data(), nullptr}));
    });
  }

  void InsertFiltered(const Keys& keys) {
    std::vector<int64_t> freqs(keys.size());
    for (int64_t& freq : freqs) freq = static_cast<int64_t>(random_() % 5);
    ForBoth([&](EmbeddingTable* table) {
      EXPECT_TRUE(table->InsertFiltered(keys.data(), keys.size(), freqs.data(),
                                        nullptr, true));
    });
  }

  void SetSlot(const Keys& keys) {
    if (slots_.empty()) return;
    const std::vector<float> values =
        RandomFloats(keys.size() * static_cast<size_t>(slots_[0].width));
    size_t set[2], t = 0;
    ForBoth([&](EmbeddingTable* table) {
      set[t++] = table->SetSlot(0, keys.data(), keys.size(), values.data());
    });
    EXPECT_EQ(set[0], set[1]);
  }

  void Erase(const Keys& keys) {
    size_t erased[2], t = 0;
    ForBoth([&](EmbeddingTable* table) {
      erased[t++] = table->Erase(keys.data(), keys.size());
    });
    EXPECT_EQ(erased[0], erased[1]);
  }

  void EvictOlder() {
    int64_t evicted[2], t = 0;
    ForBoth([&](EmbeddingTable* table) {
      evicted[t++] = rec_estimator::EvictOlder(table, version_ - 60, version_);
    });
    EXPECT_EQ(evicted[0], evicted[1]);
  }

  void EvictSmaller() {
    int64_t evicted[2], t = 0;
    const float limit = static_cast<float>(dim_) / 4;
    ForBoth([&](EmbeddingTable* table) {
      evicted[t++] = rec_estimator::EvictSmaller(table, limit, version_);
    });
    EXPECT_EQ(evicted[0], evicted[1]);
  }

  // An incremental save: what changed, and that it is saved.
  void Save() {
    ExpectSameContents(memory, spilling, Contents::Keys::kChanged);
    ForBoth([&](EmbeddingTable* table) {
      table->TrackChanges();
      Snapshot(*table, Contents::Keys::kChanged).MarkSaved();
      table->CommitSaved();
    });
  }

  void Inspect(const Keys& keys) {
    std::vector<int64_t> a(keys.size()), b(keys.size());
    memory.Frequencies(keys.data(), keys.size(), a.data());
    spilling.Frequencies(keys.data(), keys.size(), b.data());
    EXPECT_TRUE(a == b);
    memory.Versions(keys.data(), keys.size(), a.data());
    spilling.Versions(keys.data(), keys.size(), b.data());
    EXPECT_TRUE(a == b);
    const auto admits = [&](const EmbeddingTable& table) {
      auto out = std::make_unique<bool[]>(keys.size());
      EXPECT_TRUE(table.Admits(keys.data(), keys.size(), out.get()));
      return std::vector<bool>(out.get(), out.get() + keys.size());
    };
    EXPECT_TRUE(admits(memory) == admits(spilling));
    EXPECT_EQ(memory.size(), spilling.size());
    EXPECT_EQ(memory.total_count(), spilling.total_count());
  }

  const size_t dim_;
  Folder folder_;
  std::mt19937_64 random_;
  const ParallelFor parallel_;
  std::vector<SlotSpec> slots_;
  int64_t version_ = 0;
};

// A table whose rows other threads train, by steps that add 1: every float of a
// row is the key's count. Keys are in [0, kKeys).
class CountingTable {
 public:
  static constexpr int kDim = 250;
  static constexpr int64_t kKeys = 4000;
  static constexpr int64_t kMemoryRows = 100;

  CountingTable() : table_(kDim) { OpenTier(&table_, folder_, kMemoryRows); }
  EmbeddingTable& table() { return table_; }

  static void CheckRow(const float* row) {
    EXPECT_EQ(std::count(row, row + kDim, row[0]), kDim);
  }
  static Keys RandomKeys(std::mt19937_64* random, size_t n) {
    Keys keys(n);
    for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % kKeys);
    return keys;
  }

  // A step to which, every other time, a lookup tells where the keys are.
  void Train(const Keys& keys, int64_t version) {
    std::shared_ptr<const RowHints> found;
    const std::vector<float> ones(keys.size() * kDim, 1.0f);
    if (version % 2 == 0) {
      std::vector<float> out(ones.size());
      found = table_.LookupListed(std::make_shared<DeduplicatedList>(
                                      keys.data(), keys.size(), SerialFor),
                                  UnknownKey::kDefault, out.data(), SerialFor);
      for (size_t i = 0; i < keys.size(); ++i) CheckRow(&out[i * kDim]);
    }
    EXPECT_TRUE(table_.Apply({keys.data(), ones.data(), keys.size(), nullptr, 0,
                              version, nullptr, found.get()},
                             AddSum(), SerialFor));
    trained_ += static_cast<int64_t>(keys.size());
  }
  void Lookup(const Keys& keys) const {
    std::vector<float> out(keys.size() * kDim);
    table_.Lookup(keys.data(), keys.size(), UnknownKey::kDefault, out.data(),
                  SerialFor);
    for (size_t i = 0; i < keys.size(); ++i) CheckRow(&out[i * kDim]);
  }
  void EvictAndSave() {
    EvictSmaller(&table_, 0, 1);  // Reads all rows, evicts none.
    const Contents contents(table_);
    for (const Contents::Entry& entry : contents.admitted) {
      CheckRow(entry.row);
      EXPECT_EQ(entry.row[0], static_cast<float>(entry.freq));
    }
  }
  // When all threads have ended: no count was lost.
  void CheckCounts() const {
    const Contents contents(table_);
    int64_t counted = 0;
    for (const Contents::Entry& e : contents.admitted) counted += e.freq;
    EXPECT_EQ(counted, trained_.load());
  }

 private:
  const Folder folder_;
  EmbeddingTable table_;
  std::atomic<int64_t> trained_{0};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TIERS_H_
