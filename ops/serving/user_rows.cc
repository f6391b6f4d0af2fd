// SPDX-License-Identifier: Apache-2.0
// Implements user_rows.h.
#include "ops/serving/user_rows.h"

#include <cstdint>

#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {

using ::absl::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShapeUtils;

Status CheckedUserRows::Read(const Tensor& row_splits) {
  if (!TensorShapeUtils::IsVector(row_splits.shape()) ||
      row_splits.NumElements() == 0) {
    return InvalidArgument("row_splits must be [B + 1], got shape ",
                           row_splits.shape().DebugString());
  }
  const int32_t* const input = row_splits.flat<int32_t>().data();
  copy_.assign(input, input + row_splits.NumElements());
  users = static_cast<int64_t>(copy_.size()) - 1;
  splits = copy_.data();
  for (int64_t user = 0; user <= users; ++user) {
    if (user == 0 ? splits[0] != 0 : splits[user] < splits[user - 1]) {
      return InvalidArgument(
          "row_splits must start with 0 and not decrease, got ", splits[user],
          " at ", user);
    }
  }
  return Status();
}

}  // namespace rec_estimator
