// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: the memory of a key, and lack of memory.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "ops/core/base/spare_memory.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(KeyWithoutARowCostsAtMostFortyBytes) {
  EmbeddingTable table(16, 0.0f, FilterSpec{2, 1});
  double sum = 0;
  int samples = 0;
  std::vector<int64_t> keys;
  int64_t next = 0;
  for (double n = 20000; n < 400000; n *= 1.05) {
    keys.clear();
    while (next < static_cast<int64_t>(n)) keys.push_back(next++);
    EXPECT_TRUE(ApplyOnes(&table, keys));
    sum += static_cast<double>(table.memory_bytes()) /
           static_cast<double>(table.total_count());
    ++samples;
  }
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(sum / samples < 36);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not under sanitizers: they reserve terabytes of address space.
std::vector<float> Read(const EmbeddingTable& table, int64_t key) {
  std::vector<float> out(table.dim());
  table.Lookup(&key, 1, UnknownKey::kInitial, out.data(), SerialFor);
  return out;
}

// Limits the memory of the process to what it has mapped and some megabytes
// more.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(rlim_t megabytes) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    EXPECT_EQ(std::fscanf(file, "%lu", &pages), 1);
    std::fclose(file);
    rlimit limit = before_;
    limit.rlim_cur = pages * 4096 + (megabytes << 20);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpaceLimit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_;
};

void RunOutOfMemory(const FilterSpec& filter, int dim, rlim_t step) {
  EmbeddingTable table(dim, 0.0f, filter);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 3000; ++key) keys.push_back(key);
  const int first_count = filter.threshold == 0 ? 1 : 2;
  for (int i = 0; i < first_count; ++i) EXPECT_TRUE(ApplyOnes(&table, keys));
  for (int64_t key = 3000; key < 600000; ++key) keys.push_back(key);
  const std::vector<float> grads(keys.size() * static_cast<size_t>(dim), 1.0f);
  const std::vector<int64_t> freqs(keys.size(), 1);
  const int64_t bytes = table.memory_bytes();
  const SavedSketch sketch_before = SketchOf(table);

  SpareMemory::OfProcess()
      .FreeAll();  // What other tests left counts as mapped.
  int refused = 0;
  bool done = false;
  // The limit rises step by step, so each allocation fails first once.
  for (rlim_t megabytes = 1; !done && megabytes < 600; megabytes += step) {
    std::optional<AddressSpaceLimit> limit(std::in_place, megabytes);
    const bool inserted =
        megabytes % 2 == 1 ? table.Apply({keys.data(), grads.data(),
                                          keys.size(), nullptr, 0, 1},
                                         AddSum(), SerialFor)
        : filter.threshold == 0
            ? table.Insert({keys.data(),
                            keys.size(),
                            nullptr,
                            {},
                            nullptr,
                            nullptr,
                            megabytes % 4 == 0})
            : table.InsertFiltered(keys.data(), keys.size(), freqs.data(),
                                   nullptr, true);
    limit.reset();
    done = inserted;
    if (done) break;
    ++refused;
    EXPECT_EQ(table.size(), 3000);
    EXPECT_EQ(table.total_count(), 3000);
    EXPECT_TRUE(SketchOf(table) == sketch_before);
    EXPECT_EQ(Read(table, 7).back(), 1.0f);
    int64_t count;
    table.Frequencies(&keys[7], 1, &count);
    EXPECT_EQ(count, first_count);
  }
  EXPECT_TRUE(done);
  EXPECT_TRUE(refused > 1);
  if (filter.threshold == 0) {
    EXPECT_EQ(table.size(), static_cast<int64_t>(keys.size()));
  } else if (filter.sketch.name.empty()) {
    EXPECT_EQ(table.total_count(), static_cast<int64_t>(keys.size()));
  }
  EXPECT_TRUE(table.memory_bytes() > bytes);
  // No quota is left over: there is room for what the keys need.
  EXPECT_TRUE(ApplyOnes(&table, keys));
}

TEST(ApplyAndInsertWithoutMemoryChangeNothing) { RunOutOfMemory({}, 64, 7); }

TEST(ApplyWithACounterFilterWithoutMemoryChangesNothing) {
  RunOutOfMemory({2, 1}, 1, 3);
}

TEST(ApplyWithABloomFilterWithoutMemoryChangesNothing) {
  RunOutOfMemory(BloomFilter(2, 1, int64_t{1} << 30, 0.01), 1, 3);
}
#endif

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
