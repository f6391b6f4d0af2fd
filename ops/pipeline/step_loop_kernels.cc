// SPDX-License-Identifier: Apache-2.0
// Kernels of step_loop_ops.cc: run the function of a step repeatedly, and share
// kernels that keep state between steps.
#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/mutex.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::AsyncOpKernel;
using ::tensorflow::DataTypeVector;
using ::tensorflow::DataTypeVectorString;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::FunctionLibraryRuntime;
using ::tensorflow::NameAttrList;
using ::tensorflow::NodeDef;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceBase;
using ::tensorflow::ScopedStepContainer;
using ::tensorflow::Tensor;

// Most steps in one run. A larger count is probably a mistake.
constexpr int64_t kMaxCount = 1000000;

// The steps of one run of StepLoop. Deletes itself after the last step.
class StepSequence {
 public:
  StepSequence(OpKernelContext* context, FunctionLibraryRuntime* library,
               FunctionLibraryRuntime::Handle step, int64_t count,
               std::vector<Tensor> captured, AsyncOpKernel::DoneCallback done)
      : context_(context),
        library_(library),
        step_(step),
        steps_left_(count),
        captured_(std::move(captured)),
        done_(std::move(done)) {}

  // Runs steps until one of them finishes asynchronously.
  //
  // The callback of a step is called either in this thread, before Run()
  // returns, or in another thread. The second of the two events, callback and
  // return of Run(), continues with the next step. So the stack does not grow
  // with the number of steps.
  void RunSteps() {
    while (PrepareStep()) {
      returned_.clear();
      first_event_ = false;
      library_->Run(*options_, step_, captured_, &returned_,
                    [this](const Status& status) {
                      // Reads the store before Run(), so that this thread sees
                      // all of the step's preparation, however TensorFlow calls
                      // it.
                      first_event_.load();
                      status_ = status;
                      if (first_event_.exchange(true)) RunSteps();
                    });
      if (!first_event_.exchange(true)) return;
    }
  }

 private:
  // Prepares the next step. If there is none, calls Finish() and returns false.
  bool PrepareStep() {
    container_.reset();
    auto* cancellation = context_->cancellation_manager();
    if (status_.ok() && steps_left_ > 0 && cancellation != nullptr &&
        cancellation->IsCancelled()) {
      status_ = absl::CancelledError("the step loop was cancelled");
    }
    if (steps_left_ > 0 && status_.ok()) {
      try {
        MakeOptions();
        --steps_left_;
        return true;
      } catch (const std::bad_alloc&) {
        status_ = NoMemoryFor(context_->op_kernel().name());
      }
    }
    Finish();
    return false;
  }

  // Makes the options of the next step. May throw std::bad_alloc.
  void MakeOptions() {
    options_.emplace();  // Has a new step id.
    options_->rendezvous = context_->rendezvous();
    options_->cancellation_manager = context_->cancellation_manager();
    options_->collective_executor = context_->collective_executor();
    options_->stats_collector = context_->stats_collector();
    options_->runner = context_->runner();
    options_->source_device = library_->device()->name();
    options_->run_all_kernels_inline = context_->run_all_kernels_inline();
    // Releases resources of the step, such as the TensorArrays of a loop in it,
    // when the step ends.
    auto* resources = context_->resource_manager();
    container_ = std::make_unique<ScopedStepContainer>(
        options_->step_id, [resources](const std::string& name) {
          resources->Cleanup(name).IgnoreError();
        });
    options_->step_container = container_.get();
  }

  void Finish() {
    if (!status_.ok()) context_->SetStatus(status_);
    const AsyncOpKernel::DoneCallback done = std::move(done_);
    delete this;
    done();
  }

  OpKernelContext* const context_;
  FunctionLibraryRuntime* const library_;
  const FunctionLibraryRuntime::Handle step_;
  int64_t steps_left_;
  const std::vector<Tensor> captured_;
  std::optional<FunctionLibraryRuntime::Options> options_;
  std::vector<Tensor> returned_;
  std::unique_ptr<ScopedStepContainer> container_;
  Status status_;  // Status of the last step.
  // Whether the first of the two events of this step has happened.
  std::atomic<bool> first_event_{false};
  AsyncOpKernel::DoneCallback done_;
};

class StepLoopOp : public AsyncOpKernel {
 public:
  explicit StepLoopOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("step", &step_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    StepSequence* sequence = nullptr;
    Status status;
    try {
      status = MakeSequence(context, done, &sequence);
    } catch (const std::bad_alloc&) {
      status = NoMemoryFor(context->op_kernel().name());
    }
    if (sequence != nullptr) return sequence->RunSteps();
    if (!status.ok()) context->SetStatus(status);
    done();
  }

 private:
  // Checks the inputs and makes the sequence of steps; none for a count of 0.
  Status MakeSequence(OpKernelContext* context, const DoneCallback& done,
                      StepSequence** sequence) {
    const Tensor* count;
    OpInputList captured;
    TF_RETURN_IF_ERROR(context->input("count", &count));
    TF_RETURN_IF_ERROR(context->input_list("captured", &captured));
    TF_RETURN_IF_ERROR(CheckRank(*count, 0, "count", "[]"));
    const int64_t steps = count->scalar<int64_t>()();
    if (steps < 0 || steps > kMaxCount) {
      return InvalidArgument("count must be in [0, ", kMaxCount, "], got ",
                             steps);
    }
    if (steps == 0) return Status();
    FunctionLibraryRuntime* library = context->function_library();
    if (library == nullptr) {
      return Internal("the device has no function library");
    }
    FunctionLibraryRuntime::Handle handle;
    TF_RETURN_IF_ERROR(InstantiateStep(library, captured, &handle));
    *sequence = new StepSequence(
        context, library, handle, steps,
        std::vector<Tensor>(captured.begin(), captured.end()), done);
    return Status();
  }

