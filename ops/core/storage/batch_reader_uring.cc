// SPDX-License-Identifier: Apache-2.0
// BatchReader by io_uring, through system calls: liburing is not everywhere.
//
// Kernel and process share two rings: submissions, whose tail this process
// moves, and completions, whose tail the kernel moves. One system call submits
// several reads and waits for several completions. io_uring(7) has the
// protocol.
//
// Each thread has a ring of its own, which lets the kernel leave completions
// alone until the thread asks for them: it is then woken once for many.
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
#include <cstddef>
#include <deque>
#include <limits>
#include <thread>
#include <utility>

namespace rec_estimator {
namespace {

// These numbers are the same on all architectures.
constexpr long kSetup = 425;
constexpr long kEnter = 426;
// IORING_SETUP_SINGLE_ISSUER and IORING_SETUP_DEFER_TASKRUN: of kernels from
// 6.1 on, and not in the headers of older ones.
constexpr uint32_t kOneThread = (1u << 12) | (1u << 13);

// Requests that Linux queues for a block device by default. Once the queue is
// full, each read waits for a place: a seventh of a step's CPU time.
constexpr uint32_t kQueue = 256;
// Reads that keep an SSD busy.
constexpr uint32_t kBusy = 32;

// Reads that a thread has in flight, so that the threads of all cores fill the
// queue. Those beyond kBusy keep the device busy while the thread copies rows
// or waits for a core.
uint32_t Depth() {
  static const uint32_t depth = std::max(
      kQueue / std::max(std::thread::hardware_concurrency(), 1u), kBusy);
  return depth;
}

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

class Ring;

class UringReading : public Reading {
 public:
  UringReading(Ring* ring, ReadRequest* requests, size_t n);
  ~UringReading() override { Wait(); }
  void Wait() override;

 private:
  friend class Ring;

  static constexpr int64_t kUnread = std::numeric_limits<int64_t>::min();

  Ring& ring_;
  ReadRequest* unread_;  // All requests before it are done.
  ReadRequest* next_;    // The first one that the kernel has not got.
  ReadRequest* const end_;
};

// Only the thread that opened it may use it.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (ring_ >= 0) close(ring_);
  }

  // nullptr: the kernel refuses, or the thread had a ring when its process was
  // forked. All readers share it, because it is not bound to a file.
  static Ring* OfThisThread() {
    thread_local std::unique_ptr<Ring> ring;
    if (ring == nullptr) {
      auto opened = std::make_unique<Ring>();
      if (!opened->Open(kOneThread) && !opened->Open(0)) return nullptr;
      ring = std::move(opened);
    }
    return ring->owner_ == getpid() ? ring.get() : nullptr;
  }

  void Start(UringReading* reading) {
    unsubmitted_.push_back(reading);
    Enter(0);
  }

  // Hands reads over and waits until `wanted` more are done. wanted: at most
  // those that are not done, and Depth().
  void Enter(uint32_t wanted) {
    while (in_flight_ < Depth() && !unsubmitted_.empty()) {
      UringReading* const first = unsubmitted_.front();
      Push(first->next_++);
      if (first->next_ == first->end_) unsubmitted_.pop_front();
    }
    const auto submitted = syscall(kEnter, ring_, to_submit_, wanted,
                                   IORING_ENTER_GETEVENTS, nullptr, 0);
    const int error = errno;
    if (submitted >= 0) {
      to_submit_ -= std::min(to_submit_, static_cast<uint32_t>(submitted));
    } else if (error != EINTR && error != EAGAIN && error != EBUSY) {
      Withdraw(-error);
      sched_yield();  // The kernel may still write to the others.
    }
    Reap();
  }

 private:
  // False: the kernel refuses.
  bool Open(uint32_t flags) {
    io_uring_params params = {};
    params.flags = flags;
    ring_ = static_cast<int>(syscall(kSetup, Depth(), &params));
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
    ++to_submit_;
    ++in_flight_;
  }

  // Takes back the reads that the kernel has not accepted.
  void Withdraw(int64_t result) {
    const uint32_t tail = *sq_tail_;
    for (uint32_t i = 1; i <= to_submit_; ++i) {
      const io_uring_sqe* entry =
          entries_.At<io_uring_sqe>(0) + ((tail - i) & sq_mask_);
      reinterpret_cast<ReadRequest*>(entry->user_data)->result = result;
    }
    __atomic_store_n(sq_tail_, tail - to_submit_, __ATOMIC_RELEASE);
    in_flight_ -= to_submit_;
    to_submit_ = 0;
    for (UringReading* reading : unsubmitted_) {
      while (reading->next_ != reading->end_) reading->next_++->result = result;
    }
    unsubmitted_.clear();
  }

  void Reap() {
    uint32_t head = *cq_head_;
    const uint32_t tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
    in_flight_ -= tail - head;
    for (; head != tail; ++head) {
      const io_uring_cqe& done = cqes_[head & cq_mask_];
      reinterpret_cast<ReadRequest*>(done.user_data)->result = done.res;
    }
    __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
  }

  const pid_t owner_ = getpid();
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
  uint32_t in_flight_ = 0;  // Reads that the kernel has or is about to get.
  uint32_t to_submit_ = 0;  // Requests that the ring is about to get.
  std::deque<UringReading*> unsubmitted_;  // With reads that it will get later.
};

UringReading::UringReading(Ring* ring, ReadRequest* requests, size_t n)
    : ring_(*ring), unread_(requests), next_(requests), end_(requests + n) {
  for (ReadRequest* r = requests; r != end_; ++r) r->result = kUnread;
  ring_.Start(this);
}

void UringReading::Wait() {
  const auto is_unread = [](const ReadRequest& request) {
    return request.result == kUnread;
  };
  for (;;) {
    unread_ = std::find_if(unread_, end_, is_unread);
    if (unread_ == end_) return;
    // Half of the reads are waited for at once, which halves the system calls
    // and keeps the other half in flight.
    const auto n = std::count_if(unread_, end_, is_unread);
    ring_.Enter(
        static_cast<uint32_t>(std::min<std::ptrdiff_t>(n, Depth() / 2)));
  }
}

class UringReader : public BatchReader {
 public:
  std::unique_ptr<Reading> Start(ReadRequest* requests, size_t n) override {
    Ring* const ring = n > 1 ? Ring::OfThisThread() : nullptr;
    if (ring == nullptr) return ReadInTurn(requests, n);
    return std::make_unique<UringReading>(ring, requests, n);
  }

  const char* name() const override { return "io_uring"; }
};

}  // namespace

std::unique_ptr<BatchReader> MakeUringReader() {
  if (Ring::OfThisThread() == nullptr) return nullptr;
  return std::make_unique<UringReader>();
}

}  // namespace rec_estimator

#else

namespace rec_estimator {

std::unique_ptr<BatchReader> MakeUringReader() { return nullptr; }

}  // namespace rec_estimator

#endif
