// SPDX-License-Identifier: Apache-2.0
// Reads many small pieces of files at once, so that an SSD works on up to 64 of
// them at a time.
//
// A single synchronous read keeps an SSD idle for most of its latency. There
// are two ways to have more reads in flight: io_uring, which one thread does
// with about half the CPU time, and threads that call pread. Containers often
// forbid io_uring, so the choice is made at run time.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rec_estimator {

// Reads of one batch that are in flight together.
inline constexpr unsigned kReadDepth = 64;

struct ReadRequest {
  int file;         // Descriptor.
  uint32_t bytes;   // With O_DIRECT: a multiple of the disk's block, as are
  uint64_t offset;  // this
  void* to;         // and this address.
  int64_t result;   // Set by Read: the number of bytes read, or -errno.
};

// Thread rule: any thread may call Read at any time.
class BatchReader {
 public:
  virtual ~BatchReader() = default;

  // Reads all requests (n) and sets their results. Returns when all are done.
  virtual void Read(ReadRequest* requests, size_t n) = 0;
  virtual const char* name() const = 0;
};

// nullptr: the kernel has no io_uring, or does not allow it.
std::unique_ptr<BatchReader> MakeUringReader();
// Starts its threads at the first batch.
std::unique_ptr<BatchReader> MakeThreadsReader();
// The first of these that works.
std::unique_ptr<BatchReader> MakeBatchReader();

// One read, on this thread. The result is set as by BatchReader::Read.
void ReadOne(ReadRequest* request);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_
