// SPDX-License-Identifier: Apache-2.0
// Kernels of segment_product_ops.cc: check the inputs of the products in
// ops/core/math/segment_product.h.
#include <cstdint>

#include "ops/core/base/parallel.h"
#include "ops/core/math/segment_product.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/op_threads.h"
#include "ops/serving/user_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

// InvalidArgument unless `rows` is a matrix with one row per candidate.
Status CheckRows(const Tensor& rows, const char* name,
                 const UserRows& user_rows) {
  if (!TensorShapeUtils::IsMatrix(rows.shape()) ||
      rows.dim_size(0) != user_rows.rows()) {
    return InvalidArgument(name, " must be [", user_rows.rows(),
                           ", K], got shape ", rows.shape().DebugString());
  }
  return Status();
}

// InvalidArgument unless the tensor has the shape.
Status CheckShape(const Tensor& tensor, const char* name,
                  const TensorShape& shape) {
  if (tensor.shape() == shape) return Status();
  return InvalidArgument(name, " must be ", shape.DebugString(), ", got shape ",
                         tensor.shape().DebugString());
}

template <typename T>
class SegmentMatMulOp : public OpKernel {
 public:
  explicit SegmentMatMulOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context,
                   context->GetAttr("transpose_matrices", &transpose_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *rows, *matrices, *row_splits;
    OP_REQUIRES_OK(context, context->input("rows", &rows));
    OP_REQUIRES_OK(context, context->input("matrices", &matrices));
    OP_REQUIRES_OK(context, context->input("row_splits", &row_splits));

    CheckedUserRows user_rows;
    OP_REQUIRES_OK(context, user_rows.Read(*row_splits));
    OP_REQUIRES_OK(context, CheckRows(*rows, "rows", user_rows));
    const int64_t inner = rows->dim_size(1);
    OP_REQUIRES(
        context,
        matrices->dims() == 3 && matrices->dim_size(0) == user_rows.users &&
            matrices->dim_size(transpose_ ? 2 : 1) == inner,
        InvalidArgument("matrices must be one for each of ", user_rows.users,
                        " users, for rows of ", inner, " columns, got shape ",
                        matrices->shape().DebugString()));

    const int64_t outer = matrices->dim_size(transpose_ ? 1 : 2);
    TensorShape shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                {user_rows.rows(), outer}, &shape));
    Tensor* products;
    OP_REQUIRES_OK(context,
                   context->allocate_output("products", shape, &products));
    Tensor transposed;
    if (transpose_) {
      OP_REQUIRES_OK(
          context, context->allocate_temp(matrices->dtype(), matrices->shape(),
                                          &transposed));
    }

    const ParallelFor parallel_for = OpThreads(context);
    const T* data = matrices->flat<T>().data();
    if (transpose_) {
      TransposeByUser(user_rows.users, outer, inner, data,
                      transposed.flat<T>().data(), parallel_for);
      data = transposed.flat<T>().data();
    }
    MultiplyByUser(user_rows, inner, outer, rows->flat<T>().data(), data,
                   products->flat<T>().data(), parallel_for);
  }

 private:
  bool transpose_ = false;
};

template <typename T>
class SegmentMatMulGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor *rows, *grads, *row_splits;
    OP_REQUIRES_OK(context, context->input("rows", &rows));
    OP_REQUIRES_OK(context, context->input("grads", &grads));
    OP_REQUIRES_OK(context, context->input("row_splits", &row_splits));

    CheckedUserRows user_rows;
    OP_REQUIRES_OK(context, user_rows.Read(*row_splits));
    OP_REQUIRES_OK(context, CheckRows(*rows, "rows", user_rows));
    OP_REQUIRES_OK(context, CheckRows(*grads, "grads", user_rows));

    TensorShape shape;
    OP_REQUIRES_OK(
        context,
        TensorShape::BuildTensorShape(
            {user_rows.users, rows->dim_size(1), grads->dim_size(1)}, &shape));
    Tensor* sums;
    OP_REQUIRES_OK(context,
                   context->allocate_output("matrix_grads", shape, &sums));

    SumProductsByUser(user_rows, rows->dim_size(1), grads->dim_size(1),
                      rows->flat<T>().data(), grads->flat<T>().data(),
                      sums->flat<T>().data(), OpThreads(context));
  }
};

// The inputs that SegmentLayer and its gradient share.
struct LayerInputs {
  const Tensor *entries, *rows, *kernel;
  CheckedUserRows user_rows;
  LayerSizes sizes;

