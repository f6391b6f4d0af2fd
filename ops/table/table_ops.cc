// SPDX-License-Identifier: Apache-2.0
// Ops on a table as a whole: make it, empty it, ask it. Kernels:
// table_kernels.cc. Python: table.py.
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

Status TableStatsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return Status();
}

Status TableEvictShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  return TableStatsShape(c);
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
    .Attr("filter_freq: int >= 0 = 0")
    .Attr("filter_coefficient: int >= 1 = 1")
    .Attr("max_element_size: int >= 0 = 0")
    .Attr("false_positive_probability: float = 0.0")
    .Attr("max_rows: int >= 0 = 0")
    .Attr("has_padding_key: bool = false")
    .Attr("frozen_keys: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Handle of the table named `shared_name`, made empty the first time it is asked for.

table: [].
dim: Elements of a row's value.
default_value: Every element of the vector that a key without permission reads.
filter_freq: Count that admits a key, below 2^31; 0: every key at once.
filter_coefficient: What one occurrence adds to the count, below 2^32.
max_element_size: > 0: keys without a row are counted in a counting Bloom filter for so many keys, of all shards.
false_positive_probability: The Bloom filter's, in (0, 1); 0 without one.
max_rows: Rows that the table may have; 0: as many as there is memory for.
has_padding_key: Whether key -1 is padding: it reads the default vector, and is neither stored nor counted.
frozen_keys: Distinct keys whose rows keep their values when a step updates their slots.
)doc");

REGISTER_OP("RecEstimator>TableInitialize")
    .Input("table: resource")
    .Input("bank: float")
    .Attr("only_new: bool = false")
    .SetIsStateful()
    .SetShapeFn(TableInitializeShape)
    .Doc(R"doc(
Empties the table and gives it its bank of initial vectors.

table: [].
bank: [b, dim], b >= 1. Key k starts from row floormod(k, b).
only_new: Whether to leave a table that has its bank as it is.
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
Whether each key owns a row, or will once these occurrences are applied. Counts nothing.

table: [].
keys: Any shape. Repeats count: all occurrences of a key are of one answer.
counted_keys: [m]. Further occurrences, which are not asked about.
admits: Shape of keys.
)doc");

REGISTER_OP("RecEstimator>TableContains")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("owns_row: bool")
    .SetIsStateful()
    .SetShapeFn(PerKeyShape)
    .Doc(R"doc(
Whether each key owns a row. Changes nothing.

table: [].
keys: Any shape.
owns_row: Shape of keys.
)doc");

REGISTER_OP("RecEstimator>TableEvict")
    .Input("table: resource")
    .Input("global_step: int64")
    .Output("evicted: int64")
    .Attr("steps_to_live: int = -1")
    .Attr("l2_weight_threshold: float = -1.0")
    .SetIsStateful()
    .SetShapeFn(TableEvictShape)
    .Doc(R"doc(
Takes away keys that were not trained for long, or rows whose values are small.

table: [].
global_step: []. Keys of version -1, or of a larger one as after a warm start, are stamped with it.
evicted: []. How many keys went, the counted ones among them.
steps_to_live: >= 0: a key goes iff global_step - version is larger. -1: not by steps.
l2_weight_threshold: > 0: a row goes iff half the sum of its squared values is smaller. -1: not by values.
)doc");

}  // namespace
}  // namespace rec_estimator
