// SPDX-License-Identifier: Apache-2.0
// The system calls that a DiskLog makes on its open files. Tests derive from
// this class and make a call fail.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_IO_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_IO_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/core/storage/batch_reader.h"

namespace rec_estimator {

// Thread rule: any thread may call any method at any time.
class DiskIo {
 public:
  explicit DiskIo(std::unique_ptr<BatchReader> reader = MakeBatchReader());
  virtual ~DiskIo() = default;
  DiskIo(const DiskIo&) = delete;
  DiskIo& operator=(const DiskIo&) = delete;

  // These read as BatchReader's methods do.
  virtual std::unique_ptr<Reading> StartReading(ReadRequest* requests,
                                                size_t n);
  void Read(ReadRequest* requests, size_t n) {
    StartReading(requests, n)->Wait();
  }
  // Writes all bytes. Returns 0 or errno.
  virtual int Write(int file, const void* from, size_t bytes, uint64_t offset);
  // Returns 0 or errno.
  virtual int Truncate(int file, uint64_t bytes);

  const char* reader_name() const { return reader_->name(); }

 private:
  const std::unique_ptr<BatchReader> reader_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_IO_H_
