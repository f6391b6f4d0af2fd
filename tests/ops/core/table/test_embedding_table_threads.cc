// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable with several concurrent callers: no update and no count is
// lost, no row is read half written, and no call waits forever. Written for
// TSan, but run in every variant.
//
// Gradients are small integers, equal in all elements of a row, and the rule
// adds them. So sums are exact in any order, and a row with unequal elements is
// torn.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/core/table/row_reader.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 12;  // About ten times slower there.
#else
constexpr int kSteps = 60;
#endif

constexpr int kDim = 19;  // Two whole vectors and an overlapping one.

void RunAll(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

// Runs the workers to their end. Until then, repeats each of the others, at
// least once.
void RunWhile(
    const std::vector<std::function<void()>>& workers,
    const std::vector<std::function<void(std::mt19937_64*)>>& others) {
  std::atomic<size_t> working{workers.size()};
  std::vector<std::function<void()>> bodies;
  for (const auto& worker : workers) {
    bodies.push_back([&working, &worker] {
      worker();
      --working;
    });
  }
  for (size_t i = 0; i < others.size(); ++i) {
    bodies.push_back([&working, &others, i] {
      std::mt19937_64 random(i);
      do {
        others[i](&random);
        std::this_thread::yield();
      } while (working > 0);
    });
  }
  RunAll(bodies);
}

bool IsWhole(const float* row) {
  for (int d = 1; d < kDim; ++d) {
    if (row[d] != row[0]) return false;
  }
  return true;
}

// Applies `steps` batches of n keys on average from next(); every gradient is
// `gradient`. Small batches, which lock all stripes at once, and large ones,
// which lock stripe by stripe, take turns.
void ApplySteps(EmbeddingTable* table, int steps, size_t n, float gradient,
                const ParallelFor& parallel,
                const std::function<int64_t()>& next) {
  std::vector<int64_t> keys(2 * n);
  const std::vector<float> grads(2 * n * kDim, gradient);
  for (int step = 0; step < steps; ++step) {
    const size_t size = step % 2 == 0 ? 7 * n / 4 : n / 4;
    for (size_t i = 0; i < size; ++i) keys[i] = next();
    EXPECT_TRUE(
        table->Apply({keys.data(), grads.data(), size, nullptr, 0, step},
                     AddSum(), parallel));
  }
}

void LookupSome(const EmbeddingTable& table, int64_t keys_below, size_t n,
                const ParallelFor& parallel, std::mt19937_64* random) {
  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) {
    key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(keys_below));
  }
  std::vector<float> out(n * kDim);
  table.Lookup(keys.data(), n, UnknownKey::kInitial, out.data(), parallel);
  for (size_t i = 0; i < n; ++i) EXPECT_TRUE(IsWhole(&out[i * kDim]));
}

void ReadSome(const EmbeddingTable& table, int64_t keys_below, size_t n,
              std::mt19937_64* random) {
  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) {
    key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(keys_below));
  }
  std::vector<const float*> rows(n);
  const RowReader reader(table, keys.data(), n);
  reader.Rows(keys.data(), n, UnknownKey::kInitial, rows.data());
  for (const float* row : rows) EXPECT_TRUE(IsWhole(row));
}

TEST(OverlappingAppliesLoseNoUpdateAndNoCount) {
  constexpr int kThreads = 3;
  constexpr size_t kBatch = 3000;
  constexpr int64_t kKeys = 5000;
  EmbeddingTable table(kDim);
  Threads pool(2);
  std::vector<std::vector<int64_t>> used(kThreads);
  std::vector<std::function<void()>> workers;
  for (int t = 0; t < kThreads; ++t) {
    workers.push_back([&, t] {
      std::mt19937_64 random(100 + t);
      ApplySteps(&table, kSteps, kBatch, static_cast<float>(t + 1),
                 t == 0 ? pool.parallel() : ParallelFor(SerialFor), [&] {
                   const int64_t key = static_cast<int64_t>(
                       random() % 10 == 0 ? 0 : random() % kKeys);
                   used[t].push_back(key);
                   return key;
                 });
    });
  }
  RunWhile(workers, {[&](std::mt19937_64* random) {
                       LookupSome(table, kKeys + 100, 5000, SerialFor, random);
                       ReadSome(table, kKeys, 50, random);
                     },
                     [&](std::mt19937_64*) {
                       const Contents snapshot(table);
                       for (const auto& entry : snapshot.admitted) {
                         EXPECT_TRUE(IsWhole(entry.row));
                       }
                     }});
  std::vector<float> sums(kKeys, 0);
  std::vector<int64_t> counts(kKeys, 0);
  for (int t = 0; t < kThreads; ++t) {
    for (int64_t key : used[t]) {
      sums[key] += static_cast<float>(t + 1);
      ++counts[key];
    }
  }
  std::vector<int64_t> keys(kKeys), stored(kKeys);
  for (int64_t key = 0; key < kKeys; ++key) keys[key] = key;
  std::vector<float> out(kKeys * kDim);
  table.Lookup(keys.data(), kKeys, UnknownKey::kInitial, out.data(), SerialFor);
  table.Frequencies(keys.data(), kKeys, stored.data());
  for (int64_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(out[key * kDim], sums[key]);
    EXPECT_TRUE(IsWhole(&out[key * kDim]));
    EXPECT_EQ(stored[key], counts[key]);
  }
}

