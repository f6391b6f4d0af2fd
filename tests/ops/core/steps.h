// SPDX-License-Identifier: Apache-2.0
// Steps of several tables of all kinds, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_STEPS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/evictions.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {

inline const SlotSpec kSlot{"Adagrad", 0, 0.1f};

// A step of one table, with its memory.
struct Occurrences {
  std::vector<int64_t> keys;
  std::vector<int64_t> counted;
  std::vector<float> grads;

  // n keys out of `range`, and a tenth as many that are only counted.
  Occurrences(size_t n, int64_t range, int dim, std::mt19937_64* random) {
    std::uniform_int_distribution<int64_t> key(0, range - 1);
    std::uniform_real_distribution<float> grad(-1, 1);
    for (size_t i = 0; i < n; ++i) keys.push_back(key(*random));
    for (size_t i = 0; i < n / 10; ++i) counted.push_back(key(*random));
    for (size_t i = 0; i < n * dim; ++i) grads.push_back(grad(*random));
  }
  StepBatch batch(int64_t version) const {
    return {keys.data(),    grads.data(),   keys.size(),
            counted.data(), counted.size(), version};
  }
};

using Tables = std::vector<std::unique_ptr<EmbeddingTable>>;
using Batches = std::vector<Occurrences>;

// Tables of all kinds: dims beyond a tile, filters, padding, frozen keys,
// values and slots of 16 bits.
inline Tables MakeTables() {
  RowRules special;
  special.has_padding = true;
  special.frozen_keys = {3, 8};
  RowRules narrow;
  narrow.frozen_keys = {3, 8};
  narrow.value = {ValueType::kBFloat16, 5, true};
  Tables tables;
  const auto add = [&](int dim, const FilterSpec& filter = {},
                       const RowRules& rules = {}) {
    tables.push_back(
        std::make_unique<EmbeddingTable>(dim, 0.0f, filter, rules));
    SlotSpec slot = kSlot;
    slot.width = dim;
    tables.back()->EnsureSlots({slot});
  };
  add(16);
  add(1, {}, special);
  add(7, {3, 1});
  add(5, BloomFilter(3, 1, 20000, 0.01));
  add(9, {}, narrow);
  add(4100);
  return tables;
}

// Batches below and above the size at which a table is one group.
inline Batches MakeBatches(const Tables& tables, uint64_t seed, int64_t range) {
  constexpr size_t kSizes[] = {6000, 300, 2000, 5000, 1000, 40};
  std::mt19937_64 random(seed);
  Batches batches;
  for (size_t i = 0; i < tables.size(); ++i) {
    batches.emplace_back(kSizes[i], range, tables[i]->dim(), &random);
  }
  return batches;
}

inline std::vector<TableParts> PartsOf(const Tables& tables) {
  std::vector<TableParts> parts;
  for (const auto& table : tables) parts.push_back(table->parts());
  return parts;
}

inline std::vector<StepBatch> Raw(const Batches& batches) {
  std::vector<StepBatch> raw;
  for (const Occurrences& each : batches) raw.push_back(each.batch(0));
  return raw;
}

inline TrainingStep::Outcome ApplyReserved(TrainingStep* step,
                                           const Batches& batches,
                                           int64_t version,
                                           const ParallelFor& parallel) {
  const AdagradLike rule(0.5f);
  std::vector<TrainingStep::Gradients> gradients;
  for (const Occurrences& each : batches) {
    gradients.push_back({each.grads.data(), &rule, version});
  }
  return step->Apply(gradients.data(), parallel);
}

inline TrainingStep::Outcome Apply(const Tables& tables, const Batches& batches,
                                   int64_t version,
                                   const ParallelFor& parallel) {
  TrainingStep step(PartsOf(tables), Raw(batches));
  const TrainingStep::Outcome outcome = step.Reserve(parallel);
  if (!outcome.ok()) return outcome;
  return ApplyReserved(&step, batches, version, parallel);
}

// Every key, count, version, row, slot and cell of a table.
inline std::vector<int64_t> BitsOf(const EmbeddingTable& table) {
  const Contents contents(table);
  const SavedSketch sketch(table, contents.snapshot);
  std::vector<int64_t> bits;
  for (const auto& head : sketch.heads) {
    bits.insert(bits.end(), head.begin(), head.end());
  }
  for (const auto& column : sketch.columns) {
    bits.insert(bits.end(), column.begin(), column.end());
  }
  for (const auto* entries : {&contents.admitted, &contents.filtered}) {
    for (const Contents::Entry& entry : *entries) {
      bits.insert(bits.end(), {entry.key, entry.version, entry.freq});
      for (int f = 0; entry.row != nullptr && f < table.row_floats(); ++f) {
        int32_t word;
        std::memcpy(&word, entry.row + f, sizeof(word));
        bits.push_back(word);
      }
    }
  }
  return bits;
}

inline std::vector<std::vector<int64_t>> BitsOf(const Tables& tables) {
  std::vector<std::vector<int64_t>> bits;
  for (const auto& table : tables) bits.push_back(BitsOf(*table));
  return bits;
}

// Everything that moves, adds or takes away entries of a table.
inline void Disturb(EmbeddingTable* table, int how,
                    const std::vector<int64_t>& keys) {
  std::vector<int64_t> others;
  // Wide rows take too much memory under sanitizers.
  const int64_t n_others = table->dim() > 1000 ? 1000 : 30000;
  for (int64_t key = 0; key < n_others; ++key) others.push_back(-2 - key);
  switch (how) {
    case 0:  // Grows all stripes.
      EXPECT_TRUE(ApplyOnes(table, others, 1));
      break;
    case 1:  // Takes rows and entries away.
      table->Erase(keys.data(), keys.size() / 2);
      break;
    case 2:
      EvictOlder(table, 1, 1);
      break;
    case 3:  // Inserts the keys themselves.
      EXPECT_TRUE(ApplyOnes(table, keys, 1));
      break;
    case 4:
      table->Clear();
      break;
    default:  // Counts them.
      EXPECT_TRUE(table->InsertFiltered(keys.data(), keys.size(), nullptr,
                                        nullptr, true));
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_STEPS_H_
