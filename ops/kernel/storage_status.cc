// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel/storage_status.h"

#include "ops/kernel/errors.h"

namespace rec_estimator {

using ::absl::Status;

Status StorageStatus(StorageFault fault, const std::string& message) {
  switch (fault) {
    case StorageFault::kNoSpace:
      return ResourceExhausted(message);
    case StorageFault::kDamaged:
      return DataLoss(message);
    case StorageFault::kFailed:
      return FailedPrecondition(message);
  }
  return Internal(message);
}

Status CaughtStorageStatus() {
  try {
    throw;
  } catch (const StorageError& error) {
    return StorageStatus(error.fault(), error.what());
  }
}

}  // namespace rec_estimator