TEST(TableGrowsWhileItIsRead) {
  constexpr size_t kBatch = 2500;
  EmbeddingTable table(kDim);
  const int64_t most = 3 * kSteps * static_cast<int64_t>(kBatch);
  std::vector<std::function<void()>> workers;
  for (int t = 0; t < 3; ++t) {
    workers.push_back([&, t] {
      int64_t next = t;
      ApplySteps(&table, kSteps, kBatch, 1.0f, SerialFor, [&] {
        const int64_t key = next;
        next += 3;
        return key;
      });
    });
  }
  RunWhile(workers, {[&](std::mt19937_64* random) {
                       LookupSome(table, most, 3000, SerialFor, random);
                       EXPECT_TRUE(table.size() <= table.capacity() + 64);
                       EXPECT_TRUE(table.memory_bytes() >= 0);
                     },
                     [&](std::mt19937_64* random) {
                       ReadSome(table, most, 2000, random);
                       std::vector<int64_t> keys(600), out(600);
                       for (int64_t& key : keys) {
                         key = static_cast<int64_t>((*random)() % most);
                       }
                       table.Frequencies(keys.data(), keys.size(), out.data());
                       for (int64_t count : out)
                         EXPECT_TRUE(count == 0 || count == 1);
                       table.Versions(keys.data(), keys.size(), out.data());
                       for (int64_t version : out)
                         EXPECT_TRUE(version < kSteps);
                     }});
  EXPECT_EQ(table.size(), most);
  const Contents snapshot(table);
  for (const auto& entry : snapshot.admitted) {
    EXPECT_EQ(entry.row[0], 1.0f);
    EXPECT_EQ(entry.freq, 1);
  }
}

TEST(RowsAreNotTornByEraseInsertAndNewSlots) {
  constexpr int64_t kKeys = 4000;
  EmbeddingTable table(kDim);
  std::vector<std::function<void()>> workers;
  for (int t = 0; t < 2; ++t) {
    workers.push_back([&, t] {
      std::mt19937_64 random(t);
      ApplySteps(&table, kSteps, 2500, 1.0f, SerialFor,
                 [&] { return static_cast<int64_t>(random() % kKeys); });
    });
  }
  int slots = 0;
  RunWhile(
      workers,
      {[&](std::mt19937_64* random) {
         LookupSome(table, kKeys, 3000, SerialFor, random);
         ReadSome(table, kKeys, 40, random);
       },
       [&](std::mt19937_64* random) {
         std::vector<int64_t> keys(500);
         for (int64_t& key : keys) {
           key = static_cast<int64_t>((*random)() % kKeys);
         }
         table.Erase(keys.data(), keys.size());
         const std::vector<float> values(keys.size() * kDim, 3.0f);
         EXPECT_TRUE(table.Insert(
             {keys.data(), keys.size(), values.data(), {}, nullptr, nullptr}));
       },
       [&](std::mt19937_64* random) {
         switch ((*random)() % 4) {
           case 0:
             if (slots < 3) {
               EXPECT_TRUE(table.EnsureSlots(
                   {{std::string(1, static_cast<char>('a' + slots++)), kDim,
                     0.0f}}));
             }
             break;
           case 1: {
             const std::vector<float> bank(64 * kDim, 2.0f);
             table.SetBank(bank.data(), 64);
             EXPECT_EQ(table.bank()[0], 2.0f);
             break;
           }
           case 2:
             if ((*random)() % 8 == 0) table.Clear();
             break;
           default: {
             const Contents snapshot(table);
             for (const auto& entry : snapshot.admitted) {
               EXPECT_TRUE(IsWhole(entry.row));
             }
           }
         }
       }});
  EXPECT_EQ(table.row_floats(), kDim * (1 + slots));
  EXPECT_EQ(table.size(), table.total_count());
  EXPECT_EQ(static_cast<size_t>(table.size()), Contents(table).admitted.size());
}

