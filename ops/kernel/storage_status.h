// SPDX-License-Identifier: Apache-2.0
// Errors of the core's files as statuses.
#ifndef REC_ESTIMATOR_OPS_KERNEL_STORAGE_STATUS_H_
#define REC_ESTIMATOR_OPS_KERNEL_STORAGE_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "ops/core/storage/disk_error.h"

namespace rec_estimator {

// The status of an error of the disk: ResourceExhausted for a full one,
// DataLoss for a row that is not what was written, FailedPrecondition for all
// else. Never Aborted or Unavailable, after which TensorFlow's loops would
// start again for ever.
absl::Status StorageStatus(StorageFault fault, const std::string& message);

// Called in a catch block: the status of a StorageError. Rethrows all else.
absl::Status CaughtStorageStatus();

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_STORAGE_STATUS_H_
