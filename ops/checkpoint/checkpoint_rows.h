// SPDX-License-Identifier: Apache-2.0
// Restore, step 3: reads the keys of a shard with their rows, in batches of
// bounded size, and checks the keys.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/table/embedding_table.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// Which keys of a checkpoint belong to a shard of the table: those with
// KeyClassOf(key) % num_parts == part.
struct KeyRules {
  int64_t part;
  int64_t num_parts;
  tensorflow::DataType key_dtype;  // A key that does not fit is an error.
};

// A shard of the table as it was saved.
struct StoredShard {
  std::string name;
  int64_t number;  // In [0, count).
  int64_t count;   // Shards in the checkpoint.
};

// Whether the shard has no keys of a table that keeps those of `rules`: if the
// numbers of shards are equal, only one has.
bool IsElsewhere(const KeyRules& rules, const StoredShard& shard);

struct RowBatch {
  size_t n = 0;
  std::vector<int64_t> keys;      // (n)
  std::vector<int64_t> freqs;     // (n), or empty if not in the file.
  std::vector<int64_t> versions;  // (n), or empty if not in the file.
  std::vector<float> values;      // (n, width), or empty if not opened.
  // Per opened slot (n, width), or empty if the file does not have the slot or
  // stores it under other keys.
  std::vector<std::vector<float>> slots;
};

// Detects repeated keys, provided that the keys come in order of their key
// classes.
// Within a class any order is allowed, because DeepRec does not sort keys.
class DistinctKeys {
 public:
  // Adds the next key. Returns false if the class before has a repeated key.
  bool Add(int64_t key, int64_t key_class);
  // Ends the last class. Returns false if it has a repeated key.
  bool Finish();
  // Whether all keys came in order of their classes. If not, repeats may have
  // been missed.
  bool by_class() const { return by_class_; }
  // A repeated key, after Add() or Finish() returned false.
  int64_t repeated() const { return repeated_; }

 private:
  bool by_class_ = true;
  int64_t class_ = -1;
  bool ascends_ = true;        // Whether the keys of the class ascend so far.
  std::vector<int64_t> keys_;  // Keys of the class, up to a limit.
  int64_t last_ = 0;
  int64_t repeated_ = 0;
};

// Reads keys and the tensors that belong to them. Open the tensors and call
// Start() on one thread, then call Next() on any threads.
//
//   disk --> page cache: ------> reader thread: ---------> inserting threads:
//            some MiB            copies, computes          Next(), insert
//            read ahead          checksums, checks;
//                                kReadAhead batches
//
// A separate thread reads, so that the disk is not idle while all other threads
// insert. If the process may not start one more thread, Next() reads. The
// kernel's own read-ahead of at most 8 MiB is not enough: a disk of 1.5 GB/s
// reads that in the time in which one batch is inserted.
//
// Cost of a restore of 4M rows of dim 32 with Adam's slots (1.8 GB) on two busy
// virtual cores: 1.0 core-seconds, of which copies of the kernel take 0.3,
// checksums 0.07 and inserting 0.35, while a plain read takes 0.3. Rows in
// memory that is new to the process add 1 to 3.5, which is what its first touch
// costs on a machine whose host takes back free memory (spare_memory.h). Memory
// beyond the table: 35 MiB or less, for kReadAhead batches, the one that is
// read and one per inserting thread.
//
// Alternatives that were measured and rejected:
// * Reading in Next(), under a lock: 1.13 s from disk, and only 3 % less time
//   from the page cache.
// * The same with posix_fadvise for the next 8 batches: 1.06 s, and 0.2
//   core-seconds more, because requested pages arrive one by one while the
//   kernel's read-ahead uses large folios.
// * Batches of 4 MiB, 1 MiB, 512 KiB and 256 KiB: not faster.
class StoredRowReader {
 public:
  StoredRowReader(CheckpointFile* file, const KeyRules& rules,
                  const StoredShard& shard)
      : file_(*file), rules_(rules), shard_(shard) {}
  ~StoredRowReader();
  StoredRowReader(const StoredRowReader&) = delete;
  StoredRowReader& operator=(const StoredRowReader&) = delete;

