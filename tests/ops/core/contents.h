// SPDX-License-Identifier: Apache-2.0
// The full contents of a table, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_CONTENTS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_CONTENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"

namespace rec_estimator {

// Locks the table while it lives; rows in memory point into the table.
struct Contents {
  using Keys = Snapshot::Keys;

  struct Entry {
    int64_t key;
    int64_t version;
    int64_t freq;
    const float* row;  // nullptr: no row.
  };

  explicit Contents(const EmbeddingTable& table, Keys keys = Keys::kAll)
      : snapshot(table, keys) {
    // So few rows at a time that they are read in several parts.
    Read(true, kStep, kMaxBytes, [&](const auto& entry, const float* row) {
      if (table.tier() != nullptr || IsNarrow(table)) {
        copies.emplace_back(row, row + table.row_floats());
        row = copies.back().data();
      }
      admitted.push_back({entry.key, entry.version, entry.count, row});
    });
    Read(false, kStep, kMaxBytes, [&](const auto& entry, const float*) {
      filtered.push_back({entry.key, entry.version, entry.count, nullptr});
    });
  }

  // Whether rows are copies, because they are widened.
  static bool IsNarrow(const EmbeddingTable& table) {
    return table.rules().value.is_narrow();
  }

  // Calls visit(entry, row) for each entry; row: nullptr if it has none.
  template <typename Visit>
  void Read(bool with_row, size_t step, size_t max_bytes,
            const Visit& visit) const {
    EntryReader reader(snapshot, with_row, step, max_bytes);
    for (;;) {
      const EntryReader::Batch batch = reader.Next();
      if (batch.n == 0) return;
      for (size_t i = 0; i < batch.n; ++i) {
        visit(batch.entries[i], with_row ? batch.rows[i] : nullptr);
      }
    }
  }

  static constexpr size_t kStep = 500;
  static constexpr size_t kMaxBytes = size_t{64} << 10;
  Snapshot snapshot;
  std::vector<Entry> admitted;
  std::vector<Entry> filtered;
  std::deque<std::vector<float>> copies;  // Rows of a table with a tier.
};

// What a save holds of a sketch.
struct SavedSketch {
  explicit SavedSketch(const EmbeddingTable& table, const Snapshot& snapshot) {
    if (table.sketch() == nullptr) return;
    const std::vector<size_t> widths = RowBytes(table.sketch()->format());
    heads = snapshot.sketch_heads();
    rows = snapshot.sketch_rows();
    columns.resize(widths.size());
    snapshot.ForEachSketchRow([&](const void* const* row) {
      for (size_t c = 0; c < widths.size(); ++c) {
        const char* cells = static_cast<const char*>(row[c]);
        columns[c].insert(columns[c].end(), cells, cells + widths[c]);
      }
    });
  }

  // As a restore does, in parts of a few rows. last: of the end of the chain.
  bool MergeInto(EmbeddingTable* table, const SavedSketch& last) const {
    constexpr int64_t kPart = 7;
    const std::optional<Sketch::Format> format = table->sketch()->FormatOf(
        heads.empty() ? std::vector<int64_t>() : heads[0]);
    if (!format.has_value()) return false;
    const std::vector<size_t> widths = RowBytes(*format);
    if (table->sketch()->CheckHeads(heads, rows)) return false;
    for (int64_t first = 0; first < rows; first += kPart) {
      std::vector<const void*> part;
      for (size_t c = 0; c < widths.size(); ++c) {
        part.push_back(columns[c].data() +
                       static_cast<size_t>(first) * widths[c]);
      }
      const Sketch::StoredRows stored = {
          &heads,     &last.heads, rows, first, std::min(kPart, rows - first),
          part.data()};
      if (table->sketch()->CheckRows(stored)) return false;
      if (!table->MergeSketch(stored)) return false;
    }
    return true;
  }

  static std::vector<size_t> RowBytes(const Sketch::Format& format) {
    std::vector<size_t> bytes;
    for (const Sketch::Tensor& each : format.columns) {
      const size_t of_type[] = {1, 2, 4, 8};
      const int64_t width = std::max<int64_t>(each.width, 1);
      bytes.push_back(static_cast<size_t>(width) *
                      of_type[static_cast<int>(each.type)]);
    }
    return bytes;
  }

  friend bool operator==(const SavedSketch& a, const SavedSketch& b) {
    return a.heads == b.heads && a.rows == b.rows && a.columns == b.columns;
  }

  Sketch::Heads heads;
  int64_t rows = 0;
  std::vector<std::vector<char>> columns;
};

// A sketch as a full save and the changes after it hold it.
class SavedCounts {
 public:
  void Save(const EmbeddingTable& table, const Snapshot& snapshot,
            Contents::Keys keys) {
    if (keys == Contents::Keys::kAll) saves_.clear();
    saves_.emplace_back(table, snapshot);
  }

  bool RestoreTo(EmbeddingTable* table) const {
    if (saves_.empty() || table->sketch() == nullptr) return true;
    const SavedSketch& last = saves_.back();
    for (const SavedSketch& save : saves_) {
      if (!save.MergeInto(table, last)) return false;
    }
    table->MergeSketchHeads(last.heads, last.rows);
    return true;
  }

 private:
  std::vector<SavedSketch> saves_;
};

// Everything that a save holds of the sketch.
inline SavedSketch SketchOf(const EmbeddingTable& table) {
  const Snapshot snapshot(table);
  return SavedSketch(table, snapshot);
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_CONTENTS_H_
