// SPDX-License-Identifier: Apache-2.0
// Kernels of sample_ops.cc. Rows are copied and summed here, the products are
// core/segment_product.h's.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/math/segment_product.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"
#include "tensorflow/core/util/overflow.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::tstring;
using ::tensorflow::errors::InvalidArgument;

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

enum class Kind { kDense, kSparse, kRagged };

// The number of rows that a tensor has or, as a dense_shape or row_splits,
// speaks of.
Status CountRows(const Tensor& tensor, Kind kind, const std::string& name,
                 int64_t* rows) {
  if (tensor.dims() < 1 || (kind != Kind::kDense && tensor.dims() != 1)) {
    return InvalidArgument(name, " must have rows, got shape ",
                           tensor.shape().DebugString());
  }
  const int64_t size = tensor.dim_size(0);
  *rows = kind == Kind::kRagged ? size - 1 : size;
  if (kind == Kind::kRagged && size == 0) {
    return InvalidArgument("row_splits of ", name,
                           " must not be empty, got none");
  }
  if (kind != Kind::kSparse) return Status();
  if (tensor.dtype() != tensorflow::DT_INT64 || size == 0) {
    return InvalidArgument("dense_shape of ", name,
                           " must be int64 [r], got shape ",
                           tensor.shape().DebugString());
  }
  *rows = tensor.flat<int64_t>()(0);
  return Status();
}

class SampleRowsOp : public OpKernel {
 public:
  explicit SampleRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> kinds;
    std::vector<DataType> types;
    OP_REQUIRES_OK(context, context->GetAttr("kinds", &kinds));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("num_users", &num_users_));
    OP_REQUIRES_OK(context, context->GetAttr("size_name", &size_name_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &types));
    OP_REQUIRES(context,
                kinds.size() == types.size() && names_.size() == types.size() &&
                    num_users_ <= static_cast<int64_t>(types.size()),
                InvalidArgument(
                    "kinds and names must be of the length of tensors, ",
                    types.size(), ", and num_users at most that, got ",
                    kinds.size(), ", ", names_.size(), " and ", num_users_));
    for (const std::string& kind : kinds) {
      kinds_.push_back(kind == "dense"    ? Kind::kDense
                       : kind == "sparse" ? Kind::kSparse
                                          : Kind::kRagged);
    }
  }

  void Compute(OpKernelContext* context) override {
    std::vector<int64_t> sizes;
    OP_REQUIRES_OK(context, ReadSizes(context->input(0), &sizes));
    OpInputList tensors;
    OP_REQUIRES_OK(context, context->input_list("tensors", &tensors));
    std::vector<int64_t> rows(tensors.size());
    for (int i = 0; i < tensors.size(); ++i) {
      OP_REQUIRES_OK(context,
                     CountRows(tensors[i], kinds_[i], names_[i], &rows[i]));
    }
    const bool is_one = sizes.size() == 1 && num_users_ > 0;
    const int64_t users = is_one ? rows[0] : sizes.size();
    for (int i = 0; i < tensors.size() && i < num_users_; ++i) {
      OP_REQUIRES(context, rows[i] == users,
                  InvalidArgument("user tensor ", names_[i],
                                  " must have a row for each of ", size_name_,
                                  ", ", users, ", got ", rows[i]));
    }
    OP_REQUIRES(
        context, users >= 0 && users < kMaxRows,
        InvalidArgument("users must be below ", kMaxRows, ", got ", users));
    OP_REQUIRES_OK(context, CheckSizes(sizes));
    // No overflow: each is below 2^31, and so is their number.
    int64_t items = 0;
    for (const int64_t size : sizes) items += size;
    if (is_one) items *= users;
    for (int i = num_users_; i < tensors.size(); ++i) {
      OP_REQUIRES(
          context, rows[i] == items,
          InvalidArgument("item tensor ", names_[i], " must have the sum of ",
                          size_name_, " as rows, ", items, ", got ", rows[i]));
    }
    OP_REQUIRES(context, items < kMaxRows,
                InvalidArgument("the sum of ", size_name_, " must be below ",
                                kMaxRows, ", got ", items));
    Write(context, sizes, users, items);
  }

 private:
  Status ReadSizes(const Tensor& item_size, std::vector<int64_t>* sizes) const {
    if (!TensorShapeUtils::IsVector(item_size.shape()) ||
        item_size.NumElements() >= kMaxRows) {
      return InvalidArgument(size_name_, " must be of shape [B] or [1], got ",
                             item_size.shape().DebugString());
    }
    sizes->resize(item_size.NumElements());
    for (size_t i = 0; i < sizes->size(); ++i) {
      (*sizes)[i] = item_size.dtype() == tensorflow::DT_INT32
                        ? item_size.flat<int32_t>()(i)
                        : item_size.flat<int64_t>()(i);
    }
    return Status();
  }

  Status CheckSizes(const std::vector<int64_t>& sizes) const {
    for (size_t user = 0; user < sizes.size(); ++user) {
      if (sizes[user] < 0 || sizes[user] > kMaxRows) {
        return InvalidArgument("item_size ", size_name_,
                               " must not be below 0 or above ", kMaxRows,
                               ", got ", sizes[user], " of user ", user);
      }
    }
    return Status();
  }

  void Write(OpKernelContext* context, const std::vector<int64_t>& sizes,
             int64_t users, int64_t items) const {
    Tensor *users_out, *items_out, *splits, *index;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &users_out));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &items_out));
    OP_REQUIRES_OK(context, context->allocate_output(2, {users + 1}, &splits));
    OP_REQUIRES_OK(context, context->allocate_output(3, {items}, &index));
    users_out->scalar<int32_t>()() = static_cast<int32_t>(users);
    items_out->scalar<int32_t>()() = static_cast<int32_t>(items);
    int32_t* const ends = splits->flat<int32_t>().data();
    int32_t* const owners = index->flat<int32_t>().data();
    ends[0] = 0;
    for (int64_t user = 0; user < users; ++user) {
      const int64_t size = sizes[sizes.size() == 1 ? 0 : user];
      std::fill_n(owners + ends[user], size, static_cast<int32_t>(user));
      ends[user + 1] = ends[user] + static_cast<int32_t>(size);
    }
  }

  std::vector<Kind> kinds_;
  std::vector<std::string> names_;
  std::string size_name_;
  int64_t num_users_ = 0;
};

