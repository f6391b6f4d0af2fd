// SPDX-License-Identifier: Apache-2.0
// Declares the ops for what several tasks of a cluster must agree on: the row
// limit of a table over all shards, its greatest timestamp, and the ops that
// they have loaded.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
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

REGISTER_OP("RecEstimator>OpsFingerprint")
    .Output("fingerprint: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns what tells the ops of this process from those of another version.

fingerprint: []. 8 hexadecimal digits, of the inputs, outputs and attributes of all ops of this library.
)doc");

}  // namespace
}  // namespace rec_estimator
