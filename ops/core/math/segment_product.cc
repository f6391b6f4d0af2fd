// SPDX-License-Identifier: Apache-2.0
#include "ops/core/math/segment_product.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/core/base/cpu_versions.h"
#include "ops/core/base/parallel.h"

namespace rec_estimator {
namespace {

constexpr int kColumns = 32;        // A tile of the result, in registers,
constexpr int kRows = 4;            // has these columns and rows.
constexpr int64_t kBlockRows = 24;  // Rows per pass over a matrix.
constexpr int64_t kDepth = 256;     // Rows of padded columns copied at a time.

// A matrix with element (i, j) at data[row_stride * i + column_stride * j].
template <typename T>
struct StridedMatrix {
  const T* data;
  int64_t row_stride;
  int64_t column_stride;

  const T* Row(int64_t i) const { return data + row_stride * i; }
};

// out[R, kColumns] = a[R, inner] × b[inner, kColumns]. Always inlined, so that
// it is compiled for the same CPU as its caller.
template <typename T, int R>
__attribute__((always_inline)) inline void Tile(const T* a, int64_t row_stride,
                                                int64_t column_stride,
                                                const T* b, int64_t b_stride,
                                                int64_t inner, T* out,
                                                int64_t out_stride) {
  T sums[R][kColumns] = {};
  for (int64_t k = 0; k < inner; ++k) {
    for (int r = 0; r < R; ++r) {
      const T x = a[r * row_stride + k * column_stride];
      for (int j = 0; j < kColumns; ++j) sums[r][j] += x * b[k * b_stride + j];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < kColumns; ++j) out[r * out_stride + j] = sums[r][j];
  }
}

template <typename T>
__attribute__((always_inline)) inline void Columns(const StridedMatrix<T>& a,
                                                   int64_t rows, const T* b,
                                                   int64_t b_stride,
                                                   int64_t inner, T* out,
                                                   int64_t out_stride) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    Tile<T, kRows>(a.Row(i), a.row_stride, a.column_stride, b, b_stride, inner,
                   out + i * out_stride, out_stride);
  }
  for (; i < rows; ++i) {
    Tile<T, 1>(a.Row(i), a.row_stride, a.column_stride, b, b_stride, inner,
               out + i * out_stride, out_stride);
  }
}

REC_ESTIMATOR_FOR_EACH_CPU
void ColumnsOf(const StridedMatrix<float>& a, int64_t rows, const float* b,
               int64_t b_stride, int64_t inner, float* out,
               int64_t out_stride) {
  Columns<float>(a, rows, b, b_stride, inner, out, out_stride);
}

REC_ESTIMATOR_FOR_EACH_CPU
void ColumnsOf(const StridedMatrix<double>& a, int64_t rows, const double* b,
               int64_t b_stride, int64_t inner, double* out,
               int64_t out_stride) {
  Columns<double>(a, rows, b, b_stride, inner, out, out_stride);
}

// Computes the columns of out[rows, outer] from `whole` on, which are fewer
// than kColumns. Copies those of b, padded with zeros, kDepth rows at a time.
template <typename T>
void MultiplyLastColumns(const StridedMatrix<T>& a, int64_t rows, const T* b,
                         int64_t inner, int64_t outer, int64_t whole, T* out) {
  const int64_t rest = outer - whole;
  std::vector<T> padded(std::min(inner, kDepth) * kColumns);
  std::vector<T> products(kBlockRows * kColumns);
  for (int64_t first = 0; first < inner; first += kDepth) {
    const int64_t depth = std::min(kDepth, inner - first);
    for (int64_t k = 0; k < depth; ++k) {
      std::copy_n(b + (first + k) * outer + whole, rest, &padded[k * kColumns]);
    }
    for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
      const int64_t count = std::min(kBlockRows, rows - begin);
      ColumnsOf(StridedMatrix<T>{a.Row(begin) + first * a.column_stride,
                                 a.row_stride, a.column_stride},
                count, padded.data(), kColumns, depth, products.data(),
                kColumns);
      for (int64_t i = 0; i < count; ++i) {
        T* const to = out + (begin + i) * outer + whole;
        const T* const from = &products[i * kColumns];
        for (int64_t j = 0; j < rest; ++j) {
          to[j] = first == 0 ? from[j] : to[j] + from[j];
        }
      }
    }
  }
}

