// SPDX-License-Identifier: Apache-2.0
// RowExchange: a table changes at one moment or not at all, and memory that an
// exchange frees serves the next one.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/base/shared_mutex.h"
#include "ops/core/step/past_rows.h"
#include "ops/core/step/row_exchange.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int kDim = 3;
constexpr float kDefault = -1.0f;
constexpr float kInitial = 32.0f;
// What a test knows of a key.
struct Known {
  float value;
  int64_t freq, version;
};
using Model = std::map<int64_t, Known>;

void RunSerially(int64_t n, int64_t,
                 const std::function<void(int64_t, int64_t)>& work) {
  work(0, n);
}

// What an exchange writes. Owns the arrays.
struct Written {
  std::vector<int64_t> keys, freqs, versions;
  std::vector<float> values;

  void Add(int64_t key, const Known& known) {
    keys.push_back(key);
    freqs.push_back(known.freq);
    versions.push_back(known.version);
    values.insert(values.end(), kDim, known.value);
  }
  RestoredRows rows() const {
    RestoredRows rows;
    rows.keys = keys.data();
    rows.n = keys.size();
    rows.values = values.data();
    rows.freqs = freqs.data();
    rows.versions = versions.data();
    return rows;
  }
};

void CheckContents(const EmbeddingTable& table, const Model& model) {
  const Contents contents(table);
  EXPECT_EQ(contents.filtered.size(), 0u);
  EXPECT_EQ(contents.admitted.size(), model.size());
  EXPECT_EQ(table.size(), static_cast<int64_t>(model.size()));
  EXPECT_EQ(table.total_count(), static_cast<int64_t>(model.size()));
  for (const auto& entry : contents.admitted) {
    const auto it = model.find(entry.key);
    EXPECT_TRUE(it != model.end());
    if (it == model.end()) continue;
    EXPECT_EQ(entry.freq, it->second.freq);
    EXPECT_EQ(entry.version, it->second.version);
    for (int d = 0; d < kDim; ++d) EXPECT_EQ(entry.row[d], it->second.value);
    EXPECT_EQ(entry.row[kDim], 0.5f);  // The slot.
  }
}

void FillTable(EmbeddingTable* table) {
  EXPECT_TRUE(table->EnsureSlots({{"slot", 1, 0.5f}}));
}

TEST(RandomExchangesWriteWhatAMapHolds) {
  std::mt19937_64 random(1);
  const auto number = [&](uint64_t n) {
    return static_cast<int64_t>(random() % n);
  };
  for (int round = 0; round < 20; ++round) {
    EmbeddingTable table(kDim);
    FillTable(&table);
    Model model;
    for (int step = 1; step <= 30; ++step) {
      RowExchange exchange(table.parts());
      Model next = model;
      std::set<int64_t> erased;
      for (int64_t i = number(300); i > 0; --i) erased.insert(number(1000));
      const std::vector<int64_t> keys(erased.begin(), erased.end());
      exchange.AddErased(keys.data(), keys.size());
      for (const int64_t key : erased) next.erase(key);
      std::set<int64_t> distinct;
      for (int64_t i = number(400); i > 0; --i) distinct.insert(number(1000));
      int64_t deleted = 0;
      for (const int64_t key : erased) {
        deleted += model.count(key) > 0 && distinct.count(key) == 0;
      }
      // In two batches.
      Written written[2];
      for (const int64_t key : distinct) {
        const Known known = {static_cast<float>(step), key + step, step};
        written[number(2)].Add(key, known);
        next[key] = known;
      }
      for (const Written& batch : written) {
        EXPECT_TRUE(exchange.Add(batch.rows()));
      }
      EXPECT_TRUE(exchange.Prepare());
      EXPECT_EQ(exchange.written(), static_cast<int64_t>(distinct.size()));
      EXPECT_EQ(exchange.erased(), deleted);
      EXPECT_EQ(exchange.growth(), static_cast<int64_t>(next.size()) -
                                       static_cast<int64_t>(model.size()));
      if (number(3) > 0) {  // Otherwise it ends without a commit.
        exchange.Commit();
        model = next;
      }
    }
    CheckContents(table, model);
  }
}

