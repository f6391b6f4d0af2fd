// SPDX-License-Identifier: Apache-2.0
#include "ops/core/math/narrow_floats.h"

#include <algorithm>
#include <cstring>

#include "ops/core/base/cpu_versions.h"
#include "ops/core/math/widening.h"

namespace rec_estimator {
namespace {

// Inlined into the loops that are compiled for each CPU.
#define REC_ESTIMATOR_INLINE inline __attribute__((always_inline))

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kMantissa = 0x007fffffu;

REC_ESTIMATOR_INLINE uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// 32 random bits of element i: a hash of its number and both halves of the
// noise. Constants: https://github.com/skeeto/hash-prospector, lowbias32.
REC_ESTIMATOR_INLINE uint32_t RandomBits(uint64_t noise, int i) {
  uint32_t x =
      static_cast<uint32_t>(noise) + static_cast<uint32_t>(i) * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x ^= static_cast<uint32_t>(noise >> 32);
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return x ^ (x >> 15);
}

// How a number of more bits is rounded when it loses its lowest `dropped` bits,
// in [1, 31]: Add gives what is added to it first.
struct ToNearest {
  REC_ESTIMATOR_INLINE static uint32_t Add(uint32_t bits, uint32_t dropped,
                                           uint32_t) {
    return (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  }
  // What is beyond the largest number becomes infinite.
  REC_ESTIMATOR_INLINE static uint32_t Largest(uint32_t infinity) {
    return infinity;
  }
};

struct Stochastically {
  REC_ESTIMATOR_INLINE static uint32_t Add(uint32_t, uint32_t dropped,
                                           uint32_t random) {
    return random & ((1u << dropped) - 1);
  }
  REC_ESTIMATOR_INLINE static uint32_t Largest(uint32_t infinity) {
    return infinity - 1;
  }
};

struct BFloat16 {
  template <typename Rounding>
  REC_ESTIMATOR_INLINE static uint16_t Narrow(float x, uint32_t random) {
    const uint32_t size = BitsOf(x) & ~kSign;
    const uint32_t rounded = (size + Rounding::Add(size, 16, random)) >> 16;
    const uint32_t finite = std::min(rounded, Rounding::Largest(0x7f80));
    // A NaN is quiet, so that it keeps a bit of its mantissa.
    const uint32_t other = (size >> 16) | (size > kInfinity ? 0x40u : 0u);
    return static_cast<uint16_t>((BitsOf(x) & kSign) >> 16 |
                                 (size < kInfinity ? finite : other));
  }
};

struct Half {
  // The difference of the exponents' biases, 127 - 15, in a float.
  static constexpr uint32_t kBias = 112u << 23;

  template <typename Rounding>
  REC_ESTIMATOR_INLINE static uint16_t Narrow(float x, uint32_t random) {
    const uint32_t size = BitsOf(x) & ~kSign;
    const uint32_t exponent = size >> 23;
    const uint32_t shifted = size - kBias;
    const uint32_t normal =
        std::min((shifted + Rounding::Add(shifted, 13, random)) >> 13,
                 Rounding::Largest(0x7c00));
    // A denormal result is a multiple of 2^-24, and x is `mantissa` times
    // 2^(exponent - 150). Floats that drop more than 31 bits lose the others
    // before they are rounded.
    const uint32_t dropped = exponent < 113 ? 126 - exponent : 1;
    const uint32_t drops = std::min(dropped, 31u);
    const uint32_t mantissa =
        (size & kMantissa) | (exponent > 0 ? kMantissa + 1 : 0);
    const uint32_t kept = mantissa >> std::min(dropped - drops, 31u);
    const uint32_t denormal =
        (kept + Rounding::Add(kept, drops, random)) >> drops;
    const uint32_t other =
        size > kInfinity ? 0x7e00u | ((size & kMantissa) >> 13) : 0x7c00u;
    const uint32_t finite = exponent < 113 ? denormal : normal;
    return static_cast<uint16_t>((BitsOf(x) & kSign) >> 16 |
                                 (size < kInfinity ? finite : other));
  }
};

template <typename Type, typename Rounding>
REC_ESTIMATOR_INLINE void NarrowAll(const float* __restrict from,
                                    uint64_t noise, int n,
                                    NarrowFloat* __restrict to) {
  for (int i = 0; i < n; ++i) {
    to[i] = Type::template Narrow<Rounding>(from[i], RandomBits(noise, i));
  }
}

#undef REC_ESTIMATOR_INLINE

}  // namespace

void WidenFloats(NarrowType type, const NarrowFloat* from, int n, float* to) {
  WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
    using Widening = decltype(widening);
    type == NarrowType::kHalf ? WidenHalves<Widening>(from, n, to)
                              : WidenBFloat16s<Widening>(from, n, to);
  });
}

REC_ESTIMATOR_FOR_EACH_CPU
void NarrowFloats(NarrowType type, const float* from, int n, NarrowFloat* to) {
  type == NarrowType::kHalf ? NarrowAll<Half, ToNearest>(from, 0, n, to)
                            : NarrowAll<BFloat16, ToNearest>(from, 0, n, to);
}

REC_ESTIMATOR_FOR_EACH_CPU
void NarrowFloatsStochastically(NarrowType type, const float* from,
                                uint64_t noise, int n, NarrowFloat* to) {
  type == NarrowType::kHalf
      ? NarrowAll<Half, Stochastically>(from, noise, n, to)
      : NarrowAll<BFloat16, Stochastically>(from, noise, n, to);
}

}  // namespace rec_estimator
