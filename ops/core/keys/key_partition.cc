// SPDX-License-Identifier: Apache-2.0
#include "ops/core/keys/key_partition.h"

#include <algorithm>
#include <numeric>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/read_once.h"

namespace rec_estimator {

namespace {

// Occurrences of a group up to which the cells of its keys are on the stack.
constexpr uint32_t kSmallTable = 4096;

}  // namespace

void KeyPartition::SortBlock(uint64_t block) {
  const uint64_t first = block * kPartitionBlock;
  const uint64_t end = std::min(n, first + kPartitionBlock);
  uint32_t next[kStripes] = {};
  int64_t keys[kPartitionBlock];
  for (uint64_t i = first; i < end; ++i) {
    const int64_t key = ReadOnce(Key(i));
    const int stripe = StripeOf(MixKey(key));
    keys[i - first] = key;
    hash[i] =
        CellHash(HashKey(key)) << kStripeBits | static_cast<uint32_t>(stripe);
    ++next[stripe];
  }
  uint32_t* start = starts + block * (kStripes + 1);
  uint32_t position = static_cast<uint32_t>(first);
  for (int s = 0; s < kStripes; ++s) {
    start[s] = position;
    position += next[s];
    next[s] = start[s];
  }
  start[kStripes] = position;
  for (uint64_t i = first; i < end; ++i) {
    sorted[next[hash[i] % kStripes]++] = {
        keys[i - first], static_cast<uint32_t>(i), hash[i] >> kStripeBits};
  }
}

void KeyPartition::EndSort() {
  if (groups == 1) {
    begin[0] = 0;
    begin[1] = static_cast<uint32_t>(n);
    return;
  }
  begin.fill(0);
  for (uint64_t b = 0; b < blocks(); ++b) {
    const uint32_t* start = starts + b * (kStripes + 1);
    for (int s = 0; s < kStripes; ++s) begin[s + 1] += start[s + 1] - start[s];
  }
  for (int s = 0; s < kStripes; ++s) begin[s + 1] += begin[s];
}

void KeyPartition::AddCellsTo(Layout* layout) {
  cells.fill(nullptr);
  for (int g = 0; g < groups; ++g) {
    const uint32_t occurrences = size_of(g);
    if (occurrences <= kSmallTable) continue;
    layout->Add(&cells[g], Deduplicator<uint32_t>::CellsFor(occurrences));
  }
}

uint32_t KeyPartition::Deduplicate(int g, const Distinct& out) const {
  uint32_t small[Deduplicator<uint32_t>::CellsFor(kSmallTable)];
  Deduplicator<uint32_t> deduplicator(
      size_of(g), cells[g] != nullptr ? cells[g] : small, out.keys);
  uint32_t* id = out.id;
  uint32_t* end = out.end;
  uint32_t* grouped = out.grouped;
  uint32_t j = 0;
  ForEachOccurrence(g, [&](const Occurrence& one) {
    grouped[j] = one.index;  // Stays if no key is there twice.
    end[deduplicator.size()] = 0;
    const uint32_t u = deduplicator.Add(one.key, one.hash);
    ++end[u];
    id[j++] = u;
  });
  const uint32_t unique = deduplicator.size();
  if (unique == j) {
    std::iota(end, end + unique, 1);
    return unique;
  }
  std::exclusive_scan(end, end + unique, end, 0u);
  // end[u] moves from the first to behind the last occurrence of key u.
  j = 0;
  ForEachOccurrence(
      g, [&](const Occurrence& one) { grouped[end[id[j++]]++] = one.index; });
  return unique;
}

}  // namespace rec_estimator
