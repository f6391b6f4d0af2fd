// SPDX-License-Identifier: Apache-2.0
#include "ops/core/rows/row_survey.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/core/base/float8.h"

namespace rec_estimator {
namespace {

float SumOf(Float8 lanes) {
  float sum = 0;
  for (int i = 0; i < kFloat8; ++i) sum += lanes[i];
  return sum;
}

float SumOfSquares(const float* row, int n) {
  Float8 lanes = {};
  int d = 0;
  for (; d + kFloat8 <= n; d += kFloat8) {
    const Float8 x = LoadFloat8(row + d);
    lanes += x * x;
  }
  float sum = SumOf(lanes);
  for (; d < n; ++d) sum += row[d] * row[d];
  return sum;
}

bool IsFinite(const float* row, int n) {
  // 0 times a float is 0, unless the float is not finite: then it is NaN.
  Float8 lanes = {};
  int d = 0;
  for (; d + kFloat8 <= n; d += kFloat8) lanes += LoadFloat8(row + d) * 0.0f;
  float sum = SumOf(lanes);
  for (; d < n; ++d) sum += row[d] * 0.0f;
  return sum == 0;
}

}  // namespace

void RowSurvey::Add(int64_t key, int64_t version, const float* row) {
  const float squares = SumOfSquares(row, dim_);
  // The squares of a finite value may be infinite.
  const int checked = std::isfinite(squares) ? dim_ : 0;
  if (!IsFinite(row + checked, row_floats_ - checked)) {
    const float* const end = row + row_floats_;
    const float* const first =
        std::find_if(row, end, [](float x) { return !std::isfinite(x); });
    AddBroken({key, version, static_cast<int>(first - row), *first}, 1);
    return;
  }
  AddNorm({std::sqrt(squares), key});
}

void RowSurvey::AddNorm(const Norm& norm) {
  const auto is_larger = [](const Norm& a, const Norm& b) {
    return a.norm > b.norm || (a.norm == b.norm && a.key < b.key);
  };
  Norm* const end = largest_.data() + n_largest_;
  if (n_largest_ == kLargest) {
    if (!is_larger(norm, end[-1])) return;
    end[-1] = norm;
  } else {
    *end = norm;
    ++n_largest_;
  }
  Norm* at = largest_.data() + n_largest_ - 1;
  for (; at > largest_.data() && is_larger(at[0], at[-1]); --at) {
    std::swap(at[0], at[-1]);
  }
}

void RowSurvey::AddBroken(const Broken& broken, int64_t n) {
  if (n_broken_ == 0 || broken.key < broken_.key) broken_ = broken;
  n_broken_ += n;
}

void RowSurvey::Merge(const RowSurvey& other) {
  for (int i = 0; i < other.n_largest_; ++i) AddNorm(other.largest(i));
  if (other.n_broken_ > 0) AddBroken(other.broken_, other.n_broken_);
}

}  // namespace rec_estimator
