// SPDX-License-Identifier: Apache-2.0
// The occurrences of a batch, sorted by stripe.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_KEY_PARTITION_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_KEY_PARTITION_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/read_once.h"
#include "ops/core/base/scratch.h"
#include "ops/core/keys/deduplicator.h"

namespace rec_estimator {

// Occurrences that one unit of the parallel sort handles.
inline constexpr uint64_t kPartitionBlock = 8192;
// Occurrences are numbered in 32 bits.
inline constexpr uint64_t kMaxBatch = uint64_t{1} << 31;

// A key and its position in a batch.
struct Occurrence {
  int64_t key;
  uint32_t index;  // In the batch.
  // The lowest bits of CellHash: enough for the keys of a stripe of the largest
  // batch.
  uint32_t hash;
};

// Occurrences sorted by stripe; within a stripe they keep the order of the
// batch. Each block of the batch is sorted by itself, so one pass is enough,
// and a stripe has one run in every block. A group is the occurrences of one
// stripe, or, where stripes do not pay, the whole batch, which is then not
// sorted.
struct KeyPartition {
  const int64_t* head;  // (n_head); the batch is head followed by tail.
  uint64_t n_head;
  const int64_t* tail;  // (n - n_head)
  uint64_t n;

  uint32_t* hash;         // (n) CellHash and, in kStripeBits, the stripe of
                          // each key, in batch order
  uint32_t* starts;       // (blocks, kStripes + 1) beginnings of the runs
  Occurrence* sorted;     // (n) by block, then by stripe
  int groups = kStripes;  // kStripes or 1.
  // Group g has begin[g + 1] - begin[g] occurrences.
  std::array<uint32_t, kStripes + 1> begin;
  // By group: the cells of Deduplicate for so many occurrences that they are
  // not on the stack.
  std::array<uint32_t*, kStripes> cells;

  uint64_t blocks() const {
    return groups == 1 ? 0 : (n + kPartitionBlock - 1) / kPartitionBlock;
  }
  uint32_t size_of(int g) const { return begin[g + 1] - begin[g]; }

  void AddTo(Layout* layout) {
    if (groups == 1) return;
    layout->Add(&hash, n);
    layout->Add(&starts, blocks() * (kStripes + 1));
    layout->Add(&sorted, n);
  }

  const int64_t& Key(uint64_t i) const {
    return i < n_head ? head[i] : tail[i - n_head];
  }

  // Calls visit(run, n) for the runs of stripe s, in batch order.
  template <typename Visit>
  void ForEachRun(int s, const Visit& visit) const {
    for (uint64_t b = 0; b < blocks(); ++b) {
      const uint32_t* start = starts + b * (kStripes + 1) + s;
      visit(sorted + start[0], start[1] - start[0]);
    }
  }

  // Calls visit(occurrence) for the occurrences of group g, in batch order.
  template <typename Visit>
  void ForEachOccurrence(int g, const Visit& visit) const {
    if (groups == 1) {
      uint32_t index = 0;
      const auto visit_all = [&](const int64_t* keys, uint64_t n_keys) {
        for (const int64_t* end = keys + n_keys; keys < end; ++keys) {
          const int64_t key = ReadOnce(*keys);
          visit({key, index++, CellHash(HashKey(key))});
        }
      };
      visit_all(head, n_head);
      visit_all(tail, n - n_head);
      return;
    }
    ForEachRun(g, [&](const Occurrence* one, uint32_t m) {
      for (const Occurrence* stop = one + m; one < stop; ++one) visit(*one);
    });
  }

  // The distinct keys of a group and their occurrences.
  struct Distinct {
    int64_t* keys;      // (unique), in order of first occurrence
    uint32_t* id;       // (n) the position in keys of each occurrence's key
    uint32_t* grouped;  // (n) occurrences by distinct key, in batch order
    uint32_t* end;      // (unique) end of each key's occurrences in grouped

    // The arrays without their first n elements.
    Distinct From(uint32_t n) const {
      return {keys + n, id + n, grouped + n, end + n};
    }
  };
  // After EndSort, before Deduplicate.
  void AddCellsTo(Layout* layout);
  // Fills `out` for group g and returns the number of distinct keys.
  uint32_t Deduplicate(int g, const Distinct& out) const;

  // With a group a stripe, each block is sorted before EndSort. Otherwise there
  // is nothing to sort.
  void SortBlock(uint64_t block);
  // Sets `begin`.
  void EndSort();
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_KEY_PARTITION_H_
