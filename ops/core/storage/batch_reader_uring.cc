// SPDX-License-Identifier: Apache-2.0
// BatchReader by io_uring, through system calls: liburing is not everywhere.
//
// Kernel and process share two rings: submissions, whose tail this process
// moves, and completions, whose tail the kernel moves. One system call submits
// several reads and waits for several completions. io_uring(7) has the
// protocol.
#include "ops/core/storage/batch_reader.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

// Kernels from 5.6 on have IORING_OP_READ; this flag came with it.
#ifdef IORING_FEAT_RW_CUR_POS

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

namespace rec_estimator {
namespace {

// The same numbers on all architectures.
constexpr long kSetup = 425;
constexpr long kEnter = 426;

// Memory that the kernel shares with this process.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  bool Map(int ring, size_t bytes, off_t what) {
    bytes_ = bytes;
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_POPULATE, ring, what);
    return memory_ != MAP_FAILED;
  }
  template <typename T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_) + offset);
  }

 private:
  void* memory_ = MAP_FAILED;
  size_t bytes_ = 0;
};

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (ring_ >= 0) close(ring_);
  }

  // False: the kernel refuses.
  bool Open() {
    io_uring_params params = {};
    ring_ = static_cast<int>(syscall(kSetup, kReadDepth, &params));
    if (ring_ < 0 || (params.features & IORING_FEAT_RW_CUR_POS) == 0) {
      return false;
    }
    const size_t submissions =
        params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    const size_t completions =
        params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!submissions_.Map(ring_, submissions, IORING_OFF_SQ_RING) ||
        !completions_.Map(ring_, completions, IORING_OFF_CQ_RING) ||
        !entries_.Map(ring_, params.sq_entries * sizeof(io_uring_sqe),
                      IORING_OFF_SQES)) {
      return false;
    }
    sq_tail_ = submissions_.At<uint32_t>(params.sq_off.tail);
    sq_mask_ = *submissions_.At<uint32_t>(params.sq_off.ring_mask);
    sq_array_ = submissions_.At<uint32_t>(params.sq_off.array);
    cq_head_ = completions_.At<uint32_t>(params.cq_off.head);
    cq_tail_ = completions_.At<uint32_t>(params.cq_off.tail);
    cq_mask_ = *completions_.At<uint32_t>(params.cq_off.ring_mask);
    cqes_ = completions_.At<io_uring_cqe>(params.cq_off.cqes);
    return true;
  }

  void Read(ReadRequest* requests, size_t n) {
    size_t next = 0;         // The first request that was not handed over.
    uint32_t in_flight = 0;  // Reads that the kernel has or is about to get.
    uint32_t to_submit = 0;
    while (next < n || in_flight > 0) {
      for (; next < n && in_flight < kReadDepth; ++next, ++in_flight) {
        Push(&requests[next]);
        ++to_submit;
      }
      // Half of the reads are waited for at once, which halves the system
      // calls and keeps the other half in flight.
      const uint32_t wanted =
          next < n ? std::min(in_flight, kReadDepth / 2) : in_flight;
      const auto submitted = syscall(kEnter, ring_, to_submit, wanted,
                                     IORING_ENTER_GETEVENTS, nullptr, 0);
      const int error = errno;
      if (submitted >= 0) {
        to_submit -= std::min(to_submit, static_cast<uint32_t>(submitted));
      } else if (error != EINTR && error != EAGAIN && error != EBUSY) {
        in_flight -= Withdraw(to_submit, -error);
        to_submit = 0;
        for (; next < n; ++next) requests[next].result = -error;
        sched_yield();  // The kernel may still write to the others.
      }
      in_flight -= Reap();
    }
  }

 private:
  void Push(ReadRequest* request) {
    const uint32_t tail = *sq_tail_;
    const uint32_t at = tail & sq_mask_;
    io_uring_sqe* entry = entries_.At<io_uring_sqe>(0) + at;
    *entry = {};
    entry->opcode = IORING_OP_READ;
    entry->fd = request->file;
    entry->off = request->offset;
    entry->addr = reinterpret_cast<uint64_t>(request->to);
    entry->len = request->bytes;
    entry->user_data = reinterpret_cast<uint64_t>(request);
    sq_array_[at] = at;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
  }

  // Takes back the last requests that the kernel has not accepted.
  uint32_t Withdraw(uint32_t n, int64_t result) {
    const uint32_t tail = *sq_tail_;
    for (uint32_t i = 1; i <= n; ++i) {
      const io_uring_sqe* entry =
          entries_.At<io_uring_sqe>(0) + ((tail - i) & sq_mask_);
      reinterpret_cast<ReadRequest*>(entry->user_data)->result = result;
    }
    __atomic_store_n(sq_tail_, tail - n, __ATOMIC_RELEASE);
    return n;
  }

  uint32_t Reap() {
    uint32_t head = *cq_head_;
    const uint32_t tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
    const uint32_t n = tail - head;
    for (; head != tail; ++head) {
      const io_uring_cqe& done = cqes_[head & cq_mask_];
      reinterpret_cast<ReadRequest*>(done.user_data)->result = done.res;
    }
    __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
    return n;
  }

  int ring_ = -1;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
  uint32_t* sq_tail_ = nullptr;
  uint32_t* sq_array_ = nullptr;
  uint32_t sq_mask_ = 0;
  uint32_t* cq_head_ = nullptr;
  uint32_t* cq_tail_ = nullptr;
  uint32_t cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
};

class UringReader : public BatchReader {
 public:
  explicit UringReader(std::unique_ptr<Ring> first) {
    free_.push_back(std::move(first));
  }

  void Read(ReadRequest* requests, size_t n) override {
    std::unique_ptr<Ring> ring = n > 1 ? Take() : nullptr;
    if (ring == nullptr) {
      std::for_each(requests, requests + n,
                    [](ReadRequest& request) { ReadOne(&request); });
      return;
    }
    ring->Read(requests, n);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(ring));
  }

  const char* name() const override { return "io_uring"; }

 private:
  // nullptr: no ring to be had. A process that was forked must not use the
  // rings of its parent.
  std::unique_ptr<Ring> Take() {
    if (getpid() != owner_) return nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Ring> ring = std::move(free_.back());
        free_.pop_back();
        return ring;
      }
    }
    auto ring = std::make_unique<Ring>();
    return ring->Open() ? std::move(ring) : nullptr;
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> free_;  // As many as threads read at once.
};

}  // namespace

std::unique_ptr<BatchReader> MakeUringReader() {
  auto ring = std::make_unique<Ring>();
  if (!ring->Open()) return nullptr;
  return std::make_unique<UringReader>(std::move(ring));
}

}  // namespace rec_estimator

#else

namespace rec_estimator {

std::unique_ptr<BatchReader> MakeUringReader() { return nullptr; }

}  // namespace rec_estimator

#endif
