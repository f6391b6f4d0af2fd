// SPDX-License-Identifier: Apache-2.0
// Work that a thread of its own does piece by piece.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_BACKGROUND_WORK_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_BACKGROUND_WORK_H_

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace rec_estimator {

// Any thread may call any method. In a process that was forked, where there is
// no such thread, nothing is done and nothing is waited for.
class BackgroundWork {
 public:
  // do_piece: does not throw. One thread calls it, for one piece at a time; if
  // no thread can start, callers of Add do, several at once.
  explicit BackgroundWork(std::function<void()> do_piece)
      : do_piece_(std::move(do_piece)) {}
  // Waits for the piece that is being done. The others are dropped.
  ~BackgroundWork() {
    if (IsForked()) {
      // The end of a condition variable waits for those who wait for it.
      (void)state_.release();
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      state_->is_stopped = true;
    }
    state_->changed.notify_all();
    if (state_->thread.joinable()) state_->thread.join();
  }
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // Asks for more pieces. Does them itself if no thread can start.
  void Add(uint64_t pieces) {
    if (pieces == 0 || IsForked()) return;
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (StartThread()) {
        state_->left += pieces;
        state_->changed.notify_all();
        return;
      }
    }
    for (; pieces > 0; --pieces) do_piece_();
  }

  // Waits until no more than `pieces` are left. A piece counts until it is
  // done.
  void WaitUntilLeft(uint64_t pieces) {
    if (IsForked()) return;
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->left <= pieces; });
  }

 private:
  struct State {
    std::mutex mutex;  // Guards what follows.
    std::condition_variable changed;
    uint64_t left = 0;
    bool is_stopped = false;
    std::thread thread;  // Starts with the first piece.
  };

  bool IsForked() const { return getpid() != owner_; }

  // Whether there is a thread. The mutex is held.
  bool StartThread() {
    if (state_->thread.joinable()) return true;
    try {
      state_->thread = std::thread([this] { Work(); });
    } catch (const std::exception&) {  // No memory or no threads.
      return false;
    }
    return true;
  }

  void Work() {
    State& state = *state_;
    std::unique_lock<std::mutex> lock(state.mutex);
    for (;;) {
      state.changed.wait(lock,
                         [&] { return state.left > 0 || state.is_stopped; });
      if (state.is_stopped) return;
      lock.unlock();
      do_piece_();
      lock.lock();
      --state.left;
      state.changed.notify_all();
    }
  }

  const std::function<void()> do_piece_;
  const pid_t owner_ = getpid();
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_BACKGROUND_WORK_H_
