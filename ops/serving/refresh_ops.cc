// SPDX-License-Identifier: Apache-2.0
// ModelRefresh brings the tables and variables of a served model up to date
// from a delta. Kernel: refresh_kernels.cc. Python:
// rec_estimator/serving/refreshable.py.
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status ModelRefreshShape(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return Status();
}

REGISTER_OP("RecEstimator>ModelRefresh")
    .Input("delta: string")
    .Input("tables: N * resource")
    .Input("variables: V * resource")
    .Output("step: int64")
    .Output("rows_written: int64")
    .Output("rows_deleted: int64")
    .Output("variables_written: int64")
    .Output("checkpoint: string")
    .Attr("N: int >= 1")
    .Attr("V: int >= 0")
    .Attr("table_names: list(string)")
    .Attr("parts: list(int)")
    .Attr("num_parts: list(int)")
    .Attr("key_dtypes: list({int32, int64})")
    .Attr("variable_names: list(string)")
    .Attr("step_name: string")
    .Attr("folder: string")
    .Attr("base_checkpoint: string")
    .Attr("base_identity: string")
    .Attr("base_step: int")
    .SetIsStateful()
    .SetShapeFn(ModelRefreshShape)
    .Doc(R"doc(
Brings the tables and variables of a model from one checkpoint to the next, whose changes a delta holds.

The delta is read and verified, and memory allocated, before anything changes. Then each table changes at one
moment, so that a lookup reads all of it before or all of it after. A step reads all tables that are `refreshable`
(TableHandle) before or all of them after, as it read the first one. After an error nothing has changed. Two refreshes run
one after the other.

A delta fits if it names the checkpoint of the model and the identity of its index. After a restore, that is the
base checkpoint, and after a refresh it is the delta.

delta: []. Name of the delta in the folder, without suffix: "model.ckpt-120". "": changes nothing and returns
  where the model is.
tables: Each []. The shards of the model.
variables: Each []. Resource variables of numbers.
step: []. The global step of the model.
rows_written: []. Keys that got a row or another row.
rows_deleted: []. Keys that lost their row.
variables_written: [].
checkpoint: []. Name of the checkpoint of which the model has the rows.
table_names: Name of each shard's logical table in a checkpoint.
parts: Number of each shard in its table.
num_parts: Number of shards of each shard's table.
key_dtypes: Type of the keys of each shard.
variable_names: Name of each variable in a checkpoint.
step_name: Name of the variable with the global step in a checkpoint.
folder: Where deltas are; '': the environment variable REC_ESTIMATOR_REFRESH_FOLDER must name it. If the variable is
  set, it counts.
base_checkpoint: Name of the checkpoint that was exported.
base_identity: Identity of its index, as in TablesSave.
base_step: Its global step.
)doc");

}  // namespace
}  // namespace rec_estimator
