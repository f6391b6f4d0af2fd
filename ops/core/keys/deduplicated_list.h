// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a list: found once, for all tables that read the list
// and for the training step that follows.
#ifndef REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATED_LIST_H_
#define REC_ESTIMATOR_OPS_CORE_KEYS_DEDUPLICATED_LIST_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/core/base/parallel.h"

namespace rec_estimator {

class GroupedKeys;

// A list of keys with its distinct keys. Immutable, so threads can share it.
class DeduplicatedList {
 public:
  // The hash table of so many keys, and their rows, are in the caches of a
  // core. The distinct keys of a longer list are in groups.
  static constexpr size_t kShort = 8192;

  // Deduplicates keys (n), n < kMaxBatch, which outlive the object. Throws
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

  // Only for a short list: (size()), in order of first occurrence.
  const int64_t* distinct() const { return distinct_.get(); }
  // Only for a short list: (n()) the position of each key in distinct().
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
