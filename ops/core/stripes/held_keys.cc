// SPDX-License-Identifier: Apache-2.0
#include "ops/core/stripes/held_keys.h"

#include <algorithm>

namespace rec_estimator {

HeldKeys::HeldKeys(const std::vector<int64_t>& keys)
    : keys_(2 * keys.size() + 1, kNone) {
  for (const int64_t key : keys) {
    if (Contains(key)) continue;
    ++size_;
    if (key == kNone) {
      has_none_ = true;
    } else {
      keys_[static_cast<size_t>(Find(key) - keys_.data())] = key;
    }
  }
}

void KeyHolders::Add(const KeyHolder* holder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  holders_.push_back(holder);
}

void KeyHolders::Remove(const KeyHolder* holder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find(holders_.begin(), holders_.end(), holder);
  if (at != holders_.end()) holders_.erase(at);
}

HeldKeys KeyHolders::KeysIn(uint64_t stripes) const {
  std::vector<int64_t> held;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const KeyHolder* holder : holders_) {
    const int64_t* last = nullptr;
    for (uint64_t rest = stripes; rest != 0; rest &= rest - 1) {
      const KeyHolder::Keys keys = holder->KeysIn(__builtin_ctzll(rest));
      // A small step has one list for all stripes.
      if (keys.keys == last || keys.n == 0) continue;
      last = keys.keys;
      for (uint32_t i = 0; i < keys.n; ++i) {
        const int stripe = StripeOf(MixKey(keys.keys[i]));
        if (stripes >> stripe & 1) held.push_back(keys.keys[i]);
      }
    }
  }
  return HeldKeys(held);
}

}  // namespace rec_estimator
