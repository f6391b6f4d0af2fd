// SPDX-License-Identifier: Apache-2.0
// How a BatchApply fills reserved_rows.h.
#include "ops/core/step/reserved_rows.h"

#include <cstdint>

#include "ops/core/step/batch_apply.h"

namespace rec_estimator {

void BatchApply::ListRows(ReservedRows* rows) const {
  for (int g = 0; g < part_.groups; ++g) {
    const uint32_t begin = part_.begin[g];
    uint32_t at = begin;
    for (uint32_t u = begin; u < begin + unique_[g]; ++u) {
      for (const uint32_t end = begin + end_[u]; at < end; ++at) {
        rows->Set(grouped_[at], row_[u]);
      }
    }
    ForEachStripe(stripes_of_[g], [&](int s) { rows->SetTime(s, moves_[s]); });
  }
}

}  // namespace rec_estimator
