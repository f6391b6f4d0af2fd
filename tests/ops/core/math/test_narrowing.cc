// SPDX-License-Identifier: Apache-2.0
// Narrowing: every float has the same bits with all instruction sets, in rows
// of every length.
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/core/math/narrowing.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr uint64_t kNoise = 0x0123456789abcdefu;

// Floats of all signs and exponents, also infinities and NaNs, those around
// each power of two among them.
std::vector<float> ManyFloats() {
  std::vector<float> floats;
  const auto add = [&](uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    floats.push_back(x);
  };
  for (uint32_t top = 0; top < 0x200; ++top) {
    for (const uint32_t mantissa :
         {0x0u, 0x1u, 0x1000u, 0x1fffu, 0x8000u, 0x1234567u, 0x7f7fffu,
          0x7fe000u, 0x7fffffu}) {
      add(top << 23 | (mantissa & 0x7fffffu));
    }
  }
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 65521) {
    add(static_cast<uint32_t>(bits));
  }
  return floats;
}

// All floats, so that most vectors have some that are not normal or not finite,
// then each one in a vector of its own.
template <typename Widening, typename Type, typename Rounding>
inline __attribute__((always_inline)) void NarrowEach(
    const std::vector<float>& floats, std::vector<uint16_t>* narrow) {
  const size_t n = floats.size();
  narrow->resize(2 * n);
  NarrowAll<Widening, Type, Rounding>(floats.data(), kNoise,
                                      static_cast<int>(n), narrow->data());
  for (size_t i = 0; i < n; ++i) {
    std::vector<float> eight(8, 1.0f);
    uint16_t narrowed[8];
    eight[i % 8] = floats[i];
    NarrowAll<Widening, Type, Rounding>(eight.data(), kNoise + i, 8, narrowed);
    (*narrow)[n + i] = narrowed[i % 8];
  }
}

template <typename Type, typename Rounding>
void ExpectSameBits() {
  const std::vector<float> floats = ManyFloats();
  std::vector<uint16_t> expected, fastest;
  NarrowEach<PortableWidening, Type, Rounding>(floats, &expected);
  WithFastestWidening([&](auto widening) __attribute__((always_inline)) {
    NarrowEach<decltype(widening), Type, Rounding>(floats, &fastest);
  });
  EXPECT_TRUE(fastest == expected);
}

TEST(AllInstructionSetsNarrowToTheSameBits) {
  ExpectSameBits<ToBFloat16, ToNearest>();
  ExpectSameBits<ToBFloat16, Stochastically>();
  ExpectSameBits<ToHalf, ToNearest>();
  ExpectSameBits<ToHalf, Stochastically>();
}

// Reads and writes no element but its own: ASan finds one that does.
TEST(RowsOfEveryLengthAreNarrowedAsTheirElements) {
  const std::vector<float> floats = ManyFloats();
  std::vector<uint16_t> all(40);
  NarrowFloatsStochastically(NarrowType::kHalf, floats.data() + 3000, kNoise,
                             40, all.data());
  for (int n = 1; n <= 40; ++n) {
    const std::vector<float> row(floats.begin() + 3000,
                                 floats.begin() + 3000 + n);
    std::vector<uint16_t> narrow(n);
    NarrowFloatsStochastically(NarrowType::kHalf, row.data(), kNoise, n,
                               narrow.data());
    EXPECT_TRUE(narrow == std::vector<uint16_t>(all.begin(), all.begin() + n));
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
