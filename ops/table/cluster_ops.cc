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

rows: Each []. Of each shard, as TablesReserve gives it.
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
