// SPDX-License-Identifier: Apache-2.0
// Kernels of shard_rows_ops.cc. They go through the batch in its order, so they
// read and write what each shard has in sequence.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "ops/cluster/stored_rows.h"
#include "ops/core/base/float8.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/base/scratch.h"
#include "ops/core/math/indexed_rows.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::OpOutputList;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;

// The numbers of an input, in memory of `scratch`: another thread may write to
// the input (read_once.h). Throws std::bad_alloc.
template <typename T>
const T* CopyOf(const Tensor& input, Scratch* scratch) {
  T* copy = nullptr;
  const size_t n = static_cast<size_t>(input.NumElements());
  if (!scratch->Allocate([&](Layout* layout) { layout->Add(&copy, n); })) {
    throw std::bad_alloc();
  }
  std::copy_n(input.flat<T>().data(), n, copy);
  return copy;
}

// Which rows of each shard a block of the batch has. Two blocks are walked at
// once: within one, each row waits for the number of the row before it.
class ShardBlocks {
 public:
  // Reads the shard of each row, [n].
  Status Open(const Tensor& shards, int n_shards) {
    TF_RETURN_IF_ERROR(CheckRank(shards, 1, "shards", "[n]"));
    const int64_t n = shards.NumElements();
    Resize(CopyOf<int32_t>(shards, &copy_), n, n_shards);
    if (!AreRows(shard_, n_, n_shards)) return RefuseShard();
    for (int64_t pair = 0; pair < pairs(); ++pair) {
      int64_t* const counts = First(2 * pair + 1);
      Walk(pair, [&](int64_t i, int64_t half) {
        ++counts[half * n_shards_ + shard_[i]];
      });
    }
    SumCounts();
    return Status();
  }

  // Sets the shard of each of n keys. `of_key_class`: (kKeyClasses). `shards`
  // outlives the object.
  void Divide(OpKernelContext* context, const int64_t* keys, int64_t n,
              const std::vector<int32_t>& of_key_class, int n_shards,
              int32_t* shards) {
    Resize(shards, n, n_shards);
    ForPairs(context, n * kCyclesPerKey, [&](int64_t pair) {
      int64_t* const counts = First(2 * pair + 1);
      Walk(pair, [&](int64_t i, int64_t half) {
        const int32_t shard =
            of_key_class[static_cast<size_t>(KeyClassOf(keys[i]))];
        shards[i] = shard;
        ++counts[half * n_shards_ + shard];
      });
    });
    SumCounts();
  }

  int64_t n() const { return n_; }
  // The rows of a shard.
  int64_t size(int shard) const { return First(2 * pairs())[shard]; }

  // Runs work(i, shard, row): row i of the batch is this row of the shard. All
  // rows cost `cycles`.
  template <typename Work>
  void ForEach(OpKernelContext* context, int64_t cycles,
               const Work& work) const {
    ForPairs(context, cycles, [&](int64_t pair) {
      // What is copied here stays in registers while rows are written.
      const Work one = work;
      const int32_t* const shards = shard_;
      std::vector<int64_t> next(First(2 * pair), First(2 * pair + 1));
      int64_t* const rows = next.data();
      const int64_t stop = std::min(n_, (pair + 1) * 2 * kRows);
      for (int64_t i = pair * 2 * kRows; i < stop; ++i) {
        one(i, shards[i], rows[shards[i]]++);
      }
    });
  }
  // The same for work that takes little more than to count the rows.
  template <typename Work>
  void ForEachKey(OpKernelContext* context, const Work& work) const {
    ForPairs(context, n_ * kCyclesPerKey, [&](int64_t pair) {
      std::vector<int64_t> next(First(2 * pair), First(2 * pair + 2));
      Walk(pair, [&](int64_t i, int64_t half) {
        const int32_t shard = shard_[i];
        work(i, shard, next[static_cast<size_t>(half * n_shards_ + shard)]++);
      });
    });
  }

