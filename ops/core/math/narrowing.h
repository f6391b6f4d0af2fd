// SPDX-License-Identifier: Apache-2.0
// Narrowing: eight floats as numbers of 16 bits. Steps of narrow rows spend
// their time here. The formulas are written once, over a vector of the bits of
// floats, and loops compile them for an instruction set of widening.h:
//
//   WithFastestWidening([&](auto widening) __attribute__((always_inline)) {
//     NarrowAll<decltype(widening), ToBFloat16, Stochastically>(...);
//   });
//
// All instruction sets give the same bits: narrow_floats.h.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_NARROWING_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_NARROWING_H_

#include <immintrin.h>

#include <cstdint>

#include "ops/core/base/float8.h"
#include "ops/core/math/narrow_floats.h"
#include "ops/core/math/widening.h"

namespace rec_estimator {

#define REC_ESTIMATOR_INLINE inline __attribute__((always_inline))

// The bits of four floats, and of eight. Without AVX2, GCC compares eight words
// one by one.
typedef uint32_t Words4 __attribute__((vector_size(16)));
typedef uint32_t Words8 __attribute__((vector_size(32)));

// All bits of each word where a < b. Both are below 2^31.
REC_ESTIMATOR_INLINE Words4 Less(Words4 a, Words4 b) {
  typedef int32_t Int4 __attribute__((vector_size(16)));
  return (Words4)((Int4)a < (Int4)b);
}
REC_ESTIMATOR_INLINE Words8 Less(Words8 a, Words8 b) {
  typedef int32_t Int8 __attribute__((vector_size(32)));
  return (Words8)((Int8)a < (Int8)b);
}
REC_ESTIMATOR_INLINE bool IsAny(Words4 mask) {
  return _mm_movemask_ps((__m128)mask) != 0;
}
REC_ESTIMATOR_INLINE bool IsAny(Words8 mask) {
  return _mm256_movemask_ps((__m256)mask) != 0;
}
template <typename Words>
REC_ESTIMATOR_INLINE Words Select(Words mask, Words yes, Words no) {
  return (mask & yes) | (~mask & no);
}
template <typename Words>
REC_ESTIMATOR_INLINE Words Min(Words a, Words b) {
  return Select(Less(a, b), a, b);
}
template <typename Words>
REC_ESTIMATOR_INLINE Words All(uint32_t x) {
  return Words{} + x;
}

// 32 random bits of each element from `first` on: a hash of its number and both
// halves of the noise. Constants: https://github.com/skeeto/hash-prospector,
// lowbias32.
template <typename Words>
REC_ESTIMATOR_INLINE Words RandomBits(uint64_t noise, uint32_t first) {
  constexpr uint32_t kGoldenRatio = 0x9e3779b9u;
  Words x;
  for (uint32_t i = 0; i < sizeof(Words) / sizeof(uint32_t); ++i) {
    x[i] = i * kGoldenRatio;
  }
  x += static_cast<uint32_t>(noise) + first * kGoldenRatio;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x ^= static_cast<uint32_t>(noise >> 32);
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return x ^ (x >> 15);
}

// How numbers of more bits are rounded when they lose their lowest `dropped`
// bits, in [1, 31], a number or a vector: Add gives what is added to them
// first.
struct ToNearest {
  template <typename Words, typename Dropped>
  REC_ESTIMATOR_INLINE static Words Add(Words bits, Dropped dropped, Words) {
    return (All<Words>(1) << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  }
  // What is beyond the largest number becomes infinite.
  static constexpr uint32_t Largest(uint32_t infinity) { return infinity; }
};

struct Stochastically {
  template <typename Words, typename Dropped>
  REC_ESTIMATOR_INLINE static Words Add(Words, Dropped dropped, Words random) {
    return random & ((All<Words>(1) << dropped) - 1);
  }
  static constexpr uint32_t Largest(uint32_t infinity) { return infinity - 1; }
};

constexpr uint32_t kFloatInfinity = 0x7f800000u;
constexpr uint32_t kFloatMantissa = 0x007fffffu;

constexpr uint32_t kFloatSign = 0x80000000u;

// The two types. Narrow takes the bits of floats and gives those of numbers of
// 16 bits. Most vectors have only numbers that stay normal and finite, and are
// done after the first branch. `size`: the bits without the sign.
struct ToBFloat16 {
  template <typename Rounding, typename Words>
  REC_ESTIMATOR_INLINE static Words Narrow(Words bits, Words random) {
    const Words size = bits & ~kFloatSign;
    const Words added = Rounding::Add(bits, 16u, random);
    if (!IsAny(Less(All<Words>(kLargest - 1), size))) {
      return (bits + added) >> 16;
    }
    const Words infinity = All<Words>(kFloatInfinity);
    const Words finite =
        Min((size + added) >> 16, All<Words>(Rounding::Largest(0x7f80)));
    // A NaN is quiet, so that it keeps a bit of its mantissa.
    const Words other = (size >> 16) | (Less(infinity, size) & 0x40u);
    return Select(Less(size, infinity), finite, other) |
           ((bits & kFloatSign) >> 16);
  }

