// SPDX-License-Identifier: Apache-2.0
// Decides which state of a refreshed model a step reads.
//
//   refreshes   ──1────────2──────────3──▶ time of the clock
//   a step         [reads at 1      ]
//   another one               [reads at 2    ]
//
// A step reads all refreshable tables as they were when it read its first one,
// although refreshes go on. A refresh keeps the rows that it replaces
// (PastRows) for the steps that may read them.
#ifndef REC_ESTIMATOR_OPS_TABLE_REFRESH_CLOCK_H_
#define REC_ESTIMATOR_OPS_TABLE_REFRESH_CLOCK_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/platform/refcount.h"

namespace rec_estimator {

// Counts the refreshes of a session. Thread-safe.
class RefreshClock : public tensorflow::ResourceBase {
 public:
  using Ptr = tensorflow::core::RefCountPtr<RefreshClock>;

  // Finds the clock of the session.
  static absl::Status Find(tensorflow::OpKernelConstruction* context,
                           Ptr* clock);

  // TSan does not see TensorFlow's lock (step_resource.h).
  RefreshClock() { const std::lock_guard<std::mutex> lock(mutex_); }
  std::string DebugString() const override { return "clock of refreshes"; }

  // A step begins to read, and ends. Enter returns the time at which it reads.
  int64_t Enter();
  void Leave(int64_t time);

  // Calls commit(time of the new state, time of the oldest step that still
  // reads), while no step begins to read. It must be short. The oldest is the
  // new time if there is no such step.
  template <typename Commit>
  void Advance(const Commit& commit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++now_;
    commit(now_, steps_.empty() ? now_ : steps_.begin()->first);
  }

 private:
  std::mutex mutex_;  // Guards what follows.
  int64_t now_ = 0;
  std::map<int64_t, int64_t> steps_;  // How many read at each time.
};

// The time at which a running step reads. A resource in TensorFlow's container
// of the step, so it ends with it.
class StepTime : public tensorflow::ResourceBase {
 public:
  using Ptr = tensorflow::core::RefCountPtr<StepTime>;

  // The running step's. Call it before the step opens a table of this clock.
  // Null without a clock, and in a step without a container, such as a function
  // that is called in eager mode.
  static Ptr Of(tensorflow::OpKernelContext* context, RefreshClock* clock) {
    return clock == nullptr ? nullptr : Find(context, clock);
  }

  // For TSan: see ResourceOfStep.
  StepTime() { const std::lock_guard<std::mutex> lock(mutex_); }
  ~StepTime() override;
  std::string DebugString() const override { return "time of a step"; }

  int64_t time() const { return time_; }

 private:
  static Ptr Find(tensorflow::OpKernelContext* context, RefreshClock* clock);
  // The first call enters the clock. Not in the constructor: TensorFlow holds a
  // lock then, for which readers would wait, for which a refresh waits.
  void Enter(RefreshClock* clock);

  std::mutex mutex_;
  RefreshClock::Ptr clock_;  // Null before Enter.
  int64_t time_ = 0;         // Does not change after Enter.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_REFRESH_CLOCK_H_
