// SPDX-License-Identifier: Apache-2.0
// Ops that combine looked-up rows with weights, and their gradient.
// Kernels: combine_kernels.cc. Python: rec_estimator/table/combined_lookup.py.
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Checks the weights and the indices of a list, which are inputs `weights` and
// `indices`. `keys` becomes the number of its keys, which starts as what is
// known of it, and `rank` the number of columns of its indices.
Status MergeKeys(InferenceContext* c, int weights, int indices,
                 DimensionHandle* keys, DimensionHandle* rank) {
  ShapeHandle vector, matrix;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(weights), 1, &vector));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(indices), 2, &matrix));
  TF_RETURN_IF_ERROR(c->Merge(*keys, c->Dim(vector, 0), keys));
  TF_RETURN_IF_ERROR(c->Merge(*keys, c->Dim(matrix, 0), keys));
  *rank = c->Dim(matrix, 1);
  return Status();
}

Status CombineWeightedShape(InferenceContext* c) {
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  for (int i = 0; i < n; ++i) {
    ShapeHandle values, dense_shape, full;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 2, &values));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(3 * n + i), 1, &dense_shape));
    DimensionHandle keys = c->Dim(values, 0), rank;
    TF_RETURN_IF_ERROR(MergeKeys(c, n + i, 2 * n + i, &keys, &rank));
    TF_RETURN_IF_ERROR(c->Merge(rank, c->Dim(dense_shape, 0), &rank));
    TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(3 * n + i, &full));
    const DimensionHandle rows = c->RankKnown(full) && c->Rank(full) > 0
                                     ? c->Dim(full, 0)
                                     : c->UnknownDim();
    c->set_output(i, c->Matrix(rows, c->Dim(values, 1)));
  }
  return Status();
}

Status CombineWeightedGradShape(InferenceContext* c) {
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  for (int i = 0; i < n; ++i) {
    ShapeHandle grads;
    DimensionHandle keys = c->UnknownDim(), rank;
    TF_RETURN_IF_ERROR(MergeKeys(c, i, n + i, &keys, &rank));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * n + i), 2, &grads));
    c->set_output(i, c->Matrix(keys, c->Dim(grads, 1)));
  }
  return Status();
}

REGISTER_OP("RecEstimator>CombineWeighted")
    .Input("values: N * T")
    .Input("weights: N * T")
    .Input("indices: N * int64")
    .Input("dense_shapes: N * int64")
    .Output("combined: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("combiners: list(string)")
    .SetShapeFn(CombineWeightedShape)
    .Doc(R"doc(
Combines the looked-up rows of several lookups with weights.

Python makes ops of one lookup. fuse_lookups_pass.cc makes those of several.

values: Each [n, dim], the row of each key of a SparseTensor.
weights: Each [n], one for each key.
indices: Each [n, r], r >= 1, the indices of the SparseTensor. Column 0 must not decrease.
dense_shapes: Each [r], the dense_shape of the SparseTensor.
combined: Each [dense_shape[0], dim]. The weighted sum of a row's keys, divided by the sum of their
  weights for "mean" and by the square root of the sum of their squared weights for "sqrtn". Zeros
  for a row without keys and where the divisor is 0.
combiners: Each "sum", "mean" or "sqrtn".
)doc");

REGISTER_OP("RecEstimator>CombineWeightedGrad")
    .Input("weights: N * T")
    .Input("indices: N * int64")
    .Input("grads: N * T")
    .Output("value_grads: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("combiners: list(string)")
    .SetShapeFn(CombineWeightedGradShape)
    .Doc(R"doc(
Computes the gradient of the values of CombineWeighted.

weights: Each [n], as in CombineWeighted.
indices: Each [n, r], as in CombineWeighted.
grads: Each [rows, dim], the gradient of the combined values.
value_grads: Each [n, dim]. Row j is weights[j] times grads[indices[j, 0]], divided as the sum of that
  row is.
combiners: Each "sum", "mean" or "sqrtn".
)doc");

}  // namespace
}  // namespace rec_estimator
