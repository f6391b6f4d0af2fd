// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/fused_lookups.h"

#include <algorithm>

#include "ops/kernel/errors.h"
#include "ops/kernel/op_threads.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShapeUtils;

// Keys of a long list that a thread takes at a time: as many as a table
// deduplicates together.
constexpr int64_t kPart = 4096;

}  // namespace

Status ReadCombiners(OpKernelConstruction* context,
                     std::vector<Combiner>* combiners) {
  int64_t n;
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &n));
  TF_RETURN_IF_ERROR(context->GetAttr("combiners", &names));
  if (static_cast<int64_t>(names.size()) != n) {
    return InvalidArgument("combiners must be of length N = ", n, ", got ",
                           names.size());
  }
  for (const std::string& name : names) {
    if (name == "sum") {
      combiners->push_back(Combiner::kSum);
    } else if (name == "mean") {
      combiners->push_back(Combiner::kMean);
    } else if (name == "sqrtn") {
      combiners->push_back(Combiner::kSqrtn);
    } else {
      return InvalidArgument(
          "combiners must each be 'sum', 'mean' or 'sqrtn', got '", name, "'");
    }
  }
  return Status();
}

std::vector<std::string> LookupNames(OpKernelConstruction* context, size_t n) {
  std::vector<std::string> names;
  if (context->HasAttr(kFusedLookupNames) &&
      context->GetAttr(kFusedLookupNames, &names).ok() && names.size() == n) {
    return names;
  }
  names.clear();
  for (size_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
  return names;
}

Status CheckIndices(const std::string& name, const Tensor& indices,
                    OneKeyPerRow* one_key_per_row, KeyRows* keys) {
  if (!TensorShapeUtils::IsMatrix(indices.shape()) || indices.dim_size(1) < 1) {
    return InvalidArgument("indices of lookup ", name,
                           " must be [n, r], r >= 1, got shape ",
                           indices.shape().DebugString());
  }
  const RowColumn column = {indices.flat<int64_t>().data(), indices.dim_size(0),
                            indices.dim_size(1)};
  keys->one_key_per_row = (*one_key_per_row)(column, keys->rows);
  if (!keys->one_key_per_row)
    return keys->row_index.Read(column, keys->rows, name);
  keys->row_index.SetOneKeyPerRow(column.n);
  return Status();
}

Status CheckSparse(const std::string& name, int64_t n, const Tensor& indices,
                   const Tensor& dense_shape, OneKeyPerRow* one_key_per_row,
                   KeyRows* keys) {
  if (!TensorShapeUtils::IsMatrix(indices.shape()) ||
      indices.dim_size(0) != n || indices.dim_size(1) < 1) {
    return InvalidArgument("indices of lookup ", name,
                           " must be [n, r], n = ", n, ", r >= 1, got shape ",
                           indices.shape().DebugString());
  }
  if (!TensorShapeUtils::IsVector(dense_shape.shape()) ||
      dense_shape.dim_size(0) != indices.dim_size(1)) {
    return InvalidArgument("dense_shapes of lookup ", name,
                           " must be [r], r = ", indices.dim_size(1),
                           ", got shape ", dense_shape.shape().DebugString());
  }
  keys->rows = ReadOnce(dense_shape.flat<int64_t>()(0));
  if (keys->rows < 0) {
    return InvalidArgument("dense_shapes of lookup ", name,
                           " must start with a number of rows >= 0, got ",
                           keys->rows);
  }
  return CheckIndices(name, indices, one_key_per_row, keys);
}

void ForAllUnits(
    const std::vector<int64_t>& sizes, double cycles,
    const ParallelFor& parallel,
    const std::function<void(size_t i, int64_t begin, int64_t end)>& work) {
  struct UnitRange {
    size_t i;
    int64_t begin, end;
  };
  std::vector<UnitRange> ranges;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t largest = sizes[i] <= kShortList ? kShortList : kPart;
    for (int64_t begin = 0; begin < sizes[i]; begin += largest) {
      ranges.push_back({i, begin, std::min(begin + largest, sizes[i])});
    }
  }
  if (ranges.empty()) return;
  const auto run = [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const UnitRange& range = ranges[static_cast<size_t>(begin)];
      work(range.i, range.begin, range.end);
    }
  };
  const int64_t n = static_cast<int64_t>(ranges.size());
  if (cycles < kSerialBelowCycles) {
    run(0, n);
  } else {
    parallel(n, static_cast<int64_t>(cycles / static_cast<double>(n)), run);
  }
}

}  // namespace rec_estimator
