// SPDX-License-Identifier: Apache-2.0
// Save and restore, the ops: TableExport, TablesSave and TableCommitSave write
// tables, TableRestore reads one. Kernels: checkpoint_export_kernels.cc,
// checkpoint_save_kernels.cc, checkpoint_restore_kernels.cc. Python:
// rec_estimator/table/saveable.py and rec_estimator/checkpoint/.
#include <cstdint>
#include <vector>

#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status ScalarInputs(InferenceContext* c, int begin, int end) {
  ShapeHandle unused;
  for (int i = begin; i < end; ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return Status();
}

Status TableExportShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 1));
  int64_t dim;
  std::vector<int64_t> widths;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_widths", &widths));
  int num_slots;
  TF_RETURN_IF_ERROR(c->GetAttr("num_slots", &num_slots));
  if (static_cast<int>(widths.size()) != num_slots) {
    return InvalidArgument("slot_widths must be of length num_slots = ",
                           num_slots, ", got ", widths.size());
  }
  const DimensionHandle rows = c->UnknownDim();
  const DimensionHandle filtered = c->UnknownDim();
  const DimensionHandle blocks = c->UnknownDim();
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
      return InvalidArgument("slot_widths must be >= 1, got ", width);
    }
    c->set_output(output++, c->Matrix(rows, width));  // slot_values
  }
  c->set_output(output++, c->Vector(blocks));                   // bloom_blocks
  c->set_output(output++, c->Matrix(blocks, c->UnknownDim()));  // bloom_coun…
  c->set_output(output++, c->Vector(4));                        // bloom_layout
  c->set_output(output++, c->Matrix(c->UnknownDim(), 3));  // bloom_generatio…
  while (output < c->num_outputs() - 1) {
    c->set_output(output++, c->UnknownShape());  // sketch
  }
  c->set_output(output, c->Scalar());  // version_unit
  return Status();
}

Status TablesSaveShape(InferenceContext* c) {
  const int delta_of = c->num_inputs() - 1;
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, delta_of));
  ShapeHandle unused;
  return c->WithRankAtMost(c->input(delta_of), 1, &unused);
}

Status TableCommitSaveShape(InferenceContext* c) {
  return ScalarInputs(c, 0, 1);
}

Status CheckpointRangesMatchShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 1));
  ShapeHandle ranges;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ranges));
  for (int i = 2; i < 4; ++i) {
    TF_RETURN_IF_ERROR(c->Merge(ranges, c->input(i), &ranges));
  }
  c->set_output(0, ranges);
  return Status();
}

Status TableRestoreShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 2));
  ShapeHandle unused;
  return c->WithRank(c->input(2), 2, &unused);
}

Status CheckpointIntegerShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 2));
  c->set_output(0, c->Scalar());
  return Status();
}

