// SPDX-License-Identifier: Apache-2.0
// Save and restore, shared: names and layout of a table's tensors in a
// checkpoint. Read this file first.
//
//   TableExport (stock Saver)  checkpoint_export_kernels
//   TablesSave                 checkpoint_save_kernels -> checkpoint_entries
//                              -> checkpoint_writer
//                              -> checkpoint_direct_file (rows on disk)
//   TableRestore               checkpoint_chain -> checkpoint_file
//                              -> checkpoint_rows -> checkpoint_restore_kernels
//   TableCheckRestore          the same -> checkpoint_check
//   CheckpointInteger          checkpoint_file
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/snapshot.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// Suffixes of tensor names. They follow the name of a shard, for example
// user/part_0, or of one of its slots, user/part_0/Adagrad. The nine suffixes
// up to partition_filter_offset are DeepRec's. The others follow shards only. A
// sketch names its own (Sketch::Format).
constexpr char kKeys[] = "-keys";
constexpr char kValues[] = "-values";
constexpr char kFreqs[] = "-freqs";
constexpr char kVersions[] = "-versions";
constexpr char kKeysFiltered[] = "-keys_filtered";
constexpr char kFreqsFiltered[] = "-freqs_filtered";
constexpr char kVersionsFiltered[] = "-versions_filtered";
constexpr char kOffsets[] = "-partition_offset";
constexpr char kOffsetsFiltered[] = "-partition_filter_offset";
// With values of 8 bits, uint8: the scale and the offset of each row, float
// [n, 2]. Element i is offset + scale * byte i.
constexpr char kScaleOffset[] = "-scale_offset";
// What the versions count, a string: kSeconds. Not written if it is kSteps;
// UnitOfVersions has the rule for older checkpoints.
constexpr char kVersionUnit[] = "-version_unit";
// A variable: the greatest timestamp of any batch that trained a table.
constexpr char kTimestamp[] = "rec_estimator_timestamp";
// Incremental checkpoints (deltas) only: the erased keys, the name of the
// parent checkpoint in the same folder, and the identity of the parent's index
// (CheckpointFile::identity). The identity detects a parent that was
// overwritten by another checkpoint of the same name.
constexpr char kKeysErased[] = "-keys_erased";
constexpr char kDeltaOf[] = "-delta_of";
constexpr char kDeltaOfIndex[] = "-delta_of_index";
// Follows the name of the logical table, not of a shard.
constexpr char kBank[] = "/default_values";

// Where a requested slot is in the table's rows.
struct SlotOffset {
  SlotSpec slot;
  int offset;  // In floats from the start of the row. -1: no such slot.
  std::vector<float> initial;  // (slot.width) Every float is slot.initial.
};

// Finds the requested slots in the table's rows. InvalidArgument if the table
// has one of them with another width.
absl::Status FindSlots(TableResource& resource,
                       const std::vector<SlotSpec>& requested,
                       std::vector<SlotOffset>* offsets);

// Where the values of rows, or a slot of them, are copied to: a tensor [n, dim]
// of float, bfloat16, half or uint8.
class ValueRows {
 public:
  // The tensors outlive the object. scale_offset: [n, 2], for uint8 only.
  explicit ValueRows(const tensorflow::Tensor& tensor,
                     const tensorflow::Tensor& scale_offset = {});
  // Makes `value` (dim) row i. Of 16 or 8 bits, the nearest; exact for what a
  // table of this type stores.
  void Set(int64_t i, const float* value) const;

 private:
  const tensorflow::DataType dtype_;
  const int dim_;
  char* const rows_;
  char* const scale_offset_;
};

// Copies one row to row i of `values` and of `slots`, one for each offset. A
// slot that the table does not have gets its initial value.
void CopyRowAndSlots(const float* row, int64_t i, const ValueRows& values,
                     const std::vector<SlotOffset>& offsets,
                     const std::vector<ValueRows>& slots);

// ResourceExhausted if there are more keys than the offsets can count. They
// are int32, as DeepRec's are.
absl::Status CheckCountable(const std::string& table, const Snapshot& snapshot);

// Returns an error under a code that ends a training. TensorFlow's loops take
// OutOfRange for the end of the data, and start again after Aborted and
// Unavailable for ever, but file systems return these codes, too: OutOfRange
// for a file that is too large, for example. OutOfRange becomes `out_of_range`,
// the others become Unknown, TensorFlow's code for most errors of a disk.
absl::Status AsFatal(const absl::Status& status, absl::StatusCode out_of_range);

// Whether keys without a row are written: true unless the environment variable
// TF_EV_SAVE_FILTERED_FEATURES is False, false or 0.
bool SavesFilteredKeys();

// Type and shape of a tensor of a sketch, of so many rows.
tensorflow::DataType TypeOf(const Sketch::Tensor& tensor);
tensorflow::TensorShape ShapeOf(const Sketch::Tensor& tensor, int64_t rows);

// Rows of a head of a sketch that has so many numbers.
int64_t HeadRows(const Sketch::Tensor& head, size_t numbers);

// Bytes of a row of a tensor of a sketch.
size_t RowBytes(const Sketch::Tensor& tensor);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_
