// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable::Admits: what an Apply would decide, without applying.
#include <algorithm>
#include <cstdint>

#include "ops/core/table/batch_scratch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

bool EmbeddingTable::Admits(const int64_t* keys, size_t n, bool* out) const {
  const Impl& table = *impl_;
  const uint32_t threshold = table.filter.threshold;
  // One occurrence is enough for every key.
  if (table.Added(1) >= threshold) {
    std::transform(keys, keys + n, out,
                   [&](int64_t key) { return !table.IsPadding(key); });
    return true;
  }
  if (n >= kMaxBatch) return false;

  // Mostly a key has a row or its count alone decides. The others are doubtful:
  // of them occurrences are counted, in a hash table of distinct keys.
  const auto slots_for = [](uint64_t n) {  // A power of two, at least 2 n.
    uint64_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
  };
  Scratch scratch(Scratch::kBatch);
  uint32_t* doubtful;  // (n) numbers in keys
  uint32_t* counts;    // (n) of each of them, counted so far
  uint32_t* slots;     // 1 + number in doubtful, or 0
  const auto lay = [&](Layout* layout) {
    layout->Add(&doubtful, n);
    layout->Add(&counts, n);
    layout->Add(&slots, slots_for(n));
  };
  Layout bytes(nullptr);
  lay(&bytes);
  char* memory = scratch.Get(bytes.bytes());
  if (memory == nullptr) return false;
  Layout layout(memory);
  lay(&layout);

  uint32_t n_doubtful = 0;
  table.LockShared(kAllShards);
  table.InspectLocked(keys, n, [&](size_t i, Place place) {
    if (place.found() && place.row() != HashIndex::kNoRow) {
      out[i] = true;
      return;
    }
    if (table.IsPadding(keys[i])) {
      out[i] = false;
      return;
    }
    const uint32_t count = table.Counted(keys[i], place);
    out[i] = uint64_t{count} + table.Added(1) >= threshold;
    if (out[i]) return;
    doubtful[n_doubtful] = static_cast<uint32_t>(i);
    counts[n_doubtful++] = count;
  });
  table.UnlockShared(kAllShards);

  const uint64_t size = slots_for(n_doubtful);
  std::fill(slots, slots + size, 0);
  const auto slot_of = [&](int64_t key) {
    uint64_t at = MixKey(key) >> 16 & (size - 1);
    while (slots[at] != 0 && keys[doubtful[slots[at] - 1]] != key) {
      at = (at + 1) & (size - 1);
    }
    return &slots[at];
  };
  for (uint32_t d = 0; d < n_doubtful; ++d) {
    uint32_t* slot = slot_of(keys[doubtful[d]]);
    if (*slot == 0) *slot = d + 1;
    uint32_t& count = counts[*slot - 1];
    count = Saturated(uint64_t{count} + table.Added(1));
  }
  for (uint32_t d = 0; d < n_doubtful; ++d) {
    const size_t i = doubtful[d];
    out[i] = counts[*slot_of(keys[i]) - 1] >= threshold;
  }
  return true;
}

}  // namespace rec_estimator