  // Cycles to find the shard of a key, or to put it there.
  static constexpr int64_t kCyclesPerKey = 6;

 private:
  static constexpr int64_t kRows = 2048;  // Rows of a block.

  int64_t pairs() const { return (n_ + 2 * kRows - 1) / (2 * kRows); }
  // The first row of each shard in a block.
  int64_t* First(int64_t block) { return &first_[block * n_shards_]; }
  const int64_t* First(int64_t block) const {
    return &first_[block * n_shards_];
  }

  void Resize(const int32_t* shards, int64_t n, int n_shards) {
    shard_ = shards;
    n_ = n;
    n_shards_ = n_shards;
    first_.assign(static_cast<size_t>((2 * pairs() + 1) * n_shards), 0);
  }

  // Runs visit(i, half) for each row i of two blocks: half 0 or 1 of the pair.
  template <typename Visit>
  void Walk(int64_t pair, const Visit& visit) const {
    int64_t i = pair * 2 * kRows;
    const int64_t stop = std::min(n_, i + kRows);
    const int64_t both = i + std::max<int64_t>(0, std::min(n_ - stop, kRows));
    for (; i < both; ++i) {
      visit(i, 0);
      visit(i + kRows, 1);
    }
    for (; i < stop; ++i) visit(i, 0);
  }

  template <typename Work>
  void ForPairs(OpKernelContext* context, int64_t cycles,
                const Work& work) const {
    const auto run = [&](int64_t pair, int64_t end) {
      for (; pair < end; ++pair) work(pair);
    };
    if (cycles < kSerialBelowCycles) {
      run(0, pairs());
    } else {
      OpThreads(context)(pairs(), cycles / pairs(), run);
    }
  }

  Status RefuseShard() const {
    int64_t i = 0;
    while (shard_[i] >= 0 && shard_[i] < n_shards_) ++i;
    return InvalidArgument("shards must be in [0, ", n_shards_, "), got ",
                           shard_[i], " for row ", i);
  }

  // Sets First of each block, where the counts of the block before it are.
  void SumCounts() {
    for (int64_t b = 0; b < 2 * pairs(); ++b) {
      for (int s = 0; s < n_shards_; ++s) First(b + 1)[s] += First(b)[s];
    }
  }

  Scratch copy_;  // Memory of shard_ after Open.
  const int32_t* shard_ = nullptr;
  int64_t n_ = 0;
  int n_shards_ = 0;
  std::vector<int64_t> first_;  // (2 * pairs() + 1, n_shards)
};

// Cycles to copy a row.
int64_t CyclesPerRow(int64_t floats) { return 10 + floats / 2; }

// `shape` with n rows.
TensorShape WithRows(TensorShape shape, int64_t n) {
  shape.set_dim(0, n);
  return shape;
}

// Sets the floats of each of n rows.
Status RowFloats(const Tensor& rows, int64_t n, int* floats) {
  const int64_t count = n == 0 ? 0 : rows.NumElements() / n;
  *floats = static_cast<int>(count);
  if (count == *floats) return Status();
  return InvalidArgument("rows must have fewer than 2^31 floats, got ", count);
}

