// SPDX-License-Identifier: Apache-2.0
// Floats of 16 bits: every one of them, and how floats are rounded to them.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/core/math/narrow_floats.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint64_t kNoise = 0x0123456789abcdefu;
constexpr NarrowType kTypes[] = {NarrowType::kBFloat16, NarrowType::kHalf};

bool IsHalf(NarrowType type) { return type == NarrowType::kHalf; }

// The first number that is not finite: infinity.
uint16_t Infinity(NarrowType type) { return IsHalf(type) ? 0x7c00 : 0x7f80; }

float Widen(NarrowType type, uint16_t x) {
  float wide;
  WidenFloats(type, &x, 1, &wide);
  return wide;
}

uint16_t Nearest(NarrowType type, float x) {
  uint16_t narrow;
  NarrowFloats(type, &x, 1, &narrow);
  return narrow;
}

uint16_t AtRandom(NarrowType type, float x, uint64_t noise) {
  uint16_t narrow;
  NarrowFloatsStochastically(type, &x, noise, 1, &narrow);
  return narrow;
}

// What a number of the type is, from its sign, exponent and mantissa.
double Meaning(NarrowType type, uint16_t x) {
  const int bits = IsHalf(type) ? 10 : 7;
  const int bias = IsHalf(type) ? 15 : 127;
  const int exponent = (x & 0x7fff) >> bits;
  const int mantissa = x & ((1 << bits) - 1);
  const double size = exponent == 0 ? std::ldexp(mantissa, 1 - bias - bits)
                                    : std::ldexp(mantissa + (1 << bits),
                                                 exponent - bias - bits);
  return x & 0x8000 ? -size : size;
}

TEST(EveryNumberOfSixteenBitsIsWidenedExactly) {
  for (const NarrowType type : kTypes) {
    const uint16_t infinity = Infinity(type);
    for (uint32_t x = 0; x < 0x10000; ++x) {
      const float wide = Widen(type, static_cast<uint16_t>(x));
      const uint32_t size = x & 0x7fff;
      EXPECT_EQ(std::signbit(wide), x >= 0x8000);
      if (size < infinity) {
        EXPECT_EQ(wide, Meaning(type, static_cast<uint16_t>(x)));
      } else if (size == infinity) {
        EXPECT_EQ(std::abs(wide), kInf);
      } else {
        EXPECT_TRUE(std::isnan(wide));
      }
    }
  }
}

TEST(ANumberOfTheTypeIsNotRounded) {
  for (const NarrowType type : kTypes) {
    for (uint32_t x = 0; x < 0x10000; ++x) {
      const auto narrow = static_cast<uint16_t>(x);
      const float wide = Widen(type, narrow);
      if (std::isnan(wide)) {
        EXPECT_TRUE(std::isnan(Widen(type, Nearest(type, wide))));
        EXPECT_TRUE(std::isnan(Widen(type, AtRandom(type, wide, x * kNoise))));
      } else {
        EXPECT_EQ(Nearest(type, wide), narrow);
        EXPECT_EQ(AtRandom(type, wide, x * kNoise), narrow);
      }
    }
  }
}

TEST(AFloatBecomesTheNearestNumberAndOfTwoTheEvenOne) {
  for (const NarrowType type : kTypes) {
    for (uint16_t a = 0; a + 1 < Infinity(type); ++a) {
      const auto b = static_cast<uint16_t>(a + 1);
      // Exact: a float has at least one bit more than both.
      const float middle =
          static_cast<float>((Meaning(type, a) + Meaning(type, b)) / 2);
      EXPECT_EQ(Nearest(type, middle), a % 2 == 0 ? a : b);
      EXPECT_EQ(Nearest(type, std::nextafter(middle, 0.0f)), a);
      EXPECT_EQ(Nearest(type, std::nextafter(middle, kInf)), b);
      EXPECT_EQ(Nearest(type, -middle), 0x8000 | (a % 2 == 0 ? a : b));
    }
  }
}

