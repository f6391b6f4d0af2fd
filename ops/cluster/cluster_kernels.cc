// SPDX-License-Identifier: Apache-2.0
// Implements the ops of cluster_ops.cc.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/core/base/crc32c.h"
#include "ops/core/evict/table_clock.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

class CheckRowLimitOp : public OpKernel {
 public:
  explicit CheckRowLimitOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &table_name_));
    OP_REQUIRES_OK(context, context->GetAttr("max_rows", &max_rows_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList rows;
    OP_REQUIRES_OK(context, context->input_list("rows", &rows));
    int64_t sum = 0;
    for (const Tensor& of_shard : rows) {
      OP_REQUIRES(context, TensorShapeUtils::IsScalar(of_shard.shape()),
                  InvalidArgument("rows must be [], got shape ",
                                  of_shard.shape().DebugString()));
      const int64_t n = of_shard.scalar<int64_t>()();
      OP_REQUIRES(context, n >= 0,
                  InvalidArgument("rows must be >= 0, got ", n));
      sum += std::min(n, std::numeric_limits<int64_t>::max() - sum);
    }
    OP_REQUIRES(context, sum <= max_rows_,
                TooManyRows(table_name_, max_rows_, sum,
                            " with this step, nothing of which was applied"));
  }

 private:
  std::string table_name_;
  int64_t max_rows_;
};

// An op that computes the value of an int64 variable from its current one and
// from a number, while no other op reads or changes the variable.
class UpdateVariableOp : public OpKernel {
 public:
  // input: the name of the input with the number.
  UpdateVariableOp(OpKernelConstruction* context, const char* input)
      : OpKernel(context), input_(input) {}

  void Compute(OpKernelContext* context) override {
    const Tensor *handle, *value;
    OP_REQUIRES_OK(context, context->input("variable", &handle));
    OP_REQUIRES_OK(context, context->input(input_, &value));
    OP_REQUIRES(context, TensorShapeUtils::IsScalar(handle->shape()),
                InvalidArgument("variable must be a handle of shape [], got ",
                                handle->shape().DebugString()));
    OP_REQUIRES(context, TensorShapeUtils::IsScalar(value->shape()),
                InvalidArgument(input_, " must be [], got shape ",
                                value->shape().DebugString()));
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupResource(
                       context, handle->scalar<tensorflow::ResourceHandle>()(),
                       &variable));
    const tensorflow::mutex_lock lock(*variable->mu());
    Tensor* current = variable->tensor();
    OP_REQUIRES(context, variable->is_initialized,
                FailedPrecondition("variable must be initialized, got one that "
                                   "is not; run its initializer"));
    OP_REQUIRES(context,
                current->dtype() == tensorflow::DT_INT64 &&
                    TensorShapeUtils::IsScalar(current->shape()),
                InvalidArgument("variable must be int64 [], got ",
                                current->DebugString()));
    // A new tensor: readers may still hold the current one.
    Tensor updated(tensorflow::DT_INT64, TensorShape({}));
    OP_REQUIRES_OK(context, Update(context, current->scalar<int64_t>()(),
                                   value->scalar<int64_t>()(),
                                   &updated.scalar<int64_t>()()));
    *current = updated;
  }

 protected:
  // Sets *updated to the new value, and the outputs. The variable is locked.
  virtual Status Update(OpKernelContext* context, int64_t current,
                        int64_t value, int64_t* updated) = 0;

 private:
  const char* const input_;
};

class AdvanceTimeOp final : public UpdateVariableOp {
 public:
  explicit AdvanceTimeOp(OpKernelConstruction* context)
      : UpdateVariableOp(context, "reading") {
    int64_t most_seconds, tolerance;
    OP_REQUIRES_OK(context, context->GetAttr("most_seconds", &most_seconds));
    OP_REQUIRES_OK(context, context->GetAttr("tolerance", &tolerance));
    OP_REQUIRES_OK(context, context->GetAttr("keeps_late", &keeps_late_));
    clock_.emplace(most_seconds, tolerance);
  }

 protected:
  Status Update(OpKernelContext* context, int64_t current, int64_t value,
                int64_t* updated) override {
    if (value < 0 || value >= kMostSeconds) {
      return InvalidArgument("timestamp must be seconds since 1970 in [0, ",
                             kMostSeconds, "), got ", value,
                             "; convert it if it is in another unit");
    }
    if (current < 0 || current >= 2 * kMostSeconds) {
      return InvalidArgument("variable must be in [0, ", 2 * kMostSeconds,
                             "), got ", current, "; reset it to 0");
    }
    *updated = clock_->Advance(current, value);
    Tensor* time;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &time));
    const int64_t told = keeps_late_ && value != 0
                             ? std::min(*updated, clock_->Present(value))
                             : *updated;
    time->scalar<int64_t>()() = *updated == 0 ? -1 : told;
    return Status();
  }

 private:
  static constexpr int64_t kMostSeconds = TableClock::kMostSeconds;

  // Guarded by the lock of the variable. A new session has a new one, which
  // finds out again by how much the clock was set back.
  std::optional<TableClock> clock_;
  bool keeps_late_;
};

class OpsFingerprintOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::OpList registered;
    tensorflow::OpRegistry::Global()->Export(/*include_internal=*/false,
                                             &registered);
    std::string ours;  // In the order of names.
    for (const tensorflow::OpDef& op : registered.op()) {
      if (absl::StartsWith(op.name(), "RecEstimator>")) {
        op.AppendToString(&ours);
      }
    }
    Tensor* fingerprint;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &fingerprint));
    fingerprint->scalar<tensorflow::tstring>()() = absl::StrCat(
        absl::Hex(ExtendCrc32c(0, ours.data(), ours.size()), absl::kZeroPad8));
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>CheckRowLimit").Device(DEVICE_CPU),
                        Guarded<CheckRowLimitOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>AdvanceTime").Device(DEVICE_CPU),
                        Guarded<AdvanceTimeOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>OpsFingerprint").Device(DEVICE_CPU),
                        Guarded<OpsFingerprintOp>);

}  // namespace
}  // namespace rec_estimator
