// SPDX-License-Identifier: Apache-2.0
// The keys of running steps, whose rows are neither evicted nor spilled.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_HELD_KEYS_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_HELD_KEYS_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ops/core/base/key_hash.h"

namespace rec_estimator {

// Keys whose rows stay in memory while their holder is one of KeyHolders.
class KeyHolder {
 public:
  struct Keys {
    const int64_t* keys;
    uint32_t n;
  };
  // Keys among which are all that the holder has in this stripe. Called by
  // other threads. A holder that lists its keys later does so before it locks
  // the stripe.
  virtual Keys KeysIn(int stripe) const = 0;

 protected:
  ~KeyHolder() = default;
};

// A set of keys. A bit tells most keys that are not in it.
class HeldKeys {
 public:
  // Throws std::bad_alloc.
  explicit HeldKeys(std::vector<int64_t> keys);
  size_t size() const { return keys_.size(); }
  bool Contains(int64_t key) const;

 private:
  static constexpr size_t kBits = size_t{1} << 14;
  static size_t BitOf(int64_t key) { return HashKey(key) % kBits; }
  std::vector<int64_t> keys_;  // Ascending.
  std::bitset<kBits> bits_;
};

// All that holds keys of a table.
//
// Thread rule: any thread may call any method at any time.
class KeyHolders {
 public:
  // Throws std::bad_alloc.
  void Add(const KeyHolder* holder);
  void Remove(const KeyHolder* holder);
  // The held keys of stripes, which are locked. Throws std::bad_alloc.
  HeldKeys KeysIn(uint64_t stripes) const;

 private:
  mutable std::mutex mutex_;
  std::vector<const KeyHolder*> holders_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_HELD_KEYS_H_
