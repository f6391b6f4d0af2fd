// SPDX-License-Identifier: Apache-2.0
// Ops that create, initialize and inspect a table.
// Kernels: table_kernels.cc. Python: rec_estimator/table/shard.py.
#include "ops/table/table_storage.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TableInitializeShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  return c->WithRank(c->input(1), 2, &unused);
}

Status TableStatsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return Status();
}

// The output has the shape of keys.
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
    .Attr("filter_freq: int >= 0 = 0")
    .Attr("filter_coefficient: int >= 1 = 1")
    .Attr("max_element_size: int >= 0 = 0")
    .Attr("false_positive_probability: float = 0.0")
    .Attr("max_rows: int >= 0 = 0")
    .Attr("capacity_rows: int >= 0 = 0")
    .Attr("capacity_policy: {'lfu', 'lru', 'lfu_decay'} = 'lfu'")
    .Attr("capacity_half_life: int >= 1 = 1")
    .Attr("has_padding_key: bool = false")
    .Attr("frozen_keys: list(int) = []")
    .Attr("sketch: string = ''")
    .Attr("storage_paths: list(string) = []")
    .Attr("memory_rows: int >= 0 = 0")
    .Attr("memory_bytes: int >= 0 = 0")
    .Attr("memory_limit: int >= 0 = 0")
    .Attr("memory_budget: int >= 0 = 0")
    .Attr("spilled_first: {'least_counted', 'oldest'} = 'least_counted'")
    .Attr("owned_by_handle: bool = false")
    .Attr("version_unit: {'', 'step', 'second'} = ''")
    .Attr("value_dtype: {float, bfloat16, half, uint8} = DT_FLOAT")
    .Attr("rounding_seed: int = 0")
    .Attr("slot_dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("refreshable: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns a handle of the table named `shared_name`. The first call creates the table, empty.

table: [].
dim: Floats in the value of a row.
default_value: Every element of the default vector, which keys that are not admitted read.
filter_freq: Threshold: the count that admits a key, < 2^31. 0 admits every key at once.
filter_coefficient: What one occurrence adds to the count, in [1, 2^31).
max_element_size: Graphs of older releases have it instead of sketch='counting_bloom_filter ...'. 0 otherwise.
false_positive_probability: As max_element_size.
max_rows: Row limit of the table. 0 means no limit. A step that would exceed it fails.
capacity_rows: The rows that the table keeps: at the end of a step, the coldest rows beyond them are evicted, but never
  those of running steps. 0: all.
capacity_policy: Which rows are coldest, for capacity_rows and memory_budget. 'lfu': those with the least counts, and the
  oldest versions among them; 'lru': those with the oldest versions; 'lfu_decay': those with the least counts after a decay
  with the age of the version.
capacity_half_life: With 'lfu_decay', the age at which a count is worth half.
has_padding_key: Whether key -1 is padding. Padding reads the default vector and is neither stored nor counted.
frozen_keys: Distinct keys whose values never change. A step still updates their slots.
sketch: What counts keys without a row: the name of a registered sketch and its parameters, for example
  'counting_bloom_filter max_element_size=1000 false_positive_probability=0.01'. '': entries of the table.
storage_paths: Folders, on the machine of the table, for files of the rows that are not in memory; one after the other
  is filled. Missing folders are created. The files live as long as the table. []: all rows are in memory.
memory_rows: How many rows stay in memory besides those of running steps, at least 64.
memory_bytes: The bytes of those rows, values and slots, instead of their number. 0: memory_rows.
memory_limit: Instead of both, bytes of all memory of the table: index, rows and buffers. Rows give way to the index, until
  64 are left. 0: none.
memory_budget: Bytes of index and rows that all tables of a session with this number may take together. At the end of a step
  that exceeds it, its tables evict their coldest rows, each for a part in proportion to its memory, but never those of
  running steps. 0: none. Without storage_paths.
spilled_first: Which rows leave memory first: those with the least counts, or those with the oldest versions.
owned_by_handle: Whether each call makes a table of its own, which no other op finds and which lives as long as its handle.
  `shared_name` is then its name in messages.
version_unit: What the versions count that steps write. '': unknown, as in graphs that do not train; then it is that of
  the restored checkpoint.
value_dtype: How values are stored. Lookups give float32 and steps compute in float32; with 16 bits, a trained value is
  rounded stochastically. With uint8, a row has a byte for each element, a scale and an offset; such a table is that of an
  export and cannot be trained. dim is at most 2048 unless it and slot_dtype are float.
rounding_seed: What tells the random bits of this rounding apart from those of other tables; that of all shards of a table.
slot_dtype: How slots of more than one number are stored; slots of one number are float. Steps compute in float32; a bfloat16
  is rounded stochastically.
refreshable: Whether each step reads one state of this table and of the others that are refreshable, although ModelRefresh
  changes them meanwhile.
)doc");

