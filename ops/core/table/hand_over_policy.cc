// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/hand_over_policy.h"

namespace rec_estimator {

void HandOverPolicy::NoteStep(bool used) {
  const bool handed_over =
      lookups_unused_.exchange(0, std::memory_order_relaxed) > 0;
  const int missed = steps_missed_.load(std::memory_order_relaxed);
  const int now = used || missed == 0 ? 1 : missed + handed_over;
  if (missed < kVain && now != missed) {
    steps_missed_.store(now, std::memory_order_relaxed);
  }
}

}  // namespace rec_estimator
