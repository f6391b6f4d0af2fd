// SPDX-License-Identifier: Apache-2.0
// What the tensors of a table in a checkpoint are called and when they are
// there; the same for the kernels that write and those that read.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// Endings behind the name of a shard, e.g. user/part_0, or of one of its
// slots, user/part_0/Adagrad. Those up to partition_filter_offset are DeepRec's
// nine; the others are for the shard alone.
constexpr char kKeys[] = "-keys";
constexpr char kValues[] = "-values";
constexpr char kFreqs[] = "-freqs";
constexpr char kVersions[] = "-versions";
constexpr char kKeysFiltered[] = "-keys_filtered";
constexpr char kFreqsFiltered[] = "-freqs_filtered";
constexpr char kVersionsFiltered[] = "-versions_filtered";
constexpr char kOffsets[] = "-partition_offset";
constexpr char kOffsetsFiltered[] = "-partition_filter_offset";
// The counting Bloom filter: numbers of blocks, their cells unpacked, and its
// geometry: blocks, cells per block, hashes, bits of a cell.
constexpr char kBloomBlocks[] = "-cbf_blocks";
constexpr char kBloomCounters[] = "-cbf_counters";
constexpr char kBloomLayout[] = "-cbf_layout";
constexpr int64_t kBloomLayoutSize = 4;
// Of an incremental checkpoint only: which keys are gone, and the name of the
// checkpoint beside it that the changes are to, with the identity of its index
// (CheckpointFile::identity). Without the latter nobody would notice that a
// checkpoint of that name is another one now.
constexpr char kKeysErased[] = "-keys_erased";
constexpr char kDeltaOf[] = "-delta_of";
constexpr char kDeltaOfIndex[] = "-delta_of_index";
// Behind the name of the logical table.
constexpr char kBank[] = "/default_values";

// Where in a row the slots that an op asks for are.
struct SlotPlace {
  SlotSpec slot;
  int offset;  // Floats from the row's begin; -1: the table has no such slot.
};

// InvalidArgument if the table has one of the slots with another width.
tensorflow::Status FindSlots(TableResource& resource,
                             const std::vector<SlotSpec>& wanted,
                             std::vector<SlotPlace>* places);

// The slots of a table from lists of names, widths and initial values, checked
// as ReadSlots does. `begin` and `end`: which of the lists' elements.
tensorflow::Status CheckSlots(const std::vector<std::string>& names,
                              const std::vector<int64_t>& widths,
                              const std::vector<float>& initials, size_t begin,
                              size_t end, std::vector<SlotSpec>* slots);

// Copies row[offset, offset + width), or the slot's initial value if the table
// has no such slot.
void CopySlot(const float* row, const SlotPlace& place, float* out);

// ResourceExhausted if there are more keys than the offsets, int32 as
// DeepRec's are, can count.
tensorflow::Status CheckCountable(const std::string& table,
                                  const EmbeddingTable::Snapshot& snapshot);

// Whether keys that own no row are written: unless the environment variable
// TF_EV_SAVE_FILTERED_FEATURES says False, false or 0.
bool SavesFilteredKeys();

// The four numbers of the layout tensor.
void CopyLayout(const EmbeddingTable::BloomLayout& layout, int64_t* out);

// Of the counters tensor: the least type that holds a cell; uint8 without a
// filter.
tensorflow::DataType BloomCounterType(
    const EmbeddingTable::BloomLayout& layout);

// Calls work(static_cast<T*>(nullptr)) with the C++ type of the counters.
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
