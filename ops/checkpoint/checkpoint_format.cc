// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_format.h.
#include "ops/checkpoint/checkpoint_format.h"

#include <algorithm>
#include <limits>

#include "ops/core/math/narrow_floats.h"
#include "ops/core/math/quantized_floats.h"
#include "ops/core/table/snapshot.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/util/env_var.h"

namespace rec_estimator {

using ::absl::Status;

Status FindSlots(TableResource& resource,
                 const std::vector<SlotSpec>& requested,
                 std::vector<SlotOffset>* offsets) {
  const std::vector<SlotSpec> present = resource.table().slots();
  for (const SlotSpec& slot : requested) {
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
    offsets->push_back(
        {slot, it == present.end() ? -1 : offset,
         std::vector<float>(static_cast<size_t>(slot.width), slot.initial)});
  }
  return Status();
}

ValueRows::ValueRows(const tensorflow::Tensor& tensor,
                     const tensorflow::Tensor& scale_offset)
    : dtype_(tensor.dtype()),
      dim_(static_cast<int>(tensor.dim_size(1))),
      rows_(const_cast<char*>(tensor.tensor_data().data())),
      scale_offset_(const_cast<char*>(scale_offset.tensor_data().data())) {}

void ValueRows::Set(int64_t i, const float* value) const {
  if (dtype_ == tensorflow::DT_FLOAT) {
    std::copy_n(value, dim_, reinterpret_cast<float*>(rows_) + i * dim_);
  } else if (dtype_ == tensorflow::DT_UINT8) {
    const ByteScale scale = QuantizeFloats(
        value, dim_, reinterpret_cast<uint8_t*>(rows_) + i * dim_);
    float* const out = reinterpret_cast<float*>(scale_offset_) + i * 2;
    out[0] = scale.scale;
    out[1] = scale.offset;
  } else {
    const NarrowType type = dtype_ == tensorflow::DT_HALF
                                ? NarrowType::kHalf
                                : NarrowType::kBFloat16;
    NarrowFloats(type, value, dim_,
                 reinterpret_cast<NarrowFloat*>(rows_) + i * dim_);
  }
}

void CopyRowAndSlots(const float* row, int64_t i, const ValueRows& values,
                     const std::vector<SlotOffset>& offsets,
                     const std::vector<ValueRows>& slots) {
  values.Set(i, row);
  for (size_t s = 0; s < offsets.size(); ++s) {
    const SlotOffset& slot = offsets[s];
    slots[s].Set(i, slot.offset < 0 ? slot.initial.data() : row + slot.offset);
  }
}

Status CheckCountable(const std::string& table, const Snapshot& snapshot) {
  const int64_t limit = std::numeric_limits<int32_t>::max();
  const int64_t n = std::max(snapshot.admitted_offsets().back(),
                             snapshot.filtered_offsets().back());
  if (n <= limit) return Status();
  return ResourceExhausted("rows of table ", table, " must be <= ", limit,
                           " to be saved, got ", n,
                           "; cut the table into more shards");
}

Status AsFatal(const Status& status, absl::StatusCode out_of_range) {
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      return Status(out_of_range, status.message());
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
      return absl::UnknownError(status.message());
    default:
      return status;
  }
}

bool SavesFilteredKeys() {
  std::string value;
  const Status status = tensorflow::ReadStringFromEnvVar(
      "TF_EV_SAVE_FILTERED_FEATURES", "true", &value);
  return !status.ok() || (value != "False" && value != "false" && value != "0");
}

tensorflow::DataType TypeOf(const Sketch::Tensor& tensor) {
  switch (tensor.type) {
    case Sketch::Type::kUint8:
      return tensorflow::DT_UINT8;
    case Sketch::Type::kUint16:
      return tensorflow::DT_UINT16;
    case Sketch::Type::kUint32:
      return tensorflow::DT_UINT32;
    case Sketch::Type::kInt64:
      break;
  }
  return tensorflow::DT_INT64;
}

tensorflow::TensorShape ShapeOf(const Sketch::Tensor& tensor, int64_t rows) {
  tensorflow::TensorShape shape({rows});
  if (tensor.width > 0) shape.AddDim(tensor.width);
  return shape;
}

int64_t HeadRows(const Sketch::Tensor& head, size_t numbers) {
  return static_cast<int64_t>(numbers) / std::max<int64_t>(head.width, 1);
}

size_t RowBytes(const Sketch::Tensor& tensor) {
  return static_cast<size_t>(std::max<int64_t>(tensor.width, 1)) *
         static_cast<size_t>(tensorflow::DataTypeSize(TypeOf(tensor)));
}

}  // namespace rec_estimator
