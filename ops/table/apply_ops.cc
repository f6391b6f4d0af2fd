// SPDX-License-Identifier: Apache-2.0
// Ops of a training step: TableApply, the only op that trains a table, and
// TableCheckRoom, which checks the row limit before it.
// Kernels: apply_kernels.cc. Rules: ops/core/math/row_update.h. Python:
// rec_estimator/optimizers/.
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
Applies one training step to a table: counts, admits, inserts and updates its keys.

Fails and changes nothing if the step would exceed the table's row limit.

table: [].
keys: [n]. Occurrences of keys. The gradients of a repeated key are summed in order before the update.
grads: [n, dim]. The gradient of each occurrence.
counted_keys: [m]. Occurrences that are counted and inserted but have no gradient.
version: []. The global step, stored with every key; -1 if there is none.
hyper: Each []. The rule's hyperparameters, in its order.
rule: A rule of ops/core/math/row_update.h.
slot_names: The rule's slots, in its order. Added to the table if it has no slots yet.
slot_widths: Floats per row of each slot.
slot_initials: Initial value of each slot in a new row.
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
Fails if TableApply of these keys would exceed the table's row limit. Changes nothing.

table: [].
keys: [n]. The keys of TableApply.
counted_keys: [m]. The counted_keys of TableApply.
)doc");

}  // namespace
}  // namespace rec_estimator
