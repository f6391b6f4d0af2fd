// SPDX-License-Identifier: Apache-2.0
// A table with a limit of memory gives rows away as its index grows, and its
// contents stay those of a table without one.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/stripes/memory_limit.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

// Sanitizers need memory of their own, and time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

constexpr int kDim = 16;
constexpr int64_t kMiB = int64_t{1} << 20;

struct Limited {
  explicit Limited(int64_t bytes) : table(kDim) {
    table.EnsureSlots({{"Adagrad", kDim, 0.1f}});
    TierSpec spec;
    spec.paths = {{folder.path()}};
    spec.limit_bytes = bytes;
    spec.warn = [this](const std::string& text) { warnings.push_back(text); };
    DiskError error;
    EXPECT_TRUE(table.OpenTier(spec, std::make_unique<DiskIo>(), &error));
  }

  Folder folder;
  std::vector<std::string> warnings;
  EmbeddingTable table;
};

// Keys first, first + 1, ..., in no order that a bucket or a stripe knows.
Keys KeysFrom(int64_t first, int64_t n) {
  Keys keys(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    keys[static_cast<size_t>(i)] = static_cast<int64_t>(
        static_cast<uint64_t>(first + i) * 0x9E3779B97F4A7C15u);
  }
  return keys;
}

bool Train(EmbeddingTable* table, const Keys& keys, int64_t step) {
  const std::vector<float> grads(keys.size() * kDim,
                                 static_cast<float>(step % 7));
  return table->Apply(
      {keys.data(), grads.data(), keys.size(), nullptr, 0, step},
      AdagradLike(0.1f), SerialFor);
}

