// SPDX-License-Identifier: Apache-2.0
// Kernel of padding_ops.cc.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

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
  // False: there are none of this shape.
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

    Tensor indices;
    if (n < size || !WholeIndices::Find(ids.shape(), &indices)) {
      TensorShape shape;
      OP_REQUIRES_OK(context,
                     TensorShape::BuildTensorShape({n, ids.dims()}, &shape));
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_INT64,
                                                     shape, &indices));
      WriteIndices(ids, indices.flat<int64_t>().data());
      if (n == size) WholeIndices::Keep(ids.shape(), indices);
    }
    context->set_output(0, indices);
    if (n == size) {  // The same memory.
      Tensor values;
      OP_REQUIRES(context, values.CopyFrom(ids, TensorShape({n})),
                  Internal("ids must keep their size, got ", n));
      context->set_output(1, values);
      return;
    }
    Tensor* values;
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, TensorShape({n}), &values));
    T* out = values->flat<T>().data();
    for (int64_t i = 0; i < size; ++i) {
      if (!IsPadding(flat[i])) *out++ = flat[i];
    }
  }

 private:
  // out: the coordinates of each id that is not padding.
  static void WriteIndices(const Tensor& ids, int64_t* out) {
    const T* const flat = ids.flat<T>().data();
    const int64_t size = ids.NumElements();
    const int rank = ids.dims();
    const int64_t columns = rank == 2 ? ids.dim_size(1) : 1;
    int64_t row = 0, column = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (!IsPadding(flat[i])) {
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
