// SPDX-License-Identifier: Apache-2.0
// Matrix products in which each candidate's row meets the matrix of its user.
//
//   row_splits 0 2 5       rows [N, K]      matrices [B, K, M]    out [N, M]
//                          ┌ row 0 ┐
//   user 0: rows 0, 1      └ row 1 ┘   ×    ┌ matrix 0 ┐      =   2 rows
//                          ┌ row 2 ┐
//   user 1: rows 2, 3, 4   │ row 3 │   ×    ┌ matrix 1 ┐      =   3 rows
//                          └ row 4 ┘
//
// The result is that of a batched product over copies of the matrices, but
// nothing is copied: a matrix is read once for all rows of its user. Attention
// over a user's history consists of two such products: the scores of T entries
// are a product with a [K, T] matrix, and their weighted mean is a product with
// a [T, D] matrix.
//
// LayerByUser is a dense layer over the products of each candidate's row with
// each of the T entries of the user's history. Since
// (u[t] * i) × W = u[t] × (i * W), it scales W by the candidate's row and never
// builds the [N, T, D] products:
//
//   entries [B, T, D]      kernel of row n [D, H]      out [N, T, H]
//   ┌ of the user ┐    ×   rows[n, d] * kernel[d, h]   =  T rows of n
//
// A product costs 2 N K M operations. A tile of 4 rows and 32 columns of the
// result stays in registers. Rows are processed in blocks of 24, so that the
// matrix is read from the cache and the result is written in order. The kernel
// is compiled for AVX, for AVX2 with FMA and for AVX-512; the loader selects
// the version for the CPU. Sums over K are in order, so the bits of a result
// depend on the CPU, but not on the number of threads or on other users.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_SEGMENT_PRODUCT_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_SEGMENT_PRODUCT_H_

#include <cstdint>

#include "ops/core/base/parallel.h"

namespace rec_estimator {

// The rows of each user: user b has rows [splits[b], splits[b + 1]). splits[0]
// is 0, and splits never decrease.
struct UserRows {
  const int32_t* splits = nullptr;
  int64_t users = 0;

  int64_t rows() const { return splits[users]; }
};

// out[n, M] = rows[n, K] × matrices[user of n, K, M]. T is float or double.
template <typename T>
void MultiplyByUser(const UserRows& user_rows, int64_t inner, int64_t outer,
                    const T* rows, const T* matrices, T* out,
                    const ParallelFor& parallel_for);

// out[b, K, M] = the sum over user b's rows n of rows[n, K] ⊗ others[n, M];
// zeros for a user without rows. This is the gradient of MultiplyByUser with
// respect to the matrices.
template <typename T>
void SumProductsByUser(const UserRows& user_rows, int64_t inner, int64_t outer,
                       const T* rows, const T* others, T* out,
                       const ParallelFor& parallel_for);

// The sizes T, D and H of LayerByUser.
struct LayerSizes {
  int64_t entries, inner, outer;
};

// out[n, T, H] = (entries[user of n, T, D] * rows[n, D]) × kernel[D, H]
//                + user_bias[user of n, T, H] + row_bias[n, H].
template <typename T>
void LayerByUser(const UserRows& user_rows, const LayerSizes& sizes,
                 const T* entries, const T* rows, const T* kernel,
                 const T* user_bias, const T* row_bias, T* out,
                 const ParallelFor& parallel_for);

// The gradients of LayerByUser with respect to entries, rows and the kernel.
// kernel_grads [B, D, H] holds each user's part of the last. grads are those of
// `out`.
template <typename T>
void LayerByUserGrad(const UserRows& user_rows, const LayerSizes& sizes,
                     const T* entries, const T* rows, const T* kernel,
                     const T* grads, T* entry_grads, T* row_grads,
                     T* kernel_grads, const ParallelFor& parallel_for);

// out[b, M, K] = matrices[b, K, M].
template <typename T>
void TransposeByUser(int64_t users, int64_t inner, int64_t outer,
                     const T* matrices, T* out,
                     const ParallelFor& parallel_for);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_SEGMENT_PRODUCT_H_