// The room that an insertion has reserved may be gone when it begins.
TEST(InsertFindsRoomAlthoughTheTableIsClearedMeanwhile) {
  EmbeddingTable table(1);
  const float bank = 1.0f;
  table.SetBank(&bank, 1);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  RestoredRows rows{};
  rows.keys = keys.data();
  rows.n = keys.size();
  RunWhile({[&] {
             for (int step = 0; step < kSteps; ++step) {
               EXPECT_TRUE(table.Insert(rows));
             }
           }},
           {[&](std::mt19937_64*) { table.Clear(); }});
  EXPECT_TRUE(table.Insert(rows));
  EXPECT_EQ(table.size(), static_cast<int64_t>(keys.size()));
}

// Two threads insert batches that share half of their keys.
TEST(RowsWrittenBeforeTheirKeysAreNotTorn) {
  constexpr int64_t kKeys = 1000;
  EmbeddingTable table(kDim);
  std::vector<std::function<void()>> workers;
  for (int t = 0; t < 2; ++t) {
    workers.push_back([&, t] {
      std::vector<int64_t> keys(kKeys);
      for (int step = 0; step < kSteps; ++step) {
        const int64_t first = step % 10 * 2 * kKeys + t * kKeys / 2;
        for (int64_t i = 0; i < kKeys; ++i) keys[i] = first + i;
        const std::vector<float> values(kKeys * kDim, 1.0f + t);
        RestoredRows rows{};
        rows.keys = keys.data();
        rows.n = keys.size();
        rows.values = values.data();
        rows.are_new = true;
        EXPECT_TRUE(table.Insert(rows));
      }
    });
  }
  RunWhile(workers, {[&](std::mt19937_64* random) {
             LookupSome(table, 20 * kKeys, 3000, SerialFor, random);
             ReadSome(table, 20 * kKeys, 40, random);
           }});
  EXPECT_EQ(table.size(), std::min(kSteps, 10) * kKeys * 3 / 2);
  for (const auto& entry : Contents(table).admitted) {
    EXPECT_TRUE(IsWhole(entry.row));
    const int64_t key = entry.key % (2 * kKeys);
    if (key < kKeys / 2) EXPECT_EQ(entry.row[0], 1.0f);
    if (key >= kKeys) EXPECT_EQ(entry.row[0], 2.0f);
  }
}

// A copy of a table, to which each save adds what has changed.
class Replica {
 public:
  Replica(EmbeddingTable* table, const FilterSpec& filter)
      : table_(*table), copy_(kDim, 0.0f, filter) {}

  void Save() {
    {
      const Contents::Keys keys =
          saved_ ? Contents::Keys::kChanged : Contents::Keys::kAll;
      Contents contents(table_, keys);
      table_.TrackChanges();
      contents.snapshot.MarkSaved();
      saved_ = true;
      const std::vector<int64_t>& erased = contents.snapshot.erased();
      copy_.Erase(erased.data(), erased.size());
      for (const Contents::Entry& entry : contents.admitted) {
        EXPECT_TRUE(IsWhole(entry.row));
        EXPECT_TRUE(copy_.Insert(
            {&entry.key, 1, entry.row, {}, &entry.freq, &entry.version}));
      }
      for (const Contents::Entry& entry : contents.filtered) {
        EXPECT_TRUE(copy_.InsertFiltered(&entry.key, 1, &entry.freq,
                                         &entry.version, false));
      }
      cells_.Save(table_, contents.snapshot, keys);
    }
    table_.CommitSaved();
  }

  void ExpectSameContents() {
    EXPECT_TRUE(cells_.RestoreTo(&copy_));
    EXPECT_TRUE(SketchOf(table_) == SketchOf(copy_));
    const Contents live(table_);
    const Contents copied(copy_);
    EXPECT_EQ(live.admitted.size(), copied.admitted.size());
    EXPECT_EQ(live.filtered.size(), copied.filtered.size());
    for (size_t i = 0; i < live.admitted.size(); ++i) {
      EXPECT_EQ(live.admitted[i].key, copied.admitted[i].key);
      EXPECT_EQ(live.admitted[i].freq, copied.admitted[i].freq);
      EXPECT_EQ(live.admitted[i].row[0], copied.admitted[i].row[0]);
    }
  }

 private:
  EmbeddingTable& table_;
  EmbeddingTable copy_;
  SavedCounts cells_;
  bool saved_ = false;
};

// counts: of keys 0, 1, ...
void ExpectCounts(const EmbeddingTable& table, const FilterSpec& filter,
                  const std::vector<std::atomic<int64_t>>& counts) {
  std::vector<int64_t> keys(counts.size()), stored(counts.size());
  std::iota(keys.begin(), keys.end(), int64_t{0});
  table.Frequencies(keys.data(), keys.size(), stored.data());
  for (size_t key = 0; key < keys.size(); ++key) {
    const int64_t most = static_cast<int64_t>(filter.threshold);
    if (filter.sketch.name.empty() || counts[key] >= most) {
      // Before admission a Bloom filter may only overestimate.
      EXPECT_TRUE(stored[key] == counts[key] ||
                  (!filter.sketch.name.empty() && stored[key] > counts[key]));
    } else {
      EXPECT_TRUE(stored[key] >= counts[key]);
    }
  }
}

