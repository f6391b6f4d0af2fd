// SPDX-License-Identifier: Apache-2.0
// The 64 stripes of one table: which key is where, and locks on several
// stripes.
#ifndef REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_SET_H_
#define REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_SET_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/base/shared_mutex.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/stripes/stripe.h"

namespace rec_estimator {

// Keys that are read under one set of locks. Their lookups cost far more than
// 64 locks, and an apply waits no longer than these lookups take.
inline constexpr size_t kLockBlock = 4096;

class StripeSet {
 public:
  // `store` outlives this.
  StripeSet(RowStore* store, const FilterSpec& filter, const RowRules& rules);
  StripeSet(const StripeSet&) = delete;
  StripeSet& operator=(const StripeSet&) = delete;

  Stripe& operator[](int s) { return stripes_[s]; }
  const Stripe& operator[](int s) const { return stripes_[s]; }
  auto begin() { return stripes_.begin(); }
  auto end() { return stripes_.end(); }
  auto begin() const { return stripes_.begin(); }
  auto end() const { return stripes_.end(); }
  Stripe& Of(int64_t key) { return stripes_[StripeOf(MixKey(key))]; }
  const Stripe& Of(int64_t key) const {
    return stripes_[StripeOf(MixKey(key))];
  }
  Bucket* Home(int64_t key) const { return Of(key).index().Home(HashKey(key)); }

  // Counts the keys without an entry. nullptr: every counted key has an entry.
  const Sketch* sketch() const { return sketch_.get(); }
  Sketch* mutable_sketch() { return sketch_.get(); }

  // Whether a key is padding, which owns nothing.
  bool IsPadding(int64_t key) const {
    return key == kPaddingKey && padding_stripe_ >= 0;
  }
  // The stripe that padding would be in; -1 if the table has no padding.
  int padding_stripe() const { return padding_stripe_; }
  // The stripes that frozen keys are in.
  uint64_t frozen_stripes() const { return frozen_stripes_; }

  int64_t n_rows() const {
    int64_t rows = 0;
    for (const Stripe& stripe : stripes_) rows += stripe.rows();
    return rows;
  }

  int64_t removed_rows() const {
    int64_t rows = 0;
    for (const Stripe& stripe : stripes_) rows += stripe.removed_rows();
    return rows;
  }

  // Occurrences of keys in steps, and of those whose key had a row before its
  // step. No lock.
  void AddLookedUp(int64_t looked_up, int64_t found) {
    looked_up_.fetch_add(looked_up, std::memory_order_relaxed);
    found_.fetch_add(found, std::memory_order_relaxed);
  }
  int64_t looked_up() const { return looked_up_; }
  int64_t found() const { return found_; }

  // Locks in ascending order, which every caller that holds several locks keeps
  // to. Unlock with the same mask.
  void LockShared(uint64_t mask) const {
    PrefetchLocks(mask);
    for (; mask != 0; mask &= mask - 1) {
      stripes_[__builtin_ctzll(mask)].mutex().lock_shared();
    }
  }
  void UnlockShared(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      stripes_[__builtin_ctzll(mask)].mutex().unlock_shared();
    }
  }

  // Whether changes are recorded for incremental saves. Read under a lock.
  bool tracks_changes() const { return tracks_changes_; }
  void set_tracks_changes(bool tracks) { tracks_changes_ = tracks; }
  // Taken before the lock of a stripe, or while shared locks are held. Guards
  // the change marks and the lists of erased keys against others that hold
  // shared locks.
  std::mutex& save_mutex() const { return save_mutex_; }

  // Finds keys (n), whose stripes are locked. Calls visit(i, entry) in order.
  // visit must not make an index grow.
  template <typename Visit>
  void FindEach(const int64_t* keys, uint32_t n, const Visit& visit) const;
  // Calls visit(i, entry) for keys (n) under shared locks.
  template <typename Visit>
  void Inspect(const int64_t* keys, size_t n, const Visit& visit) const;
  // Does the same for keys whose stripes are locked.
  template <typename Visit>
  void InspectLocked(const int64_t* keys, size_t n, const Visit& visit) const;
  // Calls visit(&stripe, i) for keys (n) under the exclusive lock of the
  // stripe, stripe by stripe.
  template <typename Visit>
  void VisitExclusively(const int64_t* keys, size_t n, const Visit& visit);

  // Fetches what a thread that locks these stripes waits for otherwise, one
  // line after the other: the locks, and where the buckets are.
  void PrefetchLocks(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      const Stripe& stripe = stripes_[__builtin_ctzll(mask)];
      PrefetchLineToWrite(&stripe.mutex());
      PrefetchLine(&stripe.index());
    }
  }

 private:
  int padding_stripe_ = -1;
  uint64_t frozen_stripes_ = 0;
  std::atomic<bool> tracks_changes_{false};
  mutable std::mutex save_mutex_;
  std::unique_ptr<Sketch> sketch_;
  std::atomic<int64_t> looked_up_{0}, found_{0};
  std::array<Stripe, kStripes> stripes_;
};

// Holds shared locks on some stripes.
class SharedLocks {
 public:
  SharedLocks(const StripeSet& stripes, uint64_t mask)
      : stripes_(stripes), mask_(mask) {
    stripes_.LockShared(mask_);
  }
  ~SharedLocks() { stripes_.UnlockShared(mask_); }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;