TEST(ANearestNumberBeyondTheLargestIsInfinite) {
  EXPECT_EQ(Nearest(NarrowType::kHalf, 65504.0f), 0x7bff);
  EXPECT_EQ(Nearest(NarrowType::kHalf, std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(Nearest(NarrowType::kHalf, 65520.0f), 0x7c00);
  const float most = std::numeric_limits<float>::max();
  for (const NarrowType type : kTypes) {
    EXPECT_EQ(Nearest(type, most), Infinity(type));
    EXPECT_EQ(Nearest(type, -most), 0x8000 | Infinity(type));
    EXPECT_EQ(Nearest(type, kInf), Infinity(type));
  }
}

TEST(SmallFloatsRoundToHalfZero) {
  const NarrowType type = NarrowType::kHalf;
  EXPECT_EQ(Nearest(type, std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(Nearest(type, std::nextafter(std::ldexp(1.0f, -25), 1.0f)), 1);
  EXPECT_EQ(Nearest(type, std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(Nearest(type, -std::numeric_limits<float>::min()), 0x8000);
}

TEST(StochasticRoundingLeavesFiniteFloatsFinite) {
  const float most = std::numeric_limits<float>::max();
  for (const NarrowType type : kTypes) {
    for (uint64_t i = 0; i < 100; ++i) {
      EXPECT_EQ(AtRandom(type, most, i * kNoise), Infinity(type) - 1);
      EXPECT_EQ(AtRandom(type, -most, i * kNoise),
                0x8000 | (Infinity(type) - 1));
      EXPECT_EQ(AtRandom(type, kInf, i * kNoise), Infinity(type));
      EXPECT_EQ(AtRandom(type, -kInf, i * kNoise), 0x8000 | Infinity(type));
    }
  }
}

TEST(TheMeanOfStochasticRoundingIsTheFloat) {
  constexpr int kTimes = 20000;
  for (const NarrowType type : kTypes) {
    // Both sides of the least normal half, 2^-14, denormals, and far away.
    for (const float x : {1.0009f, -3.14159f, 6.2e-5f, 6.05e-5f, 1e-7f, 3e-8f,
                          2e-10f, 1234.567f, 0.1f}) {
      const uint16_t nearest = Nearest(type, x);
      const double near = Meaning(type, nearest);
      // The farther one of the two numbers around x.
      const int step = (std::abs(near) > std::abs(x)) ? -1 : 1;
      const double far = Meaning(type, static_cast<uint16_t>(nearest + step));
      const double share = (static_cast<double>(x) - near) / (far - near);
      int n_far = 0;
      for (int i = 0; i < kTimes; ++i) {
        const double got =
            Meaning(type, AtRandom(type, x, static_cast<uint64_t>(i) * kNoise));
        EXPECT_TRUE(got == near || got == far);
        n_far += got == far;
      }
      const double deviation =
          std::sqrt(share * (1 - share) * kTimes) + 1e-4 * kTimes;
      EXPECT_TRUE(std::abs(n_far - share * kTimes) < 5 * deviation);
    }
  }
}

TEST(ElementsOfARowAndRowsAreRoundedIndependently) {
  constexpr int kDim = 4096;
  const std::vector<float> ones(kDim, 1.0f + std::ldexp(1.0f, -12));
  std::vector<uint16_t> first(kDim), second(kDim);
  NarrowFloatsStochastically(NarrowType::kHalf, ones.data(), kNoise, kDim,
                             first.data());
  NarrowFloatsStochastically(NarrowType::kHalf, ones.data(), kNoise + 1, kDim,
                             second.data());
  // A quarter is rounded up, a sixteenth of them in both rows and, likewise, in
  // neighbouring elements.
  int up = 0, in_both = 0, in_both_neighbours = 0;
  for (int d = 0; d < kDim; ++d) {
    up += first[d] == 0x3c01;
    in_both += first[d] == 0x3c01 && second[d] == 0x3c01;
    in_both_neighbours += d > 0 && first[d] == 0x3c01 && first[d - 1] == 0x3c01;
  }
  EXPECT_TRUE(std::abs(up - kDim / 4) < 140);  // 5 standard deviations.
  EXPECT_TRUE(std::abs(in_both - kDim / 16) < 80);
  EXPECT_TRUE(std::abs(in_both_neighbours - kDim / 16) < 80);
}

TEST(AnElementHasTheSameBitsInRowsOfAnyLength) {
  constexpr int kDim = 67;
  std::vector<float> row(kDim), wide(kDim), one(kDim);
  for (int d = 0; d < kDim; ++d) {
    row[d] = std::ldexp(1.2345f + static_cast<float>(d), d - 40);
  }
  std::vector<uint16_t> all(kDim), part(kDim);
  for (const NarrowType type : kTypes) {
    NarrowFloatsStochastically(type, row.data(), kNoise, kDim, all.data());
    WidenFloats(type, all.data(), kDim, wide.data());
    for (int n = 0; n <= kDim; ++n) {
      NarrowFloatsStochastically(type, row.data(), kNoise, n, part.data());
      WidenFloats(type, part.data(), n, one.data());
      for (int d = 0; d < n; ++d) {
        EXPECT_EQ(part[d], all[d]);
        EXPECT_EQ(one[d], wide[d]);
      }
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
