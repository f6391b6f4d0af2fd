// SPDX-License-Identifier: Apache-2.0
// Ops that do several training steps within one run of a session. Kernels:
// step_loop_kernels.cc. Python: step_loop.py.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
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
Runs a training step several times, one after the other. The first error, such as the end of the
input, ends the loop and is the op's; the steps before it stay done.

count: []. How many steps, in [0, 1000000].
captured: Any shape. What the step takes from outside: the handles of variables, tables, iterators.
step: Does one step. Its arguments are `captured`; what it returns is dropped.
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
Computes what another op computes, with one kernel for all ops of a name: so numbers drawn in a
loop and beside it are of one sequence.

inputs: Any shape. Those of the other op.
outputs: Any shape. Those of the other op.
node: The other op, a serialized NodeDef.
shared_name: Of the kernel, within the session.
)doc");

}  // namespace
}  // namespace rec_estimator
