// SPDX-License-Identifier: Apache-2.0
// Ops that run several training steps in one session run.
// Kernels: step_loop_kernels.cc. Python: rec_estimator/training/step_loop.py.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status StepLoopShape(InferenceContext* c) {
  ShapeHandle unused;
  return c->WithRank(c->input(0), 0, &unused);
}

REGISTER_OP("RecEstimator>StepLoop")
    .Input("count: int64")
    .Input("captured: Tcaptured")
    .Attr("Tcaptured: list(type) >= 0")
    .Attr("step: func")
    .SetIsStateful()
    .SetShapeFn(StepLoopShape)
    .Doc(R"doc(
Runs a training step several times in sequence.

The first error, such as the end of the input, ends the loop and is the error of the op. Steps before it
keep their effects.

count: []. Number of steps, in [0, 1000000].
captured: Any shape. Arguments of the step: handles of variables, tables and iterators.
step: Function that runs one step with `captured` as arguments. Its results are ignored.
)doc");

REGISTER_OP("RecEstimator>SharedKernel")
    .Input("inputs: Tinputs")
    .Output("outputs: Toutputs")
    .Attr("Tinputs: list(type) >= 0")
    .Attr("Toutputs: list(type) >= 1")
    .Attr("node: string")
    .Attr("shared_name: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Runs another op with a kernel that all SharedKernel ops of the same name share.

A random op draws one sequence of numbers this way, whether it runs inside a step loop or outside.

inputs: Any shape. The inputs of the other op.
outputs: Any shape. The outputs of the other op.
node: The other op, a serialized NodeDef.
shared_name: Name of the kernel in the session.
)doc");

}  // namespace
}  // namespace rec_estimator
