// SPDX-License-Identifier: Apache-2.0
// Which keys of a batch an Apply would admit.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_BATCH_ADMISSION_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_BATCH_ADMISSION_H_

#include <cstddef>
#include <cstdint>

#include "ops/core/filter/filter_rule.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// EmbeddingTable::Admits.
bool AdmitsAfterBatch(const StripeSet& stripes, FilterRule rule,
                      const int64_t* keys, size_t n, bool* out);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_BATCH_ADMISSION_H_
