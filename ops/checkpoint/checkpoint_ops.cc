// SPDX-License-Identifier: Apache-2.0
// Ops that write tables to checkpoints and read them. Kernels:
// checkpoint_export_kernels.cc, checkpoint_save_kernels.cc,
// checkpoint_restore_kernels.cc. Python: checkpoint.py.
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::errors::InvalidArgument;
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

Status TableRestoreShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ScalarInputs(c, 0, 2));
  ShapeHandle unused;
  return c->WithRank(c->input(2), 2, &unused);
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
    .Output("values: float")
    .Output("slot_values: num_slots * float")
    .Output("bloom_blocks: int64")
    .Output("bloom_counters: bloom_type")
    .Output("bloom_layout: int64")
    .Attr("dim: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("slot_names: list(string)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_initials: list(float)")
    .Attr("bloom_type: {uint8, uint16, uint32} = DT_UINT8")
    .SetIsStateful()
    .SetShapeFn(TableExportShape)
    .Doc(R"doc(
Copies the whole table out as of one instant, by bucket floormod(key, 1000), then key.

The tensors of keys without a row are empty while the environment variable
TF_EV_SAVE_FILTERED_FEATURES is False, false or 0.

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
bloom_blocks: [c]. Numbers of the Bloom filter's blocks that were ever touched.
bloom_counters: [c, w]. Their cells; [0, 0] without a Bloom filter.
bloom_layout: [4]. Blocks in all, cells per block w, hashes, bits per cell; zeros without one.
bloom_type: The least type that holds a cell: of a filter_freq up to 255 uint8, 65535 uint16.
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
    .SetIsStateful()
    .SetShapeFn(TablesSaveShape)
    .Doc(R"doc(
Writes tables to a V2 checkpoint as TableExport and SaveV2 would, in slices, in little memory.

Each table is written as of one instant, one after the other. A save that fails removes its files.
With a Bloom filter: `<tensor_name>-cbf_blocks`, `-cbf_counters` and `-cbf_layout` as well.

tables: Each [].
prefix: []. Of the checkpoint that is written.
delta_of: [2]. The name, without its folder, of the checkpoint before and the identity of its index: bytes,
  '-' and CRC-32C in hexadecimal. Written is what has changed since then, `<tensor_name>-keys_erased` [e],
  `<tensor_name>-delta_of` [] and `<tensor_name>-delta_of_index` []. Empty strings: everything. In graphs of
  older releases []: no identity.
tensor_names: Per table its name in the checkpoint, that of the shard if there are several.
key_dtypes: Per table the type of its keys in the checkpoint.
bank_names: Per table the name of its bank of initial vectors; '': it is not written.
num_slots: Per table how many slots are written.
slot_names: Of all tables, one after the other; likewise slot_widths and slot_initials.
track_changes: Notes from now on what changes, for incremental saves.
)doc");

REGISTER_OP("RecEstimator>TableCommitSave")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(TableCommitSaveShape)
    .Doc(R"doc(
Says that the table's last TablesSave with track_changes is safe: the next one leaves its changes out.

table: [].
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
    .SetIsStateful()
    .SetShapeFn(TableRestoreShape)
    .Doc(R"doc(
Replaces what the table holds by what a checkpoint holds of it, in little memory.

Reads `<tensor_name>-keys` or, written in shards, `<tensor_name>/part_<i>-keys` for i = 0, 1, …, and keeps
the keys with floormod(key, 1000) % num_parts == part. Of an incremental checkpoint, those it builds on are
read first; one that is not the one it was is an error. After an error the table is empty if it was empty (one that was not initialized may be so then),
and unchanged if it was not, unless memory ends or a key comes twice in a file that is not in order.

table: [].
prefix: []. Of a V2 checkpoint.
bank: [b, dim]. Used where the checkpoint has no `<tensor_name>/default_values`.
tensor_name: Name of the logical table in the checkpoint.
part: Which shard of the logical table this is.
num_parts: Into how many shards the logical table is cut now.
key_dtype: Type of the table's keys; one in the checkpoint that does not fit is an error.
)doc");

}  // namespace
}  // namespace rec_estimator