  // Opens the tensor of keys. Must be the first call. `offsets` is the tensor
  // of offsets of key classes, which is checked if the file has it, or empty.
  absl::Status OpenKeys(const std::string& name, const std::string& offsets);
  // Opens one integer per key. Nothing is read if the tensor is missing or
  // empty.
  absl::Status OpenFreqs(const std::string& name);
  absl::Status OpenVersions(const std::string& name);
  // Opens one row of floats per key. `what` describes the width in messages.
  absl::Status OpenValues(const std::string& source, int64_t width,
                          const char* what);
  // Opens all that a table of this dimension and these slots reads, of the keys
  // with a row. Nothing else may have been opened.
  absl::Status OpenRows(int64_t dim, const std::vector<SlotSpec>& slots,
                        bool with_versions);
  // The same of the keys without a row, which the file must have.
  absl::Status OpenFiltered(bool with_versions);
  // Opens a slot. A slot is stored with its own keys. They usually equal those
  // of the rows, but not if DeepRec saved while workers trained.
  absl::Status OpenSlot(const SlotSpec& slot);

  // Makes Next() fail for finite numbers that rows of this type cannot hold.
  // Must be called after OpenValues(). Returns whether there may be any.
  bool CheckRange(ValueType type);

  // Starts to read. Must be called after the last Open...().
  void Start();
  // Returns the next keys that belong to the table; none if batch->n == 0.
  // Reuses the memory of the passed batch. After an error, each call returns
  // the same error.
  absl::Status Next(RowBatch* batch);
  // Makes Next() return this error.
  void Stop(const absl::Status& status);

  // Number of keys in the file. Valid after OpenKeys().
  int64_t rows() const { return rows_; }

  // Whether all keys are known to be distinct. Valid after the last Next().
  bool distinct() const { return distinct_.by_class(); }
  // Whether slot i, in the order of OpenSlot(), has other keys than the rows.
  bool slot_differs(size_t i) const { return slots_[i].differs; }

 private:
  struct Slot {
    // nullopt if not in the file or if the keys differ.
    std::optional<RowStream> keys;
    std::optional<RowStream> values;
    bool differs = false;
  };

  absl::Status OpenPerKey(const std::string& name,
                          std::optional<RowStream>* stream);
  absl::Status CheckOffsets(const std::string& name);
  absl::Status CheckRows(const StoredTensor& tensor) const;
  void ReadAll();  // Runs on the reader thread.
  // Next() without a reader thread.
  absl::Status ReadNext(RowBatch* batch);
  absl::Status ReadBatch(RowBatch* batch);
  absl::Status CheckKeys(const std::vector<int64_t>& keys);
  absl::Status CheckFreqs(const RowBatch& batch) const;
  absl::Status CheckValues(const RowBatch& batch);
  // Drops the rows of a batch that are not of kept_.
  void DropOthers(RowBatch* batch) const;
  absl::Status RepeatedKey() const;

  CheckpointFile& file_;
  const KeyRules rules_;
  const StoredShard shard_;
  std::optional<RowStream> keys_;  // Set by OpenKeys().
  std::optional<RowStream> freqs_;
  std::optional<RowStream> versions_;
  std::optional<RowStream> values_;
  std::vector<Slot> slots_;
  std::optional<ValueRounding> rounding_;  // Set by CheckRange(), with type_.
  ValueType type_ = ValueType::kFloat32;
  int64_t rows_ = 0;       // Keys in the file.
  int64_t row_bytes_ = 0;  // Bytes read per key, over all opened tensors.

  // Used by the reader thread until Next() has returned an empty batch. Without
  // a reader thread, guarded by mutex_.
  int64_t next_key_ = 0;  // The first key that has not been read.
  DistinctKeys distinct_;
  std::vector<int64_t> kept_;  // Rows of the batch that belong to the table.
  std::vector<int64_t> slot_keys_;

  std::mutex mutex_;                     // Guards the members below.
  std::condition_variable has_room_;     // The reader thread waits for it.
  std::condition_variable has_batches_;  // Next() waits for it.
  absl::Status status_;
  std::vector<RowBatch> ready_;  // Read and not yet returned, in order.
  std::vector<RowBatch> spare_;  // Memory of returned batches.
  bool all_read_ = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROWS_H_
