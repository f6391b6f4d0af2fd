// SPDX-License-Identifier: Apache-2.0
// Kernels of sample_ops.cc: assign candidates to users, repeat the users' rows
// and sum their gradients.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "ops/serving/user_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/tstring.h"
#include "tensorflow/core/util/overflow.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::tstring;

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

enum class Kind { kDense, kSparse, kRagged };

// Counts the rows of a dense, sparse or ragged tensor. `tensor` is the
// dense_shape of a sparse one and the row_splits of a ragged one.
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
                           " must be [B + 1], got shape [0]");
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
                    types.size(), ", and num_users must be <= it, got ",
                    kinds.size(), ", ", names_.size(), " and ", num_users_));
    for (const std::string& kind : kinds) {
      kinds_.push_back(kind == "dense"    ? Kind::kDense
                       : kind == "sparse" ? Kind::kSparse
                                          : Kind::kRagged);
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* item_size;
    OpInputList tensors;
    OP_REQUIRES_OK(context, context->input("item_size", &item_size));
    OP_REQUIRES_OK(context, context->input_list("tensors", &tensors));

    std::vector<int64_t> sizes;
    OP_REQUIRES_OK(context, ReadSizes(*item_size, &sizes));
    std::vector<int64_t> rows(tensors.size());
    for (int i = 0; i < tensors.size(); ++i) {
      OP_REQUIRES_OK(context,
                     CountRows(tensors[i], kinds_[i], names_[i], &rows[i]));
    }
    // A single size holds for all users, whose number the tensors then tell.
    const bool is_shared = sizes.size() == 1 && num_users_ > 0;
    const int64_t users = is_shared ? rows[0] : sizes.size();
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
    // Cannot overflow: each size and the number of sizes are below 2^31.
    int64_t items = 0;
    for (const int64_t size : sizes) items += size;
    if (is_shared) items *= users;
    for (int i = num_users_; i < tensors.size(); ++i) {
      OP_REQUIRES(
          context, rows[i] == items,
          InvalidArgument("item tensor ", names_[i], " must have the sum of ",
                          size_name_, " as rows, ", items, ", got ", rows[i]));
    }
    OP_REQUIRES(context, items < kMaxRows,
                InvalidArgument("the sum of ", size_name_, " must be below ",
                                kMaxRows, ", got ", items));

    WriteRows(context, sizes, users, items);
  }

 private:
  // Reads item_size as int64.
  Status ReadSizes(const Tensor& item_size, std::vector<int64_t>* sizes) const {
    if (!TensorShapeUtils::IsVector(item_size.shape()) ||
        item_size.NumElements() >= kMaxRows) {
      return InvalidArgument(size_name_, " must be [B] or [1], got shape ",
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

  // Allocates and writes the outputs.
  void WriteRows(OpKernelContext* context, const std::vector<int64_t>& sizes,
                 int64_t users, int64_t items) const {
    Tensor *users_out, *items_out, *splits, *index;
    OP_REQUIRES_OK(context, context->allocate_output("users", {}, &users_out));
    OP_REQUIRES_OK(context, context->allocate_output("items", {}, &items_out));
    OP_REQUIRES_OK(
        context, context->allocate_output("row_splits", {users + 1}, &splits));
    OP_REQUIRES_OK(context, context->allocate_output("index", {items}, &index));

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

// The shape of a user tensor, collapsed to [before, B * per_user, after] around
// the axis of its rows.
struct AxisShape {
  int64_t before = 1;
  int64_t per_user = 0;
  int64_t after = 1;
};

Status CollapseShape(const TensorShape& shape, int64_t axis, int64_t users,
                     AxisShape* collapsed) {
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
    if (i < axis) collapsed->before *= shape.dim_size(i);
    if (i > axis) collapsed->after *= shape.dim_size(i);
  }
  collapsed->per_user = users == 0 ? 0 : size / users;
  return Status();
}

// Repeats the rows of `from` [before, B, width] to `to` [before, N, width].
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
    const Tensor *values, *row_splits;
    OP_REQUIRES_OK(context, context->input("values", &values));
    OP_REQUIRES_OK(context, context->input("row_splits", &row_splits));

    CheckedUserRows user_rows;
    AxisShape axis_shape;
    OP_REQUIRES_OK(context, user_rows.Read(*row_splits));
    OP_REQUIRES_OK(context, CollapseShape(values->shape(), axis_,
                                          user_rows.users, &axis_shape));
    if (user_rows.users == 1 && (keep_one_ || user_rows.rows() == 1)) {
      OP_REQUIRES_OK(context, context->set_output("repeated", *values));
      return;
    }

    TensorShape shape = values->shape();
    OP_REQUIRES_OK(context, shape.SetDimWithStatus(axis_, 0));
    const int64_t size = tensorflow::MultiplyWithoutOverflow(
        user_rows.rows(), axis_shape.per_user);
    OP_REQUIRES(context, size >= 0,
                InvalidArgument("axis ", axis_, " must not overflow, got ",
                                user_rows.rows(), " candidates with ",
                                axis_shape.per_user, " rows each"));
    OP_REQUIRES_OK(context, shape.SetDimWithStatus(axis_, size));
    Tensor* repeated;
    OP_REQUIRES_OK(context,
                   context->allocate_output("repeated", shape, &repeated));

    if (shape.num_elements() == 0) return;
    const int64_t width = axis_shape.per_user * axis_shape.after;
    const ParallelFor parallel_for = OpThreads(context);
    if (values->dtype() == tensorflow::DT_STRING) {
      Repeat(user_rows, axis_shape.before, width,
             values->flat<tstring>().data(), repeated->flat<tstring>().data(),
             parallel_for);
    } else {
      Repeat(user_rows, axis_shape.before,
             width * tensorflow::DataTypeSize(values->dtype()),
             values->tensor_data().data(),
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
    const Tensor *grads, *row_splits, *shape_in;
    OP_REQUIRES_OK(context, context->input("grads", &grads));
    OP_REQUIRES_OK(context, context->input("row_splits", &row_splits));
    OP_REQUIRES_OK(context, context->input("shape", &shape_in));

    CheckedUserRows user_rows;
    AxisShape axis_shape;
    TensorShape shape;
    OP_REQUIRES_OK(context, user_rows.Read(*row_splits));
    OP_REQUIRES_OK(context, CheckRank(*shape_in, 1, "shape", "[rank]"));
    OP_REQUIRES_OK(
        context, TensorShapeUtils::MakeShape(shape_in->flat<int32_t>().data(),
                                             shape_in->NumElements(), &shape));
    OP_REQUIRES_OK(context,
                   CollapseShape(shape, axis_, user_rows.users, &axis_shape));
    if (grads->shape() == shape && user_rows.users == 1) {
      OP_REQUIRES_OK(context, context->set_output("value_grads", *grads));
      return;
    }
    TensorShape grads_shape = shape;
    const int64_t size = tensorflow::MultiplyWithoutOverflow(
        user_rows.rows(), axis_shape.per_user);
    OP_REQUIRES_OK(context, grads_shape.SetDimWithStatus(
                                axis_, std::max<int64_t>(size, 0)));
    OP_REQUIRES(context, size >= 0 && grads->shape() == grads_shape,
                InvalidArgument("grads must be ", grads_shape.DebugString(),
                                ", got shape ", grads->shape().DebugString()));

    Tensor* sums;
    OP_REQUIRES_OK(context,
                   context->allocate_output("value_grads", shape, &sums));

    SumRows(user_rows, axis_shape, grads->flat<T>().data(),
            sums->flat<T>().data(), OpThreads(context));
  }

 private:
  void SumRows(const UserRows& user_rows, const AxisShape& axis_shape,
               const T* from, T* to, const ParallelFor& parallel_for) const {
    const int64_t users = user_rows.users, rows = user_rows.rows();
    const int64_t width = axis_shape.per_user * axis_shape.after;
    const int64_t each = users == 0 ? 0 : rows / users;
    parallel_for(axis_shape.before * users, 20 + (each + 1) * width / 8,
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

REGISTER_KERNEL_BUILDER(Name("RecEstimator>SampleRows").Device(DEVICE_CPU),
                        Guarded<SampleRowsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>RepeatRows").Device(DEVICE_CPU),
                        Guarded<RepeatRowsOp>);

REGISTER_KERNEL_BUILDER(Name("RecEstimator>RepeatRowsGrad")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<float>("T"),
                        Guarded<RepeatRowsGradOp<float>>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>RepeatRowsGrad")
                            .Device(DEVICE_CPU)
                            .TypeConstraint<double>("T"),
                        Guarded<RepeatRowsGradOp<double>>);

}  // namespace
}  // namespace rec_estimator
