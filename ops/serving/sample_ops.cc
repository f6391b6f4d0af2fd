// SPDX-License-Identifier: Apache-2.0
// Ops of a compressed model: rows of users for candidates.
// Kernels: sample_kernels.cc. Python: sample_compression/expansion.py.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status SampleRowsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Scalar());
  c->set_output(2, c->Vector(c->UnknownDim()));
  c->set_output(3, c->Vector(c->UnknownDim()));
  return Status();
}

Status RepeatRowsShape(InferenceContext* c) {
  ShapeHandle unused, out;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  int64_t axis;
  TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), axis + 1, &out));
  if (!c->RankKnown(out)) {
    c->set_output(0, c->UnknownShape());
    return Status();
  }
  TF_RETURN_IF_ERROR(c->ReplaceDim(out, axis, c->UnknownDim(), &out));
  c->set_output(0, out);
  return Status();
}

Status RepeatRowsGradShape(InferenceContext* c) {
  ShapeHandle out, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &out));
  c->set_output(0, out);
  return Status();
}

Status SegmentMatMulShape(InferenceContext* c) {
  ShapeHandle rows, matrices, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 3, &matrices));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  bool transpose;
  TF_RETURN_IF_ERROR(c->GetAttr("transpose_matrices", &transpose));
  DimensionHandle inner;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(rows, 1), c->Dim(matrices, transpose ? 2 : 1), &inner));
  c->set_output(
      0, c->Matrix(c->Dim(rows, 0), c->Dim(matrices, transpose ? 1 : 2)));
  return Status();
}

Status SegmentMatMulGradShape(InferenceContext* c) {
  ShapeHandle rows, grads, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &grads));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
  DimensionHandle same;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(rows, 0), c->Dim(grads, 0), &same));
  c->set_output(
      0, c->MakeShape({c->UnknownDim(), c->Dim(rows, 1), c->Dim(grads, 1)}));
  return Status();
}

// What UserLayer and its gradient have in common.
Status LayerDims(InferenceContext* c, DimensionHandle* entries,
                 DimensionHandle* inner, DimensionHandle* outer) {
  ShapeHandle matrices, rows, kernel, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &matrices));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &kernel));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
  *entries = c->Dim(matrices, 1);
  *outer = c->Dim(kernel, 1);
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(matrices, 2), c->Dim(rows, 1), inner));
  return c->Merge(*inner, c->Dim(kernel, 0), inner);
}

Status UserLayerShape(InferenceContext* c) {
  DimensionHandle entries, inner, outer;
  TF_RETURN_IF_ERROR(LayerDims(c, &entries, &inner, &outer));
  ShapeHandle user_bias, row_bias;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 3, &user_bias));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(5), 2, &row_bias));
  DimensionHandle rows;
  TF_RETURN_IF_ERROR(
      c->Merge(c->Dim(c->input(1), 0), c->Dim(row_bias, 0), &rows));
  c->set_output(0, c->MakeShape({rows, entries, outer}));
  return Status();
}

Status UserLayerGradShape(InferenceContext* c) {
  DimensionHandle entries, inner, outer;
  TF_RETURN_IF_ERROR(LayerDims(c, &entries, &inner, &outer));
  ShapeHandle grads;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 3, &grads));
  const DimensionHandle users = c->Dim(c->input(0), 0);
  c->set_output(0, c->MakeShape({users, entries, inner}));
  c->set_output(1, c->MakeShape({c->Dim(c->input(1), 0), inner}));
  c->set_output(2, c->MakeShape({users, inner, outer}));
  return Status();
}

REGISTER_OP("RecEstimator>SampleRows")
    .Input("item_size: Tsize")
    .Input("tensors: T")
    .Output("users: int32")
    .Output("items: int32")
    .Output("row_splits: int32")
    .Output("index: int32")
    .Attr("Tsize: {int32, int64} = DT_INT32")
    .Attr("T: list(type) >= 1")
    .Attr("kinds: list({'dense', 'sparse', 'ragged'})")
    .Attr("names: list(string)")
    .Attr("num_users: int >= 0")
    .Attr("size_name: string")
    .SetShapeFn(SampleRowsShape)
    .Doc(R"doc(
Says which candidate is whose, and fails where a request does not fit together.

item_size: [B], the number of candidates of each user; [1]: the same number for each user.
tensors: Those of users first. What has rows: a dense tensor, a SparseTensor's dense_shape, or a
  RaggedTensor's row_splits.
users: [], B.
items: [], N.
row_splits: [B + 1]: user b has the candidates from row_splits[b] to row_splits[b + 1].
index: [N], the user of each candidate.
kinds: What each of tensors is.
names: What an error calls each of tensors.
num_users: How many of tensors have a row per user; the others have one per candidate.
size_name: What an error calls item_size.
)doc");

