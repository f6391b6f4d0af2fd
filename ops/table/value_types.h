// SPDX-License-Identifier: Apache-2.0
// The types of stored values, as TensorFlow and as the core call them.
#ifndef REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_
#define REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_

#include "ops/core/math/narrow_floats.h"
#include "ops/core/rows/table_spec.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// dtype: DT_FLOAT, DT_BFLOAT16 or DT_HALF.
inline ValueType ValueTypeOf(tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_BFLOAT16) return ValueType::kBFloat16;
  return dtype == tensorflow::DT_HALF ? ValueType::kHalf : ValueType::kFloat32;
}

inline tensorflow::DataType DataTypeOf(ValueType type) {
  if (type == ValueType::kBFloat16) return tensorflow::DT_BFLOAT16;
  return type == ValueType::kHalf ? tensorflow::DT_HALF : tensorflow::DT_FLOAT;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_VALUE_TYPES_H_
