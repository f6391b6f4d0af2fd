// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/batch_admission.h"

#include <algorithm>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/keys/deduplicator.h"
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
  // of the other keys are counted by distinct key.
  Scratch scratch;
  uint32_t* undecided = nullptr;  // (n) positions in keys
  uint32_t* counts = nullptr;     // (n) their counts so far
  int64_t* distinct = nullptr;    // (n) of the undecided keys
  uint32_t* number = nullptr;     // (n) of each of them in distinct
  uint32_t* cells = nullptr;
  const Sketch* const sketch = stripes.sketch();
  uint32_t* without_entry = nullptr;  // (n) positions of keys of the sketch
  uint32_t* estimates = nullptr;      // (n) of these keys
  const bool has_memory = scratch.Allocate([&](Layout* layout) {
    layout->Add(&undecided, n);
    layout->Add(&counts, n);
    layout->Add(&distinct, n);
    layout->Add(&number, n);
    layout->Add(&cells, Deduplicator<uint32_t>::CellsFor(n));
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

  Deduplicator<uint32_t> deduplicator(n_undecided, cells, distinct);
  for (uint32_t d = 0; d < n_undecided; ++d) {
    const int64_t key = keys[undecided[d]];
    const uint32_t n_distinct = deduplicator.size();
    const uint32_t u = deduplicator.Add(key, CellHash(MixKey(key)));
    if (u == n_distinct) counts[u] = counts[d];  // u <= d.
    counts[u] = rule.CountAfterBatch(counts[u], 1);
    number[d] = u;
  }
  for (uint32_t d = 0; d < n_undecided; ++d) {
    out[undecided[d]] = rule.IsAdmitted(counts[number[d]]);
  }
  return true;
}

}  // namespace rec_estimator
