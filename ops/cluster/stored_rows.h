// SPDX-License-Identifier: Apache-2.0
// Rows in tensors that cross between tasks: in the type in which their table
// stores values, so that rows of 16-bit numbers are sent in half the bytes.
// The sender has floats that are such numbers, the receiver widens them, and
// neither changes a value.
#ifndef REC_ESTIMATOR_OPS_CLUSTER_STORED_ROWS_H_
#define REC_ESTIMATOR_OPS_CLUSTER_STORED_ROWS_H_

#include <cstdint>
#include <type_traits>

#include "ops/core/math/indexed_rows.h"
#include "ops/core/math/narrow_floats.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// The narrow type that equals T, one of TensorFlow's types of 16 bits.
template <typename T>
inline constexpr NarrowType kNarrowTypeOf =
    std::is_same_v<T, Eigen::half> ? NarrowType::kHalf : NarrowType::kBFloat16;

// The rows of a tensor (rows, dim).
inline FloatRows ReceivedRows(const float* values, int dim) {
  return {values, dim};
}
template <typename T>
NarrowRows ReceivedRows(const T* values, int dim) {
  return {kNarrowTypeOf<T>, reinterpret_cast<const NarrowFloat*>(values), dim};
}

// to (dim) = a row that a table of this type has read.
template <typename T>
void SendRow(const float* row, int dim, T* to) {
  NarrowFloats(kNarrowTypeOf<T>, row, dim, reinterpret_cast<NarrowFloat*>(to));
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CLUSTER_STORED_ROWS_H_
