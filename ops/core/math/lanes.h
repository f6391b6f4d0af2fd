// SPDX-License-Identifier: Apache-2.0
// The arithmetic of row_update.cc on one float and on eight floats, with
// TensorFlow's bits.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_LANES_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_LANES_H_

#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "ops/core/base/float8.h"

namespace rec_estimator {
// Unnamed, so that the linker cannot replace these functions by those of a unit
// that is compiled with other flags, which would round differently.
namespace {

// ---------------------------------------------------------------- one float

template <typename V>
V Load(const float* from);

template <>
inline float Load<float>(const float* from) {
  return *from;
}

inline void Store(float value, float* to) { *to = value; }
inline float Sqrt(float x) { return std::sqrt(x); }
inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float Pow(float x, float exponent) { return std::pow(x, exponent); }
// max(x, bound); NaN stays NaN.
inline float AtLeast(float x, float bound) { return x < bound ? bound : x; }
// 1, -1 or 0 by the sign of x; NaN stays NaN.
inline float Sign(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : std::abs(x);
}
inline float Abs(float x) { return std::abs(x); }
// Limits x to [-bound, bound]; NaN stays NaN.
inline float Clamp(float x, float bound) {
  const float below = bound < x ? bound : x;
  return below < -bound ? -bound : below;
}

// ------------------------------------------------------------- eight floats

#if defined(__AVX__)

constexpr int kLanes = kFloat8;
using Lanes = Float8;

inline Lanes All(float x) { return _mm256_set1_ps(x); }
// Not blendv: without AVX2, GCC 12 splits it into eight branches.
inline Lanes Select(Lanes mask, Lanes yes, Lanes no) {
  return _mm256_or_ps(_mm256_and_ps(mask, yes), _mm256_andnot_ps(mask, no));
}
inline Lanes Abs(Lanes x) { return _mm256_andnot_ps(All(-0.0f), x); }
inline Lanes Less(Lanes a, Lanes b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Lanes Equal(Lanes a, Lanes b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }

template <>
inline Lanes Load<Lanes>(const float* from) {
  return LoadFloat8(from);
}

inline void Store(Lanes value, float* to) { StoreFloat8(value, to); }
inline Lanes Sqrt(Lanes x) { return _mm256_sqrt_ps(x); }

// The CPU's 12-bit estimate and one Newton step, y - y/2 * (x*y*y - 1). At 0
// and infinity the step gives NaN, so the result is the estimate.
// Source: Eigen's generic_rsqrt_newton_step (MathFunctionsImpl.h).
inline Lanes Rsqrt(Lanes x) {
  const Lanes estimate = _mm256_rsqrt_ps(x);
  const Lanes error = (x * estimate) * estimate + -1.0f;
  const Lanes better = (estimate * -0.5f) * error + estimate;
  return Select(_mm256_cmp_ps(better, better, _CMP_UNORD_Q), estimate, better);
}

inline Lanes Sign(Lanes x) {
  const Lanes one = _mm256_or_ps(_mm256_and_ps(x, All(-0.0f)), All(1.0f));
  return Select(Less(All(0.0f), Abs(x)), one, Abs(x));
}

// The instructions return their second operand if either operand is NaN.
inline Lanes AtLeast(Lanes x, Lanes bound) { return _mm256_max_ps(bound, x); }
inline Lanes AtLeast(Lanes x, float bound) { return AtLeast(x, All(bound)); }
inline Lanes Clamp(Lanes x, float bound) {
  return _mm256_max_ps(All(-bound), _mm256_min_ps(All(bound), x));
}

// A number as the unevaluated sum of two floats, |lo| <= ulp(hi) / 2. The
// operations are from J.-M. Muller, "Elementary Functions", 3rd edition, 2016,
// chapter 2, in the variants that Eigen uses.
struct TwoFloats {
  Lanes hi, lo;
};

// Exact if |a| >= |b|.
inline TwoFloats FastSum(Lanes a, Lanes b) {
  const Lanes sum = a + b;
  return {sum, b - (sum - a)};
}

// Needs |a.hi| >= |b.hi|.
inline TwoFloats FastSum(const TwoFloats& a, const TwoFloats& b) {
  const TwoFloats sum = FastSum(a.hi, b.hi);
  return FastSum(sum.hi, (b.lo + sum.lo) + a.lo);
}

inline TwoFloats Sum(const TwoFloats& a, const TwoFloats& b) {
  const Lanes a_greater = Less(Abs(b.hi), Abs(a.hi));
  const TwoFloats ab = FastSum(a.hi, b.hi);
  const TwoFloats ba = FastSum(b.hi, a.hi);
  return FastSum(
      Select(a_greater, ab.hi, ba.hi),
      Select(a_greater, (b.lo + ab.lo) + a.lo, (a.lo + ba.lo) + b.lo));
}

// Splits each float into two halves of 12 bits (Veltkamp).
inline TwoFloats Split(Lanes x) {
  const Lanes scaled = x * 4097.0f;  // 2^12 + 1
  const Lanes hi = (x - scaled) + scaled;
  return {hi, x - hi};
}

// Exact without FMA (Dekker).
inline TwoFloats Product(Lanes a, Lanes b) {
  const TwoFloats as = Split(a);
  const TwoFloats bs = Split(b);
  const Lanes product = a * b;
  Lanes error = as.hi * bs.hi - product;
  error = as.hi * bs.lo + error;
  error = as.lo * bs.hi + error;
  error = as.lo * bs.lo + error;
  return {product, error};
}

inline TwoFloats Product(const TwoFloats& a, Lanes b) {
  const TwoFloats product = Product(a.hi, b);
  const TwoFloats sum = FastSum(product.hi, a.lo * b);
  return FastSum(sum.hi, sum.lo + product.lo);
}

// Rounds half away from zero.
inline Lanes Round(Lanes x) {
  const Lanes half = _mm256_or_ps(_mm256_and_ps(x, All(-0.0f)),
                                  All(0.49999997f));  // just below 1/2
  return _mm256_round_ps(half + x, _MM_FROUND_TO_ZERO);
}

// AVX has integer operations on half a register only.
template <typename Operation>
inline __m256i ByHalves(__m256i x, Operation operation) {
  const __m128i lo = operation(_mm256_castsi256_si128(x));
  const __m128i hi = operation(_mm256_extractf128_si256(x, 1));
  return _mm256_insertf128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

// x = mantissa * 2^exponent, |mantissa| in [1/2, 1); zero, infinity and NaN are
// their own mantissa.
inline Lanes Mantissa(Lanes x, Lanes* exponent) {
  const float min_normal = std::numeric_limits<float>::min();
  const Lanes tiny = Less(Abs(x), All(min_normal));
  const Lanes normal = Select(tiny, x * 16777216.0f, x);  // 2^24
  const Lanes biased = _mm256_cvtepi32_ps(
      ByHalves(_mm256_castps_si256(Abs(normal)),
               [](__m128i bits) { return _mm_srli_epi32(bits, 23); }));
  const Lanes special =
      _mm256_or_ps(Equal(x, All(0.0f)), Equal(biased, All(255.0f)));
  *exponent = Select(special, All(0.0f),
                     biased + Select(tiny, All(-150.0f), All(-126.0f)));
  const Lanes fraction = _mm256_castsi256_ps(_mm256_set1_epi32(
      static_cast<int32_t>(0x807fffffu)));  // sign and 23 bits
  return Select(special, x,
                _mm256_or_ps(_mm256_and_ps(normal, fraction), All(0.5f)));
}

// x * 2^exponent for a whole exponent, in four factors so that none overflows
// before the result does.
inline Lanes Scale(Lanes x, Lanes exponent) {
  const Lanes limit = All(278.0f);  // beyond, every float is 0 or infinite
  const __m256i whole = _mm256_cvtps_epi32(
      _mm256_min_ps(limit, _mm256_max_ps(All(-278.0f), exponent)));
  const auto power = [](__m128i e) {  // the bits of 2^e
    return _mm_slli_epi32(_mm_add_epi32(e, _mm_set1_epi32(127)), 23);
  };
  const Lanes quarter = _mm256_castsi256_ps(
      ByHalves(whole, [&](__m128i e) { return power(_mm_srai_epi32(e, 2)); }));
  const Lanes rest = _mm256_castsi256_ps(ByHalves(whole, [&](__m128i e) {
    const __m128i q = _mm_srai_epi32(e, 2);
    return power(_mm_sub_epi32(_mm_sub_epi32(_mm_sub_epi32(e, q), q), q));
  }));
  return ((x * quarter) * quarter) * quarter * rest;
}

// log2 of m in [sqrt(1/2), sqrt(2)]: a minimax polynomial of log2(1 + x) / x.
// The last four coefficients, and the evaluation from there on, have two
// floats.
inline TwoFloats Log2(Lanes m) {
  const Lanes x = m - 1.0f;
  const Lanes x2 = x * x;
  Lanes even = x2 * 9.703654795885e-2f + 0.1720575392246f;
  even = even * x2 + 0.2050433009862f;
  even = even * x2 + 0.2885761857032f;
  Lanes odd = x2 * -0.1690667718648f + -0.1789081543684f;
  odd = odd * x2 + -0.2404672354459f;
  const Lanes p = odd * x + even;
  const TwoFloats c3 = {All(-0.360674142838f), All(-6.13283912543e-09f)};
  const TwoFloats c2 = {All(0.480897903442f), All(-1.44861207474e-08f)};
  const TwoFloats c1 = {All(-0.721347510815f), All(-4.84483164698e-09f)};
  const TwoFloats c0 = {All(1.44269502163f), All(2.01711713999e-08f)};
  TwoFloats q = FastSum(c3, Product(p, x));
  q = FastSum(c2, Product(q, x));
  q = FastSum(c1, Product(q, x));
  q = FastSum(c0, Product(q, x));
  return Product(q, x);
}

// 2^x for x in [-1/2, 1/2]: 1 + x * (c + x * p(x)), minimax.
inline Lanes Exp2(Lanes x) {
  const Lanes x2 = x * x;
  Lanes even = x2 * 1.539513905e-4f + 9.618283249e-3f;
  const Lanes odd = x2 * 1.340007293e-3f + 5.550328270e-2f;
  even = even * x2 + 0.2402264923f;
  const Lanes p = odd * x + even;
  const TwoFloats c = {All(0.6931471825f), All(2.36836577e-08f)};
  const TwoFloats q = Product(Sum(Product(p, x), c), x);
  const TwoFloats one_plus = FastSum(All(1.0f), q.hi);
  return one_plus.hi + (q.lo + one_plus.lo);
}

// x^exponent for a whole exponent >= 0, by squaring.
inline Lanes WholePow(Lanes x, float exponent) {
  if (exponent == 0.0f) return All(1.0f);
  Lanes odd_factors = All(1.0f);
  while (exponent > 1.0f) {
    const float half = std::floor(exponent * 0.5f);
    if (half != exponent * 0.5f) odd_factors = odd_factors * x;
    x = x * x;
    exponent = half;
  }
  return odd_factors * x;
}

// x^exponent for x >= 0 and a finite exponent >= 0; other arguments give an
// unspecified number in bounded time. Computes 2^(exponent * log2(x)) with
// log2(x) in two floats. Source: Eigen's generic_pow_impl and unary_pow_impl
// (GenericPacketMathFunctions.h) on a CPU without FMA.
inline Lanes Pow(Lanes x, float exponent) {
  if (std::isfinite(exponent) && std::floor(exponent) == exponent) {
    return WholePow(x, exponent);
  }
  Lanes e;
  Lanes m = Mantissa(x, &e);
  const Lanes low = Less(m, All(0.70710678118654752440f));
  m = Select(low, m * 2.0f, m);
  e = Select(low, e - 1.0f, e);

  const Lanes y = All(exponent);
  const TwoFloats f = FastSum(Product(e, y), Product(Log2(m), y));
  Lanes whole = Round(f.hi);
  Lanes rest = (f.hi - whole) + f.lo;
  const Lanes carry = Round(rest);
  rest = rest - carry;
  whole = whole + carry;

  const Lanes zero = All(0.0f);
  const Lanes infinity = All(std::numeric_limits<float>::infinity());
  Lanes power = Scale(Exp2(rest), whole);
  power = Select(Less(x, zero), All(std::nanf("")), power);
  power = Select(Equal(x, zero), zero, power);
  power = Select(Equal(x, infinity), infinity, power);
  return Select(Equal(x, All(1.0f)), x, power);
}

#endif  // __AVX__

}  // namespace
}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_LANES_H_
