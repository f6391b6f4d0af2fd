// SPDX-License-Identifier: Apache-2.0
// RowSurvey: what code that copies all rows, as a save does, can learn at
// almost no cost: the largest norms, and which floats are not finite.
#ifndef REC_ESTIMATOR_OPS_CORE_ROWS_ROW_SURVEY_H_
#define REC_ESTIMATOR_OPS_CORE_ROWS_ROW_SURVEY_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace rec_estimator {

// The result depends neither on the order of the rows nor on who adds which.
class RowSurvey {
 public:
  static constexpr int kLargest = 5;
  struct Norm {
    float norm;  // The value's norm; infinite if it is beyond float.
    int64_t key;
  };
  // A row with a float that is not finite.
  struct Broken {
    int64_t key;
    int64_t version;
    int offset;   // Where the row has its first such float.
    float value;  // That float.
  };

  // Rows of so many floats, of which the first dim are the value.
  RowSurvey(int dim, int row_floats) : dim_(dim), row_floats_(row_floats) {}

  void Add(int64_t key, int64_t version, const float* row);  // (row_floats)
  // Adds the rows of another survey of the same table.
  void Merge(const RowSurvey& other);

  // Rows of finite floats: their largest norms in descending order, of equal
  // ones those of the least keys.
  int n_largest() const { return n_largest_; }
  const Norm& largest(int i) const { return largest_[static_cast<size_t>(i)]; }
  int64_t n_broken() const { return n_broken_; }
  // The broken row with the least key. There is one.
  const Broken& broken() const { return broken_; }

 private:
  void AddNorm(const Norm& norm);
  void AddBroken(const Broken& broken, int64_t n);

  int dim_;
  int row_floats_;
  int n_largest_ = 0;
  std::array<Norm, kLargest> largest_;
  int64_t n_broken_ = 0;
  Broken broken_ = {};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_ROWS_ROW_SURVEY_H_
