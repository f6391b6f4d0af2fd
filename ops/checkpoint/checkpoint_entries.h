// SPDX-License-Identifier: Apache-2.0
// Save by rec_estimator.Saver, a part of step 1: the keys of a table with their
// counts, versions and rows, in chunks of bounded size.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ENTRIES_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ENTRIES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_row_report.h"
#include "ops/checkpoint/checkpoint_writer.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/kernel/errors.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// Bytes of rows in a chunk. Three chunks exist at a time: one is gathered, one
// waits, and one is written. Of rows on disk, two more are being read.
constexpr int64_t kChunkBytes = int64_t{2} << 20;

// What is saved of a table, and under which names.
struct TableNames {
  std::string name;  // Name of the shard.
  std::string bank;  // Empty: the bank is not written.
  tensorflow::DataType key_dtype;
  std::vector<SlotSpec> slots;
};

// Copies key_at(i) for i in [0, n) to `keys`, in its dtype. InvalidArgument if
// a key does not fit.
template <typename KeyAt>
absl::Status CopyKeys(const std::string& table, int64_t n, const KeyAt& key_at,
                      tensorflow::Tensor* keys) {
  if (keys->dtype() == tensorflow::DT_INT64) {
    int64_t* out = keys->flat<int64_t>().data();
    for (int64_t i = 0; i < n; ++i) out[i] = key_at(i);
    return absl::Status();
  }
  int32_t* out = keys->flat<int32_t>().data();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t key = key_at(i);
    out[i] = static_cast<int32_t>(key);
    if (out[i] != key) {
      return InvalidArgument("keys of table ", table,
                             " must fit into int32 to be saved so, got ", key,
                             "; save it with int64 keys");
    }
  }
  return absl::Status();
}

class EntriesSave {
 public:
  // All outlive the object.
  EntriesSave(tensorflow::OpKernelContext* context, TableResource* resource,
              const TableNames& names, CheckpointWriter* writer);

  // Saves the entries of a snapshot. DataLoss, after all are written, if a row
  // has a float that is not finite, and `refuses`.
  absl::Status Run(const Snapshot& snapshot, bool refuses);

 private:
  // Memory of a chunk. It is reused when the writer has released it; allocating
  // and freeing it for each chunk would fragment the heap.
  struct Chunk {
    int64_t rows = -1;
    tensorflow::Tensor keys, freqs, versions;
    tensorflow::Tensor values;        // Only for keys with a row.
    tensorflow::Tensor scale_offset;  // Only for keys with a row of bytes.
    std::vector<tensorflow::Tensor> slots;  // Only for keys with a row.

    bool IsFree() const;
  };

  // Saves the offsets of the table and of each slot, which has the same keys.
  absl::Status SaveOffsets(const char* suffix,
                           const std::vector<int64_t>& offsets);
  // Saves the keys with a row, or those without one, which are `total`; none of
  // them if that is 0.
  absl::Status SaveKeys(const Snapshot& snapshot, int64_t total, bool with_row);
  // Saves a batch, which is keys [begin, begin + batch.n) of `total`.
  absl::Status SaveBatch(const EntryReader::Batch& batch, int64_t begin,
                         int64_t total, bool with_row);
  // Copies a batch to a chunk, of which the first batch.n rows are used.
  absl::Status FillChunk(const EntryReader::Batch& batch, bool with_row,
                         Chunk* chunk);
  // Finds or allocates a free chunk of at least n rows.
  absl::Status AcquireChunk(int64_t n, bool with_row, Chunk** chunk);
  bool HasBytes() const;

  tensorflow::OpKernelContext* const context_;
  TableResource& resource_;
  const TableNames& names_;
  CheckpointWriter& writer_;
  std::vector<std::string> sources_;  // Names of the shard and of its slots.
  std::vector<SlotOffset> slot_offsets_;
  std::array<std::vector<Chunk>, 2> chunks_;  // [1]: for keys with a row.
  RowReport report_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ENTRIES_H_
