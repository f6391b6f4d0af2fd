// SPDX-License-Identifier: Apache-2.0
// Widening: every number has the same bits with all instruction sets, in both
// modes for denormal numbers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/core/math/widening.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// TensorFlow's threads flush denormal results and take denormal floats for 0.
class FlushingDenormals {
 public:
  FlushingDenormals() { _mm_setcsr(before_ | 0x8040); }
  ~FlushingDenormals() { _mm_setcsr(before_); }

 private:
  const uint32_t before_ = _mm_getcsr();
};

std::vector<uint16_t> EveryNumber() {
  std::vector<uint16_t> numbers(0x10000);
  std::iota(numbers.begin(), numbers.end(), uint16_t{0});
  return numbers;
}

// The bits of what every number, and every byte in a row, widens to.
template <typename Widening>
inline __attribute__((always_inline)) std::vector<float> WidenEach() {
  const std::vector<uint16_t> numbers = EveryNumber();
  const int n = static_cast<int>(numbers.size());
  std::vector<uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::vector<float> wide(2 * numbers.size() + bytes.size());
  WidenBFloat16s<Widening>(numbers.data(), n, wide.data());
  WidenHalves<Widening>(numbers.data(), n, wide.data() + n);
  WidenBytes<Widening>(bytes.data(), {0.37f, -5.1f}, 256, wide.data() + 2 * n);
  return wide;
}

bool HaveSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(AllInstructionSetsAndModesWidenToTheSameBits) {
  const std::vector<float> expected = WidenEach<PortableWidening>();
  const auto check = [&] {
    EXPECT_TRUE(HaveSameBits(WidenEach<PortableWidening>(), expected));
    WithFastestWidening([&](auto widening) __attribute__((always_inline)) {
      EXPECT_TRUE(HaveSameBits(WidenEach<decltype(widening)>(), expected));
    });
  };
  check();
  const FlushingDenormals flushing;
  check();
}

// Reads and writes no element but its own: ASan finds one that does.
TEST(RowsOfEveryLengthAreWidenedAsTheirElements) {
  const std::vector<uint16_t> numbers = EveryNumber();
  std::vector<float> each(numbers.size());
  WidenFloats(NarrowType::kHalf, numbers.data(),
              static_cast<int>(numbers.size()), each.data());
  for (int n = 1; n <= 40; ++n) {
    const std::vector<uint16_t> row(numbers.end() - 30000 - n,
                                    numbers.end() - 30000);
    std::vector<float> wide(n);
    WidenFloats(NarrowType::kHalf, row.data(), n, wide.data());
    EXPECT_TRUE(
        HaveSameBits(wide, {each.end() - 30000 - n, each.end() - 30000}));
    const std::vector<uint8_t> bytes(n, 255);
    DequantizeFloats(bytes.data(), {0.5f, 1.0f}, n, wide.data());
    EXPECT_TRUE(HaveSameBits(wide, std::vector<float>(n, 128.5f)));
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
