// SPDX-License-Identifier: Apache-2.0
// IntraOpThreads of table_resource.h: TensorFlow's intra-op pool as the core's
// ParallelFor.
//
//   pieces   | caller's queue                  | 1st helper's queue  | ...
//            | takes from here ->   <- robbed |
//
// The units are cut into pieces, the pieces into queues, one a thread. A thread
// takes pieces from the front of its own queue and, once that is empty, from
// the back of the others'. So threads end together, although pieces cost
// differently; and of two loops over the same units the same thread does mostly
// the same ones: what an apply deduplicated is still in that core's cache when
// it updates.
//
// ThreadPool::ParallelFor will not do: its caller waits for pieces still in the
// queue. If it holds a shard's lock meanwhile and another op's pieces fill the
// pool waiting for that lock, neither goes on. Here the caller waits only for
// pieces that have begun.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/parallel.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace rec_estimator {
namespace {

// A piece must be worth waking a thread for: some 10 µs.
constexpr int64_t kMinPieceCycles = 30000;
constexpr int64_t kPiecesPerThread = 16;

// Pieces [begin, end) that nobody has taken yet, in one word.
class alignas(kCacheLine) PieceQueue {
 public:
  void Fill(uint32_t begin, uint32_t end) { range_.store(Pack(begin, end)); }
  bool TakeFirst(uint32_t* piece) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    while (Begin(range) < End(range)) {
      *piece = Begin(range);
      if (Exchange(&range, Pack(Begin(range) + 1, End(range)))) return true;
    }
    return false;
  }
  bool TakeLast(uint32_t* piece) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    while (Begin(range) < End(range)) {
      *piece = End(range) - 1;
      if (Exchange(&range, Pack(Begin(range), *piece))) return true;
    }
    return false;
  }

 private:
  static uint64_t Pack(uint32_t begin, uint32_t end) {
    return static_cast<uint64_t>(end) << 32 | begin;
  }
  static uint32_t Begin(uint64_t range) { return static_cast<uint32_t>(range); }
  static uint32_t End(uint64_t range) {
    return static_cast<uint32_t>(range >> 32);
  }
  bool Exchange(uint64_t* range, uint64_t wanted) {
    return range_.compare_exchange_weak(*range, wanted,
                                        std::memory_order_relaxed);
  }

  std::atomic<uint64_t> range_{0};
};

// One call of IntraOpThreads' function. Kept alive by the threads that were
// asked to help, some of which may begin only when all is done.
class Loop {
 public:
  Loop(int64_t total, int64_t pieces, int64_t queues,
       const std::function<void(int64_t, int64_t)>& work)
      : total_(total), pieces_(pieces), work_(work), queues_(queues) {
    for (int64_t l = 0; l < queues; ++l) {
      queues_[l].Fill(static_cast<uint32_t>(pieces * l / queues),
                      static_cast<uint32_t>(pieces * (l + 1) / queues));
    }
  }

  // Does pieces until none is left to take. `work_` is alive while there is
  // one: the caller of Finish() waits for every piece taken.
  void Help() {
    const size_t queues = queues_.size();
    const size_t mine = arrived_.fetch_add(1, std::memory_order_relaxed);
    int64_t done = 0;
    uint32_t piece;
    while (queues_[mine].TakeFirst(&piece)) done += Do(piece);
    for (size_t other = mine + 1; other < mine + queues; ++other) {
      while (queues_[other % queues].TakeLast(&piece)) done += Do(piece);
    }
    if (done == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    done_ += done;
    if (done_ == pieces_) all_done_.notify_one();
  }

  // Helps, then waits until the pieces that others took are done as well.
  void Finish() {
    Help();
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == pieces_; });
  }

 private:
  int64_t Do(int64_t piece) {
    work_(Begin(piece), Begin(piece + 1));
    return 1;
  }

  // First unit of a piece; sizes differ by at most one. No overflow.
  int64_t Begin(int64_t piece) const {
    return total_ / pieces_ * piece + std::min(piece, total_ % pieces_);
  }

  const int64_t total_;
  const int64_t pieces_;
  const std::function<void(int64_t, int64_t)>& work_;  // The caller's.
  std::vector<PieceQueue> queues_;
  std::atomic<size_t> arrived_{0};  // Threads that have begun to help.
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;  // Pieces done; guarded by mutex_.
};

}  // namespace

ParallelFor IntraOpThreads(tensorflow::OpKernelContext* context) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  tensorflow::thread::ThreadPool* pool = workers->workers;
  const int64_t threads = workers->num_threads;
  return [pool, threads](int64_t total, int64_t cycles_per_unit,
                         const std::function<void(int64_t, int64_t)>& work) {
    if (total <= 0) return;
    const int64_t units_per_piece = std::max<int64_t>(
        1, kMinPieceCycles / std::max<int64_t>(1, cycles_per_unit));
    const int64_t pieces =
        std::min(total / units_per_piece, threads * kPiecesPerThread);
    if (pieces <= 1 || threads <= 1) {
      work(0, total);
      return;
    }
    const int64_t queues = std::min(threads, pieces);
    auto loop = std::make_shared<Loop>(total, pieces, queues, work);
    for (int64_t i = queues - 1; i > 0; --i) {
      pool->Schedule([loop] { loop->Help(); });
    }
    loop->Finish();
  };
}

}  // namespace rec_estimator