 private:
  static constexpr uint32_t kLargest = 0x7f7f0000u;
};

struct ToHalf {
  template <typename Rounding, typename Words>
  REC_ESTIMATOR_INLINE static Words Narrow(Words bits, Words random) {
    const Words size = bits & ~kFloatSign;
    const Words sign = (bits & kFloatSign) >> 16;
    // The difference of the exponents' biases, 127 - 15, in a float.
    const Words shifted = size - (112u << 23);
    const Words rounded = (shifted + Rounding::Add(shifted, 13u, random)) >> 13;
    const Words is_small = Less(size, All<Words>(kLeastNormal));
    const Words is_large = Less(All<Words>(kLargest - 1), size);
    if (!IsAny(is_small | is_large)) return rounded | sign;
    const Words infinity = All<Words>(kFloatInfinity);
    const Words other =
        (Less(infinity, size) & (((size & kFloatMantissa) >> 13) | 0x200u)) |
        0x7c00u;
    const Words normal =
        Select(Less(size, infinity),
               Min(rounded, All<Words>(Rounding::Largest(0x7c00))), other);
    return Select(is_small, Denormal<Rounding>(size, is_small, random),
                  normal) |
           sign;
  }

 private:
  // 2^-14 and 65504 as floats.
  static constexpr uint32_t kLeastNormal = 113u << 23;
  static constexpr uint32_t kLargest = 0x477fe000u;

  // A denormal result is a multiple of 2^-24, and a float is `mantissa` times
  // 2^(exponent - 150). Floats that drop more than 31 bits lose the others
  // before they are rounded.
  template <typename Rounding, typename Words>
  REC_ESTIMATOR_INLINE static Words Denormal(Words size, Words is_small,
                                             Words random) {
    const Words exponent = size >> 23;
    const Words dropped = Select(is_small, 126u - exponent, All<Words>(1));
    const Words drops = Min(dropped, All<Words>(31));
    const Words mantissa = (size & kFloatMantissa) |
                           (Less(Words{}, exponent) & (kFloatMantissa + 1));
    const Words kept = mantissa >> Min(dropped - drops, All<Words>(31));
    return (kept + Rounding::Add(kept, drops, random)) >> drops;
  }
};

template <typename Type, typename Rounding, typename Words>
REC_ESTIMATOR_INLINE Words NarrowWords(Words bits, uint64_t noise,
                                       uint32_t first) {
  return Type::template Narrow<Rounding>(bits, RandomBits<Words>(noise, first));
}

// to (8) = from (8), which are the elements from `first` on.
template <typename Type, typename Rounding>
REC_ESTIMATOR_INLINE void NarrowEight(PortableWidening, const float* from,
                                      uint64_t noise, uint32_t first,
                                      NarrowFloat* to) {
  const Words4 low =
      NarrowWords<Type, Rounding>((Words4)_mm_loadu_ps(from), noise, first);
  const Words4 high = NarrowWords<Type, Rounding>(
      (Words4)_mm_loadu_ps(from + 4), noise, first + 4);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32((__m128i)low, (__m128i)high));
}
template <typename Type, typename Rounding>
REC_ESTIMATOR_INLINE void NarrowEight(Avx2Widening, const float* from,
                                      uint64_t noise, uint32_t first,
                                      NarrowFloat* to) {
  const __m256i all = (__m256i)NarrowWords<Type, Rounding>(
      (Words8)LoadFloat8(from), noise, first);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(all),
                                    _mm256_extractf128_si256(all, 1)));
}

// to (n) = from (n). The last eight may overlap those before them: the bits of
// an element come from its number.
template <typename Widening, typename Type, typename Rounding>
REC_ESTIMATOR_INLINE void NarrowAll(const float* from, uint64_t noise, int n,
                                    NarrowFloat* to) {
  const auto narrow = [=](const float* eight, int first, NarrowFloat* into)
      __attribute__((always_inline)) {
    NarrowEight<Type, Rounding>(Widening(), eight, noise,
                                static_cast<uint32_t>(first), into);
  };
  if (n >= kFloat8) {
    for (int i = 0; i < n - kFloat8; i += kFloat8) narrow(from + i, i, to + i);
    return narrow(from + n - kFloat8, n - kFloat8, to + n - kFloat8);
  }
  float few[kFloat8] = {};
  for (int i = 0; i < n; ++i) few[i] = from[i];
  NarrowFloat narrowed[kFloat8];
  narrow(few, 0, narrowed);
  for (int i = 0; i < n; ++i) to[i] = narrowed[i];
}

#undef REC_ESTIMATOR_INLINE

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_NARROWING_H_
