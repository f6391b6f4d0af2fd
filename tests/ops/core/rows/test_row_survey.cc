// SPDX-License-Identifier: Apache-2.0
// RowSurvey: the largest norms, and floats that are not finite, in any order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ops/core/rows/row_survey.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(TheLargestNormsDoNotDependOnTheOrderOfTheRows) {
  for (const int dim : {1, 7, 8, 19}) {
    std::vector<int64_t> keys(40);
    for (int64_t i = 0; i < 40; ++i) keys[i] = i - 20;
    for (uint32_t seed = 0; seed < 5; ++seed) {
      std::shuffle(keys.begin(), keys.end(), std::mt19937(seed));
      RowSurvey one(dim, dim), other(dim, dim);
      for (const int64_t key : keys) {
        // Keys 2 i and 2 i + 1 have the same norm. Only the last float counts.
        std::vector<float> row(dim, 0.0f);
        row.back() = -static_cast<float>((key + 20) / 2);
        (seed % 2 == 0 ? one : other).Add(key, 0, row.data());
      }
      one.Merge(other);
      EXPECT_EQ(one.n_largest(), RowSurvey::kLargest);
      for (int i = 0; i < one.n_largest(); ++i) {
        EXPECT_EQ(one.largest(i).norm, static_cast<float>(19 - i / 2));
        EXPECT_EQ(one.largest(i).key, int64_t{18 - i / 2 * 2 + i % 2});
      }
      EXPECT_EQ(one.n_broken(), int64_t{0});
    }
  }
}

TEST(AFloatThatIsNotFiniteIsFoundWhereverItIs) {
  for (const int floats : {1, 8, 13, 40}) {
    const int dim = (floats + 1) / 2;
    for (int offset = 0; offset < floats; ++offset) {
      for (const float bad : {kNaN, kInf, -kInf}) {
        RowSurvey survey(dim, floats);
        std::vector<float> row(floats, 1.0f);
        survey.Add(1, 5, row.data());
        row[offset] = bad;
        survey.Add(9, 8, row.data());
        survey.Add(-9, 7, row.data());
        EXPECT_EQ(survey.n_broken(), int64_t{2});
        EXPECT_EQ(survey.n_largest(), 1);
        EXPECT_EQ(survey.broken().key, int64_t{-9});
        EXPECT_EQ(survey.broken().version, int64_t{7});
        EXPECT_EQ(survey.broken().offset, offset);
        EXPECT_EQ(std::isnan(survey.broken().value), std::isnan(bad));
      }
    }
  }
}

TEST(FiniteFloatsWhoseSquaresAreNotAreNotBroken) {
  RowSurvey survey(2, 3);
  const float row[] = {1e30f, -1e30f, std::numeric_limits<float>::max()};
  survey.Add(3, 0, row);
  EXPECT_EQ(survey.n_broken(), int64_t{0});
  EXPECT_EQ(survey.largest(0).norm, kInf);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