TEST(WithoutMemoryTheTableIsAsItWas) {
  for (int64_t allowed = 0; allowed < 40; ++allowed) {
    EmbeddingTable table(kDim);
    FillTable(&table);
    Model model;
    const auto exchange_keys = [&](int64_t first, int64_t n) {
      RowExchange exchange(table.parts());
      Written written;
      for (int64_t key = first; key < first + n; ++key) {
        written.Add(key, {1.0f, 1, 1});
      }
      if (!exchange.Add(written.rows()) || !exchange.Prepare()) return;
      exchange.Commit();
      for (int64_t key = first; key < first + n; ++key) {
        model[key] = {1.0f, 1, 1};
      }
    };
    exchange_keys(0, 500);
    LimitAllocations(allowed);
    exchange_keys(250, 40000);
    LimitAllocations(-1);
    CheckContents(table, model);
    exchange_keys(100, 1000);
    CheckContents(table, model);
  }
}

TEST(RowsThatAnExchangeFreesServeTheNextOne) {
  EmbeddingTable table(kDim);
  FillTable(&table);
  Written all;
  for (int64_t key = 0; key < 50000; ++key) all.Add(key, {1.0f, 1, 1});
  EXPECT_TRUE(table.Insert(all.rows()));
  std::mt19937_64 random(2);
  int64_t after_some = 0;
  for (int step = 0; step < 400; ++step) {
    RowExchange exchange(table.parts());
    std::set<int64_t> keys;
    while (keys.size() < 500) {
      keys.insert(static_cast<int64_t>(random() % 50000));
    }
    Written written;
    for (const int64_t key : keys) written.Add(key, {2.0f, step, step});
    EXPECT_TRUE(exchange.Add(written.rows()));
    EXPECT_TRUE(exchange.Prepare());
    exchange.Commit();
    if (step == 40) after_some = table.memory_bytes();
  }
  // 1 % of the rows, of which a stripe may have a few more each time.
  EXPECT_TRUE(table.memory_bytes() < after_some + after_some / 100);
}

using Pasts = std::vector<std::shared_ptr<const PastRows>>;

// Checks that keys read what `model` holds, corrected by pasts[first] and all
// later ones.
void CheckPast(const EmbeddingTable& table, const Pasts& pasts, size_t first,
               const Model& model) {
  constexpr size_t kKeys = 1000;
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = static_cast<int64_t>(i);
  std::vector<float> values[2];
  const UnknownKey unknowns[] = {UnknownKey::kDefault, UnknownKey::kInitial};
  for (int u = 0; u < 2; ++u) {
    values[u].resize(kKeys * kDim);
    table.Lookup(keys.data(), kKeys, unknowns[u], values[u].data(),
                 RunSerially);
  }
  bool owns[kKeys];
  table.Contains(keys.data(), kKeys, owns);
  for (size_t past = pasts.size(); past-- > first;) {
    for (int u = 0; u < 2; ++u) {
      pasts[past]->Correct(keys.data(), kKeys, unknowns[u], values[u].data());
    }
    pasts[past]->Correct(keys.data(), kKeys, owns);
  }
  for (size_t i = 0; i < kKeys; ++i) {
    const auto it = model.find(keys[i]);
    const bool has_row = it != model.end();
    EXPECT_EQ(owns[i], has_row);
    for (int d = 0; d < kDim; ++d) {
      const size_t at = i * kDim + d;
      EXPECT_EQ(values[0][at], has_row ? it->second.value : kDefault);
      EXPECT_EQ(values[1][at], has_row ? it->second.value : kInitial + d);
    }
  }
}

