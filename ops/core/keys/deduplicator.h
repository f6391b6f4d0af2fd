// SPDX-License-Identifier: Apache-2.0
// Deduplicator: numbers distinct keys in order of first occurrence.
//
//   keys added   7  9  7  0  9  7
//   numbers      0  1  0  2  1  0      distinct keys   7  9  0
//
// It is a hash table with linear probing. A cell contains 1 + the number of a
// key, or 0 if it is empty. Whether a key is new is as unpredictable as the
// keys, so no branch depends on it: a key is written behind the distinct keys
// before it is searched, and an empty cell counts as the cell of that position.
// The only branch is the search's, which mostly ends at the first cell.
//
// The caller provides the memory: the stack for a short list, scratch memory
// for a long one.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATOR_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"

namespace rec_estimator {

// Chooses the cell of a key, of which HashKey returned `hash`.
inline uint32_t CellHash(uint64_t hash) { return static_cast<uint32_t>(hash); }

// Cell: an unsigned integer that can count the keys.
template <typename Cell>
class Deduplicator {
 public:
  static constexpr size_t kMostKeys = std::numeric_limits<Cell>::max();

  // The cells for n keys: a power of two, at least 2 n.
  static constexpr size_t CellsFor(size_t n) {
    size_t cells = 16;
    while (cells < 2 * n) cells *= 2;
    return cells;
  }

  // For at most n keys. cells (CellsFor(n)), distinct (n): outlive the object.
  Deduplicator(size_t n, Cell* cells, int64_t* distinct)
      : cells_(cells),
        mask_(static_cast<uint32_t>(CellsFor(n) - 1)),
        distinct_(distinct) {
    std::fill(cells, cells + mask_ + 1, Cell{0});
  }
  Deduplicator(const Deduplicator&) = delete;
  Deduplicator& operator=(const Deduplicator&) = delete;

  // Returns the number of a key. hash: CellHash, or at least its lowest bits.
  uint32_t Add(int64_t key, uint32_t hash) {
    distinct_[size_] = key;
    for (uint32_t cell = hash & mask_;; cell = (cell + 1) & mask_) {
      const uint32_t used = cells_[cell];
      const uint32_t is_new = used == 0;
      const uint32_t number = used - 1 + (-is_new & (size_ + 1));
      if (distinct_[number] != key) continue;
      cells_[cell] = static_cast<Cell>(number + 1);
      size_ += is_new;
      return number;
    }
  }

  // Fetches the cell where the search for a key begins.
  void Prefetch(uint32_t hash) const { PrefetchLine(cells_ + (hash & mask_)); }

  uint32_t size() const { return size_; }  // Distinct keys so far.

 private:
  Cell* const cells_;
  const uint32_t mask_;
  int64_t* const distinct_;
  uint32_t size_ = 0;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATOR_H_
