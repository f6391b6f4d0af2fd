// SPDX-License-Identifier: Apache-2.0
// The entries of some indexes in the order of a checkpoint: by key class, then
// by key.
//
// A table has more of them than a save has memory for. So each scan of the
// indexes lists those of a range of key classes. A thread scans ahead of the
// caller:
//
//   memory | classes of this range  > free >  classes of the next range |
//            taken by the caller              filled by the scan
//
// Both go on at about the same rate, so that the two ranges need little more
// memory than one.
#ifndef REC_ESTIMATOR_OPS_CORE_INDEX_ENTRY_STREAM_H_
#define REC_ESTIMATOR_OPS_CORE_INDEX_ENTRY_STREAM_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/base/prefetcher.h"

namespace rec_estimator {

class HashIndex;

// What an index has of a key.
struct ListedEntry {
  int64_t key;
  int64_t version;  // -1: never applied.
  uint32_t count;
  uint32_t row;  // The index's word for the row (hash_index.h).
};

// The entries do not change while the object lives.
class EntryStream {
 public:
  struct Which {
    bool with_row;      // Only entries with a row, or only those without one.
    bool only_changed;  // Only entries that changed since the last save.
  };

  // offsets (kKeyClasses + 1): entries that are streamed before each class.
  // max_bytes: memory for entries, if that is enough for the largest class.
  // Indexes and offsets outlive the object. Throws std::bad_alloc.
  EntryStream(std::vector<const HashIndex*> indexes, Which which,
              const std::vector<int64_t>& offsets, size_t max_bytes);
  ~EntryStream();
  EntryStream(const EntryStream&) = delete;
  EntryStream& operator=(const EntryStream&) = delete;

  // Replaces *entries by those of the next key class that has any; by none at
  // the end. Throws std::bad_alloc, and is not called again then.
  void NextKeyClass(std::vector<ListedEntry>* entries);

 private:
  static constexpr size_t kBlock = 32;  // Entries of one class.
  using Block = std::array<ListedEntry, kBlock>;
  // The entries of a key class.
  struct Chain {
    std::vector<uint32_t> blocks;
    size_t n = 0;  // Entries.
  };
  // The entries of a range, by key class.
  using Chains = std::vector<Chain>;
  struct Stopped {};  // Thrown by TakeBlock when nothing is wanted any more.

  size_t BlocksOf(int64_t key_class) const;
  void DivideIntoRanges();
  // Lists the entries of the next range. False: there are no more. On the
  // thread of ranges_, if it has one.
  bool ListNext(Chains* chains);
  // Returns a free block. On the thread of ranges_, waits for one.
  uint32_t TakeBlock();
  // Moves the entries of a class to *entries, and frees its blocks.
  void Take(const Chain& chain, std::vector<ListedEntry>* entries);

  const std::vector<const HashIndex*> indexes_;
  const Which which_;
  const std::vector<int64_t>& offsets_;
  size_t n_blocks_ = 0;
  std::unique_ptr<Block[]> blocks_;
  std::vector<int64_t> ends_;  // Where ranges end, which fit into the blocks.
  size_t listed_ = 0;          // Ranges that were listed.
  Chains chains_;              // The range that the caller takes,
  size_t at_ = 0;              // from this class on.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::vector<uint32_t> free_;
  bool stopped_ = false;

  Prefetcher<Chains> ranges_;  // Destroyed first: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_INDEX_ENTRY_STREAM_H_
