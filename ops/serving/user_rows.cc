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

Status ReadUserRows(const Tensor& row_splits, UserRows* user_rows) {
  if (!TensorShapeUtils::IsVector(row_splits.shape()) ||
      row_splits.NumElements() == 0) {
    return InvalidArgument("row_splits must be [B + 1], got shape ",
                           row_splits.shape().DebugString());
  }
  const auto splits = row_splits.flat<int32_t>();
  for (int64_t user = 0; user < splits.size(); ++user) {
    if (user == 0 ? splits(0) != 0 : splits(user) < splits(user - 1)) {
      return InvalidArgument(
          "row_splits must start with 0 and not decrease, got ", splits(user),
          " at ", user);
    }
  }
  user_rows->splits = splits.data();
  user_rows->users = splits.size() - 1;
  return Status();
}

}  // namespace rec_estimator
