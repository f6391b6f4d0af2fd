// Products by user against loops in the order of the definition.
#include <cstdint>
#include <random>
#include <vector>

#include "../../ops/core/parallel.h"
#include "../../ops/core/user_product.h"
#include "testing.h"
#include "threads.h"

namespace rec_estimator {
namespace {

// Whole numbers, so that every order of additions gives the same bits.
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

TEST(ProductsAreThoseOfTheDefinition) {
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

TEST(ThreadsDoNotChangeABit) {
  Threads threads(4);
  Check<float>({7, 0, 900, 55, 1}, 17, 70, threads.parallel());
  Check<double>(std::vector<int32_t>(200, 3), 5, 40, threads.parallel());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