REGISTER_OP("RecEstimator>TableInitialize")
    .Input("table: resource")
    .Input("bank: float")
    .Attr("only_new: bool = false")
    .SetIsStateful()
    .SetShapeFn(TableInitializeShape)
    .Doc(R"doc(
Removes all keys from the table and sets its bank of initial vectors.

table: [].
bank: [b, dim], b >= 1. The initial vector of key k is row floormod(k, b).
only_new: If true, a table that is already initialized is left unchanged.
)doc");

REGISTER_OP("RecEstimator>TableIsInitialized")
    .Input("table: resource")
    .Output("is_initialized: bool")
    .SetIsStateful()
    .SetShapeFn(TableStatsShape)
    .Doc(R"doc(
Returns whether TableInitialize or TableRestore has filled the table: false while a restore reads rows, and
after one that lost the rows.

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
Returns the size of the table.

table: [].
size: []. Number of keys that own a row.
total_count: []. `size` plus the number of keys that are only counted.
capacity: []. Number of keys that fit before a stripe grows.
memory_bytes: []. Bytes allocated for keys and rows.
)doc");

Status TableTierCountsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  c->set_output(0, c->Vector(kTierCounts));
  return Status();
}

REGISTER_OP("RecEstimator>TableTierCounts")
    .Input("table: resource")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(TableTierCountsShape)
    .Doc(R"doc(
Returns how many rows are in memory and on disk, and what the disk has done since the table was made.

table: [].
counts: [10]. Rows in memory; rows on disk; keys whose row a step found in memory; keys whose row a step had to read;
  rows that were written; bytes that were read; bytes that were written; nanoseconds for which reads waited for the
  disk; bytes of the files; bytes of memory for what is written and read next. Of a table without storage_paths, all
  but the first are 0.
)doc");

Status TableActivityShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  c->set_output(0, c->Vector(kActivityCounts));
  return Status();
}

REGISTER_OP("RecEstimator>TableActivity")
    .Input("table: resource")
    .Output("activity: int64")
    .SetIsStateful()
    .SetShapeFn(TableActivityShape)
    .Doc(R"doc(
Returns what the table has and what training steps have done to it since it was made. Changes nothing, and waits for no
work of the disk.

table: [].
activity: [9]. Rows; rows and keys that are only counted; bytes of memory; occurrences of keys in training steps; those
  whose key had a row before the step; rows that were evicted or erased; rows on disk; keys whose row a step found in
  memory, of a table with storage_paths; keys whose row a step had to read.
)doc");

Status TableSavedRowsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  const auto largest = c->Vector(c->UnknownDim());
  c->set_output(0, largest);
  c->set_output(1, largest);
  c->set_output(2, c->Scalar());
  c->set_output(3, c->Scalar());
  return Status();
}

REGISTER_OP("RecEstimator>TableSavedRows")
    .Input("table: resource")
    .Output("norms: float")
    .Output("keys: int64")
    .Output("non_finite: int64")
    .Output("first: string")
    .SetIsStateful()
    .SetShapeFn(TableSavedRowsShape)
    .Doc(R"doc(
Returns what the last TablesSave found in the rows that it wrote. Reads no row.

table: [].
norms: [n], n <= 5. The largest L2 norms of values, in descending order. A norm beyond float is infinite.
keys: [n]. The keys of these rows.
non_finite: []. Number of rows with a NaN or an infinite float in the value or a slot. They have no norm.
first: []. Which key, where and since when, of the row among these with the least key; empty if there is none.
)doc");

REGISTER_OP("RecEstimator>TableFrequencies")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("frequencies: int64")
    .SetIsStateful()
    .SetShapeFn(PerKeyShape)
    .Doc(R"doc(
Returns how often each key was applied. Changes nothing.

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
Returns the global step of each key's last apply. Changes nothing.

table: [].
keys: Any shape.
versions: Shape of keys. -1 for an unknown key and for a key that was never applied.
)doc");

Status TableAdmitsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  return PerKeyShape(c);
}

REGISTER_OP("RecEstimator>TableAdmits")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("counted_keys: int64")
    .Output("admits: bool")
    .SetIsStateful()
    .SetShapeFn(TableAdmitsShape)
    .Doc(R"doc(
Returns whether each key owns a row or would own one after these occurrences are applied. Changes nothing.

table: [].
keys: Any shape. Each repeat counts. All occurrences of a key get the same answer.
counted_keys: [m]. Further occurrences to count. The output has no element for them.
admits: Shape of keys.
)doc");

REGISTER_OP("RecEstimator>TableContains")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("owns_row: bool")
    .SetIsStateful()
    .SetShapeFn(PerKeyShape)
    .Doc(R"doc(
Returns whether each key owns a row. Changes nothing.

table: [].
keys: Any shape.
owns_row: Shape of keys.
)doc");

}  // namespace
}  // namespace rec_estimator
