// SPDX-License-Identifier: Apache-2.0
// Ops that read rows, and their gradient. They never change a table.
// Kernels: lookup_kernels.cc. Python: rec_estimator/table/lookup.py.
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TableLookupShape(InferenceContext* c) {
  ShapeHandle unused, values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &values));
  c->set_output(0, values);
  return Status();
}

Status TableGroupLookupShape(InferenceContext* c) {
  std::vector<int64_t> dims;
  std::vector<std::string> combiners, unknowns;
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(c->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(c->GetAttr("unknowns", &unknowns));
  if (static_cast<int>(dims.size()) != n ||
      static_cast<int>(combiners.size()) != n ||
      static_cast<int>(unknowns.size()) != n) {
    return InvalidArgument(
        "dims, combiners and unknowns must be of length N, got ", dims.size(),
        ", ", combiners.size(), " and ", unknowns.size(), " for N = ", n);
  }
  for (int i = 0; i < n; ++i) {
    if (dims[i] < 1) {
      return InvalidArgument("dims must be >= 1, got ", dims[i], " at ", i);
    }
    ShapeHandle unused, keys, indices, dense_shape;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(n + i), 1, &keys));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * n + i), 2, &indices));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(3 * n + i), 1, &dense_shape));
    DimensionHandle same;
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(keys, 0), c->Dim(indices, 0), &same));
    TF_RETURN_IF_ERROR(
        c->Merge(c->Dim(indices, 1), c->Dim(dense_shape, 0), &same));
    ShapeHandle full;
    TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(3 * n + i, &full));
    const DimensionHandle rows = c->RankKnown(full) && c->Rank(full) > 0
                                     ? c->Dim(full, 0)
                                     : c->UnknownDim();
    c->set_output(i, c->Matrix(rows, dims[i]));
  }
  return Status();
}

Status TableGroupLookupGradShape(InferenceContext* c) {
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  for (int i = 0; i < n; ++i) {
    ShapeHandle indices, grads;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 2, &indices));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(n + i), 2, &grads));
    c->set_output(i, c->Matrix(c->Dim(indices, 0), c->Dim(grads, 1)));
  }
  return Status();
}

REGISTER_OP("RecEstimator>TableLookup")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("values: float")
    .Attr("dim: int >= 1")
    .Attr("unknown: {'initial', 'default'} = 'initial'")
    .SetIsStateful()
    .SetShapeFn(TableLookupShape)
    .Doc(R"doc(
Reads one row per key. Changes nothing.

table: [].
keys: Any shape. Repeats are allowed.
values: [keys.shape, dim].
dim: Dimension of the table.
unknown: What a key without a row reads: its initial vector or the default vector.
)doc");

REGISTER_OP("RecEstimator>TableGroupLookup")
    .Input("tables: N * resource")
    .Input("keys: N * int64")
    .Input("indices: N * int64")
    .Input("dense_shapes: N * int64")
    .Output("values: N * float")
    .Attr("N: int >= 1")
    .Attr("dims: list(int)")
    .Attr("combiners: list(string)")
    .Attr("unknowns: list({'initial', 'default'})")
    .SetIsStateful()
    .SetShapeFn(TableGroupLookupShape)
    .Doc(R"doc(
Reads and combines the rows of several lookups in one op. Changes nothing.

Python makes ops of one lookup. fuse_lookups_pass.cc makes those of several.

tables: Each []. A table may occur several times.
keys: Each [n], the values of a SparseTensor.
indices: Each [n, r], r >= 1, the indices of the SparseTensor. Column 0 must not decrease.
dense_shapes: Each [r], the dense_shape of the SparseTensor.
values: Each [dense_shape[0], dim]. Zeros for a row without keys.
dims: Dimension of each table.
combiners: Each "sum", "mean" or "sqrtn".
unknowns: What each lookup reads for a key without a row: its initial vector or the default vector.
)doc");

REGISTER_OP("RecEstimator>TableGroupLookupGrad")
    .Input("indices: N * int64")
    .Input("grads: N * float")
    .Output("key_grads: N * float")
    .Attr("N: int >= 1")
    .Attr("combiners: list(string)")
    .SetShapeFn(TableGroupLookupGradShape)
    .Doc(R"doc(
Computes the gradient of TableGroupLookup for each occurrence of a key.

indices: Each [n, r], as in TableGroupLookup.
grads: Each [rows, dim], the gradient of the combined values.
key_grads: Each [n, dim]. Row j is grads[indices[j, 0]], divided by the number of keys in that row for
  "mean" and by its square root for "sqrtn".
combiners: Each "sum", "mean" or "sqrtn".
)doc");

}  // namespace
}  // namespace rec_estimator
