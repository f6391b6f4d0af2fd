// SPDX-License-Identifier: Apache-2.0
// Rules of the checkpoint format that several kernels keep.
#include "ops/checkpoint/checkpoint_format.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/env_var.h"

namespace rec_estimator {

using ::tensorflow::Status;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::errors::ResourceExhausted;

Status FindSlots(TableResource& resource, const std::vector<SlotSpec>& wanted,
                 std::vector<SlotPlace>* places) {
  const std::vector<SlotSpec> present = resource.table().slots();
  for (const SlotSpec& slot : wanted) {
    int offset = resource.table().dim();
    auto it = present.begin();
    for (; it != present.end() && it->name != slot.name; ++it) {
      offset += it->width;
    }
    if (it != present.end() && it->width != slot.width) {
      return InvalidArgument("slot_widths must be those of table ",
                             resource.name(), ", ", it->width, " for slot ",
                             slot.name, ", got ", slot.width);
    }
    places->push_back({slot, it == present.end() ? -1 : offset});
  }
  return Status();
}

Status CheckSlots(const std::vector<std::string>& names,
                  const std::vector<int64_t>& widths,
                  const std::vector<float>& initials, size_t begin, size_t end,
                  std::vector<SlotSpec>* slots) {
  std::set<std::string> seen;
  int64_t floats = 0;
  for (size_t i = begin; i < end; ++i) {
    if (names[i].empty() || !seen.insert(names[i]).second) {
      return InvalidArgument("slot_names must be distinct and not empty, got '",
                             names[i], "' at ", i);
    }
    // Bounds each width before the sum, which therefore cannot overflow.
    if (widths[i] < 1 || widths[i] > kMaxRowFloats ||
        (floats += widths[i]) > kMaxRowFloats) {
      return InvalidArgument("slot_widths must be >= 1 and at most ",
                             kMaxRowFloats, " in sum, got ", widths[i],
                             " for slot ", names[i]);
    }
    slots->push_back({names[i], static_cast<int>(widths[i]), initials[i]});
  }
  return Status();
}

void CopySlot(const float* row, const SlotPlace& place, float* out) {
  if (place.offset < 0) {
    std::fill_n(out, place.slot.width, place.slot.initial);
  } else {
    std::copy_n(row + place.offset, place.slot.width, out);
  }
}

Status CheckCountable(const std::string& table,
                      const EmbeddingTable::Snapshot& snapshot) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  const int64_t n = std::max(snapshot.admitted_offsets().back(),
                             snapshot.filtered_offsets().back());
  if (n <= most) return Status();
  return ResourceExhausted("rows of table ", table, " must be <= ", most,
                           " to be saved, got ", n,
                           "; cut the table into more shards");
}

bool SavesFilteredKeys() {
  std::string value;
  const Status status = tensorflow::ReadStringFromEnvVar(
      "TF_EV_SAVE_FILTERED_FEATURES", "true", &value);
  return !status.ok() || (value != "False" && value != "false" && value != "0");
}

void CopyLayout(const EmbeddingTable::BloomLayout& layout, int64_t* out) {
  out[0] = layout.blocks;
  out[1] = layout.cells_per_block;
  out[2] = layout.hashes;
  out[3] = layout.cell_bits;
}

tensorflow::DataType BloomCounterType(
    const EmbeddingTable::BloomLayout& layout) {
  if (layout.cell_bits <= 8) return tensorflow::DT_UINT8;
  if (layout.cell_bits <= 16) return tensorflow::DT_UINT16;
  return tensorflow::DT_UINT32;
}

}  // namespace rec_estimator
