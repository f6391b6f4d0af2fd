// SPDX-License-Identifier: Apache-2.0
// Floats as bytes: element i of a row is offset + scale * byte i.
//
// The offset is the least element of the row, and the scale is a 255th of the
// distance to the greatest, rounded to 16 bits. So the product of a byte and a
// scale is exact: the sum has the same bits on every CPU, in TensorFlow's own
// ops and in NumPy, with a fused multiply-add and without. Source of the
// method: the 8-bit rows of FBGEMM, https://arxiv.org/abs/2101.05615.
//
// Quantizing twice is quantizing once: floats that came from bytes give the
// same bytes, scale and offset again. So whatever reads floats and writes them
// back, such as a checkpoint and its restore, keeps all bits.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_QUANTIZED_FLOATS_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_QUANTIZED_FLOATS_H_

#include <cstdint>

namespace rec_estimator {

struct ByteScale {
  float scale;
  float offset;
};

// to (n) = the bytes nearest to `from` (n), n >= 1. The error of an element is
// at most half a scale. Equal elements get scale 0 and stay what they are. If
// an element is not finite, or two are more than 2^127 apart, scale and offset
// are NaN.
ByteScale QuantizeFloats(const float* from, int n, uint8_t* to);

// to (n) = the floats that the bytes `from` (n) are. Loops over rows have it
// inlined: widening.h.
void DequantizeFloats(const uint8_t* from, ByteScale scale, int n, float* to);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_QUANTIZED_FLOATS_H_