  // Instantiates the step's function once per library.
  Status InstantiateStep(FunctionLibraryRuntime* library,
                         const OpInputList& captured,
                         FunctionLibraryRuntime::Handle* handle) {
    // A session has one library per set of fetches, but only one kernel.
    tensorflow::mutex_lock lock(mutex_);
    const auto found = handles_.find(library);
    if (found != handles_.end()) {
      *handle = found->second;
      return Status();
    }
    const tensorflow::FunctionDef* function =
        library->GetFunctionLibraryDefinition()->Find(step_.name());
    if (function == nullptr) {
      return InvalidArgument("step must be a function, got ", step_.name());
    }
    DataTypeVector types, arguments;
    for (const auto& argument : function->signature().input_arg()) {
      arguments.push_back(argument.type());
    }
    for (const Tensor& tensor : captured) types.push_back(tensor.dtype());
    if (arguments != types) {
      return InvalidArgument("captured must be the arguments of ", step_.name(),
                             ", ", DataTypeVectorString(arguments), ", got ",
                             DataTypeVectorString(types));
    }
    FunctionLibraryRuntime::InstantiateOptions options;
    options.target = library->device()->name();
    // Multi-device functions get the same optimizations as a whole graph, for
    // example oneDNN kernels. Without them, results could differ in the last
    // bit.
    options.is_multi_device_function = true;
    options.input_devices.assign(types.size(), options.target);
    TF_RETURN_IF_ERROR(library->Instantiate(
        step_.name(), tensorflow::AttrSlice(&step_.attr()), options, handle));
    handles_[library] = *handle;
    return Status();
  }

  NameAttrList step_;
  tensorflow::mutex mutex_;
  std::unordered_map<FunctionLibraryRuntime*, FunctionLibraryRuntime::Handle>
      handles_;
};

// A kernel that several SharedKernel ops run.
class KernelResource : public ResourceBase {
 public:
  KernelResource(std::string node, std::unique_ptr<OpKernel> kernel)
      : node_(std::move(node)), kernel_(std::move(kernel)) {}

  std::string DebugString() const override {
    return kernel_->type_string() + " of " + kernel_->name();
  }

  const std::string& node() const { return node_; }
  OpKernel* kernel() const { return kernel_.get(); }

 private:
  const std::string node_;  // Serialized NodeDef.
  const std::unique_ptr<OpKernel> kernel_;
};

class SharedKernelOp : public OpKernel {
 public:
  explicit SharedKernelOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("node", &serialized_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES(context, !shared_name_.empty(),
                InvalidArgument("shared_name must not be empty, got ''"));
    OP_REQUIRES(context, node_.ParseFromString(serialized_),
                InvalidArgument("node must be a serialized NodeDef, got ",
                                serialized_.size(), " other bytes"));
  }

  void Compute(OpKernelContext* context) override {
    KernelResource* resource = nullptr;
    auto* resources = context->resource_manager();
    OP_REQUIRES_OK(context, resources->LookupOrCreate<KernelResource>(
                                resources->default_container(),
                                "rec_estimator_kernel/" + shared_name_,
                                &resource, [&](KernelResource** made) {
                                  return CreateKernel(context, made);
                                }));
    const tensorflow::core::ScopedUnref unref(resource);
    OP_REQUIRES(context, resource->node() == serialized_,
                InvalidArgument("node must be that of the other ops of "
                                "shared_name ",
                                shared_name_, ", got another ", node_.op()));
    const OpKernel& kernel = *resource->kernel();
    OP_REQUIRES(
        context,
        kernel.input_types() == input_types() &&
            kernel.output_types() == output_types(),
        InvalidArgument("inputs and outputs must have the types of ",
                        kernel.type_string(), ", ",
                        DataTypeVectorString(kernel.input_types()), " and ",
                        DataTypeVectorString(kernel.output_types()), ", got ",
                        DataTypeVectorString(input_types()), " and ",
                        DataTypeVectorString(output_types())));
    resource->kernel()->Compute(context);
  }

 private:
  Status CreateKernel(OpKernelContext* context, KernelResource** created) {
    if (node_.op() == type_string()) {
      return InvalidArgument("node must be another op, got ", node_.op());
    }
    Status status;
    std::unique_ptr<OpKernel> kernel = tensorflow::CreateOpKernel(
        tensorflow::DeviceType(DEVICE_CPU), context->device(),
        context->device()->GetAllocator({}), node_,
        context->function_library()->graph_def_version(), &status);
    TF_RETURN_IF_ERROR(status);
    if (kernel->AsAsync() != nullptr) {
      return InvalidArgument("node must have a synchronous kernel, got ",
                             node_.op());
    }
    *created = new KernelResource(serialized_, std::move(kernel));
    return Status();
  }

  std::string serialized_;
  std::string shared_name_;
  NodeDef node_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>StepLoop").Device(DEVICE_CPU),
                        GuardedAsync<StepLoopOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>SharedKernel").Device(DEVICE_CPU),
                        Guarded<SharedKernelOp>);

}  // namespace
}  // namespace rec_estimator
