// SPDX-License-Identifier: Apache-2.0
// Kernel of kernel_split_ops.cc: caches the selected rows of a variable.
//
// A variable is sliced when a step first reads it, not in every request:
//
//   variable ──▶ [ K, H ] ◀── source_      same buffer: rows_ are valid
//                    │
//                    └─ blocks copied ──▶ rows_ ──▶ this step and later ones
//
// Why rows_ are known to be valid: TensorFlow writes into the buffer of a
// resource variable only if no one else holds a reference; otherwise the
// variable gets a new buffer. source_ holds a reference. So if the input still
// has this buffer, it has not been written to. The check compares two pointers.
//
// Costs: a second copy of the selected rows, usually most of the kernel. And
// one copy of the variable per update, because source_ forces it to a new
// buffer. Therefore a kernel that changes in every step, as in training, is no
// longer kept after kMaxMisses steps.
//
// Alternatives that were tried and rejected:
// * Slicing in every request with TensorFlow's ops: one node per block.
// * Multiplying the whole kernel, with zeros between the users' features: no
//   slices, but 256 users of one candidate each became slower than the original
//   model.
// * Variables that hold the slices, filled when a SavedModel is loaded: wrong
//   after the next restore into the same session. Only portable exports use
//   them, because nothing writes to their variables.
#include <cstdint>
#include <mutex>
#include <vector>

#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

// Consecutive steps with a changed kernel after which no kernel is kept.
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
    const Tensor* kernel;
    OP_REQUIRES_OK(context, context->input("kernel", &kernel));
    Tensor rows;
    if (keep_ && FindKept(*kernel, &rows)) {
      OP_REQUIRES_OK(context, context->set_output("rows", rows));
      return;
    }

    OP_REQUIRES_OK(context, CheckKernel(*kernel));

    TensorShape shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(num_rows_));
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(kernel->dim_size(1)));
    OP_REQUIRES_OK(context,
                   context->allocate_temp(kernel->dtype(), shape, &rows));

    SumBlocks(kernel->flat<T>().data(), kernel->dim_size(1),
              rows.flat<T>().data());
    if (keep_) Keep(*kernel, rows);
    OP_REQUIRES_OK(context, context->set_output("rows", rows));
  }

 private:
  Status CheckAttrs() {
    for (const int64_t count : counts_) {
      if (count < 0 || __builtin_add_overflow(num_rows_, count, &num_rows_)) {
        return InvalidArgument(
            "counts must be >= 0 with a sum below 2^63, got ", count);
      }
    }
    int64_t terms = 0;
    for (const int64_t count : terms_) {
      if (count < 1 || __builtin_add_overflow(terms, count, &terms)) {
        return InvalidArgument("terms must be >= 1, got ", count);
      }
    }
    if (counts_.size() != terms_.size() ||
        terms != static_cast<int64_t>(starts_.size()) ||
        starts_.size() != signs_.size()) {
      return InvalidArgument(
          "terms must be of the length of counts, ", counts_.size(),
          ", and sum to the lengths of starts and signs, got length ",
          terms_.size(), " and sum ", terms, " for ", starts_.size(),
          " starts and ", signs_.size(), " signs");
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
      return InvalidArgument("kernel must be [K, H], got shape ",
                             kernel.shape().DebugString());
    }
    size_t term = 0;
    for (size_t block = 0; block < counts_.size(); ++block) {
      for (int64_t i = 0; i < terms_[block]; ++i, ++term) {
        if (starts_[term] < 0 || counts_[block] > kernel.dim_size(0) ||
            starts_[term] > kernel.dim_size(0) - counts_[block]) {
          return InvalidArgument(
              "blocks must be inside the kernel's ", kernel.dim_size(0),
              " rows, got ", counts_[block], " rows from row ", starts_[term]);
        }
      }
    }
    return Status();
  }

  void SumBlocks(const T* kernel, int64_t width, T* rows) const {
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

  // Returns the kept rows if they belong to this kernel.
  bool FindKept(const Tensor& kernel, Tensor* rows) {
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
  int64_t num_rows_ = 0;  // Sum of counts_.
  std::mutex mutex_;      // Guards the members below.
  Tensor source_, rows_;
  int misses_ = 0;  // Steps since the kept rows were last found.
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>KernelRows")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<float>("T"),
                        Guarded<KernelRowsOp<float>>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>KernelRows")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<double>("T"),
                        Guarded<KernelRowsOp<double>>);

}  // namespace
}  // namespace rec_estimator
