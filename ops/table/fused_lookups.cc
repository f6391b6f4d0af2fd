// SPDX-License-Identifier: Apache-2.0
#include "ops/table/fused_lookups.h"

#include <algorithm>

#include "ops/errors.h"
#include "ops/table/op_threads.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::OpKernelConstruction;

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

void ForAllUnits(
    const std::vector<int64_t>& sizes, double cycles,
    const ParallelFor& parallel,
    const std::function<void(size_t i, int64_t begin, int64_t end)>& work) {
  struct Range {
    size_t i;
    int64_t begin, end;
  };
  std::vector<Range> ranges;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t largest = sizes[i] <= kShortList ? kShortList : kPart;
    for (int64_t begin = 0; begin < sizes[i]; begin += largest) {
      ranges.push_back({i, begin, std::min(begin + largest, sizes[i])});
    }
  }
  if (ranges.empty()) return;
  const auto run = [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const Range& range = ranges[static_cast<size_t>(begin)];
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
