// SPDX-License-Identifier: Apache-2.0
// Tables whose hashes have different secrets: nothing that is read or saved
// depends on them.
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/hash_secrets.h"
#include "tests/ops/core/steps.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

using Bits = std::vector<std::vector<int64_t>>;

// Steps, growth, erased keys, evictions and deltas of tables of all kinds.
std::vector<Bits> RunSteps(uint64_t secret_seed) {
  const WithSecret secret(secret_seed);
  Threads threads(2);
  Tables tables = MakeTables();
  // So few of its blocks are used that they are in a hash table.
  tables[3] = std::make_unique<EmbeddingTable>(
      5, 0.0f, BloomFilter(3, 1, 50'000'000, 0.01));
  tables[3]->EnsureSlots({{"Adagrad", 5, 0.1f}});
  for (const auto& table : tables) table->TrackChanges();
  std::vector<Bits> bits;
  for (int64_t step = 0; step < 6; ++step) {
    const Batches batches = MakeBatches(tables, 1 + step % 4, 9000);
    EXPECT_TRUE(Apply(tables, batches, step, threads.parallel()).ok());
    for (size_t i = 0; i < tables.size(); ++i) {
      if (step < 4) Disturb(tables[i].get(), step, batches[i].keys);
      if (step == 4) EvictSmaller(tables[i].get(), 0.5f, step);
    }
    bits.push_back(BitsOf(tables));
  }
  return bits;
}

TEST(RowsCountsSlotsSketchesAndTheirOrderAreTheSameWithEverySecret) {
  const std::vector<Bits> bits = RunSteps(1);
  EXPECT_TRUE(bits == RunSteps(2));
  EXPECT_TRUE(bits == RunSteps(3));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
