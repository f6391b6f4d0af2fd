// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/batch_scratch.h"

#include <algorithm>
#include <utility>

#include "ops/core/base/key_hash.h"

namespace rec_estimator {

thread_local std::array<ZeroedMemory, Scratch::kUses> Scratch::all_kept_;

Scratch::Scratch(Use use)
    : kept_(all_kept_[use]), memory_(std::move(all_kept_[use])) {}

Scratch::~Scratch() {
  // kept_ is not null if this call was made from within another one.
  if (BytesOf(memory_) <= kKeepBytes && kept_ == nullptr) {
    kept_ = std::move(memory_);
  }
}

char* Scratch::Get(size_t bytes) {
  if (bytes > BytesOf(memory_)) {
    memory_.reset();
    memory_ = AllocateZeroed(bytes + bytes / 4, Pages::kHuge);
  }
  return static_cast<char*>(memory_.get());
}

void Partition::SortBlock(uint64_t block) {
  const uint64_t first = block * kPartitionBlock;
  const uint64_t end = std::min(n, first + kPartitionBlock);
  uint32_t next[kShards] = {};
  for (uint64_t i = first; i < end; ++i) {
    const uint64_t mixed = MixKey(Key(i));
    hash[i] = static_cast<uint32_t>(mixed);
    ++next[ShardOf(mixed)];
  }
  uint32_t* start = starts + block * (kShards + 1);
  uint32_t position = static_cast<uint32_t>(first);
  for (int s = 0; s < kShards; ++s) {
    start[s] = position;
    position += next[s];
    next[s] = start[s];
  }
  start[kShards] = position;
  for (uint64_t i = first; i < end; ++i) {
    sorted[next[ShardOf(hash[i])]++] = {Key(i), static_cast<uint32_t>(i),
                                        DedupHash(hash[i])};
  }
}

void Partition::Run(const ParallelFor& parallel) {
  if (groups == 1) {
    begin[0] = 0;
    begin[1] = static_cast<uint32_t>(n);
    return;
  }
  const int64_t units = static_cast<int64_t>(blocks());
  parallel(units, kPartitionBlock * 16, [this](int64_t b, int64_t e) {
    for (; b < e; ++b) SortBlock(static_cast<uint64_t>(b));
  });
  begin.fill(0);
  for (int64_t b = 0; b < units; ++b) {
    const uint32_t* start = starts + b * (kShards + 1);
    for (int s = 0; s < kShards; ++s) begin[s + 1] += start[s + 1] - start[s];
  }
  for (int s = 0; s < kShards; ++s) begin[s + 1] += begin[s];
}

uint32_t Partition::Deduplicate(int g, const Distinct& out,
                                uint32_t* slots) const {
  int64_t* keys = out.keys;
  uint32_t* id = out.id;
  uint32_t* end = out.end;
  const uint32_t size = DedupSlots(size_of(g));
  std::fill(slots, slots + size, 0);

  // Whether a key is new is as unpredictable as the keys, so nothing branches
  // on it.
  uint32_t unique = 0;
  uint32_t j = 0;
  ForEachOccurrence(g, [&](const Occurrence& one) {
    keys[unique] = one.key;
    end[unique] = 0;
    uint32_t slot = one.hash & (size - 1);
    for (;;) {
      const uint32_t used = slots[slot];  // 1 + position in keys.
      const uint32_t is_new = used == 0;
      const uint32_t u = used - 1 + (-is_new & (unique + 1));
      if (keys[u] == one.key) {
        slots[slot] = u + 1;
        ++end[u];
        id[j++] = u;
        unique += is_new;
        return;
      }
      slot = (slot + 1) & (size - 1);
    }
  });
  uint32_t position = 0;
  for (uint32_t u = 0; u < unique; ++u) {
    const uint32_t count = end[u];
    end[u] = position;
    position += count;
  }
  // end[u] moves from the first to behind the last occurrence of key u.
  uint32_t* grouped = out.grouped;
  j = 0;
  ForEachOccurrence(
      g, [&](const Occurrence& one) { grouped[end[id[j++]]++] = one.index; });
  return unique;
}

}  // namespace rec_estimator
