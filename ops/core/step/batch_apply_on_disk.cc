// SPDX-License-Identifier: Apache-2.0
// Implements BatchApply for tables that keep rows on disk.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/index/hash_index.h"
#include "ops/core/step/batch_apply.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

KeyHolder::Keys BatchApply::KeysIn(int stripe) const {
  const int g = part_.groups == 1 ? 0 : stripe;
  if (!is_listed_[g].load(std::memory_order_acquire)) return {nullptr, 0};
  return {key_ + part_.begin[g], unique_[g]};
}

int64_t BatchApply::ListSpilled(PinnedRows* spilled) const {
  int64_t in_memory = 0;
  for (int g = 0; g < part_.groups; ++g) {
    in_memory += n_in_memory_[g];
    if (n_spilled_[g] == 0) continue;
    const int64_t* keys = key_ + part_.begin[g];
    const uint32_t* rows = row_ + part_.begin[g];
    std::vector<int64_t> listed;
    listed.reserve(n_spilled_[g]);
    for (uint32_t u = 0; u < unique_[g]; ++u) {
      if (rows[u] < HashIndex::kSpilled || rows[u] >= kToAdmit) continue;
      listed.push_back(keys[u]);
    }
    const SharedLocks locks(stripes_, stripes_of_[g]);
    const auto add = [&](size_t i, EntryRef entry) {
      // It may have been brought in since, but it was not spilled.
      if (entry.found() && entry.is_spilled()) {
        spilled->Add(entry.place(), listed[i]);
      } else if (entry.found() && entry.in_memory()) {
        ++in_memory;
      }
    };
    stripes_.InspectLocked(listed.data(), listed.size(), add);
  }
  return in_memory;
}

}  // namespace rec_estimator
