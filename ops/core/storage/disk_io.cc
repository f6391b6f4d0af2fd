// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/disk_io.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rec_estimator {

DiskIo::DiskIo(std::unique_ptr<BatchReader> reader)
    : reader_(std::move(reader)) {}

std::unique_ptr<Reading> DiskIo::StartReading(ReadRequest* requests, size_t n) {
  return reader_->Start(requests, n);
}

int DiskIo::Write(int file, const void* from, size_t bytes, uint64_t offset) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t written =
        pwrite(file, next, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    next += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
  return 0;
}

int DiskIo::Truncate(int file, uint64_t bytes) {
  return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace rec_estimator
