// SPDX-License-Identifier: Apache-2.0
#include "ops/core/math/quantized_floats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/core/base/cpu_versions.h"
#include "ops/core/math/widening.h"

namespace rec_estimator {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kMostBytes = 255.0;
// Floats below it are denormal. TensorFlow's threads take them for 0.
constexpr double kLeastNormal = 0x1p-126;
// So large that a denormal number is nearest to byte 0 of its neighbour 0.
constexpr double kLeastScale = 0x1p-124;
// A product of a byte and a scale is a float up to here.
constexpr double kLargestRange = 0x1p127;

// x > 0, rounded to 16 bits, of two nearest numbers to the larger.
double RoundTo16Bits(double x) {
  constexpr int kDropped = 53 - 16;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += uint64_t{1} << (kDropped - 1);
  bits &= ~((uint64_t{1} << kDropped) - 1);
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// The scale of elements from `least` on over a range; 0 if all are nearest to
// the least one.
//
// With at least 2^11 units in the last place of the offset, a scale moves less
// than its own last bit by the rounding of the greatest element, and an element
// less than half a scale. So both are found again in the dequantized floats.
// Only the offset decides, which these have unchanged. The step is then still
// finer than those of float16 between numbers of this size.
double ScaleOf(double least, double range) {
  const double finest =
      least == 0.0 ? kLeastScale : std::ldexp(1.0, std::ilogb(least) - 12);
  const double scale =
      std::max({RoundTo16Bits(range / kMostBytes), finest, kLeastScale});
  return range * (1.0 / scale) + 0.5 < 1.0 ? 0.0 : scale;
}

}  // namespace

REC_ESTIMATOR_FOR_EACH_CPU
ByteScale QuantizeFloats(const float* __restrict from, int n,
                         uint8_t* __restrict to) {
  double least = from[0], greatest = from[0];
  for (int i = 1; i < n; ++i) {
    const double x = from[i];
    least = x < least ? x : least;
    greatest = x > greatest ? x : greatest;
  }
  // The sum is finite only if all elements are.
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += from[i];
  if (std::abs(least) < kLeastNormal) least = 0.0;
  const double range = greatest - least;
  if (!std::isfinite(sum) || !(range <= kLargestRange)) {
    std::fill_n(to, n, uint8_t{0});
    return {kNan, kNan};
  }
  const double scale = range > 0.0 ? ScaleOf(least, range) : 0.0;
  const double steps = scale > 0.0 ? 1.0 / scale : 0.0;
  for (int i = 0; i < n; ++i) {
    to[i] = static_cast<uint8_t>(
        static_cast<int32_t>((from[i] - least) * steps + 0.5));
  }
  return {static_cast<float>(scale), static_cast<float>(least)};
}

void DequantizeFloats(const uint8_t* from, ByteScale scale, int n, float* to) {
  WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
    WidenBytes<decltype(widening)>(from, scale, n, to);
  });
}

}  // namespace rec_estimator