TEST(PastRowsAreWhatKeysReadBeforeEachOfSeveralExchanges) {
  for (const ValueType type :
       {ValueType::kFloat32, ValueType::kBFloat16, ValueType::kHalf}) {
    std::mt19937_64 random(3);
    RowRules rules;
    rules.value.type = type;
    EmbeddingTable table(kDim, kDefault, {}, rules);
    FillTable(&table);
    const float bank[kDim] = {kInitial, kInitial + 1, kInitial + 2};
    table.SetBank(bank, 1);
    std::vector<Model> models(1);
    Pasts pasts;
    for (int step = 1; step <= 12; ++step) {
      RowExchange exchange(table.parts());
      Model next = models.back();
      std::set<int64_t> erased, distinct;
      for (int i = 0; i < 150; ++i) {
        erased.insert(static_cast<int64_t>(random() % 1000));
        distinct.insert(static_cast<int64_t>(random() % 1000));
      }
      const std::vector<int64_t> keys(erased.begin(), erased.end());
      exchange.AddErased(keys.data(), keys.size());
      for (const int64_t key : erased) next.erase(key);
      Written written;
      for (const int64_t key : distinct) {
        written.Add(key, {static_cast<float>(step), step, step});
        next[key] = {static_cast<float>(step), step, step};
      }
      EXPECT_TRUE(exchange.Add(written.rows()));
      EXPECT_TRUE(exchange.Prepare());
      exchange.Commit();
      pasts.push_back(exchange.TakePast());
      models.push_back(next);
    }
    for (size_t first = 0; first < models.size(); ++first) {
      CheckPast(table, pasts, first, models[first]);
    }
    pasts.clear();
    CheckContents(table, models.back());
  }
}

// Writes `value` as the row of keys 0 to n - 1.
void WriteAll(RowExchange* exchange, int64_t n, float value) {
  Written written;
  for (int64_t key = 0; key < n; ++key) written.Add(key, {value, 1, 1});
  EXPECT_TRUE(exchange->Add(written.rows()));
  EXPECT_TRUE(exchange->Prepare());
}

TEST(ReadersBesideExchangesGoOnToReadTheStateTheyBeganWith) {
  EmbeddingTable table(kDim);
  constexpr int64_t kKeys = 500;
  SharedMutex mutex;  // Held by readers, and exclusively by commits.
  Pasts pasts;        // Guarded by mutex.
  const auto exchange_all = [&](float value) {
    RowExchange exchange(table.parts());
    WriteAll(&exchange, kKeys, value);
    const std::unique_lock<SharedMutex> lock(mutex);
    exchange.Commit();
    pasts.push_back(exchange.TakePast());
  };
  exchange_all(1.0f);
  std::atomic<bool> ends{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      std::vector<int64_t> keys(kKeys);
      for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
      std::vector<float> out(kKeys * kDim);
      while (!ends) {
        size_t begun = 0;  // Exchanges before the first of four reads.
        for (int read = 0; read < 4; ++read) {
          const std::shared_lock<SharedMutex> lock(mutex);
          if (read == 0) begun = pasts.size();
          table.Lookup(keys.data(), keys.size(), UnknownKey::kInitial,
                       out.data(), RunSerially);
          for (size_t past = pasts.size(); past-- > begun;) {
            pasts[past]->Correct(keys.data(), keys.size(), UnknownKey::kInitial,
                                 out.data());
          }
          for (const float value : out) {
            EXPECT_EQ(value, static_cast<float>(begun));
          }
        }
      }
    });
  }
  for (int step = 2; step < 40; ++step) exchange_all(static_cast<float>(step));
  ends = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(LookupsBesideExchangesReadOldOrNewRows) {
  EmbeddingTable table(kDim);
  constexpr int64_t kKeys = 2000;  // Read under one set of locks.
  const auto exchange_all = [&](float value) {
    RowExchange exchange(table.parts());
    WriteAll(&exchange, kKeys, value);
    exchange.Commit();
  };
  exchange_all(1.0f);
  std::atomic<bool> ends{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      std::vector<int64_t> keys(kKeys);
      for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
      std::vector<float> out(kKeys * kDim);
      float last = 1.0f;
      while (!ends) {
        table.Lookup(keys.data(), keys.size(), UnknownKey::kInitial, out.data(),
                     RunSerially);
        for (const float value : out) EXPECT_EQ(value, out[0]);
        EXPECT_TRUE(out[0] >= last);
        last = out[0];
      }
    });
  }
  for (int step = 2; step < 60; ++step) exchange_all(static_cast<float>(step));
  ends = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
