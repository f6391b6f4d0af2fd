// SPDX-License-Identifier: Apache-2.0
// Floats as bytes: how near they are, and that quantizing twice changes
// nothing.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ops/core/math/quantized_floats.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Row {
  explicit Row(const std::vector<float>& from)
      : bytes(from.size()), floats(from.size()) {
    const int n = static_cast<int>(from.size());
    scale = QuantizeFloats(from.data(), n, bytes.data());
    DequantizeFloats(bytes.data(), scale, n, floats.data());
  }

  bool operator==(const Row& other) const {
    return bytes == other.bytes &&
           std::memcmp(&scale, &other.scale, sizeof scale) == 0 &&
           std::memcmp(floats.data(), other.floats.data(),
                       floats.size() * sizeof(float)) == 0;
  }

  std::vector<uint8_t> bytes;
  ByteScale scale;
  std::vector<float> floats;
};

// Rows of all sizes, from far below the last digit of their middle to far
// beyond it.
std::vector<std::vector<float>> RandomRows(int n) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  std::uniform_int_distribution<int> exponent(-150, 120), spread(-30, 30);
  std::vector<std::vector<float>> rows;
  for (int r = 0; r < n; ++r) {
    const int middle = exponent(random);
    const double center = std::ldexp(unit(random), middle);
    const double half = std::ldexp(1.0, std::min(middle + spread(random), 125));
    std::vector<float> row(1 + r % 40);
    for (float& x : row) x = static_cast<float>(center + half * unit(random));
    rows.push_back(row);
  }
  return rows;
}

TEST(AnElementIsAtMostHalfAScaleAway) {
  for (const std::vector<float>& row : RandomRows(20000)) {
    const Row stored(row);
    double range = 0, size = 0;
    for (const float x : row) {
      size = std::max(size, static_cast<double>(std::abs(x)));
      for (const float y : row) {
        range = std::max(range, static_cast<double>(x) - y);
      }
    }
    // In addition, the sum is rounded. A scale is no less than 2^-124.
    const double step =
        std::max({range / 255, std::ldexp(size, -12), 0x1p-124});
    const double most = step * (0.5 + 0x1p-15) + std::ldexp(size, -24);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_TRUE(std::abs(static_cast<double>(row[i]) - stored.floats[i]) <=
                  most);
    }
  }
}

TEST(QuantizingTwiceIsQuantizingOnce) {
  for (const std::vector<float>& row : RandomRows(100000)) {
    const Row once(row);
    EXPECT_TRUE(Row(once.floats) == once);
  }
}

TEST(AFusedMultiplyAddHasTheSameBits) {
  for (const std::vector<float>& row : RandomRows(5000)) {
    const Row stored(row);
    for (size_t i = 0; i < row.size(); ++i) {
      const float fused =
          std::fma(stored.scale.scale, static_cast<float>(stored.bytes[i]),
                   stored.scale.offset);
      EXPECT_EQ(fused, stored.floats[i]);
    }
  }
}

TEST(EqualElementsStayWhatTheyAre) {
  for (const float x : {0.1f, -3e38f, 3e38f, 1.0f, -0x1.fffffep-126f}) {
    const Row stored(std::vector<float>(5, x));
    EXPECT_EQ(stored.scale.scale, 0.0f);
    for (const float y : stored.floats) EXPECT_EQ(y, x);
  }
  EXPECT_EQ(Row({-0.0f, 0.0f}).floats[0], 0.0f);
}

TEST(TheLeastElementStaysWhatItIsAndGetsByteZero) {
  for (const std::vector<float>& row : RandomRows(2000)) {
    const Row stored(row);
    const size_t at = std::min_element(row.begin(), row.end()) - row.begin();
    if (std::abs(row[at]) < 0x1p-126f) continue;
    EXPECT_EQ(stored.bytes[at], 0);
    EXPECT_EQ(stored.floats[at], row[at]);
  }
}

TEST(ARowThatBytesCannotHoldIsNan) {
  const float nan = std::nanf("");
  const std::vector<float> rows[] = {
      {1.0f, nan}, {kInf, 1.0f}, {1.0f, -kInf},  {kInf, -kInf, 0.0f},
      {nan},       {kInf},       {-2e38f, 2e38f}};
  for (const std::vector<float>& row : rows) {
    const Row stored(row);
    for (const float x : stored.floats) EXPECT_TRUE(std::isnan(x));
    for (const float x : Row(stored.floats).floats) EXPECT_TRUE(std::isnan(x));
  }
  EXPECT_EQ(Row({-8e37f, 8e37f}).floats[0], -8e37f);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
