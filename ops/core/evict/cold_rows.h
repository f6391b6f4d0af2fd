// SPDX-License-Identifier: Apache-2.0
// ColdRows: the coldest of some rows of a table.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_COLD_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_COLD_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "ops/core/base/scratch.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/stripes/held_keys.h"

namespace rec_estimator {

// Used by one thread, which holds the locks of the rows' stripes.
class ColdRows {
 public:
  // The coldest row has the least warmth; among equals, the least hash.
  struct Row {
    uint64_t warmth;
    EntryRef entry;
    bool operator<(const Row& other) const { return warmth < other.warmth; }
  };

  // For this many rows, in memory of earlier ones (scratch.h).
  // Throws std::bad_alloc.
  explicit ColdRows(size_t most);

  size_t size() const { return size_; }
  bool is_full() const { return size_ == most_; }
  const Row* begin() const { return rows_; }
  const Row* end() const { return rows_ + size_; }

  // It is not full.
  void Add(uint64_t warmth, EntryRef entry) {
    rows_[size_++] = {warmth, entry};
  }
  // Removes all but the n coldest, wherever they are in the index.
  void KeepColdest(size_t n);
  // Removes the rows of these keys.
  void Remove(const HeldKeys& held);

 private:
  // Removes most of those that are warmer than the n coldest.
  void RemoveMost(size_t n);
  // Moves the n coldest of more than n rows to the front.
  void ChooseAmongEquals(size_t n);

  const size_t most_;
  size_t size_ = 0;
  Row* rows_ = nullptr;         // (most_)
  uint64_t* sample_ = nullptr;  // The warmth of some rows.
  Scratch scratch_;             // Owns these.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_COLD_ROWS_H_