// All operations at once, with a filter. In the end the incremental saves add
// up to the contents of the table, and no count is lost.
void FilterUnderLoad(const FilterSpec& filter, bool evict) {
  constexpr int64_t kKeys = 6000;
  EmbeddingTable table(kDim, 0.0f, filter);
  Threads pool(2);
  std::vector<std::atomic<int64_t>> counts(kKeys);
  std::vector<std::function<void()>> workers;
  for (int t = 0; t < 2; ++t) {
    workers.push_back([&, t] {
      std::mt19937_64 random(t);
      ApplySteps(&table, kSteps, 2500, 1.0f,
                 t == 0 ? pool.parallel() : ParallelFor(SerialFor), [&] {
                   const uint64_t range = random() % 2 == 0 ? 50 : kKeys;
                   const int64_t key = static_cast<int64_t>(random() % range);
                   ++counts[key];
                   return key;
                 });
    });
  }
  Replica replica(&table, filter);
  RunWhile(workers,
           {[&](std::mt19937_64* random) {
              LookupSome(table, kKeys, 3000, pool.parallel(), random);
              std::vector<int64_t> keys(500), out(500);
              for (int64_t& key : keys) {
                key = static_cast<int64_t>((*random)() % kKeys);
              }
              bool admits[500];
              EXPECT_TRUE(table.Admits(keys.data(), keys.size(), admits));
              table.Frequencies(keys.data(), keys.size(), out.data());
              EXPECT_TRUE(table.memory_bytes() >= 0);
            },
            [&](std::mt19937_64* random) {
              if (!evict) return;
              if ((*random)() % 2 == 0) {
                EvictOlder(&table, static_cast<int64_t>((*random)() % kSteps),
                           kSteps);
              } else {
                EvictSmaller(&table, static_cast<float>((*random)() % 100));
              }
            },
            [&](std::mt19937_64*) { replica.Save(); }});
  replica.Save();
  replica.ExpectSameContents();
  if (!evict) ExpectCounts(table, filter, counts);
}

TEST(CounterFilterLosesNoCountUnderLoad) { FilterUnderLoad({5, 1}, false); }
TEST(BloomFilterLosesNoCountUnderLoad) {
  FilterUnderLoad(BloomFilter(5, 1, 3000, 0.05), false);
}
TEST(EvictionsWithACounterFilterAreSavedUnderLoad) {
  FilterUnderLoad({5, 1}, true);
}
TEST(EvictionsWithABloomFilterAreSavedUnderLoad) {
  FilterUnderLoad(BloomFilter(5, 1, int64_t{1} << 30, 0.05), true);
}

// A save copies rows on the pool's threads while it holds every shared lock. If
// a unit of an apply or a lookup waited for a lock on the pool, the save would
// wait for that unit, and the unit for the save.
TEST(SnapshotMayWaitForThePoolThatAppliesUse) {
  constexpr int64_t kKeys = 20000;
  EmbeddingTable table(kDim);
  Threads pool(2);
  RunWhile({[&] {
             std::mt19937_64 random(1);
             ApplySteps(&table, kSteps, 4000, 1.0f, pool.parallel(),
                        [&] { return static_cast<int64_t>(random() % kKeys); });
           }},
           {[&](std::mt19937_64* random) {
              LookupSome(table, kKeys, 9000, pool.parallel(), random);
            },
            [&](std::mt19937_64*) {
              const Contents snapshot(table);
              const auto& entries = snapshot.admitted;
              pool.parallel()(static_cast<int64_t>(entries.size()), 100,
                              [&](int64_t begin, int64_t end) {
                                for (int64_t i = begin; i < end; ++i) {
                                  EXPECT_TRUE(IsWhole(entries[i].row));
                                }
                              });
              // Methods that a save calls meanwhile take no stripe's lock
              // twice.
              table.slots();
              table.bank();
              table.row_floats();
              table.size();
            }});
}

TEST(ContinuousLookupsDoNotStarveAnApply) {
  constexpr int64_t kKeys = 20000;
  EmbeddingTable table(kDim);
  const auto look = [&](std::mt19937_64* random) {
    LookupSome(table, kKeys, 20000, SerialFor, random);
  };
  RunWhile({[&] {
             std::mt19937_64 random(1);
             ApplySteps(&table, kSteps / 4, 3000, 1.0f, SerialFor,
                        [&] { return static_cast<int64_t>(random() % kKeys); });
           }},
           {look, look, look});
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
