// SPDX-License-Identifier: Apache-2.0
// EntryReader: the entries of a snapshot in the order of a checkpoint, with
// their rows.
//
// Threads of the reader list, sort and read ahead of the caller: EntryStream
// lists and sorts entries, and while the caller uses the rows of a window,
// those of the next one are read from disk, many at a time.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_ENTRY_READER_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_ENTRY_READER_H_

#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "ops/core/base/prefetcher.h"
#include "ops/core/index/entry_stream.h"
#include "ops/core/storage/disk_error.h"

namespace rec_estimator {

class DiskTier;
class RowStore;
class Snapshot;
struct TableParts;

// A snapshot has one reader of entries with a row at a time.
class EntryReader {
 public:
  // Neighbouring entries, and their rows if they have any.
  struct Batch {
    size_t n = 0;
    const ListedEntry* entries = nullptr;  // (n)
    // (n) of (row_floats): values, then the slots, as floats.
    const float* const* rows = nullptr;
  };

  // with_row: whether it reads the entries with a row or those without one.
  // step >= 1: most entries of a batch. max_bytes: memory for entries that are
  // listed, if that is enough for the largest key class; with less than for
  // all, the index is scanned several times. The snapshot outlives the object.
  // Throws std::bad_alloc.
  EntryReader(const Snapshot& snapshot, bool with_row, size_t step,
              size_t max_bytes = std::numeric_limits<size_t>::max());
  ~EntryReader();
  EntryReader(const EntryReader&) = delete;
  EntryReader& operator=(const EntryReader&) = delete;

  // The next entries: `step` of them until the last batch, and none after it.
  // Valid until the next call. Throws StorageError and std::bad_alloc, and is
  // not called again then.
  Batch Next();

 private:
  // Entries whose rows are at hand or being read.
  struct Window;
  using WindowPtr = std::unique_ptr<Window>;

  EntryReader(const Snapshot& snapshot, const TableParts& table, bool with_row,
              size_t step, size_t max_bytes);
  // Sets *window to the next window whose rows are at hand. False: there are no
  // more. *window holds the memory of a window that is no longer needed, or
  // nullptr. *coming: the window after it, whose rows are being read.
  bool ReadNext(WindowPtr* coming, WindowPtr* window);
  // Fills the next window, in this memory, and begins to read its rows.
  // nullptr: there are no more entries.
  WindowPtr StartNext(WindowPtr memory);
  // Sets the entries of a window to the next ones, or to none at the end.
  void Fill(Window* window);
  // Sets the rows of a window, which are at hand, to copies of floats.
  void Widen(Window* window) const;

  const Snapshot& snapshot_;
  const RowStore& store_;
  const DiskTier* const tier_;  // nullptr: all rows are in memory.
  const bool with_row_;
  const size_t step_;
  EntryStream stream_;
  std::vector<ListedEntry> key_class_;  // The entries that stream_ gave last.
  size_t at_ = 0;                       // The next one of them.
  bool has_begun_ = false;
  WindowPtr now_;                  // The window that the caller uses.
  Prefetcher<WindowPtr> windows_;  // Destroyed first: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_ENTRY_READER_H_
