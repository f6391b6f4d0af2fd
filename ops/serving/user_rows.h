// SPDX-License-Identifier: Apache-2.0
// Reads row_splits, which assigns candidates to users.
#ifndef REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_
#define REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/math/segment_product.h"
#include "tensorflow/core/framework/tensor.h"

namespace rec_estimator {

// The rows of each user, in memory of its own: another thread may write to the
// input (read_once.h).
class CheckedUserRows : public UserRows {
 public:
  CheckedUserRows() = default;
  CheckedUserRows(const CheckedUserRows&) = delete;
  CheckedUserRows& operator=(const CheckedUserRows&) = delete;

  // Reads row_splits, int32 [B + 1]. Checks it, because not only SampleRows may
  // produce it: it must start with 0 and not decrease.
  absl::Status Read(const tensorflow::Tensor& row_splits);

 private:
  std::vector<int32_t> copy_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_
