// SPDX-License-Identifier: Apache-2.0
// Floats of 16 bits: bfloat16, which are the upper halves of floats, and IEEE's
// binary16, TensorFlow's half.
//
// Numbers are rounded by integer arithmetic and widened without arithmetic on
// denormal floats, so the bits depend neither on the CPU nor on the mode for
// denormal numbers that TensorFlow's threads are in. Compiled for AVX and AVX2.
// AVX512-BF16 has no instruction that rounds stochastically or widens, so
// nothing here could use it. Loops over rows inline the formulas: narrowing.h,
// widening.h.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_NARROW_FLOATS_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_NARROW_FLOATS_H_

#include <cstdint>

namespace rec_estimator {

enum class NarrowType { kBFloat16, kHalf };

// The bits of such a float, also in memory that holds rows of floats.
typedef uint16_t NarrowFloat __attribute__((may_alias));

// to (n) = the floats that `from` (n) are. Exact; a NaN stays one.
void WidenFloats(NarrowType type, const NarrowFloat* from, int n, float* to);

// to (n) = the nearest numbers of the type, of two the even one. What is too
// large becomes infinite, as in tf.cast.
void NarrowFloats(NarrowType type, const float* from, int n, NarrowFloat* to);

// to (n) = one of the two numbers of the type around each float. The nearer one
// is the more likely: the mean over all `noise` is the float, to 2^-16 of the
// distance of the two. Changes that are smaller than half this distance, which
// rounding to the nearest loses, so add up over many steps. A number of the
// type stays what it is. A finite float stays finite: beyond the largest number
// of the type it becomes that number. The bits of element i come from noise and
// i alone. Source: Gupta et al. 2015, https://arxiv.org/abs/1502.02551.
void NarrowFloatsStochastically(NarrowType type, const float* from,
                                uint64_t noise, int n, NarrowFloat* to);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_NARROW_FLOATS_H_
