// SPDX-License-Identifier: Apache-2.0
// Products by user, compared with loops that follow the definition.
#include <cstdint>
#include <random>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/math/segment_product.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

// Integers, so every order of additions gives the same bits.
template <typename T>
std::vector<T> Draw(size_t count, std::mt19937* random) {
  std::vector<T> drawn(count);
  for (T& x : drawn) x = static_cast<T>(static_cast<int>((*random)() % 7) - 3);
  return drawn;
}

template <typename T>
void Check(const std::vector<int32_t>& sizes, int64_t inner, int64_t outer,
           const ParallelFor& parallel_for) {
  std::mt19937 random(1);
  std::vector<int32_t> splits(1, 0);
  for (const int32_t size : sizes) splits.push_back(splits.back() + size);
  const int64_t users = sizes.size();
  const UserRows user_rows = {splits.data(), users};
  const std::vector<T> rows = Draw<T>(splits.back() * inner, &random);
  const std::vector<T> others = Draw<T>(splits.back() * outer, &random);
  const std::vector<T> matrices = Draw<T>(users * inner * outer, &random);
  std::vector<T> products(splits.back() * outer), sums(users * inner * outer);
  std::vector<T> wanted_sums(sums.size()), flipped(sums.size());
  for (int64_t user = 0; user < users; ++user) {
    for (int64_t k = 0; k < inner; ++k) {
      for (int64_t j = 0; j < outer; ++j) {
        const int64_t at = (user * inner + k) * outer + j;
        flipped[(user * outer + j) * inner + k] = matrices[at];
        for (int32_t n = splits[user]; n < splits[user + 1]; ++n) {
          products[n * outer + j] += rows[n * inner + k] * matrices[at];
          wanted_sums[at] += rows[n * inner + k] * others[n * outer + j];
        }
      }
    }
  }
  std::vector<T> got(products.size(), 99);
  MultiplyByUser(user_rows, inner, outer, rows.data(), matrices.data(),
                 got.data(), parallel_for);
  EXPECT_TRUE(got == products);
  sums.assign(sums.size(), 99);
  SumProductsByUser(user_rows, inner, outer, rows.data(), others.data(),
                    sums.data(), parallel_for);
  EXPECT_TRUE(sums == wanted_sums);
  std::vector<T> transposed(flipped.size());
  TransposeByUser(users, inner, outer, matrices.data(), transposed.data(),
                  parallel_for);
  EXPECT_TRUE(transposed == flipped);
}

// The layer and its gradients, compared with plain loops.
template <typename T>
void CheckLayer(const std::vector<int32_t>& sizes, const LayerSizes& layer,
                const ParallelFor& parallel_for) {
  std::mt19937 random(2);
  std::vector<int32_t> splits(1, 0);
  for (const int32_t size : sizes) splits.push_back(splits.back() + size);
  const int64_t users = sizes.size(), count = splits.back();
  const UserRows user_rows = {splits.data(), users};
  const auto [entries, inner, outer] = layer;
  const std::vector<T> e = Draw<T>(users * entries * inner, &random);
  const std::vector<T> r = Draw<T>(count * inner, &random);
  const std::vector<T> w = Draw<T>(inner * outer, &random);
  const std::vector<T> user_bias = Draw<T>(users * entries * outer, &random);
  const std::vector<T> row_bias = Draw<T>(count * outer, &random);
  const std::vector<T> g = Draw<T>(count * entries * outer, &random);
  std::vector<T> out(g.size()), de(e.size()), dr(r.size());
  std::vector<T> dw(users * inner * outer);
  for (int64_t user = 0; user < users; ++user) {
    for (int32_t n = splits[user]; n < splits[user + 1]; ++n) {
      for (int64_t t = 0; t < entries; ++t) {
        for (int64_t h = 0; h < outer; ++h) {
          const int64_t at = (n * entries + t) * outer + h;
          out[at] = user_bias[(user * entries + t) * outer + h] +
                    row_bias[n * outer + h];
          for (int64_t d = 0; d < inner; ++d) {
            const int64_t entry = (user * entries + t) * inner + d;
            const T x = e[entry], y = r[n * inner + d], z = w[d * outer + h];
            out[at] += x * y * z;
            de[entry] += y * z * g[at];
            dr[n * inner + d] += x * z * g[at];
            dw[(user * inner + d) * outer + h] += x * y * g[at];
          }
        }
      }
    }
  }
  std::vector<T> got(out.size(), 99), got_e(e.size(), 99), got_r(r.size(), 99);
  std::vector<T> got_w(dw.size(), 99);
  LayerByUser(user_rows, layer, e.data(), r.data(), w.data(), user_bias.data(),
              row_bias.data(), got.data(), parallel_for);
  EXPECT_TRUE(got == out);
  LayerByUserGrad(user_rows, layer, e.data(), r.data(), w.data(), g.data(),
                  got_e.data(), got_r.data(), got_w.data(), parallel_for);
  EXPECT_TRUE(got_e == de);
  EXPECT_TRUE(got_r == dr);
  EXPECT_TRUE(got_w == dw);
}

TEST(LayersMatchTheDefinition) {
  for (const std::vector<int32_t>& sizes :
       std::vector<std::vector<int32_t>>{{}, {0}, {3}, {0, 2, 0, 5, 1}, {30}}) {
    for (const LayerSizes& layer : std::vector<LayerSizes>{{1, 1, 1},
                                                           {7, 3, 32},
                                                           {30, 16, 40},
                                                           {0, 2, 3},
                                                           {2, 0, 3},
                                                           {2, 3, 0}}) {
      CheckLayer<float>(sizes, layer, SerialFor);
      CheckLayer<double>(sizes, layer, SerialFor);
    }
  }
}

TEST(ProductsMatchTheDefinition) {
  const std::vector<std::vector<int32_t>> requests = {
      {}, {0}, {1}, {5}, {60}, {0, 3, 0, 0, 27, 1, 0}, {4, 4, 4}};
  for (const std::vector<int32_t>& sizes : requests) {
    for (const int64_t inner : {0, 1, 3, 17, 300}) {
      for (const int64_t outer : {0, 1, 16, 31, 32, 33, 100}) {
        Check<float>(sizes, inner, outer, SerialFor);
        Check<double>(sizes, inner, outer, SerialFor);
      }
    }
  }
}

TEST(BitsDoNotDependOnThreads) {
  Threads threads(4);
  Check<float>({7, 0, 900, 55, 1}, 17, 70, threads.parallel());
  Check<double>(std::vector<int32_t>(200, 3), 5, 40, threads.parallel());
  CheckLayer<float>({40, 0, 1, 90}, {20, 8, 33}, threads.parallel());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
