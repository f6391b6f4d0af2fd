// SPDX-License-Identifier: Apache-2.0
// Declares the ops for what several tasks of a cluster must agree on: the row
// limit of a table over all shards, the time by which tables evict, and the ops
// that they have loaded.
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

REGISTER_OP("RecEstimator>AdvanceTime")
    .Input("variable: resource")
    .Input("reading: int64")
    .Output("time: int64")
    .Attr("most_seconds: int >= 1")
    .Attr("tolerance: int >= 0")
    .Attr("keeps_late: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return AllScalars(c);
    })
    .Doc(R"doc(
Advances the time of tables by a reading of a clock that may jump, in one step for all tasks.

The first reading sets the time. A later reading advances it to the clock, but by at most most_seconds. The time never
goes back. If the clock is behind it by more than tolerance, the clock was set back: from then on, this op takes the
time for the present, and advances it by what passes on the clock, until the clock is set right.

variable: []. A variable of shape []. The time in seconds; 0: unknown.
reading: []. Seconds of the clock; 0: none, the time does not change.
time: []. The time after this reading; -1: unknown. With keeps_late, that of the reading if it is behind.
most_seconds: The most by which a reading advances the time.
tolerance: How far readings may be behind the time, because several tasks read the clock or data is out of order.
keeps_late: Whether the output says how late a reading is.
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