class ShardKeysSplitOp : public OpKernel {
 public:
  explicit ShardKeysSplitOp(OpKernelConstruction* context) : OpKernel(context) {
    int n_shards;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_shards));
    for (int b = 0; b < kKeyClasses; ++b) of_key_class_.push_back(b % n_shards);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    OP_REQUIRES_OK(context, CheckRank(keys, 1, "keys", "[n]"));
    const int64_t n = keys.NumElements();
    OP_REQUIRES(context, n <= std::numeric_limits<int32_t>::max(),
                InvalidArgument("keys must be fewer than 2^31, got ", n,
                                "; make the batch smaller"));
    Tensor* shards;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &shards));
    OpOutputList parts, positions;
    OP_REQUIRES_OK(context, context->output_list("parts", &parts));
    OP_REQUIRES_OK(context, context->output_list("positions", &positions));
    // A restore refuses a key in another shard than its own.
    Scratch copy;
    const int64_t* const key = CopyOf<int64_t>(keys, &copy);
    ShardBlocks blocks;
    blocks.Divide(context, key, n, of_key_class_, parts.size(),
                  shards->flat<int32_t>().data());
    std::vector<int64_t*> part;
    std::vector<int32_t*> position;
    for (int s = 0; s < parts.size(); ++s) {
      const TensorShape shape({blocks.size(s)});
      Tensor* of_shard;
      OP_REQUIRES_OK(context, parts.allocate(s, shape, &of_shard));
      part.push_back(of_shard->flat<int64_t>().data());
      OP_REQUIRES_OK(context, positions.allocate(s, shape, &of_shard));
      position.push_back(of_shard->flat<int32_t>().data());
    }
    blocks.ForEachKey(context, [&](int64_t i, int32_t shard, int64_t row) {
      part[static_cast<size_t>(shard)][row] = key[i];
      position[static_cast<size_t>(shard)][row] = static_cast<int32_t>(i);
    });
  }

 private:
  std::vector<int32_t> of_key_class_;  // (kKeyClasses) shard
};

class ShardRowsMergeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList rows;
    OP_REQUIRES_OK(context, context->input_list("rows", &rows));
    ShardBlocks blocks;
    OP_REQUIRES_OK(context, blocks.Open(context->input(0), rows.size()));
    const TensorShape& shape = rows[0].shape();
    OP_REQUIRES(context, shape.dims() >= 1,
                InvalidArgument("rows must be [n, ...], got shape []"));
    std::vector<const float*> from;
    for (int s = 0; s < rows.size(); ++s) {
      const TensorShape expected = WithRows(shape, blocks.size(s));
      OP_REQUIRES(context, rows[s].shape() == expected,
                  InvalidArgument("rows of shard ", s, " must be ",
                                  expected.DebugString(), ", got shape ",
                                  rows[s].shape().DebugString()));
      from.push_back(rows[s].flat<float>().data());
    }
    Tensor* values;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, WithRows(shape, blocks.n()), &values));
    float* const to = values->flat<float>().data();
    int floats;
    OP_REQUIRES_OK(context, RowFloats(*values, blocks.n(), &floats));
    blocks.ForEach(context, blocks.n() * CyclesPerRow(floats),
                   [shard_rows = from.data(), to, floats](
                       int64_t i, int32_t shard, int64_t row) {
                     CopyRow(shard_rows[shard] + row * floats, floats,
                             to + i * floats);
                   });
  }
};

