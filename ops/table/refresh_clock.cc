// SPDX-License-Identifier: Apache-2.0
// Implements refresh_clock.h.
#include "ops/table/refresh_clock.h"

#include "ops/kernel/step_resource.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace rec_estimator {

using ::absl::Status;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

Status RefreshClock::Find(OpKernelConstruction* context, Ptr* clock) {
  tensorflow::ResourceMgr* const resources = context->resource_manager();
  RefreshClock* found = nullptr;
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<RefreshClock>(
      resources->default_container(), "rec_estimator_refresh_clock", &found,
      [](RefreshClock** created) {
        *created = new RefreshClock;
        return Status();
      }));
  clock->reset(found);
  return Status();
}

int64_t RefreshClock::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++steps_[now_];
  return now_;
}

void RefreshClock::Leave(int64_t time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = steps_.find(time);
  if (--at->second == 0) steps_.erase(at);
}

StepTime::Ptr StepTime::Find(OpKernelContext* context, RefreshClock* clock) {
  // In eager mode, a container may have the number 0 and outlive its function,
  // which would read the same state for ever.
  const tensorflow::ScopedStepContainer* const container =
      context->step_container();
  if (container == nullptr || container->StepId() == 0 ||
      container->StepId() != context->step_id()) {
    return nullptr;
  }
  Ptr time = ResourceOfStep<StepTime>(context, "step_time");
  if (time != nullptr) time->Enter(clock);
  return time;
}

StepTime::~StepTime() {
  if (clock_ != nullptr) clock_->Leave(time_);
}

void StepTime::Enter(RefreshClock* clock) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (clock_ != nullptr) return;
  time_ = clock->Enter();
  clock->Ref();
  clock_.reset(clock);
}

}  // namespace rec_estimator
