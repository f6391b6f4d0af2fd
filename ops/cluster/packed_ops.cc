// SPDX-License-Identifier: Apache-2.0
// Ops of a request to the tables of another task: pack_transfers_pass.cc puts
// them in place of lookups and of the ops of a training step.
//
//   worker                                 parameter server
//   KeysPack       -- packed keys ------>  TablesReservePacked, TablesRead
//   RowsSpread     <- rows --------------  TablesRead
//   GradientsPack  -- packed gradients ->  TablesApplyPacked
//
// If a table has several shards, spread_shard_rows_pass.cc puts RowsUnpack and
// ShardRowsSpread in place of RowsSpread.
//
// Kernels: packed_kernels.cc and apply_kernels.cc. The packed keys:
// ops/core/keys/packed_keys.h.
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Checks the rank of each tensor of an input, which may be a list.
Status WithRanks(InferenceContext* c, const char* input, int rank) {
  std::vector<ShapeHandle> shapes;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->input(input, &shapes));
  for (const ShapeHandle& shape : shapes) {
    TF_RETURN_IF_ERROR(c->WithRank(shape, rank, &unused));
  }
  return Status();
}

Status KeysPackShape(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(1 + i, c->input(i));
  return Status();
}

REGISTER_OP("RecEstimator>KeysPack")
    .Input("keys: N * int64")
    .Output("packed: int64")
    .Output("index: N * int32")
    .Attr("N: int >= 1")
    .Attr("sections: list(int)")
    .Attr("uses: list(string)")
    .Attr("num_sections: int >= 1")
    .SetShapeFn(KeysPackShape)
    .Doc(R"doc(
Packs lists of keys into one tensor: each distinct key of a section once, with its occurrences.

keys: Any shapes.
packed: [n]. In the format of ops/core/keys/packed_keys.h.
index: Each [keys.shape]. The position of each key among the distinct keys of its section.
sections: The section of each list. A section has the keys of one table.
uses: What each list is for: "gradient", "counted" or "read". Only the first two are counted.
num_sections: The number of sections.
)doc");

Status TablesReadShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(WithRanks(c, "tables", 0));
  TF_RETURN_IF_ERROR(WithRanks(c, "packed", 1));
  c->set_output(0, c->Vector(c->UnknownDim()));
  return Status();
}

REGISTER_OP("RecEstimator>TablesRead")
    .Input("tables: N * resource")
    .Input("packed: int64")
    .Output("rows: value_dtype")
    .Attr("N: int >= 1")
    .Attr("sections: list(int)")
    .Attr("num_sections: int >= 1")
    .Attr("dims: list(int)")
    .Attr("unknowns: list(string)")
    .Attr("value_dtype: {float, bfloat16, half} = DT_FLOAT")
    .SetIsStateful()
    .SetShapeFn(TablesReadShape)
    .Doc(R"doc(
Reads one row for each distinct key of several tables. Changes nothing.

tables: Each [].
packed: [n]. Of KeysPack.
rows: [numbers]. The values of the keys of each table, in the order of tables, one behind the other.
sections: The section of packed that each table reads.
num_sections: The number of sections of packed.
dims: Dimension of each table.
unknowns: What a key without a row reads: its initial vector ("initial") or the default vector ("default").
value_dtype: Type of rows: that in which all of the tables store values, so that nothing is rounded, or float.
)doc");

Status RowsSpreadShape(InferenceContext* c) {
  std::vector<int64_t> sections, dims;
  std::vector<ShapeHandle> index;
  TF_RETURN_IF_ERROR(WithRanks(c, "rows", 1));
  TF_RETURN_IF_ERROR(WithRanks(c, "packed", 1));
  TF_RETURN_IF_ERROR(c->input("index", &index));
  TF_RETURN_IF_ERROR(c->GetAttr("lookups", &sections));
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  if (sections.size() != index.size()) {
    return InvalidArgument("lookups must be of length N = ", index.size(),
                           ", got ", sections.size());
  }
  for (size_t i = 0; i < index.size(); ++i) {
    const int64_t table = sections[i];
    if (table < 0 || static_cast<size_t>(table) >= dims.size() ||
        dims[table] < 0) {
      return InvalidArgument(
          "lookups must be positions in dims, which are >= 1, got ", table,
          " at ", i);
    }
    ShapeHandle values;
    TF_RETURN_IF_ERROR(
        c->Concatenate(index[i], c->Vector(dims[table]), &values));
    c->set_output(static_cast<int>(i), values);
  }
  return Status();
}

REGISTER_OP("RecEstimator>RowsSpread")
    .Input("rows: value_dtype")
    .Input("packed: int64")
    .Input("index: N * int32")
    .Output("values: N * float")
    .Attr("N: int >= 1")
    .Attr("lookups: list(int)")
    .Attr("sections: list(int)")
    .Attr("num_sections: int >= 1")
    .Attr("dims: list(int)")
    .Attr("value_dtype: {float, bfloat16, half} = DT_FLOAT")
    .SetShapeFn(RowsSpreadShape)
    .Doc(R"doc(
Gives each lookup the rows of its keys, as floats.

rows: [numbers]. Of TablesRead.
packed: [n]. Of KeysPack, as TablesRead got it.
index: Any shapes. Of KeysPack: the keys of each lookup.
values: Each [index.shape, dim].
lookups: The table of each lookup, as a position in sections.
sections: As in TablesRead.
num_sections: As in TablesRead.
dims: As in TablesRead.
value_dtype: As in TablesRead.
)doc");