  // Reads and checks the inputs.
  Status Read(OpKernelContext* context) {
    const Tensor* row_splits;
    TF_RETURN_IF_ERROR(context->input("entries", &entries));
    TF_RETURN_IF_ERROR(context->input("rows", &rows));
    TF_RETURN_IF_ERROR(context->input("kernel", &kernel));
    TF_RETURN_IF_ERROR(context->input("row_splits", &row_splits));
    TF_RETURN_IF_ERROR(user_rows.Read(*row_splits));
    TF_RETURN_IF_ERROR(CheckRows(*rows, "rows", user_rows));
    const int64_t inner = rows->dim_size(1);
    if (entries->dims() != 3 || entries->dim_size(0) != user_rows.users ||
        entries->dim_size(2) != inner) {
      return InvalidArgument("entries must be [", user_rows.users, ", T, ",
                             inner, "], got shape ",
                             entries->shape().DebugString());
    }
    if (kernel->dims() != 2 || kernel->dim_size(0) != inner) {
      return InvalidArgument("kernel must be [", inner, ", H], got shape ",
                             kernel->shape().DebugString());
    }
    sizes = {entries->dim_size(1), inner, kernel->dim_size(1)};
    return Status();
  }
};

template <typename T>
class SegmentLayerOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    LayerInputs in;
    const Tensor *user_bias, *row_bias;
    OP_REQUIRES_OK(context, in.Read(context));
    OP_REQUIRES_OK(context, context->input("user_bias", &user_bias));
    OP_REQUIRES_OK(context, context->input("row_bias", &row_bias));

    const int64_t users = in.user_rows.users, rows = in.user_rows.rows();
    const int64_t entries = in.sizes.entries, outer = in.sizes.outer;
    TensorShape user_shape, row_shape, shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                {users, entries, outer}, &user_shape));
    OP_REQUIRES_OK(context,
                   TensorShape::BuildTensorShape({rows, outer}, &row_shape));
    OP_REQUIRES_OK(
        context, TensorShape::BuildTensorShape({rows, entries, outer}, &shape));
    OP_REQUIRES_OK(context, CheckShape(*user_bias, "user_bias", user_shape));
    OP_REQUIRES_OK(context, CheckShape(*row_bias, "row_bias", row_shape));

    Tensor* outputs;
    OP_REQUIRES_OK(context,
                   context->allocate_output("outputs", shape, &outputs));

    LayerByUser(in.user_rows, in.sizes, in.entries->flat<T>().data(),
                in.rows->flat<T>().data(), in.kernel->flat<T>().data(),
                user_bias->flat<T>().data(), row_bias->flat<T>().data(),
                outputs->flat<T>().data(), OpThreads(context));
  }
};

template <typename T>
class SegmentLayerGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    LayerInputs in;
    const Tensor* grads;
    OP_REQUIRES_OK(context, in.Read(context));
    OP_REQUIRES_OK(context, context->input("grads", &grads));

    const LayerSizes& sizes = in.sizes;
    TensorShape grads_shape, kernel_shape;
    OP_REQUIRES_OK(
        context,
        TensorShape::BuildTensorShape(
            {in.user_rows.rows(), sizes.entries, sizes.outer}, &grads_shape));
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                {in.user_rows.users, sizes.inner, sizes.outer},
                                &kernel_shape));
    OP_REQUIRES_OK(context, CheckShape(*grads, "grads", grads_shape));

    Tensor *entry_grads, *row_grads, *kernel_grads;
    OP_REQUIRES_OK(context,
                   context->allocate_output("entry_grads", in.entries->shape(),
                                            &entry_grads));
    OP_REQUIRES_OK(context, context->allocate_output(
                                "row_grads", in.rows->shape(), &row_grads));
    OP_REQUIRES_OK(context, context->allocate_output(
                                "kernel_grads", kernel_shape, &kernel_grads));

    LayerByUserGrad(in.user_rows, sizes, in.entries->flat<T>().data(),
                    in.rows->flat<T>().data(), in.kernel->flat<T>().data(),
                    grads->flat<T>().data(), entry_grads->flat<T>().data(),
                    row_grads->flat<T>().data(), kernel_grads->flat<T>().data(),
                    OpThreads(context));
  }
};

// Registers a kernel for float and one for double.
#define REC_ESTIMATOR_REGISTER(name, Kernel)                     \
  REGISTER_KERNEL_BUILDER(                                       \
      Name(name).Device(DEVICE_CPU).TypeConstraint<float>("T"),  \
      Guarded<Kernel<float>>);                                   \
  REGISTER_KERNEL_BUILDER(                                       \
      Name(name).Device(DEVICE_CPU).TypeConstraint<double>("T"), \
      Guarded<Kernel<double>>)

REC_ESTIMATOR_REGISTER("RecEstimator>SegmentMatMul", SegmentMatMulOp);
REC_ESTIMATOR_REGISTER("RecEstimator>SegmentMatMulGrad", SegmentMatMulGradOp);
REC_ESTIMATOR_REGISTER("RecEstimator>SegmentLayer", SegmentLayerOp);
REC_ESTIMATOR_REGISTER("RecEstimator>SegmentLayerGrad", SegmentLayerGradOp);
#undef REC_ESTIMATOR_REGISTER

}  // namespace
}  // namespace rec_estimator
