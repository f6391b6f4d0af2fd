// SPDX-License-Identifier: Apache-2.0
// Checks of input shapes that the kernels share.
#ifndef REC_ESTIMATOR_OPS_KERNEL_INPUT_CHECKS_H_
#define REC_ESTIMATOR_OPS_KERNEL_INPUT_CHECKS_H_

#include "absl/status/status.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/tensor.h"

namespace rec_estimator {

// InvalidArgument unless the tensor has the rank. `name` is the input's name.
// `shape` is the required shape as messages spell it, for example "[n]".
inline absl::Status CheckRank(const tensorflow::Tensor& tensor, int rank,
                              const char* name, const char* shape) {
  if (tensor.dims() == rank) return absl::Status();
  return InvalidArgument(name, " must be ", shape, ", got shape ",
                         tensor.shape().DebugString());
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_INPUT_CHECKS_H_
