// SPDX-License-Identifier: Apache-2.0
// Kernel of kernel_split_ops.cc.
//
// A variable is sliced when a step first reads it, not in every request:
//
//   variable ──▶ [ K, H ] ◀── source_         same buffer: rows_ are still
//   right
//                    │
//                    └─ blocks copied ──▶ rows_ ──▶ this step and the next ones
//
// How can rows_ be known to be right? TensorFlow writes into the buffer of a
// resource variable only if nobody else holds it; otherwise the variable moves
// to a new one. source_ holds the buffer: if the kernel that comes has that
// buffer, nobody has written to it since. Checking it costs two pointers.
//
// Costs: a second copy of the rows, mostly most of the kernel. And one copy of
// the variable when it is trained, which then must move: so a kernel that is
// another one each time, as in training, is soon not kept any more.
//
// Tried and lost: slicing in every request, by TensorFlow's ops, took a node
// per block. Multiplying the whole kernel, with zeros between the users'
// features, saved the slices, but made 256 users of one candidate each slower
// than the model as written. Variables of slices, filled when a SavedModel is
// loaded, would be wrong after the next restore into the same session; only
// portable exports, which nothing writes to, have them.
#include <cstdint>
#include <mutex>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/errors.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::errors::InvalidArgument;

// Kernels that come one after the other, each another one, until none is kept.
constexpr int kMaxMisses = 4;

template <typename T>
class KernelRowsOp : public OpKernel {
 public:
  explicit KernelRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("counts", &counts_));
    OP_REQUIRES_OK(context, context->GetAttr("terms", &terms_));
    OP_REQUIRES_OK(context, context->GetAttr("starts", &starts_));
    OP_REQUIRES_OK(context, context->GetAttr("signs", &signs_));
    OP_REQUIRES_OK(context, context->GetAttr("keep", &keep_));
    OP_REQUIRES_OK(context, CheckAttrs());
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& kernel = context->input(0);
    Tensor rows;
    if (keep_ && Find(kernel, &rows)) {
      context->set_output(0, rows);
      return;
    }
    OP_REQUIRES_OK(context, CheckKernel(kernel));
    TensorShape shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(height_));
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(kernel.dim_size(1)));
    OP_REQUIRES_OK(context,
                   context->allocate_temp(kernel.dtype(), shape, &rows));
    Copy(kernel.flat<T>().data(), kernel.dim_size(1), rows.flat<T>().data());
    if (keep_) Keep(kernel, rows);
    context->set_output(0, rows);
  }

 private:
  Status CheckAttrs() {
    for (const int64_t count : counts_) {
      if (count < 0 || __builtin_add_overflow(height_, count, &height_)) {
        return InvalidArgument("counts must be of rows of a kernel, got ",
                               count);
      }
    }
    int64_t terms = 0;
    for (const int64_t count : terms_) {
      if (count < 1 || __builtin_add_overflow(terms, count, &terms)) {
        return InvalidArgument("terms must be at least 1, got ", count);
      }
    }
    if (counts_.size() != terms_.size() ||
        terms != static_cast<int64_t>(starts_.size()) ||
        starts_.size() != signs_.size()) {
      return InvalidArgument(
          "terms must be one for each of ", counts_.size(),
          " counts, and their sum that of starts and of signs, got ",
          terms_.size(), " of sum ", terms, " for ", starts_.size(), " and ",
          signs_.size());
    }
    for (const int64_t sign : signs_) {
      if (sign != 1 && sign != -1) {
        return InvalidArgument("signs must be 1 or -1, got ", sign);
      }
    }
    return Status();
  }

  Status CheckKernel(const Tensor& kernel) const {
    if (!TensorShapeUtils::IsMatrix(kernel.shape())) {
      return InvalidArgument("kernel must be of shape [K, H], got ",
                             kernel.shape().DebugString());
    }
    size_t term = 0;
    for (size_t block = 0; block < counts_.size(); ++block) {
      for (int64_t i = 0; i < terms_[block]; ++i, ++term) {
        if (starts_[term] < 0 || counts_[block] > kernel.dim_size(0) ||
            starts_[term] > kernel.dim_size(0) - counts_[block]) {
          return InvalidArgument("blocks must be of the kernel's ",
                                 kernel.dim_size(0), " rows, got ",
                                 counts_[block], " from ", starts_[term]);
        }
      }
    }
    return Status();
  }

  void Copy(const T* kernel, int64_t width, T* rows) const {
    size_t term = 0;
    for (size_t block = 0; block < counts_.size(); ++block) {
      const int64_t size = counts_[block] * width;
      for (int64_t i = 0; i < terms_[block]; ++i, ++term) {
        const T* const from = kernel + starts_[term] * width;
        const T sign = signs_[term];
        if (i == 0) {
          for (int64_t j = 0; j < size; ++j) rows[j] = sign * from[j];
        } else {
          for (int64_t j = 0; j < size; ++j) rows[j] += sign * from[j];
        }
      }
      rows += size;
    }
  }

  bool Find(const Tensor& kernel, Tensor* rows) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!kernel.SharesBufferWith(source_) ||
        kernel.tensor_data().data() != source_.tensor_data().data() ||
        kernel.shape() != source_.shape()) {
      return false;
    }
    misses_ = 0;
    *rows = rows_;
    return true;
  }

  void Keep(const Tensor& kernel, const Tensor& rows) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (misses_ >= kMaxMisses) {
      source_ = rows_ = Tensor();
      return;
    }
    ++misses_;
    source_ = kernel;
    rows_ = rows;
  }

  std::vector<int64_t> counts_, terms_, starts_, signs_;
  bool keep_ = false;
  int64_t height_ = 0;  // Rows of all blocks.
  std::mutex mutex_;
  Tensor source_, rows_;  // Guarded by mutex_, like misses_.
  int misses_ = 0;        // Since a kernel came that was kept.
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>KernelRows")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<float>("T"),
                        KernelRowsOp<float>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>KernelRows")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<double>("T"),
                        KernelRowsOp<double>);

}  // namespace
}  // namespace rec_estimator
