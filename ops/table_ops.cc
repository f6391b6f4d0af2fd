// Ops on a table as a whole: make it, empty it, ask it, write it, read it.
// Kernels: table_kernels.cc, checkpoint_kernels.cc. Python: table.py,
// checkpoint.py.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// table: [], bank: [b, dim].
Status TableAndBankShape(InferenceContext* c, int bank_input) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(bank_input), 2, &unused));
  return Status();
}

Status TableInitializeShape(InferenceContext* c) {
  return TableAndBankShape(c, 1);
}

Status TableExportShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  int64_t dim;
  std::vector<int64_t> widths;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_widths", &widths));
  int num_slots;
  TF_RETURN_IF_ERROR(c->GetAttr("num_slots", &num_slots));
  if (static_cast<int>(widths.size()) != num_slots) {
    return tensorflow::errors::InvalidArgument(
        "slot_widths must be of length num_slots = ", num_slots, ", got ",
        widths.size());
  }
  const DimensionHandle rows = c->UnknownDim();
  const DimensionHandle filtered = c->UnknownDim();
  int output = 0;
  c->set_output(output++, c->Vector(rows));      // keys
  c->set_output(output++, c->Vector(rows));      // freqs
  c->set_output(output++, c->Vector(rows));      // versions
  c->set_output(output++, c->Vector(filtered));  // keys_filtered
  c->set_output(output++, c->Vector(filtered));  // freqs_filtered
  c->set_output(output++, c->Vector(filtered));  // versions_filtered
  c->set_output(output++, c->Vector(1001));      // partition_offset
  c->set_output(output++, c->Vector(1001));      // partition_filter_…
  c->set_output(output++, c->Matrix(c->UnknownDim(), dim));  // bank
  c->set_output(output++, c->Matrix(rows, dim));             // values
  for (int64_t width : widths) {
    if (width < 1) {
      return tensorflow::errors::InvalidArgument(
          "slot_widths must be >= 1, got ", width);
    }
    c->set_output(output++, c->Matrix(rows, width));  // slot_values
  }
  return Status();
}

Status TableRestoreShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  return TableAndBankShape(c, 2);
}

Status TableStatsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return Status();
}

// One scalar of the key's metadata per key.
Status PerKeyShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  c->set_output(0, c->input(1));
  return Status();
}

REGISTER_OP("RecEstimator>TableHandle")
    .Output("table: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string")
    .Attr("dim: int >= 1")
    .Attr("default_value: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Handle of the table named `shared_name`, made empty the first time it is asked for.

table: [].
dim: Elements of a row's value.
default_value: Every element of the vector that a key without permission reads.
)doc");

REGISTER_OP("RecEstimator>TableInitialize")
    .Input("table: resource")
    .Input("bank: float")
    .SetIsStateful()
    .SetShapeFn(TableInitializeShape)
    .Doc(R"doc(
Empties the table and gives it its bank of initial vectors.

table: [].
bank: [b, dim], b >= 1. Key k starts from row floormod(k, b).
)doc");

REGISTER_OP("RecEstimator>TableIsInitialized")
    .Input("table: resource")
    .Output("is_initialized: bool")
    .SetIsStateful()
    .SetShapeFn(TableStatsShape)
    .Doc(R"doc(
Whether the table has its bank, from TableInitialize or TableRestore.

table: [].
is_initialized: [].
)doc");

REGISTER_OP("RecEstimator>TableStats")
    .Input("table: resource")
    .Output("size: int64")
    .Output("total_count: int64")
    .Output("capacity: int64")
    .Output("memory_bytes: int64")
    .SetIsStateful()
    .SetShapeFn(TableStatsShape)
    .Doc(R"doc(
How large the table is.

table: [].
size: []. Keys that own a row.
total_count: []. Those and the keys that are only counted.
capacity: []. Keys that fit before some internal shard grows.
memory_bytes: []. Allocated for keys and rows.
)doc");

REGISTER_OP("RecEstimator>TableFrequencies")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("frequencies: int64")
    .SetIsStateful()
    .SetShapeFn(PerKeyShape)
    .Doc(R"doc(
How often each key was applied. Inserts nothing.

table: [].
keys: Any shape.
frequencies: Shape of keys. 0 for an unknown key.
)doc");

REGISTER_OP("RecEstimator>TableVersions")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("versions: int64")
    .SetIsStateful()
    .SetShapeFn(PerKeyShape)
    .Doc(R"doc(
The global step of each key's last apply. Inserts nothing.

table: [].
keys: Any shape.
versions: Shape of keys. -1 for an unknown key and for one never applied.
)doc");

REGISTER_OP("RecEstimator>TableExport")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("freqs: int64")
    .Output("versions: int64")
    .Output("keys_filtered: int64")
    .Output("freqs_filtered: int64")
    .Output("versions_filtered: int64")
    .Output("partition_offset: int32")
    .Output("partition_filter_offset: int32")
    .Output("bank: float")
    .Output("values: float")
    .Output("slot_values: num_slots * float")
    .Attr("dim: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .SetIsStateful()
    .SetShapeFn(TableExportShape)
    .Doc(R"doc(
Copies the whole table out as of one instant, by bucket floormod(key, 1000), then key.

table: [].
keys: [n]. Keys that own a row.
freqs: [n]. Occurrences applied.
versions: [n]. Global step of the last apply, or -1.
keys_filtered: [f]. Keys that are counted and own no row.
freqs_filtered: [f].
versions_filtered: [f].
partition_offset: [1001]. Bucket i holds rows [partition_offset[i], partition_offset[i+1]).
partition_filter_offset: [1001]. The same for the filtered keys.
bank: [b, dim]. Initial vectors.
values: [n, dim].
slot_values: Per slot [n, width]. The slot's initial value where the table has no such slot.
)doc");

REGISTER_OP("RecEstimator>TableRestore")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("bank: float")
    .Attr("tensor_name: string")
    .Attr("part: int >= 0")
    .Attr("num_parts: int >= 1")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .SetIsStateful()
    .SetShapeFn(TableRestoreShape)
    .Doc(R"doc(
Replaces what the table holds by what a checkpoint holds of it.

Reads `<tensor_name>-keys` or, written in shards, `<tensor_name>/part_<i>-keys` for i = 0, 1, …, and keeps
the keys with floormod(key, 1000) % num_parts == part.

table: [].
prefix: []. Of a V2 checkpoint.
bank: [b, dim]. Used where the checkpoint has no `<tensor_name>/default_values`.
tensor_name: Name of the logical table in the checkpoint.
part: Which shard of the logical table this is.
num_parts: Into how many shards the logical table is cut now.
)doc");

}  // namespace
}  // namespace rec_estimator
