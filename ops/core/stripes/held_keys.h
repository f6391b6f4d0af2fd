// SPDX-License-Identifier: Apache-2.0
// The keys of running steps, whose rows are neither evicted nor spilled.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_HELD_KEYS_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_HELD_KEYS_H_

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

// A set of keys, in a hash table that is at most half full.
class HeldKeys {
 public:
  // Throws std::bad_alloc.
  explicit HeldKeys(const std::vector<int64_t>& keys);
  size_t size() const { return size_; }
  bool Contains(int64_t key) const {
    return key == kNone ? has_none_ : *Find(key) == key;
  }

 private:
  static constexpr int64_t kNone = INT64_MIN;  // Where no key is.
  // Where the key is, or would be.
  const int64_t* Find(int64_t key) const {
    size_t at = FastRange(HashKey(key), keys_.size());
    while (keys_[at] != key && keys_[at] != kNone) {
      if (++at == keys_.size()) at = 0;
    }
    return &keys_[at];
  }

  std::vector<int64_t> keys_;
  size_t size_ = 0;
  bool has_none_ = false;  // Whether kNone is one of the keys.
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
