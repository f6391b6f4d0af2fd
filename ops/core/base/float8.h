// SPDX-License-Identifier: Apache-2.0
// Eight floats as one value: the vector type of all loops of the core.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_FLOAT8_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_FLOAT8_H_

#include <immintrin.h>

#include <cstdint>

namespace rec_estimator {

// A vector type of GCC and Clang: + - * / work, and a float operand is
// broadcast. AVX intrinsics take it as __m256.
typedef float Float8 __attribute__((vector_size(32)));
inline constexpr int kFloat8 = 8;  // Floats in a Float8.

// A Float8 in memory, at any address that holds floats.
typedef float UnalignedFloat8
    __attribute__((vector_size(32), aligned(alignof(float)), may_alias));

inline __attribute__((always_inline)) Float8 LoadFloat8(const float* from) {
  return *reinterpret_cast<const UnalignedFloat8*>(from);
}
inline __attribute__((always_inline)) void StoreFloat8(Float8 value,
                                                       float* to) {
  *reinterpret_cast<UnalignedFloat8*>(to) = value;
}

// Copies dim floats; the arrays must not overlap. The last Float8 may overlap
// the one before it. memcpy with a run-time size would be a call per row.
inline void CopyRow(const float* from, int dim, float* to) {
  if (dim >= kFloat8) {
    for (int d = 0; d < dim - kFloat8; d += kFloat8) {
      StoreFloat8(LoadFloat8(from + d), to + d);
    }
    StoreFloat8(LoadFloat8(from + dim - kFloat8), to + dim - kFloat8);
  } else {
    for (int d = 0; d < dim; ++d) to[d] = from[d];
  }
}

// CopyRow past the caches, for what nothing reads soon: its lines are not read
// before they are written. Call EndStreams before another thread may read it.
inline void StreamRow(const float* from, int dim, float* to) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % sizeof(Float8) == 0;
  if (!is_aligned || dim % kFloat8 != 0) return CopyRow(from, dim, to);
  for (int d = 0; d < dim; d += kFloat8) {
    _mm256_stream_ps(to + d, LoadFloat8(from + d));
  }
}
inline void EndStreams() { _mm_sfence(); }

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_FLOAT8_H_
