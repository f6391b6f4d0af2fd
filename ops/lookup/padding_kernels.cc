// SPDX-License-Identifier: Apache-2.0
// Kernel of padding_ops.cc.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ops/core/base/read_once.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// The indices of ids without any padding, which follow from the shape of the
// ids. A model has many features of the same shape, so the last few are kept
// for all of them: a step neither writes them again nor reads so much memory.
class WholeIndices {
 public:
  // False: none has this shape.
  static bool Find(const TensorShape& ids, Tensor* indices) {
    Kept& kept = AllKept();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    const One* const one = kept.Find(ids);
    if (one != nullptr) *indices = one->indices;
    return one != nullptr;
  }
  static void Keep(const TensorShape& ids, const Tensor& indices) {
    const size_t bytes = indices.TotalBytes();
    if (bytes == 0 || bytes > kMostBytes) return;
    Kept& kept = AllKept();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    if (kept.Find(ids) != nullptr) return;  // Another op was faster.
    kept.last[kept.next++ % kKept] = {ids, indices};
  }

 private:
  static constexpr size_t kKept = 8;
  static constexpr size_t kMostBytes = size_t{1} << 20;

  struct One {
    TensorShape ids;
    Tensor indices;
  };
  struct Kept {
    const One* Find(const TensorShape& ids) const {
      for (const One& one : last) {
        if (one.indices.NumElements() > 0 && one.ids == ids) return &one;
      }
      return nullptr;
    }

    std::mutex mutex;  // Guards the others.
    std::array<One, kKept> last;
    size_t next = 0;
  };
  // Never destroyed: threads may still run when the process ends.
  static Kept& AllKept() {
    static Kept* const kept = new Kept;
    return *kept;
  }
};

// Strings are never the memory of somebody else's array.
const tstring& Read(const tstring& id) { return id; }
template <typename T>
T Read(const T& id) {
  return ReadOnce(id);
}

bool IsPadding(const tstring& id) { return id.empty(); }
template <typename T>
bool IsPadding(T id) {
  return id == -1;
}

template <typename T>
class IdsWithoutPaddingOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& ids = context->input(0);
    const T* const flat = ids.flat<T>().data();
    const int64_t size = ids.NumElements();
    int64_t n = 0;
    for (int64_t i = 0; i < size; ++i) n += !IsPadding(flat[i]);
    if (n == size) {
      OP_REQUIRES_OK(context, SetWhole(context, ids));
    } else {
      OP_REQUIRES_OK(context, SetWithoutPadding(context, ids, n));
    }
  }

 private:
  // The outputs of ids without any padding.
  static Status SetWhole(OpKernelContext* context, const Tensor& ids) {
    const int64_t n = ids.NumElements();
    Tensor indices, values;
    if (!WholeIndices::Find(ids.shape(), &indices)) {
      TF_RETURN_IF_ERROR(AllocateIndices(context, ids, n, &indices));
      WriteIndices(ids, [](int64_t) { return true; }, &indices);
      WholeIndices::Keep(ids.shape(), indices);
    }
    if (!values.CopyFrom(ids, TensorShape({n}))) {  // The same memory.
      return Internal("ids must keep their size, got ", n);
    }
    context->set_output(0, indices);
    context->set_output(1, values);
    return Status();
  }

  // The outputs of ids of which n are not padding.
  static Status SetWithoutPadding(OpKernelContext* context, const Tensor& ids,
                                  int64_t n) {
    Tensor indices;
    Tensor* values;
    TF_RETURN_IF_ERROR(AllocateIndices(context, ids, n, &indices));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({n}), &values));
    const T* const flat = ids.flat<T>().data();
    T* const out = values->flat<T>().data();
    int64_t found = 0;
    // Another thread may write to the ids (read_once.h), so that others are
    // padding than before.
    WriteIndices(
        ids,
        [&](int64_t i) {
          const auto& id = Read(flat[i]);
          if (IsPadding(id) || found++ >= n) return false;
          out[found - 1] = id;
          return true;
        },
        &indices);
    if (found != n) {
      return InvalidArgument("ids must stay the same while an op reads them, ",
                             "got ", n, " that are not padding, then ", found,
                             "; do not write to an array that is fed");
    }
    context->set_output(0, indices);
    return Status();
  }

  static Status AllocateIndices(OpKernelContext* context, const Tensor& ids,
                                int64_t n, Tensor* indices) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape({n, ids.dims()}, &shape));
    return context->allocate_temp(tensorflow::DT_INT64, shape, indices);
  }

  // indices: the coordinates of each id i for which keeps(i) is true.
  template <typename Keeps>
  static void WriteIndices(const Tensor& ids, const Keeps& keeps,
                           Tensor* indices) {
    int64_t* out = indices->flat<int64_t>().data();
    const int64_t size = ids.NumElements();
    const int rank = ids.dims();
    const int64_t columns = rank == 2 ? ids.dim_size(1) : 1;
    int64_t row = 0, column = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (keeps(i)) {
        if (rank == 2) {
          *out++ = row;
          *out++ = column;
        } else {
          int64_t rest = i;
          for (int d = rank - 1; d >= 0; --d) {
            out[d] = rest % ids.dim_size(d);
            rest /= ids.dim_size(d);
          }
          out += rank;
        }
      }
      if (++column == columns) {
        column = 0;
        ++row;
      }
    }
  }
};

#define REGISTER(T)                                              \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>IdsWithoutPadding") \
                              .Device(tensorflow::DEVICE_CPU)    \
                              .TypeConstraint<T>("T"),           \
                          Guarded<IdsWithoutPaddingOp<T>>)
REGISTER(int32_t);
REGISTER(int64_t);
REGISTER(tstring);
#undef REGISTER

}  // namespace
}  // namespace rec_estimator
