// SPDX-License-Identifier: Apache-2.0
// Widening: eight numbers of 16 or 8 bits as floats. Lookups of narrow rows
// spend their time here, so it is written for two instruction sets, and only
// this file knows which of them the CPU has.
//
//   WithFastestWidening([&](auto widening) __attribute__((always_inline)) {
//     Loop<decltype(widening)>(...);  // Always inlined, too.
//   });
//
// compiles the loop for both and runs the faster one that the CPU has. Both
// give the same bits, in every mode for denormal numbers: TensorFlow's threads
// take denormal floats for 0, and no half is a denormal float.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_WIDENING_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_WIDENING_H_

#include <immintrin.h>

#include <cstdint>

#include "ops/core/base/float8.h"
#include "ops/core/math/narrow_floats.h"
#include "ops/core/math/quantized_floats.h"

namespace rec_estimator {

// Runs on every CPU that TensorFlow runs on.
struct PortableWidening {
  // The upper halves of floats.
  static inline Float8 BFloat16s(const NarrowFloat* from) {
    const __m128i bits = Load(from);
    return Joined(_mm_unpacklo_epi16(_mm_setzero_si128(), bits),
                  _mm_unpackhi_epi16(_mm_setzero_si128(), bits));
  }

  // IEEE's binary16. A NaN becomes a quiet one.
  static inline Float8 Halves(const NarrowFloat* from) {
    const __m128i bits = Load(from);
    return Joined(HalvesOf(_mm_cvtepu16_epi32(bits)),
                  HalvesOf(_mm_unpackhi_epi16(bits, _mm_setzero_si128())));
  }

  static inline Float8 Bytes(const uint8_t* from) {
    const __m128i bytes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_setr_m128i(
        _mm_cvtepu8_epi32(bytes), _mm_cvtepu8_epi32(_mm_srli_si128(bytes, 4))));
  }

 private:
  static inline __m128i Load(const NarrowFloat* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static inline Float8 Joined(__m128i low, __m128i high) {
    return _mm256_castsi256_ps(_mm256_setr_m128i(low, high));
  }

  // The bits of four floats from those of four halves.
  static inline __m128i HalvesOf(__m128i x) {
    typedef int32_t Int4 __attribute__((vector_size(16)));
    const Int4 half = (Int4)x;
    const Int4 size = half & 0x7fff;
    // The difference of the exponents' biases, 127 - 15. An infinity or a NaN
    // has the greatest exponent of a float, too.
    const Int4 bias = Int4{} + (112 << 23);
    const Int4 quiet = (size > 0x7c00) & (1 << 22);
    const Int4 normal =
        ((size << 13) + bias + ((size >= 0x7c00) & bias)) | quiet;
    // 2^-24 times the mantissa. The product is zero or normal.
    const __m128 scaled =
        _mm_cvtepi32_ps((__m128i)size) * _mm_set1_ps(0x1p-24f);
    const Int4 is_small = size < 0x400;
    const Int4 bits = (is_small & (Int4)scaled) | (~is_small & normal);
    return (__m128i)(bits | ((half & 0x8000) << 16));
  }
};

// The same numbers, from an instruction or two. Only code that is compiled for
// AVX2 and F16C inlines these. F16C knows no mode for denormal halves.
struct Avx2Widening {
  __attribute__((target("avx2,f16c"))) static inline Float8 BFloat16s(
      const NarrowFloat* from) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(Load(from)), 16));
  }
  __attribute__((target("avx2,f16c"))) static inline Float8 Halves(
      const NarrowFloat* from) {
    return _mm256_cvtph_ps(Load(from));
  }
  __attribute__((target("avx2,f16c"))) static inline Float8 Bytes(
      const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }

 private:
  __attribute__((target("avx2,f16c"))) static inline __m128i Load(
      const NarrowFloat* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
};

// Every CPU with AVX2 has F16C; a virtual machine may hide it.
inline bool HasAvx2Widening() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

template <typename Loop>
__attribute__((target("avx2,f16c"))) void WithAvx2Widening(Loop loop) {
  loop(Avx2Widening());
}

// Calls loop(widening), which must be inlined here. What it captures by value
// stays in registers.
template <typename Loop>
void WithFastestWidening(Loop loop) {
  if (HasAvx2Widening()) return WithAvx2Widening(loop);
  loop(PortableWidening());
}

// to (n) = from (n), widened by eight(address), which widens eight numbers and
// is always inlined. The last eight may overlap those before them.
template <typename Narrow, typename Eight>
inline __attribute__((always_inline)) void WidenAll(const Narrow* from, int n,
                                                    float* to,
                                                    const Eight& eight) {
  if (n >= kFloat8) {
    for (int i = 0; i < n - kFloat8; i += kFloat8) {
      StoreFloat8(eight(from + i), to + i);
    }
    return StoreFloat8(eight(from + n - kFloat8), to + n - kFloat8);
  }
  Narrow few[kFloat8] = {};
  for (int i = 0; i < n; ++i) few[i] = from[i];
  const Float8 wide = eight(few);
  for (int i = 0; i < n; ++i) to[i] = wide[i];
}

// to (n) = the floats that `from` (n) are.
template <typename Widening>
inline __attribute__((always_inline)) void WidenBFloat16s(
    const NarrowFloat* from, int n, float* to) {
  WidenAll(
      from, n, to, [](const NarrowFloat* eight) __attribute__((always_inline)) {
        return Widening::BFloat16s(eight);
      });
}
template <typename Widening>
inline __attribute__((always_inline)) void WidenHalves(const NarrowFloat* from,
                                                       int n, float* to) {
  WidenAll(
      from, n, to, [](const NarrowFloat* eight) __attribute__((always_inline)) {
        return Widening::Halves(eight);
      });
}

// to (n) = the floats that the bytes `from` (n) are: quantized_floats.h.
template <typename Widening>
inline __attribute__((always_inline)) void WidenBytes(const uint8_t* from,
                                                      ByteScale by, int n,
                                                      float* to) {
  WidenAll(
      from, n, to, [=](const uint8_t* eight) __attribute__((always_inline)) {
        return by.offset + by.scale * Widening::Bytes(eight);
      });
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_WIDENING_H_
