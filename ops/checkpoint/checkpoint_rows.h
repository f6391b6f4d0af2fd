// SPDX-License-Identifier: Apache-2.0
// Keys, and what a checkpoint holds for each, in batches of bounded size.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/checkpoint/checkpoint_file.h"
#include "ops/core/table/embedding_table.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// Which keys of a checkpoint a table takes, and what they must be.
struct KeyRules {
  int64_t part;  // The table's: takes keys with BucketOf(key) % num_parts ==
  int64_t num_parts;               // part.
  tensorflow::DataType key_dtype;  // Each key must fit.
};

// A shard as the checkpoint has it, the number-th of `count`.
struct StoredShard {
  std::string name;
  int64_t number;
  int64_t count;
};

struct RowBatch {
  size_t n = 0;
  std::vector<int64_t> keys;
  std::vector<int64_t> freqs;     // (n); empty: not in the file.
  std::vector<int64_t> versions;  // (n); empty: not in the file.
  std::vector<float> values;      // (n, width); empty: not asked for.
  // Per slot asked for (n, width); empty: other keys than the rows, or none.
  std::vector<std::vector<float>> slots;
};

// Notices a key that comes twice, as long as the keys come by bucket. Within
// one they need not be sorted: DeepRec's are not.
class DistinctKeys {
 public:
  // Takes the next key; false: it, or one of its bucket before, came twice.
  bool Add(int64_t key, int64_t bucket);
  // The same for the end of all keys.
  bool Finish();
  // Whether all that came came by bucket; if not, some may have come twice.
  bool by_bucket() const { return by_bucket_; }
  int64_t repeated() const { return repeated_; }  // After a false.

 private:
  bool by_bucket_ = true;
  int64_t bucket_ = -1;
  bool ascends_ = true;        // In the bucket so far.
  std::vector<int64_t> keys_;  // Of the bucket, those up to a limit.
  int64_t last_ = 0;
  int64_t repeated_ = 0;
};

// Reads keys and, in step with them, what else is opened. Open what is wanted
// and Start(), on one thread; then Next() on any.
//
//   disk --> kernel's pages --> thread: copies, --kAhead--> threads: Next(),
//            some MiB ahead     sums, checks      batches  insert
//
// A thread of its own reads, so that the disk is never idle while all others
// insert: the kernel alone is 8 MiB ahead where it is set up well, which a disk
// of 1.5 GB/s has read in the time of a batch.
//
// Costs of a restore, 4M rows of dim 32 with Adam's slots, 1.8 GB, two virtual
// cores: 1.2 core-seconds, 0.25 of them the kernel's copies, 0.3 its clearing
// of the table's new pages, 0.1 checksums, 0.4 inserting; a plain read takes
// 0.25. Least of six rounds each on a busy machine: cached 0.65 s, from the
// disk 0.97 s beside 0.92 s of a plain read. Memory: kAhead batches, one that
// is read and one for each thread that inserts; 26 MiB beyond the table.
//
// Tried and lost: reading where a batch is asked for, under a lock (1.13 s from
// the disk); that, with the disk asked by posix_fadvise for the 8 batches to
// come (1.06 s, but 0.2 core-seconds more: pages that are asked for come one by
// one, while those of a run the kernel noticed come in large folios); batches
// of 1 MiB, 512 and 256 KiB (no difference beyond the noise).
class RowReader {
 public:
  RowReader(CheckpointFile* file, const KeyRules& rules,
            const StoredShard& shard)
      : file_(*file), rules_(rules), shard_(shard) {}
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // The tensor of keys, and that of their bucket offsets, which is checked if
  // the file has it; empty: there are none. First of all.
  tensorflow::Status OpenKeys(const std::string& name,
                              const std::string& offsets);
  // One integer per key. Nothing is read if the file does not have it, or has
  // it as [0].
  tensorflow::Status OpenFreqs(const std::string& name);
  tensorflow::Status OpenVersions(const std::string& name);
  // One row of floats per key. `what`: what width is, for messages.
  tensorflow::Status OpenValues(const std::string& source, int64_t width,
                                const char* what);
  // A slot, whose part of the file has keys of its own: usually the same, but
  // not in what DeepRec writes while workers train.
  tensorflow::Status OpenSlot(const SlotSpec& slot);

  // After the last Open: begins to read.
  void Start();
  // The next keys that the table takes; batch->n == 0: there are no more.
  // Takes the batch's memory for another one. Returns the same error again
  // after one.
  tensorflow::Status Next(RowBatch* batch);
  // Makes Next() return this error.
  void Stop(const tensorflow::Status& status);

  int64_t rows() const { return rows_; }  // Keys in the file; after OpenKeys().

  // After the last Next(): whether no key can have come twice.
  bool distinct() const { return distinct_.by_bucket(); }
  // Whether slot i, in the order they were opened, has other keys.
  bool slot_differs(size_t i) const { return slots_[i].differs; }

 private:
  struct Slot {
    // nullopt: not in the file, or they differ.
    std::optional<RowStream> keys;
    std::optional<RowStream> values;
    bool differs = false;
  };

  tensorflow::Status OpenPerKey(const std::string& name,
                                std::optional<RowStream>* stream);
  tensorflow::Status CheckOffsets(const std::string& name);
  tensorflow::Status CheckRows(const StoredTensor& tensor) const;
  void ReadAll();  // The thread.
  tensorflow::Status ReadBatch(RowBatch* batch);
  tensorflow::Status CheckKeys(const std::vector<int64_t>& keys);
  tensorflow::Status Repeated() const;

  CheckpointFile& file_;
  const KeyRules rules_;
  const StoredShard shard_;
  std::optional<RowStream> keys_;  // Never nullopt after OpenKeys().
  std::optional<RowStream> freqs_;
  std::optional<RowStream> versions_;
  std::optional<RowStream> values_;
  std::vector<Slot> slots_;
  int64_t rows_ = 0;       // Keys in the file.
  int64_t row_bytes_ = 0;  // Of all that is read for a key.

  // The thread's, until Next() has said that there are no more.
  int64_t at_ = 0;  // First key that has not been read.
  DistinctKeys distinct_;
  std::vector<int64_t> kept_;  // Rows of the batch that the table takes.
  std::vector<int64_t> slot_keys_;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  tensorflow::Status status_;
  std::vector<RowBatch> waiting_;  // Read, in order.
  std::vector<RowBatch> spare_;    // Memory of those before.
  bool all_read_ = false;
  std::unique_ptr<tensorflow::Thread> thread_;  // Last: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_
