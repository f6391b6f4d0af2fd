// SPDX-License-Identifier: Apache-2.0
// For tests: makes AllocateZeroed fail, which gets all large memory of the
// core.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_ALLOCATION_LIMIT_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_ALLOCATION_LIMIT_H_

#include <cstdint>

namespace rec_estimator {

// The next `n` calls of AllocateZeroed, in all threads, may succeed. All later
// ones fail until this function is called again. Negative: no limit.
void LimitAllocations(int64_t n);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_ALLOCATION_LIMIT_H_