// out[rows, outer] = a[rows, inner] × b[inner, outer], inner not 0.
template <typename T>
void Multiply(const StridedMatrix<T>& a, int64_t rows, const T* b,
              int64_t inner, int64_t outer, T* out) {
  const int64_t whole = outer - outer % kColumns;
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - begin);
    const StridedMatrix<T> turn = {a.Row(begin), a.row_stride, a.column_stride};
    for (int64_t j = 0; j < whole; j += kColumns) {
      ColumnsOf(turn, count, b + j, outer, inner, out + begin * outer + j,
                outer);
    }
  }
  if (whole < outer) {
    MultiplyLastColumns(a, rows, b, inner, outer, whole, out);
  }
}

// Calls work(user, begin, end) for the rows of each user within [begin, end).
template <typename Work>
void ForUsers(const UserRows& user_rows, int64_t begin, int64_t end,
              const Work& work) {
  const int32_t* const splits = user_rows.splits;
  // The user of the first row. Users without rows are skipped.
  const int32_t* const next =
      std::upper_bound(splits, splits + user_rows.users + 1, begin);
  for (int64_t user = next - splits - 1; begin < end; ++user) {
    const int64_t stop = std::min<int64_t>(end, splits[user + 1]);
    if (stop <= begin) continue;
    work(user, begin, stop);
    begin = stop;
  }
}

// out[d, h] = row[d] * kernel[d, h].
template <typename T>
void Scale(const T* row, const T* kernel, int64_t inner, int64_t outer,
           T* out) {
  for (int64_t d = 0; d < inner; ++d) {
    for (int64_t h = 0; h < outer; ++h) {
      out[d * outer + h] = row[d] * kernel[d * outer + h];
    }
  }
}

int64_t CyclesPerRow(int64_t inner, int64_t outer) {
  return 1 + inner * outer / 8;
}

}  // namespace

template <typename T>
void MultiplyByUser(const UserRows& user_rows, int64_t inner, int64_t outer,
                    const T* rows, const T* matrices, T* out,
                    const ParallelFor& parallel_for) {
  if (outer == 0) return;
  if (inner == 0) {
    std::fill_n(out, user_rows.rows() * outer, T(0));
    return;
  }
  parallel_for(user_rows.rows(), CyclesPerRow(inner, outer),
               [&](int64_t first, int64_t last) {
                 ForUsers(user_rows, first, last,
                          [&](int64_t user, int64_t begin, int64_t end) {
                            Multiply<T>({rows + begin * inner, inner, 1},
                                        end - begin,
                                        matrices + user * inner * outer, inner,
                                        outer, out + begin * outer);
                          });
               });
}

template <typename T>
void SumProductsByUser(const UserRows& user_rows, int64_t inner, int64_t outer,
                       const T* rows, const T* others, T* out,
                       const ParallelFor& parallel_for) {
  if (inner == 0 || outer == 0) return;
  const int32_t* const splits = user_rows.splits;
  const int64_t each = user_rows.rows() / std::max<int64_t>(1, user_rows.users);
  parallel_for(user_rows.users, CyclesPerRow(inner, outer) * (each + 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t user = begin; user < end; ++user) {
                   const int64_t first = splits[user];
                   const int64_t count = splits[user + 1] - first;
                   T* const to = out + user * inner * outer;
                   if (count == 0) {
                     std::fill_n(to, inner * outer, T(0));
                     continue;
                   }
                   // The user's rows transposed: [K, n] × [n, M].
                   Multiply<T>({rows + first * inner, 1, inner}, inner,
                               others + first * outer, count, outer, to);
                 }
               });
}

template <typename T>
void LayerByUser(const UserRows& user_rows, const LayerSizes& sizes,
                 const T* entries, const T* rows, const T* kernel,
                 const T* user_bias, const T* row_bias, T* out,
                 const ParallelFor& parallel_for) {
  const auto [count, inner, outer] = sizes;
  if (count == 0 || outer == 0) return;
  const auto work = [&, count = count, inner = inner, outer = outer](
                        int64_t user, int64_t begin, int64_t end) {
    std::vector<T> scaled(inner * outer);
    const T* const shared = user_bias + user * count * outer;
    for (int64_t n = begin; n < end; ++n) {
      T* const to = out + n * count * outer;
      const T* const own = row_bias + n * outer;
      Scale(rows + n * inner, kernel, inner, outer, scaled.data());
      if (inner == 0) {
        std::fill_n(to, count * outer, T(0));
      } else {
        Multiply<T>({entries + user * count * inner, inner, 1}, count,
                    scaled.data(), inner, outer, to);
      }
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t h = 0; h < outer; ++h) {
          to[t * outer + h] += shared[t * outer + h] + own[h];
        }
      }
    }
  };
  parallel_for(user_rows.rows(), count * CyclesPerRow(inner + 2, outer),
               [&](int64_t first, int64_t last) {
                 ForUsers(user_rows, first, last, work);
               });
}

