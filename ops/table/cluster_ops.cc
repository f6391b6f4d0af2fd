// SPDX-License-Identifier: Apache-2.0
// Declares the ops for what several tasks of a cluster decide about a table
// together: its row limit over all shards, and its greatest timestamp.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TableRowsAfterShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  c->set_output(0, c->Scalar());
  return Status();
}

REGISTER_OP("RecEstimator>TableRowsAfter")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("counted_keys: int64")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn(TableRowsAfterShape)
    .Doc(R"doc(
How many rows a shard would have after TableApply of these keys. Changes nothing.

table: [].
keys: [n]. The keys of TableApply.
counted_keys: [m]. The counted_keys of TableApply.
rows: [].
)doc");

Status AllScalars(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return Status();
}

REGISTER_OP("RecEstimator>CheckRowLimit")
    .Input("rows: N * int64")
    .Attr("N: int >= 1")
    .Attr("table_name: string")
    .Attr("max_rows: int >= 1")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Fails if the shards of a table would together have more rows than the table may have.

rows: Each []. TableRowsAfter of each shard.
table_name: The name of the table, for the message.
max_rows: Row limit of the table.
)doc");

REGISTER_OP("RecEstimator>AssignMax")
    .Input("variable: resource")
    .Input("value: int64")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Sets an int64 variable to the greater of its value and another, in one step for all tasks.

variable: []. A variable of shape [].
value: [].
)doc");

}  // namespace
}  // namespace rec_estimator
