// SPDX-License-Identifier: Apache-2.0
// Kernels of combine_ops.cc: combine looked-up rows with weights.
//
// The threads share the lookups, and the parts of large ones. The bits are
// those of TensorFlow's ops: a product for each value, unsorted_segment_sum of
// the products and of the weights, and divide_no_nan.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/op_threads.h"
#include "ops/lookup/combined_rows.h"
#include "ops/lookup/fused_lookups.h"
#include "ops/lookup/sparse_row_index.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

// The weighted keys of one lookup.
template <typename T>
struct WeightedKeys : KeyRows {
  Combiner combiner = Combiner::kSum;
  const T* weights = nullptr;  // (row_index.n())
  int64_t dim = 0;

  // What the sum of keys [begin, end) of a row is divided by.
  T Divisor(int64_t begin, int64_t end) const {
    if (combiner == Combiner::kSum) return 1;
    T sum = 0;
    for (; begin < end; ++begin) {
      const T weight = weights[begin];
      sum += combiner == Combiner::kMean ? weight : weight * weight;
    }
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }
};

// Divides n numbers into `to`; gives zeros if the divisor is 0.
template <typename T>
void Divide(const T* numbers, int64_t n, T divisor, T* to) {
  if (divisor == 0) {
    std::fill(to, to + n, T{0});
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = numbers[i] / divisor;
}

// Writes the sum of n values times their weights to `out`, which may be the
// first value. It begins as 0 + x, so that it is not -0, as a sum from 0.
template <typename T>
void WeightedSum(const T* values, const T* weights, int64_t n, int64_t dim,
                 T* out) {
  const T first = weights[0];
#pragma GCC ivdep  // out[d] and values[d] may be one, out[d] and values[d + 1]
                   // not.
  for (int64_t d = 0; d < dim; ++d) out[d] = T{0} + first * values[d];
  for (int64_t i = 1; i < n; ++i) {
    values += dim;
    const T weight = weights[i];
#pragma GCC ivdep
    for (int64_t d = 0; d < dim; ++d) out[d] += weight * values[d];
  }
}

// Computes units [begin, end) of a lookup: those of its n keys, and unit n for
// the empty rows after the last key.
template <typename T>
void CombineUnits(const WeightedKeys<T>& keys, const T* values, int64_t begin,
                  int64_t end, T* out) {
  const bool has_last_unit = end > keys.row_index.n();
  end = std::min(end, keys.row_index.n());
  keys.row_index.ToWholeRows(&begin, &end);
  WriteRows(keys.row_index, begin, end, keys.dim, out,
            [&](int64_t first, int64_t last, T* row) {
              WeightedSum(values + first * keys.dim, keys.weights + first,
                          last - first, keys.dim, row);
              if (keys.combiner == Combiner::kSum) return;
              Divide(row, keys.dim, keys.Divisor(first, last), row);
            });
  if (has_last_unit) WriteLastRows(keys.row_index, keys.rows, keys.dim, out);
}

// Computes the gradients of the values of keys [begin, end).
template <typename T>
void SpreadUnits(const WeightedKeys<T>& keys, const T* grads, int64_t begin,
                 int64_t end, T* out) {
  const int64_t dim = keys.dim;
  std::vector<T> divided(static_cast<size_t>(dim));
  if (begin >= end) return;
  for (int64_t run = keys.row_index.RunOf(begin); begin < end; ++run) {
    const int64_t row_end = keys.row_index.end(run);
    const T* grad = grads + keys.row_index.row(run) * dim;
    if (keys.combiner != Combiner::kSum) {
      Divide(grad, dim, keys.Divisor(keys.row_index.begin(run), row_end),
             divided.data());
      grad = divided.data();
    }
    for (const int64_t stop = std::min(end, row_end); begin < stop; ++begin) {
      WeightedSum(grad, keys.weights + begin, 1, dim, out + begin * dim);
    }
  }
}

// Cycles to weigh the row of one key: to find it, and one for a number.
int64_t CyclesPerKey(int64_t dim) { return 10 + dim; }

// Checks the weights of a lookup, whose indices are stored, and stores them.
template <typename T>
Status CheckWeights(const std::string& name, const Tensor& weights,
                    WeightedKeys<T>* keys) {
  if (!TensorShapeUtils::IsVector(weights.shape()) ||
      weights.dim_size(0) != keys->row_index.n()) {
    return InvalidArgument(
        "weights of lookup ", name,
        " must be [n], one weight per id, n = ", keys->row_index.n(),
        ", got shape ", weights.shape().DebugString());
  }
  keys->weights = weights.flat<T>().data();
  return Status();
}

// Finds memory for output i of a lookup. With one key for each row, that may be
// the memory of the input that the output is computed from, line by line.
template <typename T>
Status Allocate(OpKernelContext* context, int i, int input,
                const TensorShape& shape, const WeightedKeys<T>& keys,
                T** numbers) {
  Tensor* tensor = nullptr;
  std::vector<int> inputs;
  if (keys.one_key_per_row) inputs.push_back(input);
  TF_RETURN_IF_ERROR(
      context->forward_input_or_allocate_output(inputs, i, shape, &tensor));
  *numbers = tensor->flat<T>().data();
  return Status();
}

// Runs work(i, begin, end) over units of the lookups: their keys, and `more`.
template <typename T, typename Work>
void ForUnits(OpKernelContext* context,
              const std::vector<WeightedKeys<T>>& lookups, int64_t more,
              const Work& work) {
  std::vector<int64_t> units;
  double cycles = 0;
  for (const WeightedKeys<T>& keys : lookups) {
    units.push_back(keys.row_index.n() + more);
    cycles += static_cast<double>(units.back()) *
              static_cast<double>(CyclesPerKey(keys.dim));
  }
  ForAllUnits(units, cycles, OpThreads(context), work);
}

template <typename T>
class CombineWeightedOp : public OpKernel {
 public:
  explicit CombineWeightedOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    names_ = LookupNames(context, combiners_.size());
  }

  void Compute(OpKernelContext* context) override {
    OpInputList values, weights, indices, dense_shapes;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    OP_REQUIRES_OK(context, context->input_list("weights", &weights));
    OP_REQUIRES_OK(context, context->input_list("indices", &indices));
    OP_REQUIRES_OK(context, context->input_list("dense_shapes", &dense_shapes));

    const int n = static_cast<int>(combiners_.size());
    std::vector<WeightedKeys<T>> lookups(n);
    std::vector<TensorShape> shapes(n);
    OneKeyPerRow one_key_per_row;  // The inputs live as long as it does.
    for (int i = 0; i < n; ++i) {
      WeightedKeys<T>& keys = lookups[i];
      keys.combiner = combiners_[i];
      OP_REQUIRES(context, TensorShapeUtils::IsMatrix(values[i].shape()),
                  InvalidArgument("values of lookup ", names_[i],
                                  " must be [n, dim], got shape ",
                                  values[i].shape().DebugString()));
      keys.dim = values[i].dim_size(1);
      OP_REQUIRES_OK(context,
                     CheckSparse(names_[i], values[i].dim_size(0), indices[i],
                                 dense_shapes[i], &one_key_per_row, &keys));
      OP_REQUIRES_OK(context, CheckWeights(names_[i], weights[i], &keys));
      OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                  {keys.rows, keys.dim}, &shapes[i]));
    }

    std::vector<T*> out(n);
    for (int i = 0; i < n; ++i) {
      OP_REQUIRES_OK(context,
                     Allocate(context, i, i, shapes[i], lookups[i], &out[i]));
    }
    ForUnits(context, lookups, 1, [&](size_t i, int64_t begin, int64_t end) {
      CombineUnits(lookups[i], values[static_cast<int>(i)].flat<T>().data(),
                   begin, end, out[i]);
    });
  }

 private:
  std::vector<Combiner> combiners_;
  std::vector<std::string> names_;  // The names of the lookups, for messages.
};

