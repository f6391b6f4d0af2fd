// SPDX-License-Identifier: Apache-2.0
// Regularization: the part of a value that steps decay, and the L2 gradient.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/core/math/regularization.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

TEST(ANewRowDecaysOnce) {
  EXPECT_EQ(RowDecay(0.25f).Part(-1, 0), 0.25f);
  EXPECT_EQ(RowDecay(0.25f).Part(-1, 1000), 0.25f);
  EXPECT_EQ(RowDecay(0.25f).Part(-1, -1), 0.25f);
}

TEST(ARowDecaysForEachStepSinceItsVersion) {
  EXPECT_EQ(RowDecay(0.5f).Part(7, 8), 0.5f);
  EXPECT_EQ(RowDecay(0.5f).Part(7, 10), 0.875f);
  EXPECT_EQ(RowDecay(0.5f).Part(0, 1'000'000), 1.0f);
  EXPECT_EQ(RowDecay(0.5f).Part(kFirst, kLast), 1.0f);
}

TEST(StepsThatComeLateOrTwiceDecayNothing) {
  EXPECT_EQ(RowDecay(0.5f).Part(7, 7), 0.0f);
  EXPECT_EQ(RowDecay(0.5f).Part(7, 6), 0.0f);
  EXPECT_EQ(RowDecay(0.5f).Part(kLast, kFirst), 0.0f);
}

TEST(SmallRatesKeepTheirDigits) {
  const double part = RowDecay(1e-9f).Part(0, 1000);
  EXPECT_TRUE(std::abs(part / (1000.0 * double{1e-9f}) - 1.0) < 1e-6);
}

TEST(EveryElementOfARowIsRegularized) {
  for (const int dim : {1, 7, 8, 33}) {
    std::vector<float> value(dim), gradient(dim, 1.0f);
    for (int d = 0; d < dim; ++d) value[d] = static_cast<float>(d - 3);
    AddL2Gradient(value.data(), 0.5f, dim, gradient.data());
    RowDecay::Apply(0.25f, dim, value.data());
    for (int d = 0; d < dim; ++d) {
      EXPECT_EQ(gradient[d], 1.0f + 0.5f * static_cast<float>(d - 3));
      EXPECT_EQ(value[d], 0.75f * static_cast<float>(d - 3));
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