template <typename T>
void LayerByUserGrad(const UserRows& user_rows, const LayerSizes& sizes,
                     const T* entries, const T* rows, const T* kernel,
                     const T* grads, T* entry_grads, T* row_grads,
                     T* kernel_grads, const ParallelFor& parallel_for) {
  const auto [count, inner, outer] = sizes;
  const auto work = [&, count = count, inner = inner,
                     outer = outer](int64_t user) {
    const int64_t size = inner * outer;
    std::vector<T> flipped(size), sums(size), products(count * inner);
    const T* const mine = entries + user * count * inner;
    T* const entry_sums = entry_grads + user * count * inner;
    T* const kernel_sums = kernel_grads + user * size;
    std::fill_n(entry_sums, count * inner, T(0));
    std::fill_n(kernel_sums, size, T(0));
    for (int64_t n = user_rows.splits[user]; n < user_rows.splits[user + 1];
         ++n) {
      const T* const row = rows + n * inner;
      const T* const grad = grads + n * count * outer;
      std::fill_n(row_grads + n * inner, inner, T(0));
      if (count == 0 || outer == 0 || inner == 0) continue;
      // sums [D, H] is over the entries, products [T, D] over the units.
      Multiply<T>({mine, 1, inner}, inner, grad, count, outer, sums.data());
      for (int64_t d = 0; d < inner; ++d) {
        T total = 0;
        for (int64_t h = 0; h < outer; ++h) {
          const int64_t at = d * outer + h;
          total += kernel[at] * sums[at];
          kernel_sums[at] += row[d] * sums[at];
          flipped[h * inner + d] = row[d] * kernel[at];
        }
        row_grads[n * inner + d] = total;
      }
      Multiply<T>({grad, outer, 1}, count, flipped.data(), outer, inner,
                  products.data());
      for (int64_t i = 0; i < count * inner; ++i) entry_sums[i] += products[i];
    }
  };
  const int64_t each = user_rows.rows() / std::max<int64_t>(1, user_rows.users);
  parallel_for(user_rows.users,
               (each + 1) * count * CyclesPerRow(2 * inner, outer),
               [&](int64_t begin, int64_t end) {
                 for (int64_t user = begin; user < end; ++user) work(user);
               });
}

template <typename T>
void TransposeByUser(int64_t users, int64_t inner, int64_t outer,
                     const T* matrices, T* out,
                     const ParallelFor& parallel_for) {
  const int64_t size = inner * outer;
  if (size == 0) return;
  parallel_for(users, size * 2, [&](int64_t begin, int64_t end) {
    for (int64_t user = begin; user < end; ++user) {
      const T* const from = matrices + user * size;
      T* const to = out + user * size;
      for (int64_t j = 0; j < outer; ++j) {
        for (int64_t i = 0; i < inner; ++i) {
          to[j * inner + i] = from[i * outer + j];
        }
      }
    }
  });
}

#define REC_ESTIMATOR_INSTANTIATE(T)                                           \
  template void MultiplyByUser<T>(const UserRows&, int64_t, int64_t, const T*, \
                                  const T*, T*, const ParallelFor&);           \
  template void SumProductsByUser<T>(const UserRows&, int64_t, int64_t,        \
                                     const T*, const T*, T*,                   \
                                     const ParallelFor&);                      \
  template void LayerByUser<T>(const UserRows&, const LayerSizes&, const T*,   \
                               const T*, const T*, const T*, const T*, T*,     \
                               const ParallelFor&);                            \
  template void LayerByUserGrad<T>(const UserRows&, const LayerSizes&,         \
                                   const T*, const T*, const T*, const T*, T*, \
                                   T*, T*, const ParallelFor&);                \
  template void TransposeByUser<T>(int64_t, int64_t, int64_t, const T*, T*,    \
                                   const ParallelFor&);

REC_ESTIMATOR_INSTANTIATE(float)
REC_ESTIMATOR_INSTANTIATE(double)
#undef REC_ESTIMATOR_INSTANTIATE

}  // namespace rec_estimator
