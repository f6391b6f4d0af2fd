// SPDX-License-Identifier: Apache-2.0
// Reads many small pieces of files at once, so that an SSD always has some of
// them to work on.
//
// A single synchronous read keeps an SSD idle for most of its latency. There
// are two ways to have more reads in flight: io_uring, which one thread does
// with about a third of the CPU time, and threads that call pread. Containers
// often forbid io_uring, so the choice is made at run time.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rec_estimator {

struct ReadRequest {
  int file;         // Descriptor.
  uint32_t bytes;   // With O_DIRECT: a multiple of the disk's block, as are
  uint64_t offset;  // this
  void* to;         // and this address.
  int64_t result;   // Set when it is done: the number of bytes read, or -errno.
};

// Requests that are being read. Only the thread that started it may use it.
class Reading {
 public:
  Reading() = default;
  virtual ~Reading() = default;  // Waits.
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // Returns when all are done and have a result.
  virtual void Wait() = 0;
};

// Thread rule: any thread may call any method at any time.
class BatchReader {
 public:
  virtual ~BatchReader() = default;

  // Begins to read requests (n), which stay where they are until the result is
  // destroyed. Reads of a thread begin in the order of its calls.
  virtual std::unique_ptr<Reading> Start(ReadRequest* requests, size_t n) = 0;
  void Read(ReadRequest* requests, size_t n) { Start(requests, n)->Wait(); }
  virtual const char* name() const = 0;
};

// nullptr: the kernel has no io_uring, or does not allow it.
std::unique_ptr<BatchReader> MakeUringReader();
// Starts its threads at the first batch.
std::unique_ptr<BatchReader> MakeThreadsReader();
// The first of these that works.
std::unique_ptr<BatchReader> MakeBatchReader();

// One read, on this thread.
void ReadOne(ReadRequest* request);
// Reads on this thread, in Wait: for one request, and in a process that was
// forked.
std::unique_ptr<Reading> ReadInTurn(ReadRequest* requests, size_t n);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_BATCH_READER_H_
