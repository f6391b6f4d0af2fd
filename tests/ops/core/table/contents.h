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

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_CONTENTS_H_
