// SPDX-License-Identifier: Apache-2.0
// The rule that decides which keys own rows.
#ifndef REC_ESTIMATOR_OPS_CORE_FILTER_FILTER_RULE_H_
#define REC_ESTIMATOR_OPS_CORE_FILTER_FILTER_RULE_H_

#include <algorithm>
#include <cstdint>

#include "ops/core/rows/table_spec.h"

namespace rec_estimator {

// A filter's threshold and coefficient. Apply, Admits and InsertFiltered all
// decide through it. Two words, so that a loop can hold a copy in registers.
class FilterRule {
 public:
  explicit FilterRule(const FilterSpec& filter)
      : threshold_(filter.threshold), coefficient_(filter.coefficient) {}

  // The rule: whether a key with this count owns a row.
  bool IsAdmitted(uint32_t count) const { return count >= threshold_; }

  // The count of a key that had `count` before a batch with so many occurrences
  // of it, fewer than 2^32. Saturates.
  uint32_t CountAfterBatch(uint32_t count, uint64_t occurrences) const {
    return Saturate(count + occurrences * coefficient_);
  }

  // Whether a key owns a row whatever its count.
  bool admits_all() const { return threshold_ == 0; }

  // A count of a checkpoint, which may be negative or too large.
  static uint32_t CountOf(int64_t freq) {
    return Saturate(static_cast<uint64_t>(std::max<int64_t>(freq, 0)));
  }

 private:
  static uint32_t Saturate(uint64_t count) {
    return static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX));
  }

  uint32_t threshold_;
  uint32_t coefficient_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_FILTER_FILTER_RULE_H_