// What row_splits says, checked: it may come from anywhere.
Status ReadUserRows(const Tensor& row_splits, UserRows* user_rows) {
  if (!TensorShapeUtils::IsVector(row_splits.shape()) ||
      row_splits.NumElements() == 0) {
    return InvalidArgument("row_splits must be of shape [B + 1], got ",
                           row_splits.shape().DebugString());
  }
  const auto splits = row_splits.flat<int32_t>();
  for (int64_t user = 0; user < splits.size(); ++user) {
    if (user == 0 ? splits(0) != 0 : splits(user) < splits(user - 1)) {
      return InvalidArgument(
          "row_splits must begin with 0 and not decrease, got ", splits(user),
          " at ", user);
    }
  }
  user_rows->splits = splits.data();
  user_rows->users = splits.size() - 1;
  return Status();
}

// A tensor [before, B * per_row, after], seen from its axis of rows.
struct Places {
  int64_t before = 1;
  int64_t per_row = 0;
  int64_t after = 1;
};

Status ReadPlaces(const TensorShape& shape, int64_t axis, int64_t users,
                  Places* places) {
  if (axis >= shape.dims()) {
    return InvalidArgument("axis must be below the rank, got ", axis,
                           " for shape ", shape.DebugString());
  }
  const int64_t size = shape.dim_size(axis);
  if (users == 0 ? size != 0 : size % users != 0) {
    return InvalidArgument("axis ", axis, " must be a multiple of ", users,
                           " users, got shape ", shape.DebugString());
  }
  for (int64_t i = 0; i < shape.dims(); ++i) {
    if (i < axis) places->before *= shape.dim_size(i);
    if (i > axis) places->after *= shape.dim_size(i);
  }
  places->per_row = users == 0 ? 0 : size / users;
  return Status();
}

// Copies from [before, B, width] to [before, N, width].
template <typename T>
void Repeat(const UserRows& user_rows, int64_t before, int64_t width,
            const T* from, T* to, const ParallelFor& parallel_for) {
  const int64_t users = user_rows.users, rows = user_rows.rows();
  const int64_t each = users == 0 ? 0 : rows / users;
  parallel_for(before * users, 20 + each * width * sizeof(T) / 16,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t user = i % users;
                   T* out =
                       to + (i / users * rows + user_rows.splits[user]) * width;
                   const T* const row = from + i * width;
                   const int64_t count =
                       user_rows.splits[user + 1] - user_rows.splits[user];
                   for (int64_t n = 0; n < count; ++n) {
                     out = std::copy_n(row, width, out);
                   }
                 }
               });
}