 private:
  const StripeSet& stripes_;
  const uint64_t mask_;
};

// Holds exclusive locks on some stripes.
class ExclusiveLocks {
 public:
  ExclusiveLocks(const StripeSet& stripes, uint64_t mask)
      : stripes_(stripes), mask_(mask) {
    stripes_.PrefetchLocks(mask);
    for (; mask != 0; mask &= mask - 1) {
      stripes_[__builtin_ctzll(mask)].mutex().lock();
    }
  }
  // Takes all of them, or none if one is not free.
  ExclusiveLocks(const StripeSet& stripes, uint64_t mask, std::try_to_lock_t)
      : stripes_(stripes), mask_(0), owns_all_(true) {
    stripes_.PrefetchLocks(mask);
    for (; mask != 0; mask &= mask - 1) {
      owns_all_ = stripes_[__builtin_ctzll(mask)].mutex().try_lock();
      if (!owns_all_) {
        Unlock();
        return;
      }
      mask_ |= mask & -mask;
    }
  }
  ~ExclusiveLocks() { Unlock(); }
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;

  bool owns_all() const { return owns_all_; }

 private:
  void Unlock() {
    for (; mask_ != 0; mask_ &= mask_ - 1) {
      stripes_[__builtin_ctzll(mask_)].mutex().unlock();
    }
  }

  const StripeSet& stripes_;
  uint64_t mask_;  // The locks that are held.
  bool owns_all_ = true;
};

template <typename Visit>
void StripeSet::FindEach(const int64_t* keys, uint32_t n,
                         const Visit& visit) const {
  Bucket* homes[2][kChunk];
  const auto fetch = [&](uint32_t at, Bucket** to) {
    const uint32_t end = std::min<uint32_t>(n, at + kChunk);
    for (; at < end; ++at, ++to) {
      *to = Home(keys[at]);
      PrefetchLine(*to);
    }
  };
  EntryRef entries[kChunk];
  uint8_t beyond[kChunk];
  fetch(0, homes[0]);
  int turn = 0;
  for (uint32_t at = 0; at < n; at += kChunk, turn ^= 1) {
    if (n - at > kChunk) fetch(at + kChunk, homes[turn ^ 1]);
    const uint32_t size = std::min<uint32_t>(n - at, kChunk);
    size_t n_beyond = 0;
    for (uint32_t i = 0; i < size; ++i) {
      if (!HashIndex::FindAtHome<PortableMatch>(homes[turn][i], keys[at + i],
                                                &entries[i])) {
        beyond[n_beyond++] = static_cast<uint8_t>(i);
      }
    }
    for (size_t b = 0; b < n_beyond; ++b) {
      const uint32_t i = beyond[b];
      entries[i] =
          Of(keys[at + i]).index().FindBeyond(homes[turn][i], keys[at + i]);
    }
    for (uint32_t i = 0; i < size; ++i) visit(at + i, entries[i]);
  }
}

template <typename Visit>
void StripeSet::Inspect(const int64_t* keys, size_t n,
                        const Visit& visit) const {
  for (size_t at = 0; at < n; at += kLockBlock) {
    const size_t size = std::min(kLockBlock, n - at);
    const SharedLocks locks(*this, StripesOf(keys + at, size));
    InspectLocked(keys + at, size,
                  [&](size_t i, EntryRef entry) { visit(at + i, entry); });
  }
}

template <typename Visit>
void StripeSet::InspectLocked(const int64_t* keys, size_t n,
                              const Visit& visit) const {
  for (size_t at = 0; at < n; at += kChunk) {
    const size_t end = std::min(n, at + kChunk);
    Bucket* homes[kChunk];
    for (size_t i = at; i < end; ++i) {
      homes[i - at] = Home(keys[i]);
      PrefetchLines(homes[i - at], sizeof(Bucket));
    }
    for (size_t i = at; i < end; ++i) {
      visit(i, Of(keys[i]).index().Find(homes[i - at], keys[i]));
    }
  }
}

template <typename Visit>
void StripeSet::VisitExclusively(const int64_t* keys, size_t n,
                                 const Visit& visit) {
  for (size_t at = 0; at < n; at += kLockBlock) {
    // A counting sort of the block by stripe.
    const size_t size = std::min(kLockBlock, n - at);
    std::array<uint32_t, kStripes + 1> start{};
    uint8_t stripe_of[kLockBlock];
    uint16_t order[kLockBlock];
    for (size_t i = 0; i < size; ++i) {
      stripe_of[i] = static_cast<uint8_t>(StripeOf(MixKey(keys[at + i])));
      ++start[stripe_of[i] + 1];
    }
    for (int s = 0; s < kStripes; ++s) start[s + 1] += start[s];
    std::array<uint32_t, kStripes + 1> next = start;
    for (size_t i = 0; i < size; ++i) {
      order[next[stripe_of[i]]++] = static_cast<uint16_t>(i);
    }
    for (int s = 0; s < kStripes; ++s) {
      if (start[s] == start[s + 1]) continue;
      const std::unique_lock<SharedMutex> lock(stripes_[s].mutex());
      for (uint32_t o = start[s]; o < start[s + 1]; ++o) {
        visit(&stripes_[s], at + order[o]);
      }
    }
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STRIPES_STRIPE_SET_H_
