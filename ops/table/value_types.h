// SPDX-License-Identifier: Apache-2.0
// The types of stored values and slots, as TensorFlow and as the core call
// them.
#ifndef REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_
#define REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_

#include "ops/core/math/narrow_floats.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/table/embedding_table.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// dtype: DT_FLOAT, DT_BFLOAT16, DT_HALF or DT_UINT8, the bytes of kInt8.
inline ValueType ValueTypeOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_BFLOAT16:
      return ValueType::kBFloat16;
    case tensorflow::DT_HALF:
      return ValueType::kHalf;
    case tensorflow::DT_UINT8:
      return ValueType::kInt8;
    default:
      return ValueType::kFloat32;
  }
}

inline tensorflow::DataType DataTypeOf(ValueType type) {
  switch (type) {
    case ValueType::kBFloat16:
      return tensorflow::DT_BFLOAT16;
    case ValueType::kHalf:
      return tensorflow::DT_HALF;
    case ValueType::kInt8:
      return tensorflow::DT_UINT8;
    case ValueType::kFloat32:
      break;
  }
  return tensorflow::DT_FLOAT;
}

// The name of a type for messages.
inline const char* NameOf(ValueType type) {
  switch (type) {
    case ValueType::kBFloat16:
      return "bfloat16";
    case ValueType::kHalf:
      return "float16";
    case ValueType::kInt8:
      return "8 bits";
    case ValueType::kFloat32:
      break;
  }
  return "float32";
}

// The type in which a table stores a slot of so many numbers.
inline tensorflow::DataType SlotTypeOf(const EmbeddingTable& table, int width) {
  return RowFormat(table.dim(), table.rules().value).IsNarrowSlot(width)
             ? tensorflow::DT_BFLOAT16
             : tensorflow::DT_FLOAT;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_
