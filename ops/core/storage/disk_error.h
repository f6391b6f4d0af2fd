// SPDX-License-Identifier: Apache-2.0
// Why rows on disk could not be read or written, as a value.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_ERROR_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_ERROR_H_

#include <stdexcept>
#include <string>

namespace rec_estimator {

enum class StorageFault {
  kFailed,   // A call failed, for another reason than those below.
  kNoSpace,  // No path has room.
  kDamaged,  // What was read is not what was written.
};

struct DiskError {
  StorageFault fault = StorageFault::kFailed;
  std::string text = {};  // The rule, what was got, and the remedy.
};

// A row on disk cannot be read or written; what() names file and remedy.
class StorageError : public std::runtime_error {
 public:
  explicit StorageError(const DiskError& error)
      : std::runtime_error(error.text), fault_(error.fault) {}
  StorageFault fault() const { return fault_; }

 private:
  const StorageFault fault_;
};

// Throws std::bad_alloc if `error` is empty, which means out of memory, and
// StorageError otherwise.
[[noreturn]] void ThrowStorageError(const DiskError& error);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_ERROR_H_
