// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/batch_admission.h"

#include <algorithm>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/keys/deduplicator.h"
#include "ops/core/keys/key_partition.h"

namespace rec_estimator {
namespace {

// Keys on which not one occurrence alone decides.
class UndecidedKeys {
 public:
  // For a batch of n keys.
  void AddTo(Layout* layout, size_t n) {
    layout->Add(&positions_, n);
    layout->Add(&counts_, n);
    layout->Add(&distinct_, n);
    layout->Add(&numbers_, n);
    layout->Add(&cells_, Deduplicator<uint32_t>::CellsFor(n));
  }
  // count: that of keys[i] before the batch.
  void Add(size_t i, uint32_t count) {
    positions_[size_] = static_cast<uint32_t>(i);
    counts_[size_++] = count;
  }
  // Counts the occurrences of each key, and sets its positions in `out`.
  void Decide(const FilterRule& rule, const int64_t* keys, bool* out) {
    Deduplicator<uint32_t> deduplicator(size_, cells_, distinct_);
    for (uint32_t d = 0; d < size_; ++d) {
      const int64_t key = keys[positions_[d]];
      const uint32_t n_distinct = deduplicator.size();
      const uint32_t u = deduplicator.Add(key, CellHash(HashKey(key)));
      if (u == n_distinct) counts_[u] = counts_[d];  // u <= d.
      counts_[u] = rule.CountAfterBatch(counts_[u], 1);
      numbers_[d] = u;
    }
    for (uint32_t d = 0; d < size_; ++d) {
      out[positions_[d]] = rule.IsAdmitted(counts_[numbers_[d]]);
    }
  }

 private:
  uint32_t size_ = 0;
  uint32_t* positions_;  // (size_) in the batch
  uint32_t* counts_;     // (size_); in Decide, by distinct key
  int64_t* distinct_;
  uint32_t* numbers_;  // (size_) of each key in distinct_
  uint32_t* cells_;    // The Deduplicator's.
};

}  // namespace

bool AdmitsAfterBatch(const StripeSet& stripes, FilterRule rule,
                      const int64_t* keys, size_t n, bool* out) {
  // One occurrence may be enough for every key.
  if (rule.IsAdmitted(rule.CountAfterBatch(0, 1))) {
    std::transform(keys, keys + n, out,
                   [&](int64_t key) { return !stripes.IsPadding(key); });
    return true;
  }
  if (n >= kMaxBatch) return false;

  // Mostly a key has a row, or its count and one occurrence decide.
  Scratch scratch;
  UndecidedKeys undecided;
  const Sketch* const sketch = stripes.sketch();
  uint32_t* without_entry = nullptr;  // (n) positions of keys of the sketch
  uint32_t* estimates = nullptr;      // (n) of these keys
  const bool has_memory = scratch.Allocate([&](Layout* layout) {
    undecided.AddTo(layout, n);
    if (sketch == nullptr) return;
    layout->Add(&without_entry, n);
    layout->Add(&estimates, n);
  });
  if (!has_memory) return false;

  const auto decide = [&](size_t i, uint32_t count) {
    out[i] = rule.IsAdmitted(rule.CountAfterBatch(count, 1));
    if (!out[i]) undecided.Add(i, count);
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

  undecided.Decide(rule, keys, out);
  return true;
}

}  // namespace rec_estimator
