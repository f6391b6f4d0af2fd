// SPDX-License-Identifier: Apache-2.0
// Makes an exception of the core inside a kernel an error instead of the end of
// the process.
#ifndef REC_ESTIMATOR_OPS_KERNEL_GUARDED_KERNEL_H_
#define REC_ESTIMATOR_OPS_KERNEL_GUARDED_KERNEL_H_

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "ops/kernel/errors.h"
#include "ops/kernel/storage_status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rec_estimator {

// The error of a node whose kernel got std::bad_alloc.
inline absl::Status NoMemoryFor(const std::string& node) {
  return ResourceExhausted(
      "node ", node,
      " must fit into memory, got a failed allocation; give the process more "
      "memory or make the batch smaller");
}

// Constructs a kernel. Where that throws std::bad_alloc, which TensorFlow does
// not catch, the construction fails with ResourceExhausted.
template <typename Kernel>
std::unique_ptr<Kernel> ConstructGuarded(
    tensorflow::OpKernelConstruction* context) {
  try {
    return std::make_unique<Kernel>(context);
  } catch (const std::bad_alloc&) {
    context->CtxFailure(__FILE__, __LINE__, NoMemoryFor(context->def().name()));
    return nullptr;
  }
}

// A kernel that fails with ResourceExhausted where the constructor or Compute
// of `Kernel` throws std::bad_alloc, and with StorageStatus where Compute
// throws StorageError. To be registered in place of Kernel.
//
// It owns the kernel and is not derived from it, because a constructor cannot
// catch what the constructor of its base class throws.
template <typename Kernel>
class Guarded : public tensorflow::OpKernel {
 public:
  explicit Guarded(tensorflow::OpKernelConstruction* context)
      : OpKernel(context), kernel_(ConstructGuarded<Kernel>(context)) {}

  void Compute(tensorflow::OpKernelContext* context) override {
    try {
      kernel_->Compute(context);
    } catch (const std::bad_alloc&) {
      context->CtxFailure(__FILE__, __LINE__, NoMemoryFor(name()));
    } catch (...) {
      context->CtxFailure(__FILE__, __LINE__, CaughtStorageStatus());
    }
  }

 private:
  const std::unique_ptr<Kernel> kernel_;  // TensorFlow runs no kernel without.
};

// The same for an asynchronous kernel, whose ComputeAsync must not throw: only
// the kernel knows whether `done` has been called.
template <typename Kernel>
class GuardedAsync : public tensorflow::AsyncOpKernel {
 public:
  explicit GuardedAsync(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context), kernel_(ConstructGuarded<Kernel>(context)) {}

  void ComputeAsync(tensorflow::OpKernelContext* context,
                    DoneCallback done) override {
    kernel_->ComputeAsync(context, std::move(done));
  }

 private:
  const std::unique_ptr<Kernel> kernel_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_GUARDED_KERNEL_H_
