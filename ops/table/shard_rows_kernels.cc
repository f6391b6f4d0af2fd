// SPDX-License-Identifier: Apache-2.0
// Kernels of shard_rows_ops.cc. Both go through the batch once in its order, so
// they read and write the rows of each shard in sequence.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/core/base/float8.h"
#include "ops/errors.h"
#include "ops/table/guarded_kernel.h"
#include "ops/table/input_checks.h"
#include "ops/table/intra_op_threads.h"
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

// Which rows of each shard a block of the batch has.
class ShardBlocks {
 public:
  // Reads the shard of each row, [n], which outlives the object.
  Status Open(const Tensor& shards, int n_shards) {
    TF_RETURN_IF_ERROR(CheckRank(shards, 1, "shards", "[n]"));
    shard_ = shards.flat<int32_t>().data();
    n_ = shards.NumElements();
    n_shards_ = n_shards;
    first_.assign(static_cast<size_t>((blocks() + 1) * n_shards), 0);
    for (int64_t i = 0; i < n_; ++i) {
      const int32_t shard = shard_[i];
      if (shard < 0 || shard >= n_shards) {
        return InvalidArgument("shards must be in [0, ", n_shards, "), got ",
                               shard, " for row ", i);
      }
      ++First(i / kRows + 1)[shard];
    }
    for (int64_t b = 0; b < blocks(); ++b) {
      for (int s = 0; s < n_shards; ++s) First(b + 1)[s] += First(b)[s];
    }
    return Status();
  }

  int64_t n() const { return n_; }
  // The rows of a shard.
  int64_t size(int shard) const { return First(blocks())[shard]; }

  // Runs work(i, shard, row): row i of the batch is this row of the shard. All
  // rows cost `cycles`.
  template <typename Work>
  void ForEach(OpKernelContext* context, int64_t cycles,
               const Work& work) const {
    const auto run = [&](int64_t block, int64_t end) {
      for (; block < end; ++block) {
        std::vector<int64_t> next(First(block), First(block + 1));
        const int64_t stop = std::min(n_, (block + 1) * kRows);
        for (int64_t i = block * kRows; i < stop; ++i) {
          work(i, static_cast<size_t>(shard_[i]),
               next[static_cast<size_t>(shard_[i])]++);
        }
      }
    };
    if (cycles < kSerialBelowCycles) {
      run(0, blocks());
    } else {
      IntraOpThreads(context)(blocks(), cycles / blocks(), run);
    }
  }

 private:
  static constexpr int64_t kRows = 4096;  // Of a block.

  int64_t blocks() const { return (n_ + kRows - 1) / kRows; }
  // Of each shard: its first row in a block.
  int64_t* First(int64_t block) { return &first_[block * n_shards_]; }
  const int64_t* First(int64_t block) const {
    return &first_[block * n_shards_];
  }

  const int32_t* shard_ = nullptr;
  int64_t n_ = 0;
  int n_shards_ = 0;
  std::vector<int64_t> first_;  // (blocks() + 1, n_shards)
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
                   [&](int64_t i, size_t shard, int64_t row) {
                     CopyRow(from[shard] + row * floats, floats,
                             to + i * floats);
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
                   [&](int64_t i, size_t shard, int64_t row) {
                     CopyRow(from + i * floats, floats,
                             to[shard] + row * floats);
                   });
  }
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>ShardRowsMerge").Device(tensorflow::DEVICE_CPU),
    Guarded<ShardRowsMergeOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>ShardRowsSplit").Device(tensorflow::DEVICE_CPU),
    Guarded<ShardRowsSplitOp>);

}  // namespace
}  // namespace rec_estimator
