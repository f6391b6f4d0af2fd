// SPDX-License-Identifier: Apache-2.0
// Products of each candidate's row with the matrix of its user.
//
//   row_splits 0 2 5       rows [N, K]      matrices [B, K, M]    out [N, M]
//                          ┌ row 0 ┐
//   user 0: rows 0, 1      └ row 1 ┘   ×    ┌ matrix 0 ┐      =   2 rows
//                          ┌ row 2 ┐
//   user 1: rows 2, 3, 4   │ row 3 │   ×    ┌ matrix 1 ┐      =   3 rows
//                          └ row 4 ┘
//
// What a batched product over copies of the matrices computes, without the
// copies: a matrix is read once for all rows of its user. Attention over a
// user's history is made of it: scores of T entries are a product with
// [K, T], their weighted mean one with [T, D].
//
// And of a layer over what each candidate has to do with each of the T entries
// of her user's history, the product u[t] * i: (u[t] * i) × W = u[t] × (i * W),
// with W scaled by the candidate's numbers, so that [N, T, D] is never made:
//
//   entries [B, T, D]      kernel of row n [D, H]      out [N, T, H]
//   ┌ of the user ┐    ×   rows[n, d] * kernel[d, h]   =  T rows of n
//
// Costs of a product: 2 N K M operations. Four rows and 32 columns of the
// result at a time stay in registers, in 24 rows' turns, so that the matrix
// comes from the cache and the result is written in order. The kernel is
// compiled for AVX, for AVX2 with FMA and for AVX-512, and the loader takes the
// CPU's. A result's numbers are summed over K in order: their bits depend on
// the CPU, never on the number of threads or on other users.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_SEGMENT_PRODUCT_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_SEGMENT_PRODUCT_H_

#include <cstdint>

#include "ops/core/base/parallel.h"

namespace rec_estimator {

// What belongs to whom: user b has rows [splits[b], splits[b + 1]), splits[0]
// is 0, and splits do not decrease.
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
// zeros for a user without rows. The gradient of the above for the matrices.
template <typename T>
void SumProductsByUser(const UserRows& user_rows, int64_t inner, int64_t outer,
                       const T* rows, const T* others, T* out,
                       const ParallelFor& parallel_for);

// Sizes of a layer over products: T, D and H.
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

// The gradients of the above for entries, rows and, [B, D, H], each user's
// share of that for the kernel; grads are out's.
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
