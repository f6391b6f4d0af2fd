// SPDX-License-Identifier: Apache-2.0
// The op that removes padding from dense ids. Kernel: padding_kernels.cc.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;

Status IdsWithoutPaddingShape(InferenceContext* c) {
  const DimensionHandle n = c->UnknownDim();
  const DimensionHandle rank = c->RankKnown(c->input(0))
                                   ? c->MakeDim(c->Rank(c->input(0)))
                                   : c->UnknownDim();
  c->set_output(0, c->Matrix(n, rank));
  c->set_output(1, c->Vector(n));
  return Status();
}

REGISTER_OP("RecEstimator>IdsWithoutPadding")
    .Input("ids: T")
    .Output("indices: int64")
    .Output("values: T")
    .Attr("T: {int32, int64, string}")
    .SetShapeFn(IdsWithoutPaddingShape)
    .Doc(R"doc(
Finds the ids that are not padding. -1 and "" are padding.

ids: Any shape.
indices: [n, rank of ids]. Where the ids are that are not padding, in row-major order.
values: [n]. These ids.
)doc");

}  // namespace
}  // namespace rec_estimator
