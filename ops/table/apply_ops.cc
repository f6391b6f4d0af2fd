// SPDX-License-Identifier: Apache-2.0
// The one op that changes a table in training.
// Kernel: apply_kernels.cc. Rules: core/row_update.h. Python: optimizers/.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TableApplyShape(InferenceContext* c) {
  ShapeHandle unused, keys, grads;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &grads));
  DimensionHandle rows;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(keys, 0), c->Dim(grads, 0), &rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
  for (int i = 4; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return Status();
}

REGISTER_OP("RecEstimator>TableApply")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("grads: float")
    .Input("counted_keys: int64")
    .Input("version: int64")
    .Input("hyper: num_hyper * float")
    .Attr("rule: string")
    .Attr("num_hyper: int >= 1")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .SetIsStateful()
    .SetShapeFn(TableApplyShape)
    .Doc(R"doc(
One training step of a table: counts, admits, inserts and updates its keys; or, where that would
give it more rows than it may have, fails and changes nothing.

table: [].
keys: [n]. Occurrences of keys; repeats are summed in order before the update.
grads: [n, dim]. Of each occurrence.
counted_keys: [m]. Occurrences that are counted and inserted but have no gradient.
version: []. Global step, stamped on every key; -1 where there is none.
hyper: Each []. The rule's hyperparameters, in its order.
rule: One of core/row_update.h.
slot_names: The rule's slots, in its order; made in the table if it lacks them.
slot_widths: Floats per row of each.
slot_initials: What each starts from in a new row.
)doc");

Status TableCheckRoomShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  return Status();
}

REGISTER_OP("RecEstimator>TableCheckRoom")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("counted_keys: int64")
    .SetIsStateful()
    .SetShapeFn(TableCheckRoomShape)
    .Doc(R"doc(
Fails as TableApply of these keys would, if the table may not have so many rows. Changes nothing.

table: [].
keys: [n]. As of TableApply.
counted_keys: [m]. As of TableApply.
)doc");

}  // namespace
}  // namespace rec_estimator
