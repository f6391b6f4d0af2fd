// SPDX-License-Identifier: Apache-2.0
// Edge keys, and a bitwise comparison of floats, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_EDGES_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_EDGES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace rec_estimator {

inline constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

inline bool SameBits(const float* a, const float* b, size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_EDGES_H_
