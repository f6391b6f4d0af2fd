// SPDX-License-Identifier: Apache-2.0
// Threads for tests and benchmarks of the core, instead of TensorFlow's.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_THREADS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_THREADS_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/base/parallel.h"

namespace rec_estimator {

// A fixed set of threads behind a ParallelFor. It serves one caller at a time;
// others wait. Splits a loop into about four parts per thread, as TensorFlow's
// pool does.
class Threads {
 public:
  // The calling thread works too, so `threads` - 1 are started.
  explicit Threads(int threads) : threads_(threads) {
    for (int t = 1; t < threads; ++t) {
      workers_.emplace_back([this] { Work(); });
    }
  }
  ~Threads() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  ParallelFor parallel() {
    return [this](int64_t total, int64_t /*cycles_per_unit*/,
                  const std::function<void(int64_t, int64_t)>& work) {
      Run(total, work);
    };
  }

 private:
  using Function = std::function<void(int64_t, int64_t)>;

  void Run(int64_t total, const Function& work) {
    if (total <= 0) return;
    std::lock_guard<std::mutex> one_caller(caller_);
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = &work;
    total_ = total;
    next_ = 0;
    part_size_ = std::max<int64_t>(1, total / (4 * threads_));
    wake_.notify_all();
    RunParts(&lock);
    done_.wait(lock, [this] { return running_ == 0; });
    work_ = nullptr;
    if (thrown_ != nullptr) {
      std::rethrow_exception(std::exchange(thrown_, nullptr));
    }
  }

  // Runs parts until none is left. The lock is held except while a part runs.
  void RunParts(std::unique_lock<std::mutex>* lock) {
    while (work_ != nullptr && next_ < total_) {
      const int64_t begin = next_;
      const int64_t end = std::min(total_, begin + part_size_);
      const Function& work = *work_;
      next_ = end;
      ++running_;
      lock->unlock();
      std::exception_ptr thrown;
      try {
        work(begin, end);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock->lock();
      if (thrown != nullptr) thrown_ = std::move(thrown);
      --running_;
    }
    if (running_ == 0) done_.notify_all();
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      RunParts(&lock);
      wake_.wait(lock, [this] {
        return stopping_ || (work_ != nullptr && next_ < total_);
      });
    }
  }

  const int threads_;
  std::mutex caller_;  // Held by the one thread whose work is being done.
  std::mutex mutex_;   // Guards what follows.
  std::condition_variable wake_;
  std::condition_variable done_;
  const Function* work_ = nullptr;
  int64_t total_ = 0;
  int64_t next_ = 0;
  int64_t part_size_ = 1;
  int running_ = 0;            // Parts that are running.
  std::exception_ptr thrown_;  // By a part that has run.
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_THREADS_H_