template <typename T>
class ShardRowsSpreadOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList rows, index;
    OP_REQUIRES_OK(context, context->input_list("rows", &rows));
    OP_REQUIRES_OK(context, context->input_list("index", &index));
    ShardBlocks blocks;
    OP_REQUIRES_OK(context, blocks.Open(context->input(0), rows.size()));
    const TensorShape& shape = index[0].shape();
    OP_REQUIRES(context, shape.dims() >= 1,
                InvalidArgument("index must be [n, ...], got shape []"));
    OP_REQUIRES(context, TensorShapeUtils::IsMatrix(rows[0].shape()),
                InvalidArgument("rows must be [k, dim], got shape ",
                                rows[0].shape().DebugString()));
    const int64_t dim = rows[0].dim_size(1);
    const int width = static_cast<int>(dim);
    std::vector<decltype(ReceivedRows(static_cast<const T*>(nullptr), 0))> from;
    std::vector<Scratch> copies(static_cast<size_t>(rows.size()));
    std::vector<const int32_t*> of_shard;
    for (int s = 0; s < rows.size(); ++s) {
      const TensorShape expected = WithRows(shape, blocks.size(s));
      OP_REQUIRES(context, index[s].shape() == expected,
                  InvalidArgument("index of shard ", s, " must be ",
                                  expected.DebugString(), ", got shape ",
                                  index[s].shape().DebugString()));
      OP_REQUIRES(
          context,
          TensorShapeUtils::IsMatrix(rows[s].shape()) &&
              rows[s].dim_size(1) == dim,
          InvalidArgument("rows of shard ", s, " must be [k, ", dim,
                          "], got shape ", rows[s].shape().DebugString()));
      of_shard.push_back(
          CopyOf<int32_t>(index[s], &copies[static_cast<size_t>(s)]));
      OP_REQUIRES(
          context,
          AreRows(of_shard.back(), index[s].NumElements(), rows[s].dim_size(0)),
          InvalidArgument("index of shard ", s, " must be in [0, ",
                          rows[s].dim_size(0), "), got others"));
      from.push_back(ReceivedRows(rows[s].flat<T>().data(), width));
    }
    TensorShape of_values = WithRows(shape, blocks.n());
    OP_REQUIRES_OK(context, of_values.AddDimWithStatus(dim));
    Tensor* values;
    OP_REQUIRES_OK(context, context->allocate_output(0, of_values, &values));
    int floats;  // Floats of a row: of one lookup or several.
    OP_REQUIRES_OK(context, RowFloats(*values, blocks.n(), &floats));
    if (floats == 0) return;
    const int64_t lookups = floats / width;
    float* const to = values->flat<float>().data();
    blocks.ForEach(context, blocks.n() * CyclesPerRow(floats),
                   [shard_rows = from.data(), shard_index = of_shard.data(), to,
                    lookups, floats](int64_t i, int32_t shard, int64_t row) {
                     CopyIndexedRows(shard_rows[shard],
                                     shard_index[shard] + row * lookups,
                                     lookups, to + i * floats);
                   });
  }
};

class ShardRowsSplitOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpOutputList rows;
    OP_REQUIRES_OK(context, context->output_list("rows", &rows));
    const Tensor& values = context->input(1);
    ShardBlocks blocks;
    OP_REQUIRES_OK(context, blocks.Open(context->input(0), rows.size()));
    const TensorShape& shape = values.shape();
    OP_REQUIRES(context, shape.dims() >= 1 && shape.dim_size(0) == blocks.n(),
                InvalidArgument("values must be [n, ...], n = ", blocks.n(),
                                ", got shape ", shape.DebugString()));
    std::vector<float*> to;
    for (int s = 0; s < rows.size(); ++s) {
      Tensor* of_shard;
      OP_REQUIRES_OK(context, rows.allocate(s, WithRows(shape, blocks.size(s)),
                                            &of_shard));
      to.push_back(of_shard->flat<float>().data());
    }
    const float* const from = values.flat<float>().data();
    int floats;
    OP_REQUIRES_OK(context, RowFloats(values, blocks.n(), &floats));
    blocks.ForEach(context, blocks.n() * CyclesPerRow(floats),
                   [from, shard_rows = to.data(), floats](
                       int64_t i, int32_t shard, int64_t row) {
                     CopyRow(from + i * floats, floats,
                             shard_rows[shard] + row * floats);
                   });
  }
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>ShardKeysSplit").Device(tensorflow::DEVICE_CPU),
    Guarded<ShardKeysSplitOp>);
#define REGISTER_KERNELS(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("RecEstimator>ShardRowsSpread")   \
                              .Device(tensorflow::DEVICE_CPU)    \
                              .TypeConstraint<T>("value_dtype"), \
                          Guarded<ShardRowsSpreadOp<T>>);
REGISTER_KERNELS(float)
REGISTER_KERNELS(tensorflow::bfloat16)
REGISTER_KERNELS(Eigen::half)
#undef REGISTER_KERNELS
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>ShardRowsMerge").Device(tensorflow::DEVICE_CPU),
    Guarded<ShardRowsMergeOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>ShardRowsSplit").Device(tensorflow::DEVICE_CPU),
    Guarded<ShardRowsSplitOp>);

}  // namespace
}  // namespace rec_estimator
