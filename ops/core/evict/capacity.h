// SPDX-License-Identifier: Apache-2.0
// Capacity: a table that is full takes away its coldest rows.
//
// At the end of a step, a table that has more rows than it may looks at a
// window of its rows, and evicts the coldest of them, an eighth at most. The
// keys of a window are as random as their hashes, so this is close to the
// coldest rows of the table. The next window begins where this one ended.
//
//   a large table   a window is a part of one stripe, locked alone
//   a small table   a window is several stripes, or all of them
//
// So a step pays for the rows that it has added, and no step pays for a scan of
// the table. Rows on disk are evicted without being read.
//
// A table may also share memory with others (memory_budget.h), beside such a
// limit or instead of it. Its part of what they take too much is often a few
// rows. Then windows are as much smaller, so that no more rows are evicted.
#ifndef REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_
#define REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/evict/memory_budget.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/stripes/stripe_set.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {

// Thread rule: any thread may call any method at any time. No lock is held.
class Capacity {
 public:
  // stripes and store outlive the object. budget: nullptr if the table shares
  // no memory; then spec.max_rows >= 1. Throws std::bad_alloc.
  Capacity(const CapacitySpec& spec, StripeSet* stripes, RowStore* store,
           std::shared_ptr<MemoryBudget> budget);
  ~Capacity();
  Capacity(const Capacity&) = delete;
  Capacity& operator=(const Capacity&) = delete;

  // The rows of a holder's keys are not evicted until it is released.
  void Hold(const KeyHolder* holder);
  void Release(const KeyHolder* holder);

  // nullptr: the table shares no memory.
  const MemoryBudget* budget() const { return budget_.get(); }

  // Evicts `shared` rows, for the budget, and until the table has at most
  // max_rows, or has no rows but held ones, or until the rows of a few windows
  // and twice `occurrences` rows are gone. A step adds no more rows than it has
  // occurrences, so a table that was restored too large shrinks by and by. now:
  // the version of the step. Does nothing if another thread evicts.
  void Trim(int64_t occurrences, int64_t shared, int64_t now);

 private:
  // What is evicted first has the least warmth.
  struct Cold {
    uint64_t warmth;
    EntryRef entry;
    bool operator<(const Cold& other) const { return warmth < other.warmth; }
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

  uint64_t WarmthOf(EntryRef entry, int64_t now) const;
  // Takes all but the n coldest rows out of window_.
  void KeepColdest(int64_t n);
  // Takes the rows of entries (n) away, which are in these stripes.
  void Evict(const Cold* colds, int64_t n, int64_t now);
  // The rows that are looked at together.
  struct WindowSize {
    int stripes;         // A power of two, so that it divides kStripes.
    int64_t rows;        // At most, if it is a part of one stripe.
    int64_t least_part;  // At least such a part of them is evicted.
  };
  WindowSize WindowOfLimit() const;
  WindowSize WindowOfBudget(int64_t excess) const;
  // Evicts the coldest rows of the next window and returns how many. excess:
  // the rows that the table has too many. Throws std::bad_alloc.
  int64_t EvictFromWindow(const WindowSize& size, int64_t excess, int64_t now);
  // Gives the memory of free rows back, if it is much.
  void GiveBack(int64_t occurrences);
  // The held keys of stripes. Throws std::bad_alloc.
  HeldKeys HeldIn(uint64_t stripes) const;

  const CapacitySpec spec_;
  StripeSet& stripes_;
  RowStore& store_;
  const std::shared_ptr<MemoryBudget> budget_;
  std::mutex trimming_;  // Guards what follows. Taken before other locks.
  int next_ = 0;         // A stripe of the next window.
  std::array<uint64_t, kStripes> hand_{};  // Where its scan begins.
  std::vector<Cold> window_;
  std::vector<uint64_t> sample_;  // The warmth of some of these.
  mutable std::mutex holders_mutex_;
  std::vector<const KeyHolder*> holders_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EVICT_CAPACITY_H_
