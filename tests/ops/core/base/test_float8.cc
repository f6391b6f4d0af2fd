// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <vector>

#include "ops/core/base/float8.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

TEST(RowsOfAnyWidthAreCopiedToAnyAddressAndNothingBesideThem) {
  constexpr int kMost = 40;
  std::vector<float> from(kMost + 8);
  std::iota(from.begin(), from.end(), 1.0f);
  for (const auto copy : {CopyRow, StreamRow}) {
    for (int dim = 1; dim <= kMost; ++dim) {
      for (int shift = 0; shift < 8; ++shift) {
        alignas(32) float to[kMost + 16] = {};
        copy(from.data() + shift, dim, to + shift);
        EndStreams();
        for (int i = 0; i < kMost + 16; ++i) {
          const bool is_copied = i >= shift && i < shift + dim;
          EXPECT_EQ(to[i], is_copied ? from[i] : 0.0f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
