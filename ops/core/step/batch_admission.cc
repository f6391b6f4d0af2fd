// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/batch_admission.h"

#include <algorithm>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/keys/key_partition.h"

namespace rec_estimator {

bool AdmitsAfterBatch(const StripeSet& stripes, FilterRule rule,
                      const int64_t* keys, size_t n, bool* out) {
  // One occurrence may be enough for every key.
  if (rule.IsAdmitted(rule.CountAfterBatch(0, 1))) {
    std::transform(keys, keys + n, out,
                   [&](int64_t key) { return !stripes.IsPadding(key); });
    return true;
  }
  if (n >= kMaxBatch) return false;

  // Mostly a key has a row, or its count and one occurrence decide. Occurrences
  // of the other keys are counted in a hash table of distinct keys.
  const auto slots_for = [](uint64_t n) {  // A power of two, at least 2 n.
    uint64_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
  };
  Scratch scratch;
  uint32_t* undecided = nullptr;  // (n) positions in keys
  uint32_t* counts = nullptr;     // (n) their counts so far
  uint32_t* slots = nullptr;      // 1 + position in undecided, or 0
  const Sketch* const sketch = stripes.sketch();
  uint32_t* without_entry = nullptr;  // (n) positions of keys of the sketch
  uint32_t* estimates = nullptr;      // (n) of these keys
  const bool has_memory = scratch.Allocate([&](Layout* layout) {
    layout->Add(&undecided, n);
    layout->Add(&counts, n);
    layout->Add(&slots, slots_for(n));
    if (sketch == nullptr) return;
    layout->Add(&without_entry, n);
    layout->Add(&estimates, n);
  });
  if (!has_memory) return false;

  uint32_t n_undecided = 0;
  const auto decide = [&](size_t i, uint32_t count) {
    out[i] = rule.IsAdmitted(rule.CountAfterBatch(count, 1));
    if (out[i]) return;
    undecided[n_undecided] = static_cast<uint32_t>(i);
    counts[n_undecided++] = count;
  };
  {
    uint32_t n_without_entry = 0;
    const SharedLocks locks(stripes, kAllStripes);
    stripes.InspectLocked(keys, n, [&](size_t i, EntryRef entry) {
      if (entry.found() && entry.has_row()) {
        out[i] = true;
      } else if (stripes.IsPadding(keys[i])) {
        out[i] = false;
      } else if (entry.found() || sketch == nullptr) {
        decide(i, entry.found() ? entry.count() : 0);
      } else {
        without_entry[n_without_entry++] = static_cast<uint32_t>(i);
      }
    });
    if (n_without_entry > 0) {
      sketch->Estimate(keys, without_entry, n_without_entry, estimates);
    }
    for (uint32_t w = 0; w < n_without_entry; ++w) {
      decide(without_entry[w], estimates[without_entry[w]]);
    }
  }

  const uint64_t size = slots_for(n_undecided);
  std::fill(slots, slots + size, 0);
  const auto slot_of = [&](int64_t key) {
    uint64_t at = MixKey(key) >> 16 & (size - 1);
    while (slots[at] != 0 && keys[undecided[slots[at] - 1]] != key) {
      at = (at + 1) & (size - 1);
    }
    return &slots[at];
  };
  for (uint32_t d = 0; d < n_undecided; ++d) {
    uint32_t* slot = slot_of(keys[undecided[d]]);
    if (*slot == 0) *slot = d + 1;
    uint32_t& count = counts[*slot - 1];
    count = rule.CountAfterBatch(count, 1);
  }
  for (uint32_t d = 0; d < n_undecided; ++d) {
    const size_t i = undecided[d];
    out[i] = rule.IsAdmitted(counts[*slot_of(keys[i]) - 1]);
  }
  return true;
}

}  // namespace rec_estimator
