// SPDX-License-Identifier: Apache-2.0
// The ops of a lookup of a table with several shards.
//
//   keys --> ShardKeysSplit --> parts --> TableLookup, one a shard
//                  |                            | rows
//                shards ----------------> ShardRowsMerge --> values
//
// ShardRowsSplit is the gradient of ShardRowsMerge, and the reverse.
// spread_shard_rows_pass.cc adds ShardRowsSpread. Kernels:
// shard_rows_kernels.cc.
#include <vector>

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

Status ShardKeysSplitShape(InferenceContext* c) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
  c->set_output(0, keys);
  for (int i = 1; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Vector(c->UnknownDim()));
  }
  return Status();
}

REGISTER_OP("RecEstimator>ShardKeysSplit")
    .Input("keys: int64")
    .Output("shards: int32")
    .Output("parts: N * int64")
    .Output("positions: N * int32")
    .Attr("N: int >= 1")
    .SetShapeFn(ShardKeysSplitShape)
    .Doc(R"doc(
Divides the keys of a batch among the shards of a table.

keys: [n].
shards: [n]. The shard of each key: floormod(key, 1000) % N.
parts: Each [keys of the shard], in the order of the batch.
positions: Each [keys of the shard]. Where these keys are in the batch.
N: The number of shards.
)doc");

Status ShardRowsSpreadShape(InferenceContext* c) {
  std::vector<ShapeHandle> rows, index;
  ShapeHandle shards, of_rows, values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &shards));
  TF_RETURN_IF_ERROR(c->input("rows", &rows));
  TF_RETURN_IF_ERROR(c->input("index", &index));
  TF_RETURN_IF_ERROR(c->WithRank(rows[0], 2, &of_rows));
  TF_RETURN_IF_ERROR(WithRows(c, index[0], c->Dim(shards, 0), &values));
  TF_RETURN_IF_ERROR(
      c->Concatenate(values, c->Vector(c->Dim(of_rows, 1)), &values));
  c->set_output(0, values);
  return Status();
}

REGISTER_OP("RecEstimator>ShardRowsSpread")
    .Input("shards: int32")
    .Input("rows: N * value_dtype")
    .Input("index: N * int32")
    .Output("values: float")
    .Attr("N: int >= 1")
    .Attr("value_dtype: {float, bfloat16, half} = DT_FLOAT")
    .SetShapeFn(ShardRowsSpreadShape)
    .Doc(R"doc(
Brings rows of shards, each of which has a row once, into the order of a batch, as floats.

shards: [n]. The shard of each row of the batch, in [0, N).
rows: Each [k, dim].
index: Each [rows of the shard, ...], in the order of the batch. Positions in the rows of the shard.
values: [n, ..., dim].
value_dtype: Type of rows.
)doc");

REGISTER_OP("RecEstimator>ShardRowsMerge")
    .Input("shards: int32")
    .Input("rows: N * float")
    .Output("values: float")
    .Attr("N: int >= 1")
    .SetShapeFn(ShardRowsMergeShape)
    .Doc(R"doc(
Brings rows of shards into the order of a batch.

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