int64_t ResidentBytes() {
  FILE* const file = std::fopen("/proc/self/statm", "r");
  long pages = 0;
  EXPECT_TRUE(file != nullptr && std::fscanf(file, "%*d %ld", &pages) == 1);
  std::fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(ATableOfThreeTimesTheLimitKeepsToIt) {
  if (kIsSanitized) return;
  constexpr int64_t kLimit = 64 * kMiB;
  constexpr int64_t kBatch = 20000;
  constexpr int64_t kKeys = 60 * kBatch;
  Limited limited(kLimit);
  EmbeddingTable& table = limited.table;
  // A step needs memory of its own, and keeps it for the next one.
  EXPECT_TRUE(Train(&table, KeysFrom(0, kBatch), 0));
  const int64_t before = ResidentBytes() - table.memory_bytes();
  int64_t most_rows = 0;
  for (int64_t first = kBatch; first < kKeys; first += kBatch) {
    EXPECT_TRUE(Train(&table, KeysFrom(first, kBatch), first));
    EXPECT_TRUE(table.memory_bytes() <= kLimit);
    EXPECT_TRUE(ResidentBytes() - before <= kLimit + kLimit / 10);
    most_rows = std::max(most_rows, table.tier_counts().memory_rows);
  }
  EXPECT_TRUE(table.size() * (2 * kDim * 4 + 35) > 5 * kLimit / 2);
  EXPECT_TRUE(table.tier_counts().memory_rows < most_rows / 2);
  // What is left is used.
  EXPECT_TRUE(ResidentBytes() - before > kLimit - kLimit / 8);
  EXPECT_TRUE(limited.warnings.empty());
}

TEST(AnIndexAboveTheLimitLeavesTheLeastRowsAndWarnsOnce) {
  Limited limited(4 * kMiB);
  EmbeddingTable& table = limited.table;
  constexpr int64_t kBatch = 10000;
  for (int64_t first = 0; first < 30 * kBatch; first += kBatch) {
    EXPECT_TRUE(Train(&table, KeysFrom(first, kBatch), first));
  }
  EXPECT_EQ(table.tier_counts().memory_rows, int64_t{kStripes});
  EXPECT_EQ(limited.warnings.size(), size_t{1});
  for (const char* text : {"got 4194304 bytes for ", " of index and ",
                           " of buffers; all rows but those of running steps "
                           "are on disk now: raise the limit"}) {
    EXPECT_TRUE(!limited.warnings.empty() &&
                limited.warnings[0].find(text) != std::string::npos);
  }
  // The rows of a step that was larger than all later ones leave memory.
  EXPECT_TRUE(Train(&table, KeysFrom(0, 10), 0));  // It needs a buffer to read.
  const int64_t before = table.memory_bytes();
  for (int64_t step = 0; step < 200; ++step) {
    EXPECT_TRUE(Train(&table, KeysFrom(step, 10), step));
  }
  EXPECT_TRUE(table.memory_bytes() < before - kBatch / 2 * 2 * kDim * 4);
}

TEST(ATableWithALimitHasTheContentsOfOneWithout) {
  Limited limited(kMiB);
  EmbeddingTable memory(kDim);
  memory.EnsureSlots({{"Adagrad", kDim, 0.1f}});
  std::mt19937_64 random(5);
  for (int64_t step = 0; step < (kIsSanitized ? 60 : 200); ++step) {
    // Steps of very different sizes, so that memory is given back.
    const int64_t n = step % 20 == 0 ? 12000 : 100;
    const Keys keys = KeysFrom(static_cast<int64_t>(random() % 30000), n);
    for (EmbeddingTable* table : {&limited.table, &memory}) {
      EXPECT_TRUE(Train(table, keys, step));
    }
    if (step % 50 == 49) ExpectSameContents(memory, limited.table);
    if (step % 40 == 39) {
      for (EmbeddingTable* table : {&limited.table, &memory}) {
        table->Erase(keys.data(), keys.size() / 2);
      }
    }
  }
  EXPECT_TRUE(limited.table.EnsureSlots({{"Late", 3, 0.5f}}));
  EXPECT_TRUE(memory.EnsureSlots({{"Late", 3, 0.5f}}));
  ExpectSameContents(memory, limited.table);
}

TEST(TrimmedRowsKeepTheirContentsAndTheirMemoryIsFree) {
  RowStore store(kDim, 0.0f);
  StripeSet stripes(&store, {}, {});
  // Every third row is in memory, and the others are free.
  constexpr uint32_t kRows = 100000;
  uint32_t first;
  EXPECT_TRUE(store.arena().Take(kRows, 0, &first));
  for (uint32_t row = 0; row < kRows; ++row) {
    const int64_t key = int64_t{row} * 1000003;
    Stripe& stripe = stripes.Of(key);
    if (row % 3 != 0) {
      stripe.FreeRow(row);
      continue;
    }
    EXPECT_TRUE(stripe.MakeRoom({1, 1, 0}));
    const EntryRef entry = stripe.Insert(key);
    stripe.AddToKeys(1);
    stripe.AddToRows(1);
    entry.row() = row;
    std::fill_n(store.view().Row(row), kDim, static_cast<float>(row));
  }
  const auto check = [&](uint64_t taken) {
    EXPECT_EQ(store.arena().taken(), taken);
    uint64_t in_use = 0, free = 0;
    for (const Stripe& stripe : stripes) {
      free += stripe.n_free_rows();
      stripe.index().ForEach([&](EntryRef entry) {
        ++in_use;
        EXPECT_TRUE(entry.row() < taken);
        const float* const row = store.view().Row(entry.row());
        EXPECT_EQ(row[0], static_cast<float>(entry.key() / 1000003));
        EXPECT_EQ(row[kDim - 1], row[0]);
      });
    }
    EXPECT_EQ(in_use, uint64_t{kRows / 3 + 1});
    EXPECT_EQ(in_use + free, taken);
  };
  check(kRows);
  TrimRows(&stripes, &store, kRows / 2);
  check(kRows / 2);
  TrimRows(&stripes, &store, 0);
  check(kRows / 3 + 1);
  TrimRows(&stripes, &store, kRows);
  check(kRows / 3 + 1);
}

TEST(StepsAndLookupsRunWhileMemoryIsGivenBack) {
  Limited limited(kMiB);
  EmbeddingTable& table = limited.table;
  constexpr int64_t kKeys = 20000;
  std::vector<std::thread> threads;
  std::atomic<int64_t> applied{0};
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<float> out;
      for (int64_t step = 0; step < (kIsSanitized ? 60 : 300); ++step) {
        const int64_t n = step % 20 == 0 ? 5000 : 100;
        const Keys keys = KeysFrom(static_cast<int64_t>(random() % kKeys), n);
        EXPECT_TRUE(Train(&table, keys, step));
        applied += n;
        out.resize(keys.size() * kDim);
        table.Lookup(keys.data(), keys.size(), UnknownKey::kDefault, out.data(),
                     SerialFor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Contents contents(table);
  int64_t counted = 0;
  for (const Contents::Entry& entry : contents.admitted) counted += entry.freq;
  EXPECT_EQ(counted, applied.load());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