Status RowsUnpackShape(InferenceContext* c) {
  std::vector<int64_t> dims;
  TF_RETURN_IF_ERROR(WithRanks(c, "rows", 1));
  TF_RETURN_IF_ERROR(WithRanks(c, "packed", 1));
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  if (static_cast<int>(dims.size()) != c->num_outputs()) {
    return InvalidArgument("dims must be of length N = ", c->num_outputs(),
                           ", got ", dims.size());
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    if (dims[i] < 1) {
      return InvalidArgument("dims must be >= 1, got ", dims[i]);
    }
    c->set_output(i, c->Matrix(c->UnknownDim(), c->MakeDim(dims[i])));
  }
  return Status();
}

REGISTER_OP("RecEstimator>RowsUnpack")
    .Input("rows: value_dtype")
    .Input("packed: int64")
    .Output("tables: N * value_dtype")
    .Attr("N: int >= 1")
    .Attr("sections: list(int)")
    .Attr("num_sections: int >= 1")
    .Attr("dims: list(int)")
    .Attr("value_dtype: {float, bfloat16, half} = DT_FLOAT")
    .SetShapeFn(RowsUnpackShape)
    .Doc(R"doc(
Takes the rows of several tables apart.

rows: [numbers]. Of TablesRead.
packed: [n]. Of KeysPack, as TablesRead got it.
tables: Each [keys of the table, dim]. The rows of each table.
sections: As in TablesRead.
num_sections: As in TablesRead.
dims: As in TablesRead.
value_dtype: As in TablesRead.
)doc");

Status GradientsPackShape(InferenceContext* c) {
  int64_t n, m;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  TF_RETURN_IF_ERROR(c->GetAttr("M", &m));
  if (m != 0 && m != n) {
    return InvalidArgument("positions must be of length 0 or N = ", n, ", got ",
                           m);
  }
  TF_RETURN_IF_ERROR(WithRanks(c, "packed", 1));
  if (m == 0) TF_RETURN_IF_ERROR(WithRanks(c, "grads", 2));
  c->set_output(0, c->Vector(c->UnknownDim()));
  return Status();
}

REGISTER_OP("RecEstimator>GradientsPack")
    .Input("packed: int64")
    .Input("index: K * int32")
    .Input("grads: N * float")
    .Input("positions: M * int32")
    .Input("version: int64")
    .Input("hyper: num_hyper * float")
    .Output("gradients: float")
    .Attr("K: int >= 0")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("num_hyper: int >= 1")
    .Attr("lists: list(int)")
    .Attr("sections: list(int)")
    .Attr("num_sections: int >= 1")
    .SetShapeFn(GradientsPackShape)
    .Doc(R"doc(
Packs what one update of several tables needs into one tensor: one gradient for each distinct key.

packed: [n]. Of KeysPack.
index: Any shapes. Of KeysPack: the keys of the gradients, table by table.
grads: Each [n, dim]. One row for each of these keys of a table, in their order. With positions: each [m, ...].
positions: Any shapes. None, or one for each table, each with one list. Rows of grads, which have the gradients of
  the keys one behind the other: of one key each, or of as many as all have.
version: [], or [N], one for each table.
hyper: Each [], or [N].
gradients: [floats]. The versions, in two floats each without a change of their bits; each hyperparameter of
  all tables; then, table by table, the sums over the occurrences of each key, from +0 and in their order.
lists: How many of the tensors in index belong to each table.
sections: The section of packed of each table.
num_sections: The number of sections of packed.
)doc");

Status TablesReservePackedShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(WithRanks(c, "tables", 0));
  TF_RETURN_IF_ERROR(WithRanks(c, "packed", 1));
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Vector(c->num_inputs() - 1));
  return Status();
}

REGISTER_OP("RecEstimator>TablesReservePacked")
    .Input("tables: N * resource")
    .Input("packed: int64")
    .Output("reservation: variant")
    .Output("rows: int64")
    .Attr("N: int >= 1")
    .Attr("sections: list(int)")
    .Attr("num_sections: int >= 1")
    .Attr("rule: string")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("l2_scales: list(float) = []")
    .Attr("decay_rates: list(float) = []")
    .SetIsStateful()
    .SetShapeFn(TablesReservePackedShape)
    .Doc(R"doc(
TablesReserve for packed keys.

tables: Each []. All distinct.
packed: [n]. Of KeysPack. Keys that are only read are not part of the step.
reservation: []. For one TablesApplyPacked.
rows: [N]. The rows that each table would have after the step.
sections: The section of packed of each table.
num_sections: The number of sections of packed.
rule: As in TablesReserve, but a rule with one update for each key.
slot_names: As in TablesReserve.
slot_widths: As in TablesReserve.
slot_initials: As in TablesReserve.
l2_scales: As in TablesReserve.
decay_rates: As in TablesReserve.
)doc");

Status TablesApplyPackedShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(WithRanks(c, "reservation", 0));
  return WithRanks(c, "gradients", 1);
}

REGISTER_OP("RecEstimator>TablesApplyPacked")
    .Input("reservation: variant")
    .Input("gradients: float")
    .SetIsStateful()
    .SetShapeFn(TablesApplyPackedShape)
    .Doc(R"doc(
TablesApply for packed gradients.

reservation: []. Of TablesReservePacked. It is used up.
gradients: [floats]. Of GradientsPack.
)doc");

}  // namespace
}  // namespace rec_estimator