template <typename T>
class CombineWeightedGradOp : public OpKernel {
 public:
  explicit CombineWeightedGradOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadCombiners(context, &combiners_));
    names_ = LookupNames(context, combiners_.size());
  }

  void Compute(OpKernelContext* context) override {
    OpInputList weights, indices, grads;
    OP_REQUIRES_OK(context, context->input_list("weights", &weights));
    OP_REQUIRES_OK(context, context->input_list("indices", &indices));
    OP_REQUIRES_OK(context, context->input_list("grads", &grads));

    const int n = static_cast<int>(combiners_.size());
    std::vector<WeightedKeys<T>> lookups(n);
    OneKeyPerRow one_key_per_row;
    for (int i = 0; i < n; ++i) {
      WeightedKeys<T>& keys = lookups[i];
      keys.combiner = combiners_[i];
      OP_REQUIRES(context, TensorShapeUtils::IsMatrix(grads[i].shape()),
                  InvalidArgument("grads of lookup ", names_[i],
                                  " must be [rows, dim], got shape ",
                                  grads[i].shape().DebugString()));
      keys.rows = grads[i].dim_size(0);
      keys.dim = grads[i].dim_size(1);
      OP_REQUIRES_OK(context, CheckIndices(names_[i], indices[i],
                                           &one_key_per_row, &keys));
      OP_REQUIRES_OK(context, CheckWeights(names_[i], weights[i], &keys));
    }

    std::vector<T*> out(n);
    for (int i = 0; i < n; ++i) {
      TensorShape shape;
      OP_REQUIRES_OK(context,
                     TensorShape::BuildTensorShape(
                         {lookups[i].row_index.n(), lookups[i].dim}, &shape));
      OP_REQUIRES_OK(
          context, Allocate(context, i, 2 * n + i, shape, lookups[i], &out[i]));
    }
    ForUnits(context, lookups, 0, [&](size_t i, int64_t begin, int64_t end) {
      SpreadUnits(lookups[i], grads[static_cast<int>(i)].flat<T>().data(),
                  begin, end, out[i]);
    });
  }

 private:
  std::vector<Combiner> combiners_;
  std::vector<std::string> names_;  // The names of the lookups, for messages.
};

#define REGISTER_KERNELS(T)                                        \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>CombineWeighted")     \
                              .Device(DEVICE_CPU)                  \
                              .TypeConstraint<T>("T"),             \
                          Guarded<CombineWeightedOp<T>>);          \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>CombineWeightedGrad") \
                              .Device(DEVICE_CPU)                  \
                              .TypeConstraint<T>("T"),             \
                          Guarded<CombineWeightedGradOp<T>>);
REGISTER_KERNELS(float)
REGISTER_KERNELS(double)
#undef REGISTER_KERNELS

}  // namespace
}  // namespace rec_estimator
