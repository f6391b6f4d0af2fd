// SPDX-License-Identifier: Apache-2.0
// The full contents of a table, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_CONTENTS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_CONTENTS_H_

#include <cstdint>
#include <vector>

#include "ops/core/table/embedding_table.h"

namespace rec_estimator {

// Locks the table while it lives; rows point into the table.
struct Contents {
  using Keys = EmbeddingTable::Snapshot::Keys;

  struct Entry {
    int64_t key;
    int64_t version;
    int64_t freq;
    const float* row;  // nullptr: no row.
  };

  explicit Contents(const EmbeddingTable& table, Keys keys = Keys::kAll)
      : snapshot(table, keys) {
    std::vector<EmbeddingTable::Snapshot::Entry> with_row, without;
    snapshot.List(0, kBuckets, SerialFor, &with_row, &without);
    for (const auto& entry : with_row) {
      admitted.push_back({entry.key, snapshot.Version(entry),
                          snapshot.Freq(entry), snapshot.Row(entry)});
    }
    for (const auto& entry : without) {
      filtered.push_back(
          {entry.key, snapshot.Version(entry), snapshot.Freq(entry), nullptr});
    }
  }

  EmbeddingTable::Snapshot snapshot;
  std::vector<Entry> admitted;
  std::vector<Entry> filtered;
};

// The cells of a Bloom filter as a full save and the changes after it hold
// them.
class SavedCells {
 public:
  void Save(const EmbeddingTable::Snapshot& snapshot, int cells_per_block,
            Contents::Keys keys) {
    if (keys == Contents::Keys::kAll) saves_.clear();
    width_ = static_cast<size_t>(cells_per_block);
    saves_.push_back({snapshot.bloom_generations(), {}, {}});
    One* save = &saves_.back();
    snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* cells) {
      save->blocks.push_back(number);
      save->cells.insert(save->cells.end(), cells, cells + width_);
    });
  }

  // As a restore does: each block gets the age that it has at the end.
  bool RestoreTo(EmbeddingTable* table) const {
    if (saves_.empty()) return true;
    const auto& last = saves_.back().generations;
    bool restored = true;
    for (const One& save : saves_) {
      size_t at = 0;
      for (const EmbeddingTable::BloomGeneration& each : save.generations) {
        const size_t n = static_cast<size_t>(each.blocks);
        const int64_t age = last[0].number - each.number;
        if (n > 0 && age < static_cast<int64_t>(last.size())) {
          restored = table->MergeBloom(static_cast<int>(age), &save.blocks[at],
                                       n, &save.cells[at * width_]) &&
                     restored;
        }
        at += n;
      }
      restored = restored && at == save.blocks.size();
    }
    table->MergeGenerations(last);
    return restored;
  }

 private:
  struct One {
    std::vector<EmbeddingTable::BloomGeneration> generations;
    std::vector<int64_t> blocks;
    std::vector<uint32_t> cells;
  };

  size_t width_ = 0;
  std::vector<One> saves_;
};

// Everything that a save holds of a Bloom filter, in its order.
inline std::vector<int64_t> CellsOf(const EmbeddingTable& table) {
  const EmbeddingTable::Snapshot snapshot(table);
  const int width = table.bloom_layout().cells_per_block;
  std::vector<int64_t> all;
  for (const auto& each : snapshot.bloom_generations()) {
    all.insert(all.end(), {each.number, each.start, each.blocks});
  }
  snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* cells) {
    all.push_back(number);
    all.insert(all.end(), cells, cells + width);
  });
  return all;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_CONTENTS_H_
