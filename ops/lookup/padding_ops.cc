// SPDX-License-Identifier: Apache-2.0
// The op that drop_padding_pass.cc puts in place of TensorFlow's. Kernel:
// padding_kernels.cc.
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
    .Input("ids: int64")
    .Output("indices: int64")
    .Output("values: int64")
    .Attr("padding: int = -1")
    .SetShapeFn(IdsWithoutPaddingShape)
    .Doc(R"doc(
Finds the ids that are not padding: what Where(ids != padding) and GatherNd give, in one pass.

ids: Any shape.
indices: [n, rank of ids]. Where the ids are that are not padding, in row-major order.
values: [n]. These ids.
padding: The id that is padding.
)doc");

}  // namespace
}  // namespace rec_estimator
