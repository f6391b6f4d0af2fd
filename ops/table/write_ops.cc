// SPDX-License-Identifier: Apache-2.0
// Ops that write and erase rows of a table, outside of training.
// Kernels: write_kernels.cc. Python: rec_estimator/table/row_writes.py.
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Checks that inputs `keys` and `keys` + 1 are [n] and [n, dim].
Status CheckRowShapes(InferenceContext* c, int keys) {
  ShapeHandle keys_shape, rows_shape;
  DimensionHandle n;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(keys), 1, &keys_shape));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(keys + 1), 2, &rows_shape));
  return c->Merge(c->Dim(keys_shape, 0), c->Dim(rows_shape, 0), &n);
}

Status CheckTableRowsShape(InferenceContext* c) {
  ShapeHandle counts;
  TF_RETURN_IF_ERROR(CheckRowShapes(c, 0));
  return c->WithRank(c->input(2), 1, &counts);
}

REGISTER_OP("RecEstimator>CheckTableRows")
    .Input("keys: int64")
    .Input("rows: float")
    .Input("counts: int64")
    .Attr("table_name: string")
    .Attr("dim: int >= 1")
    .Attr("value_dtype: {float, bfloat16, half, uint8} = DT_FLOAT")
    .Attr("has_padding_key: bool = false")
    .SetIsStateful()
    .SetShapeFn(CheckTableRowsShape)
    .Doc(R"doc(
Fails unless TableAssign accepts these rows, so that no shard of a table is written if another one would refuse its part.

keys: [n].
rows: [n, dim].
counts: [n] or [0].
table_name: The name of the table, for messages.
dim: Floats in the value of a row.
value_dtype: How the table stores values.
has_padding_key: Whether key -1 is padding.
)doc");

Status TableAssignShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(CheckRowShapes(c, 1));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
  return c->WithRank(c->input(4), 0, &unused);
}

REGISTER_OP("RecEstimator>TableAssign")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("rows: float")
    .Input("counts: int64")
    .Input("version: int64")
    .SetIsStateful()
    .SetShapeFn(TableAssignShape)
    .Doc(R"doc(
Writes rows. The slots of these rows begin anew. A lookup reads the table before all of it or after all of it. After an
error nothing has changed.

table: [].
keys: [n]. Distinct, and none is padding. Each owns a row afterwards, whatever the filter.
rows: [n, dim]. Finite in the type of the table, too.
counts: [n], >= 0. [0]: a key keeps its count, or gets the one that the filter asks for if that is greater.
version: []. The version of the rows.
)doc");

Status TableEraseShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
  c->set_output(0, c->Scalar());
  return Status();
}

REGISTER_OP("RecEstimator>TableErase")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("version: int64")
    .Output("erased: int64")
    .SetIsStateful()
    .SetShapeFn(TableEraseShape)
    .Doc(R"doc(
Takes away the rows and counts of keys. A lookup reads the table before all of it or after all of it.

table: [].
keys: [n]. Repeats and unknown keys do nothing.
version: []. The version of keys that a sketch still counts, which stay as keys without a row.
erased: []. How many keys had a row.
)doc");

Status TableInitializeRowsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &unused));
  return CheckRowShapes(c, 2);
}

REGISTER_OP("RecEstimator>TableInitializeRows")
    .Input("table: resource")
    .Input("bank: float")
    .Input("keys: int64")
    .Input("rows: float")
    .SetIsStateful()
    .SetShapeFn(TableInitializeRowsShape)
    .Doc(R"doc(
Sets the bank of initial vectors of a table and replaces its rows. The table is initialized when all rows are there.
After an error about an argument nothing has changed.

table: [].
bank: [b, dim], b >= 1. The initial vector of key k is row floormod(k, b).
keys: [n]. As of TableAssign. Their count is the one that the filter asks for, their version -1.
rows: [n, dim]. As of TableAssign.
)doc");

}  // namespace
}  // namespace rec_estimator
