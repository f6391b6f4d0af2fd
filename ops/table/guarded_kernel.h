// SPDX-License-Identifier: Apache-2.0
// Makes a failed allocation inside a kernel an error instead of the end of the
// process.
#ifndef REC_ESTIMATOR_OPS_TABLE_GUARDED_KERNEL_H_
#define REC_ESTIMATOR_OPS_TABLE_GUARDED_KERNEL_H_

#include <new>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace rec_estimator {

// A kernel whose Compute fails with ResourceExhausted where Kernel's throws
// std::bad_alloc, which TensorFlow does not catch. To be registered in place of
// Kernel.
template <typename Kernel>
class Guarded : public Kernel {
 public:
  using Kernel::Kernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    try {
      Kernel::Compute(context);
    } catch (const std::bad_alloc&) {
      context->CtxFailure(
          __FILE__, __LINE__,
          tensorflow::errors::ResourceExhausted(
              "node ", this->name(),
              " must fit into memory, got a failed allocation; give the "
              "process more memory or make the batch smaller"));
    }
  }
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_GUARDED_KERNEL_H_