class RepeatRowsOp : public OpKernel {
 public:
  explicit RepeatRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(context, context->GetAttr("keep_one", &keep_one_));
    DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    OP_REQUIRES(
        context,
        type == tensorflow::DT_STRING || tensorflow::DataTypeCanUseMemcpy(type),
        InvalidArgument("values must be numbers or strings, got ",
                        tensorflow::DataTypeString(type)));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    UserRows user_rows;
    Places places;
    OP_REQUIRES_OK(context, ReadUserRows(context->input(1), &user_rows));
    OP_REQUIRES_OK(context,
                   ReadPlaces(values.shape(), axis_, user_rows.users, &places));
    if (user_rows.users == 1 && (keep_one_ || user_rows.rows() == 1)) {
      context->set_output(0, values);
      return;
    }
    TensorShape shape = values.shape();
    OP_REQUIRES_OK(context, shape.SetDimWithStatus(axis_, 0));
    // Multiplied with care: k places may be many, and so may the rows.
    const int64_t places_out =
        tensorflow::MultiplyWithoutOverflow(user_rows.rows(), places.per_row);
    OP_REQUIRES(context, places_out >= 0,
                InvalidArgument("axis ", axis_, " must not overflow, got ",
                                user_rows.rows(), " rows of ", places.per_row));
    OP_REQUIRES_OK(context, shape.SetDimWithStatus(axis_, places_out));
    Tensor* repeated;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &repeated));
    if (shape.num_elements() == 0) return;
    const int64_t width = places.per_row * places.after;
    const ParallelFor parallel_for = IntraOpThreads(context);
    if (values.dtype() == tensorflow::DT_STRING) {
      Repeat(user_rows, places.before, width, values.flat<tstring>().data(),
             repeated->flat<tstring>().data(), parallel_for);
    } else {
      Repeat(user_rows, places.before,
             width * tensorflow::DataTypeSize(values.dtype()),
             values.tensor_data().data(),
             const_cast<char*>(repeated->tensor_data().data()), parallel_for);
    }
  }

 private:
  int64_t axis_ = 0;
  bool keep_one_ = false;
};

template <typename T>
class RepeatRowsGradOp : public OpKernel {
 public:
  explicit RepeatRowsGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("axis", &axis_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& grads = context->input(0);
    const Tensor& sizes = context->input(2);
    UserRows user_rows;
    Places places;
    TensorShape shape;
    OP_REQUIRES_OK(context, ReadUserRows(context->input(1), &user_rows));
    OP_REQUIRES(context, TensorShapeUtils::IsVector(sizes.shape()),
                InvalidArgument("shape must be a vector, got ",
                                sizes.shape().DebugString()));
    OP_REQUIRES_OK(context,
                   TensorShapeUtils::MakeShape(sizes.flat<int32_t>().data(),
                                               sizes.NumElements(), &shape));
    OP_REQUIRES_OK(context, ReadPlaces(shape, axis_, user_rows.users, &places));
    if (grads.shape() == shape && user_rows.users == 1) {
      context->set_output(0, grads);
      return;
    }
    TensorShape wanted = shape;
    const int64_t places_in =
        tensorflow::MultiplyWithoutOverflow(user_rows.rows(), places.per_row);
    OP_REQUIRES_OK(context, wanted.SetDimWithStatus(
                                axis_, std::max<int64_t>(places_in, 0)));
    OP_REQUIRES(context, places_in >= 0 && grads.shape() == wanted,
                InvalidArgument("grads must be of shape ", wanted.DebugString(),
                                ", got ", grads.shape().DebugString()));
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    Sum(user_rows, places, grads.flat<T>().data(), sums->flat<T>().data(),
        IntraOpThreads(context));
  }

 private:
  void Sum(const UserRows& user_rows, const Places& places, const T* from,
           T* to, const ParallelFor& parallel_for) const {
    const int64_t users = user_rows.users, rows = user_rows.rows();
    const int64_t width = places.per_row * places.after;
    const int64_t each = users == 0 ? 0 : rows / users;
    parallel_for(places.before * users, 20 + (each + 1) * width / 8,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t first = i / users * rows;
                     const int64_t user = i % users;
                     T* const sum = to + i * width;
                     std::fill_n(sum, width, T(0));
                     for (int64_t n = first + user_rows.splits[user];
                          n < first + user_rows.splits[user + 1]; ++n) {
                       const T* const row = from + n * width;
                       for (int64_t j = 0; j < width; ++j) sum[j] += row[j];
                     }
                   }
                 });
  }

  int64_t axis_ = 0;
};

