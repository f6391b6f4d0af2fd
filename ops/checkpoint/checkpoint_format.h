// SPDX-License-Identifier: Apache-2.0
// Save and restore, shared: names and layout of a table's tensors in a
// checkpoint. Read this file first.
//
//   TableExport (stock Saver)  checkpoint_export_kernels
//   TablesSave                 checkpoint_save_kernels -> checkpoint_writer
//   TableRestore               checkpoint_chain -> checkpoint_file
//                              -> checkpoint_rows -> checkpoint_restore_kernels
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// Suffixes of tensor names. They follow the name of a shard, for example
// user/part_0, or of one of its slots, user/part_0/Adagrad. The nine suffixes
// up to partition_filter_offset are DeepRec's. The others follow shards only.
constexpr char kKeys[] = "-keys";
constexpr char kValues[] = "-values";
constexpr char kFreqs[] = "-freqs";
constexpr char kVersions[] = "-versions";
constexpr char kKeysFiltered[] = "-keys_filtered";
constexpr char kFreqsFiltered[] = "-freqs_filtered";
constexpr char kVersionsFiltered[] = "-versions_filtered";
constexpr char kOffsets[] = "-partition_offset";
constexpr char kOffsetsFiltered[] = "-partition_filter_offset";
// The counting Bloom filter: block numbers, the unpacked cells of these blocks,
// the layout (blocks, cells per block, hashes, bits per cell), and the
// generations, youngest first: [g, 3] of their number, the step at which they
// began, and how many of the blocks are theirs. The blocks are in the same
// order. Numbers are consecutive and count rotations, so an incremental
// checkpoint says how old the blocks of its parents are. Files of earlier
// releases have no generations: all blocks are of one, of number and step 0.
constexpr char kBloomBlocks[] = "-cbf_blocks";
constexpr char kBloomCounters[] = "-cbf_counters";
constexpr char kBloomLayout[] = "-cbf_layout";
constexpr char kBloomGenerationsOf[] = "-cbf_generations";
constexpr int64_t kBloomLayoutSize = 4;
constexpr int64_t kBloomGenerationSize = 3;
// Incremental checkpoints (deltas) only: the erased keys, the name of the
// parent checkpoint in the same folder, and the identity of the parent's index
// (CheckpointFile::identity). The identity detects a parent that was
// overwritten by another checkpoint of the same name.
constexpr char kKeysErased[] = "-keys_erased";
constexpr char kDeltaOf[] = "-delta_of";
constexpr char kDeltaOfIndex[] = "-delta_of_index";
// Follows the name of the logical table, not of a shard.
constexpr char kBank[] = "/default_values";

// Position of a requested slot in the table's rows.
struct SlotPlace {
  SlotSpec slot;
  int offset;  // In floats from the start of the row. -1: no such slot.
};

// Finds the requested slots in the table's rows. InvalidArgument if the table
// has one of them with another width.
tensorflow::Status FindSlots(TableResource& resource,
                             const std::vector<SlotSpec>& requested,
                             std::vector<SlotPlace>* places);

// Copies one row to row i of `values` (n, dim) and of `slots`, one (n, width)
// per place. A slot that the table does not have gets its initial value.
void CopyRowAndSlots(const float* row, int64_t i, int64_t dim,
                     const std::vector<SlotPlace>& places, float* values,
                     const std::vector<float*>& slots);

// ResourceExhausted if there are more keys than the offsets can count. They
// are int32, as DeepRec's are.
tensorflow::Status CheckCountable(const std::string& table,
                                  const EmbeddingTable::Snapshot& snapshot);

// Returns an error under a code that ends a training. TensorFlow's loops take
// OutOfRange for the end of the data, and start again after Aborted and
// Unavailable for ever, but file systems return these codes, too: OutOfRange
// for a file that is too large, for example. OutOfRange becomes `out_of_range`,
// the others become Unknown, TensorFlow's code for most errors of a disk.
tensorflow::Status AsFatal(const tensorflow::Status& status,
                           absl::StatusCode out_of_range);

// Whether keys without a row are written: true unless the environment variable
// TF_EV_SAVE_FILTERED_FEATURES is False, false or 0.
bool SavesFilteredKeys();

// Writes the kBloomLayoutSize numbers of the layout tensor.
void CopyLayout(const EmbeddingTable::BloomLayout& layout, int64_t* out);

// Writes kBloomGenerationSize numbers per generation.
void CopyGenerations(
    const std::vector<EmbeddingTable::BloomGeneration>& generations,
    int64_t* out);

// Copies n cells to the type of the counters tensor. Returns the end of `out`.
template <typename Counter>
Counter* CopyCells(const uint32_t* cells, int64_t n, Counter* out) {
  return std::transform(cells, cells + n, out, [](uint32_t cell) {
    return static_cast<Counter>(cell);
  });
}

// Type of the counters tensor: the smallest that holds a cell. uint8 without a
// Bloom filter.
tensorflow::DataType BloomCounterType(
    const EmbeddingTable::BloomLayout& layout);

// Calls work(static_cast<T*>(nullptr)), where T is the C++ type of the
// counters.
template <typename Work>
auto WithCounterType(tensorflow::DataType type, const Work& work) {
  switch (type) {
    case tensorflow::DT_UINT8:
      return work(static_cast<uint8_t*>(nullptr));
    case tensorflow::DT_UINT16:
      return work(static_cast<uint16_t*>(nullptr));
    default:
      return work(static_cast<uint32_t*>(nullptr));
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_