Status TableCheckRestoreShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 3));
  c->set_output(0, c->Scalar());
  return Status();
}

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
    .Output("values: value_dtype")
    .Output("slot_values: num_slots * float")
    .Output("bloom_blocks: int64")
    .Output("bloom_counters: bloom_type")
    .Output("bloom_layout: int64")
    .Output("bloom_generations: int64")
    .Output("sketch: sketch_types")
    .Output("version_unit: string")
    .Attr("dim: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("bloom_type: {uint8, uint16, uint32} = DT_UINT8")
    .Attr("sketch_types: list({uint8, uint16, uint32, int64}) >= 0 = []")
    .Attr("value_dtype: {float, bfloat16, half} = DT_FLOAT")
    .SetIsStateful()
    .SetShapeFn(TableExportShape)
    .Doc(R"doc(
Copies a whole table to tensors. All of them belong to one instant.

Rows are ordered by key class, floormod(key, 1000), then by key. The tensors of filtered keys are empty if
the environment variable TF_EV_SAVE_FILTERED_FEATURES is False, false or 0.

table: [].
keys: [n]. Keys that own a row.
freqs: [n]. Number of applied occurrences.
versions: [n]. Global step of the last apply, or -1.
keys_filtered: [f]. Keys that are counted and do not own a row.
freqs_filtered: [f].
versions_filtered: [f].
partition_offset: [1001]. Key class i holds rows [partition_offset[i], partition_offset[i+1]).
partition_filter_offset: [1001]. The same for the filtered keys.
bank: [b, dim]. Initial vectors.
values: [n, dim].
slot_values: Per slot [n, width]. The slot's initial value if the table does not have the slot.
bloom_blocks: [c]. Graphs of older releases save the tensor -cbf_blocks from this output. [0] if sketch_types
  is given.
bloom_counters: [c, w]. The same for -cbf_counters. [0, 0] if sketch_types is given.
bloom_layout: [4]. The same for -cbf_layout. Zeros if sketch_types is given.
bloom_generations: [g, 3]. The same for -cbf_generations. [1, 3] zeros if sketch_types is given.
sketch: Each [r] or [r, w]. The tensors of the table's sketch, in its order.
version_unit: []. What the versions count, 'step' or 'second'.
bloom_type: Type of bloom_counters, the smallest that holds filter_freq.
sketch_types: Types of sketch. Empty without a sketch.
value_dtype: Type of values: that of the table, or float.
)doc");

REGISTER_OP("RecEstimator>TablesSave")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Input("delta_of: string")
    .Attr("N: int >= 1")
    .Attr("tensor_names: list(string)")
    .Attr("key_dtypes: list({int32, int64})")
    .Attr("bank_names: list(string)")
    .Attr("num_slots: list(int)")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("track_changes: bool = false")
    .Attr("refuses_non_finite: bool = false")
    .SetIsStateful()
    .SetShapeFn(TablesSaveShape)
    .Doc(R"doc(
Writes tables to a V2 checkpoint, as TableExport and SaveV2 would, but in slices of bounded memory.

The tables are written one after the other, each at one instant. A failed save removes its files. A table
with a sketch also writes the tensors that the sketch names, for example `<tensor_name>-cbf_blocks`. A table whose
versions are timestamps also writes `<tensor_name>-version_unit` [], 'second'.

tables: Each [].
prefix: []. Prefix of the new checkpoint.
delta_of: [2]. For an incremental save, the parent checkpoint: its name without the folder, and the
  identity of its index, which is its size in bytes, '-' and its CRC-32C in hexadecimal. Then only changes
  since the parent are written, with `<tensor_name>-keys_erased` [e], `<tensor_name>-delta_of` [] and
  `<tensor_name>-delta_of_index` []. Two empty strings mean a full save. Graphs of older releases pass [],
  the name alone.
tensor_names: Name of each table in the checkpoint; the name of the shard if there are several.
key_dtypes: Type of each table's keys in the checkpoint.
bank_names: Name of each table's bank of initial vectors. The bank is not written if the name is ''.
num_slots: Number of slots to write of each table.
slot_names: Slots of all tables, one table after the other. slot_widths and slot_initials likewise.
track_changes: Whether to record changes from now on, as incremental saves require.
refuses_non_finite: Whether a NaN or an infinite float in a row is an error, DataLoss. TableSavedRows tells of it anyway.
)doc");

REGISTER_OP("RecEstimator>TableCommitSave")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(TableCommitSaveShape)
    .Doc(R"doc(
Confirms the table's last TablesSave with track_changes. The next incremental save omits its changes.

table: [].
)doc");

REGISTER_OP("RecEstimator>CheckpointRangesMatch")
    .Input("path: string")
    .Input("offsets: int64")
    .Input("sizes: int64")
    .Input("checksums: int64")
    .Output("matches: bool")
    .SetIsStateful()
    .SetShapeFn(CheckpointRangesMatchShape)
    .Doc(R"doc(
Tells which byte ranges of a data file have their checksums, in bounded memory.

A range that is not inside the file does not match.

path: []. The data file.
offsets: [n]. Where each range begins.
sizes: [n]. Bytes of each range.
checksums: [n]. Masked CRC-32C of each range, as a checkpoint's index has it.
matches: [n].
)doc");

REGISTER_OP("RecEstimator>CheckpointInteger")
    .Input("prefix: string")
    .Input("otherwise: int64")
    .Output("value: int64")
    .Attr("tensor_name: string")
    .SetIsStateful()
    .SetShapeFn(CheckpointIntegerShape)
    .Doc(R"doc(
Reads a variable that a checkpoint may lack.

prefix: []. Prefix of a V2 checkpoint.
otherwise: []. The result if the checkpoint has no such tensor.
value: [].
tensor_name: Name of the variable in the checkpoint.
)doc");

REGISTER_OP("RecEstimator>TableRestore")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("bank: float")
    .Attr("tensor_name: string")
    .Attr("part: int >= 0")
    .Attr("num_parts: int >= 1")
    .Attr("key_dtype: {int32, int64} = DT_INT64")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("version: int >= -2 = -2")
    .Attr("warns: bool = false")
    .Attr("stored_widths: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(TableRestoreShape)
    .Doc(R"doc(
Replaces the contents of a table by those in a checkpoint, in bounded memory.

Reads `<tensor_name>-keys` or, if it was saved in shards, `<tensor_name>/part_<i>-keys` for i = 0, 1, ….
Keeps the keys with floormod(key, 1000) % num_parts == part. The parents of an incremental checkpoint are
read first. It is an error if a parent was overwritten since.

The table is not initialized until all rows are there. After an error, a table is what it was: new, empty or
with its contents. The exceptions are that memory runs out, an unordered file has a repeated key or a file
changes meanwhile: then a table with contents has lost them and is not initialized.

table: [].
prefix: []. Prefix of a V2 checkpoint.
bank: [b, dim]. Used if the checkpoint has no `<tensor_name>/default_values`.
tensor_name: Name of the logical table in the checkpoint.
part: Number of this shard of the logical table.
num_parts: Current number of shards of the logical table.
key_dtype: Type of the table's keys. A key in the checkpoint that does not fit is an error.
version: The version of every key; -2: that in the checkpoint, or -1 if it does not count what the table's versions count.
warns: Whether to log what is not kept of the checkpoint: versions of another unit, and slots that it lacks.
stored_widths: Floats of a row and of each slot in the checkpoint, if they may differ from the table's: what the table lacks is
  dropped; what the checkpoint lacks comes from the initial vectors and from slot_initials. []: those of the table.
)doc");

REGISTER_OP("RecEstimator>TableCheckRestore")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("all_keys: bool")
    .Output("loss: string")
    .Attr("tensor_name: string")
    .Attr("part: int >= 0")
    .Attr("num_parts: int >= 1")
    .Attr("key_dtype: {int32, int64} = DT_INT64")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("version: int >= -2 = -2")
    .SetIsStateful()
    .SetShapeFn(TableCheckRestoreShape)
    .Doc(R"doc(
Checks that TableRestore, with the same attributes, can read a checkpoint. Changes nothing.

A table may refuse a checkpoint that lacks it, has another dimension, keys that do not fit into its type, or
more rows than its limit. A Saver runs this op for all tables before it restores anything. Reads the index of
the checkpoint and of its parents, and no rows.

table: [].
prefix: []. Prefix of a V2 checkpoint.
all_keys: []. Whether to check all keys and counts. Otherwise keys are read if they may not fit.
loss: []. A sentence on the counts of a filter that the restore will drop. Empty if none.
)doc");

}  // namespace
}  // namespace rec_estimator
