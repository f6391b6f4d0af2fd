// SPDX-License-Identifier: Apache-2.0
// Ops that multiply the rows of each segment, the candidates of one user, by a
// matrix of the user. sample_ops.cc explains segments.
// Kernels: segment_product_kernels.cc. Python:
// rec_estimator/sample_compression/rewrite/expansion.py.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

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

// Dimensions of the inputs that SegmentLayer and its gradient share.
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

Status SegmentLayerShape(InferenceContext* c) {
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

Status SegmentLayerGradShape(InferenceContext* c) {
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

REGISTER_OP("RecEstimator>SegmentMatMul")
    .Input("rows: T")
    .Input("matrices: T")
    .Input("row_splits: int32")
    .Output("products: T")
    .Attr("T: {float, double}")
    .Attr("transpose_matrices: bool = false")
    .SetShapeFn(SegmentMatMulShape)
    .Doc(R"doc(
Multiplies the rows of each segment by the matrix of its user. Does not repeat the matrices.

rows: [N, K].
matrices: [B, K, M]. [B, M, K] if transpose_matrices.
row_splits: [B + 1]. From SampleRows.
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
Computes the gradient of SegmentMatMul for the matrices.

rows: [N, K].
grads: [N, M]. Gradient of the products.
row_splits: [B + 1]. From SampleRows.
matrix_grads: [B, K, M]. Zeros for a user without candidates.
)doc");

REGISTER_OP("RecEstimator>SegmentLayer")
    .Input("entries: T")
    .Input("rows: T")
    .Input("kernel: T")
    .Input("row_splits: int32")
    .Input("user_bias: T")
    .Input("row_bias: T")
    .Output("outputs: T")
    .Attr("T: {float, double}")
    .SetShapeFn(SegmentLayerShape)
    .Doc(R"doc(
Applies a dense layer to the elementwise products of candidate rows and entries of their users.

outputs[n, t] = (entries[b, t] * rows[n]) × kernel + user_bias[b, t] + row_bias[n], where b is the user of
candidate n.

entries: [B, T, D]. T entries per user, such as the items of a history.
rows: [N, D]. One row per candidate.
kernel: [D, H].
row_splits: [B + 1]. From SampleRows.
user_bias: [B, T, H].
row_bias: [N, H].
outputs: [N, T, H].
)doc");

REGISTER_OP("RecEstimator>SegmentLayerGrad")
    .Input("entries: T")
    .Input("rows: T")
    .Input("kernel: T")
    .Input("row_splits: int32")
    .Input("grads: T")
    .Output("entry_grads: T")
    .Output("row_grads: T")
    .Output("kernel_grads: T")
    .Attr("T: {float, double}")
    .SetShapeFn(SegmentLayerGradShape)
    .Doc(R"doc(
Computes the gradients of SegmentLayer for all inputs except the biases.

entries: [B, T, D]. As in SegmentLayer.
rows: [N, D].
kernel: [D, H].
row_splits: [B + 1]. From SampleRows.
grads: [N, T, H]. Gradient of the outputs of SegmentLayer.
entry_grads: [B, T, D].
row_grads: [N, D].
kernel_grads: [B, D, H]. The sum over users is the gradient of the kernel.
)doc");

}  // namespace
}  // namespace rec_estimator