// InvalidArgument unless the rows are as many as row_splits says.
Status CheckRows(const Tensor& rows, const char* name,
                 const UserRows& user_rows) {
  if (!TensorShapeUtils::IsMatrix(rows.shape()) ||
      rows.dim_size(0) != user_rows.rows()) {
    return InvalidArgument(name, " must be of shape [", user_rows.rows(),
                           ", K], got ", rows.shape().DebugString());
  }
  return Status();
}

template <typename T>
class SegmentMatMulOp : public OpKernel {
 public:
  explicit SegmentMatMulOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context,
                   context->GetAttr("transpose_matrices", &transpose_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& rows = context->input(0);
    const Tensor& matrices = context->input(1);
    UserRows user_rows;
    OP_REQUIRES_OK(context, ReadUserRows(context->input(2), &user_rows));
    OP_REQUIRES_OK(context, CheckRows(rows, "rows", user_rows));
    const int64_t inner = rows.dim_size(1);
    OP_REQUIRES(context,
                matrices.dims() == 3 &&
                    matrices.dim_size(0) == user_rows.users &&
                    matrices.dim_size(transpose_ ? 2 : 1) == inner,
                InvalidArgument("matrices must be one for each of ",
                                user_rows.users, " users, for rows of ", inner,
                                ", got ", matrices.shape().DebugString()));
    const int64_t outer = matrices.dim_size(transpose_ ? 1 : 2);
    TensorShape shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(user_rows.rows()));
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(outer));
    Tensor* products;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &products));
    const ParallelFor parallel_for = IntraOpThreads(context);
    const T* data = matrices.flat<T>().data();
    Tensor transposed;
    if (transpose_) {
      OP_REQUIRES_OK(context,
                     context->allocate_temp(matrices.dtype(), matrices.shape(),
                                            &transposed));
      TransposeByUser(user_rows.users, outer, inner, data,
                      transposed.flat<T>().data(), parallel_for);
      data = transposed.flat<T>().data();
    }
    MultiplyByUser(user_rows, inner, outer, rows.flat<T>().data(), data,
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
    const Tensor& rows = context->input(0);
    const Tensor& grads = context->input(1);
    UserRows user_rows;
    OP_REQUIRES_OK(context, ReadUserRows(context->input(2), &user_rows));
    OP_REQUIRES_OK(context, CheckRows(rows, "rows", user_rows));
    OP_REQUIRES_OK(context, CheckRows(grads, "grads", user_rows));
    TensorShape shape;
    for (const int64_t size :
         {user_rows.users, rows.dim_size(1), grads.dim_size(1)}) {
      OP_REQUIRES_OK(context, shape.AddDimWithStatus(size));
    }
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    SumProductsByUser(user_rows, rows.dim_size(1), grads.dim_size(1),
                      rows.flat<T>().data(), grads.flat<T>().data(),
                      sums->flat<T>().data(), IntraOpThreads(context));
  }
};

// Checks what UserLayer and its gradient have in common.
Status ReadLayer(OpKernelContext* context, UserRows* user_rows,
                 LayerSizes* sizes) {
  const Tensor& entries = context->input(0);
  const Tensor& rows = context->input(1);
  const Tensor& kernel = context->input(2);
  TF_RETURN_IF_ERROR(ReadUserRows(context->input(3), user_rows));
  TF_RETURN_IF_ERROR(CheckRows(rows, "rows", *user_rows));
  const int64_t inner = rows.dim_size(1);
  if (entries.dims() != 3 || entries.dim_size(0) != user_rows->users ||
      entries.dim_size(2) != inner) {
    return InvalidArgument("entries must be of shape [", user_rows->users,
                           ", T, ", inner, "], got ",
                           entries.shape().DebugString());
  }
  if (kernel.dims() != 2 || kernel.dim_size(0) != inner) {
    return InvalidArgument("kernel must be of shape [", inner, ", H], got ",
                           kernel.shape().DebugString());
  }
  *sizes = {entries.dim_size(1), inner, kernel.dim_size(1)};
  return Status();
}

