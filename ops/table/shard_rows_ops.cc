// SPDX-License-Identifier: Apache-2.0
// The ops that shard_rows_pass.cc puts in place of TensorFlow's. Kernels:
// shard_rows_kernels.cc.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// The shape of `rows` with another number of rows.
Status WithRows(InferenceContext* c, ShapeHandle rows, DimensionHandle n,
                ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(rows, 1, &rows));
  if (!c->RankKnown(rows)) {
    *shape = c->UnknownShape();
    return Status();
  }
  return c->ReplaceDim(rows, 0, n, shape);
}

Status ShardRowsMergeShape(InferenceContext* c) {
  ShapeHandle shards, values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &shards));
  TF_RETURN_IF_ERROR(WithRows(c, c->input(1), c->Dim(shards, 0), &values));
  c->set_output(0, values);
  return Status();
}

Status ShardRowsSplitShape(InferenceContext* c) {
  ShapeHandle shards, rows;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &shards));
  for (int i = 0; i < c->num_outputs(); ++i) {
    TF_RETURN_IF_ERROR(WithRows(c, c->input(1), c->UnknownDim(), &rows));
    c->set_output(i, rows);
  }
  return Status();
}

REGISTER_OP("RecEstimator>ShardRowsMerge")
    .Input("shards: int32")
    .Input("rows: N * float")
    .Output("values: float")
    .Attr("N: int >= 1")
    .SetShapeFn(ShardRowsMergeShape)
    .Doc(R"doc(
Brings rows of shards into the order of a batch: what DynamicStitch gives.

shards: [n]. The shard of each row of the batch, in [0, N).
rows: Each [rows of the shard, ...], in the order of the batch.
values: [n, ...].
)doc");

REGISTER_OP("RecEstimator>ShardRowsSplit")
    .Input("shards: int32")
    .Input("values: float")
    .Output("rows: N * float")
    .Attr("N: int >= 1")
    .SetShapeFn(ShardRowsSplitShape)
    .Doc(R"doc(
Divides the rows of a batch among shards: what ShardRowsMerge takes.

shards: [n]. The shard of each row of the batch, in [0, N).
values: [n, ...].
rows: Each [rows of the shard, ...], in the order of the batch.
)doc");

}  // namespace
}  // namespace rec_estimator
