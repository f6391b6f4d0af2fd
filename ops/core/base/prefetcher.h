// SPDX-License-Identifier: Apache-2.0
// Items that a thread makes one ahead of their user.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_PREFETCHER_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_PREFETCHER_H_

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace rec_estimator {

// One thread calls Start, then Next. T() needs no memory and moves do not
// throw.
template <typename T>
class Prefetcher {
 public:
  // Replaces *item, which is T() or one that the user has given back, by the
  // next item. False: there are no more.
  using Make = std::function<bool(T* item)>;

  Prefetcher() = default;
  ~Prefetcher() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // What `make` refers to outlives the object. What it holds is destroyed on
  // the thread that called it. If !on_thread, or if no thread can start, that
  // is the one that calls Next. Throws std::bad_alloc.
  void Start(Make make, bool on_thread) {
    make_ = std::move(make);
    if (!on_thread) return;
    try {
      thread_ = std::thread([this] { MakeAll(); });
    } catch (const std::system_error&) {
    }
  }

  // Gives *item back and replaces it by the next one. False: there are no more,
  // and *item is T(). Throws what `make` threw, and is not called again then.
  bool Next(T* item) {
    if (!thread_.joinable()) {
      if (make_(item)) return true;
      *item = T();
      return false;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    used_ = std::exchange(*item, T());
    changed_.wait(lock, [this] { return is_ready_ || is_over_; });
    if (!is_ready_ && error_ != nullptr) std::rethrow_exception(error_);
    if (!is_ready_) return false;
    *item = std::move(ready_);
    is_ready_ = false;
    changed_.notify_all();
    return true;
  }

 private:
  void MakeAll() {
    std::exception_ptr error;
    try {
      T item = TakeUsed();
      while (make_(&item) && HandOver(std::move(item))) item = TakeUsed();
    } catch (...) {
      error = std::current_exception();
    }
    make_ = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    is_over_ = true;
    changed_.notify_all();
  }

  T TakeUsed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(used_, T());
  }

  // False: the user wants no more.
  bool HandOver(T item) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !is_ready_ || stopped_; });
    if (stopped_) return false;
    ready_ = std::move(item);
    is_ready_ = true;
    changed_.notify_all();
    return true;
  }

  Make make_;
  std::thread thread_;  // Not joinable: Next makes.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  T ready_{};  // If is_ready_: the value after the user's.
  T used_{};   // The value that the user has given back.
  bool is_ready_ = false;
  bool is_over_ = false;      // Nothing will be after ready_,
  std::exception_ptr error_;  // because of this, unless it was the last one.
  bool stopped_ = false;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_PREFETCHER_H_