Status CheckShape(const Tensor& tensor, const char* name,
                  const TensorShape& shape) {
  if (tensor.shape() == shape) return Status();
  return InvalidArgument(name, " must be of shape ", shape.DebugString(),
                         ", got ", tensor.shape().DebugString());
}

Status MakeShape(std::initializer_list<int64_t> sizes, TensorShape* shape) {
  for (const int64_t size : sizes) {
    TF_RETURN_IF_ERROR(shape->AddDimWithStatus(size));
  }
  return Status();
}

template <typename T>
class UserLayerOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    UserRows user_rows;
    LayerSizes sizes;
    OP_REQUIRES_OK(context, ReadLayer(context, &user_rows, &sizes));
    TensorShape of_users, of_rows, shape;
    OP_REQUIRES_OK(
        context,
        MakeShape({user_rows.users, sizes.entries, sizes.outer}, &of_users));
    OP_REQUIRES_OK(context,
                   MakeShape({user_rows.rows(), sizes.outer}, &of_rows));
    OP_REQUIRES_OK(
        context,
        MakeShape({user_rows.rows(), sizes.entries, sizes.outer}, &shape));
    const Tensor& user_bias = context->input(4);
    const Tensor& row_bias = context->input(5);
    OP_REQUIRES_OK(context, CheckShape(user_bias, "user_bias", of_users));
    OP_REQUIRES_OK(context, CheckShape(row_bias, "row_bias", of_rows));
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    LayerByUser(user_rows, sizes, context->input(0).flat<T>().data(),
                context->input(1).flat<T>().data(),
                context->input(2).flat<T>().data(), user_bias.flat<T>().data(),
                row_bias.flat<T>().data(), out->flat<T>().data(),
                IntraOpThreads(context));
  }
};

template <typename T>
class UserLayerGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    UserRows user_rows;
    LayerSizes sizes;
    OP_REQUIRES_OK(context, ReadLayer(context, &user_rows, &sizes));
    const Tensor& grads = context->input(4);
    TensorShape of_grads, of_kernel;
    OP_REQUIRES_OK(
        context,
        MakeShape({user_rows.rows(), sizes.entries, sizes.outer}, &of_grads));
    OP_REQUIRES_OK(
        context,
        MakeShape({user_rows.users, sizes.inner, sizes.outer}, &of_kernel));
    OP_REQUIRES_OK(context, CheckShape(grads, "grads", of_grads));
    Tensor *entry_grads, *row_grads, *kernel_grads;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, context->input(0).shape(), &entry_grads));
    OP_REQUIRES_OK(context, context->allocate_output(
                                1, context->input(1).shape(), &row_grads));
    OP_REQUIRES_OK(context,
                   context->allocate_output(2, of_kernel, &kernel_grads));
    LayerByUserGrad(user_rows, sizes, context->input(0).flat<T>().data(),
                    context->input(1).flat<T>().data(),
                    context->input(2).flat<T>().data(), grads.flat<T>().data(),
                    entry_grads->flat<T>().data(), row_grads->flat<T>().data(),
                    kernel_grads->flat<T>().data(), IntraOpThreads(context));
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>SampleRows").Device(DEVICE_CPU),
                        SampleRowsOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>RepeatRows").Device(DEVICE_CPU),
                        RepeatRowsOp);

// A kernel for each type of T.
#define REC_ESTIMATOR_REGISTER(name, Kernel)                     \
  REGISTER_KERNEL_BUILDER(                                       \
      Name(name).Device(DEVICE_CPU).TypeConstraint<float>("T"),  \
      Kernel<float>);                                            \
  REGISTER_KERNEL_BUILDER(                                       \
      Name(name).Device(DEVICE_CPU).TypeConstraint<double>("T"), \
      Kernel<double>)

REC_ESTIMATOR_REGISTER("RecEstimator>RepeatRowsGrad", RepeatRowsGradOp);
REC_ESTIMATOR_REGISTER("RecEstimator>SegmentMatMul", SegmentMatMulOp);
REC_ESTIMATOR_REGISTER("RecEstimator>SegmentMatMulGrad", SegmentMatMulGradOp);
REC_ESTIMATOR_REGISTER("RecEstimator>UserLayer", UserLayerOp);
REC_ESTIMATOR_REGISTER("RecEstimator>UserLayerGrad", UserLayerGradOp);
#undef REC_ESTIMATOR_REGISTER

}  // namespace
}  // namespace rec_estimator
