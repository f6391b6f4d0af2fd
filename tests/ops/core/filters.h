// SPDX-License-Identifier: Apache-2.0
// Filters, for tests of the core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_FILTERS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_FILTERS_H_

#include <cstdint>

#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

// The filter of CBFFilter.
inline FilterSpec BloomFilter(uint32_t threshold, uint32_t coefficient,
                              int64_t max_elements,
                              double false_positive_rate) {
  return {threshold,
          coefficient,
          {"counting_bloom_filter",
           {{"max_element_size", static_cast<double>(max_elements)},
            {"false_positive_probability", false_positive_rate}}}};
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_FILTERS_H_
