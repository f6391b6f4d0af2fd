// SPDX-License-Identifier: Apache-2.0
// Errors from the parts of their messages: InvalidArgument("n must be >= 1,
// got ", n). tensorflow::errors has the same functions, which TensorFlow 2.21
// deprecates. Absl's take one string.
#ifndef REC_ESTIMATOR_OPS_KERNEL_ERRORS_H_
#define REC_ESTIMATOR_OPS_KERNEL_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"  // TF_RETURN_IF_ERROR

namespace rec_estimator {

template <typename... Parts>
absl::Status Aborted(const Parts&... message) {
  return absl::AbortedError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status AlreadyExists(const Parts&... message) {
  return absl::AlreadyExistsError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status DataLoss(const Parts&... message) {
  return absl::DataLossError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... message) {
  return absl::FailedPreconditionError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status Internal(const Parts&... message) {
  return absl::InternalError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... message) {
  return absl::InvalidArgumentError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status NotFound(const Parts&... message) {
  return absl::NotFoundError(absl::StrCat(message...));
}

template <typename... Parts>
absl::Status ResourceExhausted(const Parts&... message) {
  return absl::ResourceExhaustedError(absl::StrCat(message...));
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_ERRORS_H_
