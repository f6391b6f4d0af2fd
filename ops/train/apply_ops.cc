// SPDX-License-Identifier: Apache-2.0
// Ops of a training step, the only ones that train tables: TablesReserve gets
// room and memory for it in all tables, and TablesApply applies it.
// Kernels: apply_kernels.cc. Rules: ops/core/math/row_update.h. Python:
// rec_estimator/optimizers/.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TablesReserveShape(InferenceContext* c) {
  std::vector<ShapeHandle> inputs;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->input("tables", &inputs));
  for (const ShapeHandle& table : inputs) {
    TF_RETURN_IF_ERROR(c->WithRank(table, 0, &unused));
  }
  for (const char* name : {"keys", "counted_keys"}) {
    TF_RETURN_IF_ERROR(c->input(name, &inputs));
    for (const ShapeHandle& keys : inputs) {
      TF_RETURN_IF_ERROR(c->WithRank(keys, 1, &unused));
    }
  }
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Vector(static_cast<int64_t>(inputs.size())));
  return Status();
}

REGISTER_OP("RecEstimator>TablesReserve")
    .Input("tables: N * resource")
    .Input("keys: N * int64")
    .Input("counted_keys: N * int64")
    .Output("reservation: variant")
    .Output("rows: int64")
    .Attr("N: int >= 1")
    .Attr("rule: string")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("l2_scales: list(float) = []")
    .Attr("decay_rates: list(float) = []")
    .SetIsStateful()
    .SetShapeFn(TablesReserveShape)
    .Doc(R"doc(
Reserves what a training step will need in its tables: rows within their limits, and memory.

Fails if one of the tables cannot take the step. Changes no key and no row.

tables: Each []. All distinct.
keys: Each [n]. Occurrences of keys. The gradients of a repeated key are summed in order before the update.
counted_keys: Each [m]. Occurrences that are counted and inserted but have no gradient.
reservation: []. For one TablesApply. Without one, nothing happens.
rows: [N]. The rows that each table would have after the step.
rule: A rule of ops/core/math/row_update.h.
slot_names: The rule's slots, in its order. Added to a table that has no slots yet.
slot_widths: Floats per row of each slot: first those of the first table, then those of the next one.
slot_initials: Initial value of each slot in a new row.
l2_scales: What each table adds to the gradient of a row, as a multiple of its value; once for a key. Then every rule has one
  update for each key. []: nothing.
decay_rates: The part of its value, in [0, 1), that a row of each table loses before its update for each step after its
  version, up to that of the step; a new row loses it once. []: nothing.
)doc");

Status TablesApplyShape(InferenceContext* c) {
  std::vector<ShapeHandle> inputs;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->input("grads", &inputs));
  for (const ShapeHandle& grads : inputs) {
    TF_RETURN_IF_ERROR(c->WithRank(grads, 2, &unused));
  }
  TF_RETURN_IF_ERROR(c->input("version", &inputs));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(inputs[0], 1, &unused));
  TF_RETURN_IF_ERROR(c->input("hyper", &inputs));
  for (const ShapeHandle& value : inputs) {
    TF_RETURN_IF_ERROR(c->WithRankAtMost(value, 1, &unused));
  }
  return Status();
}

REGISTER_OP("RecEstimator>TablesApply")
    .Input("reservation: variant")
    .Input("grads: N * float")
    .Input("version: int64")
    .Input("hyper: num_hyper * float")
    .Attr("N: int >= 1")
    .Attr("num_hyper: int >= 1")
    .SetIsStateful()
    .SetShapeFn(TablesApplyShape)
    .Doc(R"doc(
Applies one training step to the tables of a reservation: counts, admits, inserts and updates their keys.

reservation: []. Of TablesReserve. It is used up.
grads: Each [n, dim]. The gradient of each occurrence of the reservation's keys.
version: [], or [N], one for each table. The global step, stored with every key; -1 if there is none.
hyper: Each [], or [N]. The rule's hyperparameters, in its order.
)doc");

}  // namespace
}  // namespace rec_estimator