REGISTER_OP("RecEstimator>RepeatRows")
    .Input("values: T")
    .Input("row_splits: int32")
    .Output("repeated: T")
    .Attr("T: type")
    .Attr("axis: int >= 0 = 0")
    .Attr("keep_one: bool = false")
    .SetShapeFn(RepeatRowsShape)
    .Doc(R"doc(
Repeats each user's row for each candidate.

values: [..., B * k, ...], k consecutive places of an axis for each user.
row_splits: [B + 1], of SampleRows.
repeated: [..., N * k, ...].
axis: That of the rows.
keep_one: Whether the only row of one user stays one, as is enough for what broadcasts.
)doc");

REGISTER_OP("RecEstimator>RepeatRowsGrad")
    .Input("grads: T")
    .Input("row_splits: int32")
    .Input("shape: int32")
    .Output("value_grads: T")
    .Attr("T: {float, double}")
    .Attr("axis: int >= 0 = 0")
    .SetShapeFn(RepeatRowsGradShape)
    .Doc(R"doc(
The gradient of RepeatRows: the sum over each user's candidates.

grads: [..., N * k, ...], or [..., k, ...] of one user's row that stayed one.
row_splits: [B + 1], of SampleRows.
shape: [rank], of RepeatRows' values.
value_grads: [..., B * k, ...]; zeros for a user without candidates.
axis: That of the rows.
)doc");

REGISTER_OP("RecEstimator>SegmentMatMul")
    .Input("rows: T")
    .Input("matrices: T")
    .Input("row_splits: int32")
    .Output("products: T")
    .Attr("T: {float, double}")
    .Attr("transpose_matrices: bool = false")
    .SetShapeFn(SegmentMatMulShape)
    .Doc(R"doc(
Multiplies each candidate's row with the matrix of its user, without a copy of the matrix.

rows: [N, K].
matrices: [B, K, M]; [B, M, K] if transpose_matrices.
row_splits: [B + 1], of SampleRows.
products: [N, M].
)doc");

REGISTER_OP("RecEstimator>SegmentMatMulGrad")
    .Input("rows: T")
    .Input("grads: T")
    .Input("row_splits: int32")
    .Output("matrix_grads: T")
    .Attr("T: {float, double}")
    .SetShapeFn(SegmentMatMulGradShape)
    .Doc(R"doc(
The gradient of SegmentMatMul for the matrices.

rows: [N, K].
grads: [N, M], of the products.
row_splits: [B + 1], of SampleRows.
matrix_grads: [B, K, M]; zeros for a user without candidates.
)doc");

REGISTER_OP("RecEstimator>UserLayer")
    .Input("entries: T")
    .Input("rows: T")
    .Input("kernel: T")
    .Input("row_splits: int32")
    .Input("user_bias: T")
    .Input("row_bias: T")
    .Output("outputs: T")
    .Attr("T: {float, double}")
    .SetShapeFn(UserLayerShape)
    .Doc(R"doc(
A layer over the product of each candidate's row with each entry of her user: (e * r) × W + b.

entries: [B, T, D], of users.
rows: [N, D], of candidates.
kernel: [D, H].
row_splits: [B + 1], of SampleRows.
user_bias: [B, T, H].
row_bias: [N, H].
outputs: [N, T, H].
)doc");

REGISTER_OP("RecEstimator>UserLayerGrad")
    .Input("entries: T")
    .Input("rows: T")
    .Input("kernel: T")
    .Input("row_splits: int32")
    .Input("grads: T")
    .Output("entry_grads: T")
    .Output("row_grads: T")
    .Output("kernel_grads: T")
    .Attr("T: {float, double}")
    .SetShapeFn(UserLayerGradShape)
    .Doc(R"doc(
The gradient of UserLayer for all but the biases.

entries: [B, T, D], as in UserLayer.
rows: [N, D].
kernel: [D, H].
row_splits: [B + 1], of SampleRows.
grads: [N, T, H], of UserLayer's outputs.
entry_grads: [B, T, D].
row_grads: [N, D].
kernel_grads: [B, D, H], the share of each user.
)doc");

}  // namespace
}  // namespace rec_estimator
