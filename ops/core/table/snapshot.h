// SPDX-License-Identifier: Apache-2.0
// Snapshot: what a save reads of a table. entry_reader.h reads its entries.
//
// Incremental saves: while changes are tracked, each entry and each block of a
// sketch has a change mark and a pending mark, and each stripe lists its erased
// keys. A snapshot of kChanged reads all of these. MarkSaved turns change marks
// into pending marks; EmbeddingTable::CommitSaved clears those once the save is
// safe. To play back a delta: erase, insert rows, insert counted keys, merge
// the sketch.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_SNAPSHOT_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/filter/sketch.h"

namespace rec_estimator {

class EmbeddingTable;
class OrderedReader;
class SharedLocks;

// A consistent view of the whole table. Holds the shared locks of all stripes
// while it lives, so applies wait. Snapshots of kChanged, and MarkSaved, run
// one at a time; others wait.
class Snapshot {
 public:
  // kChanged: changes since the last committed save; all keys if changes are
  // not tracked.
  enum class Keys { kAll, kChanged };

  // The table outlives the object. Throws std::bad_alloc.
  explicit Snapshot(const EmbeddingTable& table, Keys keys = Keys::kAll);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const EmbeddingTable& table() const { return table_; }
  // Whether it shows only changes.
  bool only_changed() const { return only_changed_; }

  // (kKeyClasses + 1) each. The keys of class c with a row, and those without
  // one, are [offsets[c], offsets[c + 1]).
  const std::vector<int64_t>& admitted_offsets() const {
    return admitted_offsets_;
  }
  const std::vector<int64_t>& filtered_offsets() const {
    return filtered_offsets_;
  }
  const std::vector<int64_t>& offsets(bool with_row) const {
    return with_row ? admitted_offsets_ : filtered_offsets_;
  }

  // kChanged only: the erased keys, in ascending order. A key that came back
  // has an entry too, so a restore erases first.
  const std::vector<int64_t>& erased() const { return erased_; }

  // What the sketch saves, which the table must have. kChanged: what changed.
  const Sketch::Heads& sketch_heads() const { return sketch_heads_; }
  int64_t sketch_rows() const { return sketch_rows_; }
  void ForEachSketchRow(const Sketch::VisitRow& visit) const;

  // Marks all changes so far as pending. They remain part of every kChanged
  // snapshot until CommitSaved.
  void MarkSaved();

  // For an EntryReader: reads rows on disk. nullptr: all rows are in memory.
  OrderedReader* disk_reader() const { return disk_reader_.get(); }

 private:
  void Count();  // Sets the offsets, the erased keys and the sketch's members.

  const EmbeddingTable& table_;
  bool only_changed_;
  std::unique_lock<std::mutex> save_lock_;  // Held if only_changed_.
  std::unique_ptr<const SharedLocks> locks_;
  std::vector<int64_t> admitted_offsets_;
  std::vector<int64_t> filtered_offsets_;
  std::vector<int64_t> erased_;
  Sketch::Heads sketch_heads_;
  int64_t sketch_rows_ = 0;
  const std::unique_ptr<OrderedReader> disk_reader_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_SNAPSHOT_H_
