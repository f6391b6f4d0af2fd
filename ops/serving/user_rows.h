// SPDX-License-Identifier: Apache-2.0
// Reads row_splits, which assigns candidates to users.
#ifndef REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_
#define REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_

#include "absl/status/status.h"
#include "ops/core/math/segment_product.h"
#include "tensorflow/core/framework/tensor.h"

namespace rec_estimator {

// Reads row_splits, int32 [B + 1]. Checks it, because not only SampleRows may
// produce it: it must start with 0 and not decrease. `user_rows` points into
// the tensor.
absl::Status ReadUserRows(const tensorflow::Tensor& row_splits,
                          UserRows* user_rows);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_SERVING_USER_ROWS_H_
