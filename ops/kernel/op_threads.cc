// SPDX-License-Identifier: Apache-2.0
// Implements op_threads.h by work stealing.
//
//   blocks   | caller's queue                  | 1st helper's queue  | ...
//            | owner takes here ->  <- stolen |
//
// The units are cut into blocks, and the blocks are divided into one queue per
// thread. A thread takes blocks from the front of its own queue. When that is
// empty, it steals from the back of the other queues. So all threads finish at
// about the same time, even if blocks differ in cost. Two loops over the same
// units run mostly on the same threads: keys that an apply has deduplicated are
// still in that core's cache when it updates them.
//
// ThreadPool::ParallelFor cannot be used: its caller waits for blocks that are
// still in the pool's queue. If the caller holds a shard's lock and blocks of
// another op occupy the whole pool waiting for that lock, both ops deadlock.
// Here the caller waits only for blocks that have started.
#include "ops/kernel/op_threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/cpu_info.h"

namespace rec_estimator {
namespace {

using ::tensorflow::OpKernelContext;
using Runner = std::function<void(std::function<void()>)>;

// Least cost of a block, about 10 µs: less is not worth waking a thread for.
constexpr int64_t kMinBlockCycles = 30000;
constexpr int64_t kBlocksPerThread = 16;

// The blocks [begin, end) that no thread has taken yet, packed into one word.
class alignas(kCacheLine) BlockQueue {
 public:
  void Fill(uint32_t begin, uint32_t end) { range_.store(Pack(begin, end)); }
  bool TakeFirst(uint32_t* block) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    while (Begin(range) < End(range)) {
      *block = Begin(range);
      if (Exchange(&range, Pack(Begin(range) + 1, End(range)))) return true;
    }
    return false;
  }
  bool TakeLast(uint32_t* block) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    while (Begin(range) < End(range)) {
      *block = End(range) - 1;
      if (Exchange(&range, Pack(Begin(range), *block))) return true;
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

// One parallel loop. The threads that were asked to help share its ownership,
// because some of them may start only after all blocks are done.
class Loop {
 public:
  Loop(int64_t total, int64_t blocks, int64_t queues,
       const std::function<void(int64_t, int64_t)>& work)
      : total_(total), blocks_(blocks), work_(work), queues_(queues) {
    for (int64_t q = 0; q < queues; ++q) {
      queues_[q].Fill(static_cast<uint32_t>(blocks * q / queues),
                      static_cast<uint32_t>(blocks * (q + 1) / queues));
    }
  }

  // Runs blocks until all are taken. `work_` is valid as long as a block can be
  // taken, because the caller waits in Finish() for every block.
  void Help() {
    const size_t queues = queues_.size();
    const size_t mine = helpers_.fetch_add(1, std::memory_order_relaxed);
    int64_t done = 0;
    uint32_t block;
    while (queues_[mine].TakeFirst(&block)) done += Run(block);
    for (size_t other = mine + 1; other < mine + queues; ++other) {
      while (queues_[other % queues].TakeLast(&block)) done += Run(block);
    }
    if (done == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    done_ += done;
    if (done_ == blocks_) all_done_.notify_one();
  }

  // Helps, then waits for the blocks that other threads have taken. Throws what
  // a block did: in a thread of the pool it would end the process.
  void Finish() {
    Help();
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == blocks_; });
    if (failed_ != nullptr) std::rethrow_exception(failed_);
  }

 private:
  int64_t Run(int64_t block) {
    try {
      work_(Begin(block), Begin(block + 1));
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failed_ == nullptr) failed_ = std::current_exception();
    }
    return 1;
  }

  // First unit of a block. Block sizes differ by at most one. The products
  // cannot overflow.
  int64_t Begin(int64_t block) const {
    return total_ / blocks_ * block + std::min(block, total_ % blocks_);
  }

  const int64_t total_;
  const int64_t blocks_;
  const std::function<void(int64_t, int64_t)>& work_;  // Owned by the caller.
  std::vector<BlockQueue> queues_;
  std::atomic<size_t> helpers_{0};  // Threads that have started to help.
  std::mutex mutex_;                // Guards the members below.
  std::condition_variable all_done_;
  int64_t done_ = 0;           // Finished blocks.
  std::exception_ptr failed_;  // What the first failed block threw.
};

// How many inter-op threads the session of a kernel has.
int64_t InterOpThreadsOf(OpKernelContext* context) {
  auto* const library = context->function_library();
  const auto* config = library == nullptr ? nullptr : library->config_proto();
  return config == nullptr ? 0 : InterOpThreads(*config);
}

}  // namespace

int64_t InterOpThreads(const tensorflow::ConfigProto& config) {
  if (config.session_inter_op_thread_pool_size() > 0) return 0;
  if (config.inter_op_parallelism_threads() != 0) {
    return config.inter_op_parallelism_threads();
  }
  const char* from_environment = std::getenv("TF_NUM_INTEROP_THREADS");
  return from_environment == nullptr ? tensorflow::port::MaxParallelism()
                                     : std::atoll(from_environment);
}

ParallelFor OpThreads(OpKernelContext* context) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  const int64_t threads = workers->num_threads;
  tensorflow::thread::ThreadPool* pool = workers->workers;
  const Runner* const runner =
      InterOpThreadsOf(context) < threads ? nullptr : context->runner();
  return [pool, runner, threads](
             int64_t total, int64_t cycles_per_unit,
             const std::function<void(int64_t, int64_t)>& work) {
    if (total <= 0) return;
    const int64_t units_per_block = std::max<int64_t>(
        1, kMinBlockCycles / std::max<int64_t>(1, cycles_per_unit));
    const int64_t blocks =
        std::min(total / units_per_block, threads * kBlocksPerThread);
    if (blocks <= 1 || threads <= 1) {
      work(0, total);
      return;
    }
    const int64_t queues = std::min(threads, blocks);
    std::shared_ptr<Loop> loop;
    try {
      loop = std::make_shared<Loop>(total, blocks, queues, work);
      for (int64_t i = queues - 1; i > 0; --i) {
        const auto help = [loop] { loop->Help(); };
        if (runner != nullptr) {
          (*runner)(help);
        } else {
          pool->Schedule(help);
        }
      }
    } catch (const std::bad_alloc&) {  // Then there are fewer helpers or none.
    }
    if (loop == nullptr) {
      work(0, total);
    } else {
      loop->Finish();
    }
  };
}

}  // namespace rec_estimator
