// SPDX-License-Identifier: Apache-2.0
// A reader-writer lock in which a waiting writer never blocks readers for long.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_SHARED_MUTEX_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_SHARED_MUTEX_H_

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace rec_estimator {

// Has the interface of std::shared_mutex, so std::unique_lock and
// std::shared_lock take it. Unlike std::shared_mutex it guarantees which side
// goes first: a reader never waits for a writer that is itself waiting. A save
// relies on this. It holds shared locks while it waits for threads of a pool,
// and those threads may be about to take a shared lock. Readers only give way
// for a moment, so that a stream of overlapping lookups cannot starve an apply.
class SharedMutex {
 public:
  SharedMutex() {
    // The default kind of glibc: readers pass waiting writers.
    pthread_rwlock_init(&lock_, nullptr);
  }
  ~SharedMutex() { pthread_rwlock_destroy(&lock_); }
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  bool try_lock() {
    if (pthread_rwlock_trywrlock(&lock_) != 0) return false;
    ++writes_;
    return true;
  }
  void lock() {
    if (try_lock()) return;
    waiting_writers_.fetch_add(1, std::memory_order_relaxed);
    pthread_rwlock_wrlock(&lock_);
    waiting_writers_.fetch_sub(1, std::memory_order_relaxed);
    ++writes_;
  }
  void unlock() { pthread_rwlock_unlock(&lock_); }

  bool try_lock_shared() { return pthread_rwlock_tryrdlock(&lock_) == 0; }
  void lock_shared() {
    if (waiting_writers_.load(std::memory_order_relaxed) > 0) GiveWay();
    pthread_rwlock_rdlock(&lock_);
  }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

  // How often the lock was taken exclusively. Its holder learns from it whether
  // what the lock guards may have changed since. Needs the lock, shared at
  // least. Wraps around.
  uint32_t writes() const { return writes_; }

 private:
  // Long enough for a running lookup to finish its block of keys.
  static constexpr std::chrono::microseconds kGiveWay{100};

  void GiveWay() const {
    const auto until = std::chrono::steady_clock::now() + kGiveWay;
    while (waiting_writers_.load(std::memory_order_relaxed) > 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }

  // All of it fits into a cache line.
  pthread_rwlock_t lock_;
  std::atomic<int> waiting_writers_{0};  // Threads that block in lock().
  uint32_t writes_ = 0;                  // Guarded by lock_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_SHARED_MUTEX_H_
