// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a list: found once, for all tables that read the list
// and for the training step that follows.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATED_LIST_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATED_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/parallel.h"

namespace rec_estimator {

class GroupedKeys;

// Numbers the distinct keys of a list in order of first occurrence. Short-lived
// and on the stack.
class DistinctKeys {
 public:
  // The hash table of so many keys, and their rows, are in the caches of a
  // core.
  static constexpr size_t kMost = 8192;

  // For a list of n <= kMost keys. `keys` (n + 1) and `position` (n) get the
  // result.
  DistinctKeys(size_t n, int64_t* keys, uint16_t* position)
      : keys_(keys), position_(position) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    mask_ = static_cast<uint32_t>(slots - 1);
    std::fill(slots_, slots_ + slots, uint16_t{0});
  }
  DistinctKeys(const DistinctKeys&) = delete;
  DistinctKeys& operator=(const DistinctKeys&) = delete;

  // Adds keys (n). Whether a key is new is as unpredictable as the keys, so
  // nothing branches on it.
  void Add(const int64_t* keys, size_t n) {
    uint32_t unique = size_;
    uint64_t stripes = stripes_;
    for (size_t i = 0; i < n; ++i) {
      const int64_t key = keys[i];
      const uint64_t mixed = MixKey(key);
      stripes |= uint64_t{1} << StripeOf(mixed);
      keys_[unique] = key;
      uint32_t slot = static_cast<uint32_t>(mixed >> kStripeBits) & mask_;
      for (;; slot = (slot + 1) & mask_) {
        const uint32_t used = slots_[slot];  // 1 + position in keys_.
        const uint32_t is_new = used == 0;
        const uint32_t u = used - 1 + (-is_new & (unique + 1));
        if (keys_[u] != key) continue;
        slots_[slot] = static_cast<uint16_t>(u + 1);
        position_[added_++] = static_cast<uint16_t>(u);
        unique += is_new;
        break;
      }
    }
    size_ = unique;
    stripes_ = stripes;
  }

  uint32_t size() const { return size_; }
  // Bit s: a key is in stripe s.
  uint64_t stripes() const { return stripes_; }

 private:
  int64_t* const keys_;
  uint16_t* const position_;
  uint32_t mask_;
  uint32_t size_ = 0;
  size_t added_ = 0;
  uint64_t stripes_ = 0;
  uint16_t slots_[2 * kMost];
};

// A list of keys with its distinct keys. Immutable, so threads can share it.
class DeduplicatedList {
 public:
  // The distinct keys of a longer list are in groups.
  static constexpr size_t kShort = DistinctKeys::kMost;

  // Of keys (n), n < kMaxBatch, which outlive the object. Throws
  // std::bad_alloc.
  DeduplicatedList(const int64_t* keys, size_t n, const ParallelFor& parallel);
  ~DeduplicatedList();
  DeduplicatedList(const DeduplicatedList&) = delete;
  DeduplicatedList& operator=(const DeduplicatedList&) = delete;

  // Whether it is the list of these keys (n), in the same memory.
  bool IsOf(const int64_t* keys, size_t n) const {
    return keys == keys_ && n == n_;
  }
  const int64_t* keys() const { return keys_; }  // (n())
  size_t n() const { return n_; }
  uint32_t size() const { return size_; }  // Distinct keys.
  // Bit s: a key is in stripe s, or the list is long.
  uint64_t stripes() const { return stripes_; }

  // Those of a long list; nullptr: the list is short.
  const GroupedKeys* groups() const { return groups_.get(); }

  // Of a short list: (size()), in order of first occurrence.
  const int64_t* distinct() const { return distinct_.get(); }
  // Of a short list: (n()) the position of each key in distinct().
  const uint16_t* position() const { return position_.get(); }

 private:
  const int64_t* const keys_;
  const size_t n_;
  uint32_t size_;
  uint64_t stripes_;
  std::unique_ptr<const GroupedKeys> groups_;
  std::unique_ptr<int64_t[]> distinct_;
  std::unique_ptr<uint16_t[]> position_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATED_LIST_H_
