// SPDX-License-Identifier: Apache-2.0
// Objects that belong to a running step.
#ifndef REC_ESTIMATOR_OPS_KERNEL_STEP_RESOURCE_H_
#define REC_ESTIMATOR_OPS_KERNEL_STEP_RESOURCE_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/refcount.h"

namespace rec_estimator {

// The object of this name in TensorFlow's container of the running step, with
// which it ends; the first call makes it, while it holds a lock of TensorFlow.
// Null if the step has no container, such as a function in eager mode.
//
// TSan does not see that lock. So the constructor of T takes the mutex under
// which T is used.
template <typename T>
tensorflow::core::RefCountPtr<T> ResourceOfStep(
    tensorflow::OpKernelContext* context, const char* name) {
  tensorflow::ScopedStepContainer* const container = context->step_container();
  T* found = nullptr;
  const auto create = [](T** created) {
    *created = new T;
    return absl::Status();
  };
  if (container == nullptr ||
      !container
           ->LookupOrCreate<T>(context->resource_manager(), name, &found,
                               create)
           .ok()) {
    return nullptr;
  }
  return tensorflow::core::RefCountPtr<T>(found);
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_STEP_RESOURCE_H_
