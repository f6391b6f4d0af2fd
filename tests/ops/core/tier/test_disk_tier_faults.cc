// SPDX-License-Identifier: Apache-2.0
// Tables with rows on disk when the disk or the memory fails: an error that
// says where and what to do, nothing of the step applied, and training goes on.
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/core/base/allocation_limit.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/failing_new.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/storage/disk_rows.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/tiers.h"

namespace rec_estimator {
namespace {

// The first test: later ones find memory that tables of earlier ones left.
TEST(AStepWhoseRowsDoNotFitIntoMemoryChangesNothing) {
  const Folder folder;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, kStripes);
  Keys keys(3000);
  std::iota(keys.begin(), keys.end(), 0);
  for (size_t at = 0; at < keys.size(); at += 100) {
    const Keys part(keys.begin() + static_cast<std::ptrdiff_t>(at),
                    keys.begin() + static_cast<std::ptrdiff_t>(at + 100));
    EXPECT_TRUE(ApplyOnes(&table, part));
    EXPECT_TRUE(ApplyOnes(&memory, part));
  }
  int64_t refusals = 0;
  for (bool is_refused = true; is_refused && testing::Failures() == 0;) {
    TrainingStep step({table.parts()},
                      {{keys.data(), nullptr, 2500, nullptr, 0, 1}});
    LimitAllocations(refusals);
    const TrainingStep::Outcome outcome = step.Reserve(SerialFor);
    LimitAllocations(-1);
    is_refused = !outcome.ok();
    refusals += is_refused;
    EXPECT_TRUE(!is_refused ||
                outcome.refusal == TrainingStep::Refusal::kNoMemory);
    ExpectSameContents(memory, table);
  }
  EXPECT_TRUE(refusals > 0);
}

TEST(AFailedReadRefusesTheStepAndChangesNothing) {
  const Folder folder;
  FaultyIo::Faults faults;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, 100, Victims::kLeastCounted, &faults);
  Keys keys(6000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  faults.reads = 5;
  TrainingStep step({table.parts()},
                    {{keys.data(), nullptr, 200, nullptr, 0, 1}});
  const TrainingStep::Outcome outcome = step.Reserve(SerialFor);
  EXPECT_TRUE(outcome.refusal == TrainingStep::Refusal::kStorage);
  EXPECT_TRUE(Contains(outcome.message, folder.Files()[0]));
  EXPECT_TRUE(Contains(outcome.message, "Input/output error"));
  std::vector<float> out(1000 * 1000);
  bool thrown = false;
  try {
    table.Lookup(keys.data(), 1000, UnknownKey::kDefault, out.data(),
                 SerialFor);
  } catch (const StorageError& error) {
    thrown = Contains(error.what(), folder.Files()[0]);
  }
  EXPECT_TRUE(thrown);
  faults.reads = -1;
  ExpectSameContents(memory, table);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  ExpectSameContents(memory, table);
}

TEST(AFullDiskRefusesTheNextStepUntilThereIsRoom) {
  const Folder folder;
  FaultyIo::Faults faults;
  faults.error = ENOSPC;
  EmbeddingTable table(1000), memory(1000);
  OpenTier(&table, folder, 100, Victims::kLeastCounted, &faults);
  Keys keys(3000);
  std::iota(keys.begin(), keys.end(), 0);
  faults.writes = 0;
  EXPECT_TRUE(ApplyOnes(&table, keys));  // More than the buffers hold.
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  EXPECT_TRUE(InMemory(table) > 100);
  TrainingStep step({table.parts()},
                    {{keys.data(), nullptr, 200, nullptr, 0, 1}});
  const TrainingStep::Outcome outcome = step.Reserve(SerialFor);
  EXPECT_TRUE(outcome.refusal == TrainingStep::Refusal::kStorage);
  EXPECT_TRUE(Contains(outcome.message, "No space left on device"));
  EXPECT_TRUE(outcome.fault == StorageFault::kNoSpace);
  ExpectSameContents(memory, table);
  faults.writes = -1;
  EXPECT_TRUE(ApplyOnes(&table, keys));
  EXPECT_TRUE(ApplyOnes(&memory, keys));
  EXPECT_TRUE(InMemory(table) <= 100);
  ExpectSameContents(memory, table);
}

TEST(ADamagedPageIsToldFromAFailedReadAndTheErrorNamesTheTable) {
  const Folder folder;
  EmbeddingTable table(1000);
  DiskError error;
  EXPECT_TRUE(table.OpenTier(
      {{{folder.path()}}, 100, Victims::kOldest, 0, "table user"},
      std::make_unique<DiskIo>(), &error));
  Keys keys(3000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  std::filesystem::resize_file(folder.Files()[0], 4096);
  std::vector<float> out(keys.size() * 1000);
  std::string what;
  StorageFault fault = StorageFault::kNoSpace;
  try {
    table.Lookup(keys.data(), keys.size(), UnknownKey::kDefault, out.data(),
                 SerialFor);
  } catch (const StorageError& caught) {
    what = caught.what();
    fault = caught.fault();
  }
  EXPECT_TRUE(fault == StorageFault::kDamaged);
  EXPECT_EQ(what.find("table user: storage file '" + folder.path()), size_t{0});
  EmbeddingTable other(4);
  EXPECT_FALSE(other.OpenTier(
      {{{folder.path() + "/none"}}, 100, Victims::kOldest, 0, "table item"},
      std::make_unique<DiskIo>(), &error));
  EXPECT_EQ(error.text.find("table item: storage path"), size_t{0});
}

TEST(AnEvictionThatCannotReadIsAnErrorAndCanBeRepeated) {
  const Folder folder;
  FaultyIo::Faults faults;
  EmbeddingTable table(1000);
  OpenTier(&table, folder, 100, Victims::kLeastCounted, &faults);
  Keys keys(5000);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_TRUE(ApplyOnes(&table, keys));
  faults.reads = 2;
  bool is_thrown = false;
  try {
    EvictSmaller(&table, 0, 1);
  } catch (const StorageError&) {
    is_thrown = true;
  }
  EXPECT_TRUE(is_thrown);
  faults.reads = -1;
  EXPECT_EQ(table.size(), 5000);
  EXPECT_EQ(EvictSmaller(&table, 1e6f, 1), 5000);
}

// Two tables that spill, beside two in memory. Steps read one list of keys.
class Pair {
 public:
  explicit Pair(FaultyIo::Faults* faults) {
    OpenTier(&spilling_[0], folder_, kStripes, Victims::kLeastCounted, faults);
    OpenTier(&spilling_[1], folder_, kStripes, Victims::kOldest, faults);
    for (Tables* tables : {&memory_, &spilling_}) {
      for (EmbeddingTable& table : *tables) {
        EXPECT_TRUE(table.EnsureSlots({{"Adagrad", kDim, 0.1f}}));
      }
    }
    // More than the buffers hold.
    for (int64_t version = 1; version <= 4; ++version) {
      EXPECT_TRUE(Apply(&memory_, version).ok());
      EXPECT_TRUE(Apply(&spilling_, version).ok());
    }
  }

  // The step of this version, which has other keys and gradients than others.
  TrainingStep::Outcome ApplyToMemory(int64_t version) {
    return Apply(&memory_, version);
  }
  // Calls `between` between its halves.
  TrainingStep::Outcome ApplyToSpilling(
      int64_t version, const std::function<void()>& between = [] {}) {
    return Apply(&spilling_, version, between);
  }
  // Only its first half.
  TrainingStep::Outcome ReserveSpilling(int64_t version) {
    const Step step(version);
    TrainingStep training(PartsOf(&spilling_), step.Batches());
    return training.Reserve(SerialFor);
  }

  void ExpectSame() const {
    for (size_t t = 0; t < memory_.size(); ++t) {
      ExpectSameContents(memory_[t], spilling_[t]);
    }
  }
  const Folder& folder() const { return folder_; }

 private:
  static constexpr int kDim = 500;
  using Tables = std::array<EmbeddingTable, 2>;

  struct Step {
    explicit Step(int64_t version)
        : keys(500), grads(keys.size() * kDim), version(version) {
      std::mt19937_64 random(static_cast<uint64_t>(version));
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % 1500);
      for (float& grad : grads) grad = static_cast<float>(random() % 64);
    }
    std::vector<StepBatch> Batches() const {
      return {2, {keys.data(), grads.data(), keys.size(), nullptr, 0, version}};
    }
    Keys keys;
    std::vector<float> grads;
    int64_t version;
  };

  static std::vector<TableParts> PartsOf(Tables* tables) {
    return {(*tables)[0].parts(), (*tables)[1].parts()};
  }
  static TrainingStep::Outcome Apply(
      Tables* tables, int64_t version,
      const std::function<void()>& between = [] {}) {
    const Step step(version);
    const AdagradLike rule(0.5f);
    TrainingStep training(PartsOf(tables), step.Batches());
    const TrainingStep::Outcome outcome = training.Reserve(SerialFor);
    if (!outcome.ok()) return outcome;
    const TrainingStep::Gradients gradients = {step.grads.data(), &rule,
                                               version};
    const TrainingStep::Gradients both[] = {gradients, gradients};
    between();
    return training.Apply(both, SerialFor);
  }

  const Folder folder_;
  Tables memory_ = {EmbeddingTable(kDim), EmbeddingTable(kDim)};
  Tables spilling_ = {EmbeddingTable(kDim), EmbeddingTable(kDim)};
};

void ExpectRefusal(const TrainingStep::Outcome& outcome, const Pair& pair) {
  EXPECT_TRUE(outcome.refusal == TrainingStep::Refusal::kStorage);
  EXPECT_TRUE(Contains(outcome.message, pair.folder().path()));
  EXPECT_TRUE(Contains(outcome.message, "Input/output error"));
  EXPECT_TRUE(Contains(outcome.message, "; check the disk"));
}

TEST_WITHOUT_TSAN(AReadThatFailsAnywhereInAStepChangesNothingAndPasses) {
  FaultyIo::Faults faults;
  Pair pair(&faults);
  int64_t version = 5;
  int refusals = 0;
  for (int n = 0; testing::Failures() == 0; n = 2 * n + 1) {
    faults.reads = n;
    const TrainingStep::Outcome outcome = pair.ApplyToSpilling(version);
    const bool is_used_up = faults.reads == 0;
    faults.reads = -1;
    if (outcome.ok()) {
      EXPECT_TRUE(pair.ApplyToMemory(version++).ok());
      pair.ExpectSame();
      if (!is_used_up) break;
      continue;
    }
    ++refusals;
    ExpectRefusal(outcome, pair);
    pair.ExpectSame();
    EXPECT_TRUE(pair.ApplyToSpilling(version).ok());
    EXPECT_TRUE(pair.ApplyToMemory(version++).ok());
    pair.ExpectSame();
  }
  EXPECT_TRUE(refusals >= 4);
}

TEST_WITHOUT_TSAN(AWriteThatFailsAnywhereInARunRefusesAStepAndPasses) {
  int64_t refusals = 0;
  for (int n = 0; n < 4; ++n) {
    FaultyIo::Faults faults;
    Pair pair(&faults);
    faults.writes = n;
    for (int64_t version = 5; version < 25; ++version) {
      const TrainingStep::Outcome outcome = pair.ApplyToSpilling(version);
      if (!outcome.ok()) {
        ++refusals;
        ExpectRefusal(outcome, pair);
        pair.ExpectSame();
        // It stays refused until the disk is repaired.
        EXPECT_FALSE(pair.ApplyToSpilling(version).ok());
        pair.ExpectSame();
        faults.writes = -1;
        EXPECT_TRUE(pair.ApplyToSpilling(version).ok());
      }
      EXPECT_TRUE(pair.ApplyToMemory(version).ok());
    }
    pair.ExpectSame();
  }
  EXPECT_EQ(refusals, 4);
}

#if defined(__SANITIZE_THREAD__)
constexpr int64_t kStride = 41;  // About thirty times slower there.
#elif defined(__SANITIZE_ADDRESS__)
constexpr int64_t kStride = 11;  // About ten times slower there.
#else
constexpr int64_t kStride = 1;
#endif

// Makes the allocations of a step fail from the n-th on, for each kStride-th n
// until it succeeds. Returns the number of allocations.
int64_t FailEachAllocation(const std::function<void(int64_t)>& limit) {
  FaultyIo::Faults faults;
  Pair pair(&faults);
  int64_t version = 5;
  for (int64_t n = 0; testing::Failures() == 0; n += kStride) {
    TrainingStep::Refusal refusal = TrainingStep::Refusal::kNoMemory;
    limit(n);
    try {
      refusal = pair.ReserveSpilling(version).refusal;
    } catch (const std::bad_alloc&) {  // The constructor's.
    }
    limit(-1);
    const bool is_refused = refusal != TrainingStep::Refusal::kNone;
    EXPECT_TRUE(!is_refused || refusal == TrainingStep::Refusal::kNoMemory);
    if (is_refused && n % 8 != 0) continue;
    pair.ExpectSame();
    // The step that was not applied gave back what it had reserved.
    EXPECT_TRUE(pair.ApplyToSpilling(version).ok());
    EXPECT_TRUE(pair.ApplyToMemory(version++).ok());
    pair.ExpectSame();
    if (!is_refused) return n;
  }
  return 0;
}

TEST(AStepWhoseSmallAllocationsFailChangesNoTable) {
  // The allocations that bring rows in.
  EXPECT_TRUE(FailEachAllocation([](int64_t n) { news_left = n; }) > 20);
}

TEST(AReservedStepIsAppliedWithoutMemoryToSpill) {
  FaultyIo::Faults faults;
  Pair pair(&faults);
  for (int64_t version = 5; version < 12; ++version) {
    EXPECT_TRUE(pair.ApplyToMemory(version).ok());
    EXPECT_TRUE(pair.ApplyToSpilling(version, [] { news_left = 0; }).ok());
    news_left = -1;
    pair.ExpectSame();
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
