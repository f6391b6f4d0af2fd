// SPDX-License-Identifier: Apache-2.0
// Evictions by each rule, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_EVICTIONS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_EVICTIONS_H_

#include <cstdint>

#include "ops/core/evict/eviction.h"
#include "ops/core/evict/global_step_rule.h"
#include "ops/core/evict/l2_weight_rule.h"
#include "ops/core/table/embedding_table.h"

namespace rec_estimator {

inline int64_t EvictOlder(EmbeddingTable* table, int64_t version,
                          int64_t stamp) {
  GlobalStepRule rule(version, stamp);
  return table->Evict(&rule).keys;
}

inline int64_t EvictSmaller(EmbeddingTable* table, float half_squared_norm,
                            int64_t stamp = -1) {
  L2WeightRule rule(half_squared_norm, stamp);
  return table->Evict(&rule).keys;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_EVICTIONS_H_
