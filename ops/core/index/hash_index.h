// SPDX-License-Identifier: Apache-2.0
// The index of one stripe: key -> row, count, version. Open addressing over
// buckets of two cache lines (bucket.h).
//
// `used` says which entries of a bucket are taken, so every int64 is a legal
// key. A key whose home bucket is full goes to the next bucket with room, and
// the counter `overflow` of each bucket it passes is incremented. A search for
// an absent key therefore stops where the counter is 0, and erasing needs no
// tombstones (the idea is F14's, Facebook 2019).
//
// An index grows to 1.3 times its buckets when 85 % of its entries are taken.
// Both arrays are then read and written in sequence. The 64 stripes of a table
// grow at 64 different sizes, so memory grows steadily, and one growth stops a
// 64th of the table at most.
#ifndef REC_ESTIMATOR_OPS_CORE_INDEX_HASH_INDEX_H_
#define REC_ESTIMATOR_OPS_CORE_INDEX_HASH_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/bucket.h"
#include "ops/core/index/key_match.h"

namespace rec_estimator {

// Thread rule: const methods need the stripe's lock, shared at least; all
// others need it exclusively.
class HashIndex {
 public:
  // Row word of a key that is counted but owns no row.
  static constexpr uint32_t kNoRow = 0xFFFFFFFFu;
  // Set in the row words of rows on disk, together with their place
  // (disk_tier.h).
  static constexpr uint32_t kSpilled = 0x80000000u;
  static constexpr uint64_t kMaxRows = uint64_t{1} << 31;

  // Refers to an entry: a pointer to its bucket, with the number of the entry
  // in the low bits. Valid until the index grows.
  class EntryRef {
   public:
    EntryRef() : word_(0) {}
    EntryRef(Bucket* bucket, int entry)
        : word_(reinterpret_cast<uintptr_t>(bucket) |
                static_cast<uintptr_t>(entry)) {}
    bool found() const { return word_ != 0; }
    Bucket* bucket() const {
      return reinterpret_cast<Bucket*>(word_ & ~uintptr_t{kCacheLine - 1});
    }
    int entry() const { return static_cast<int>(word_ & (kCacheLine - 1)); }
    int64_t key() const { return bucket()->key[entry()]; }
    uint32_t& row() const { return bucket()->row[entry()]; }
    bool has_row() const { return row() != kNoRow; }
    // Whether it has a row in memory, or one on disk at place().
    bool in_memory() const { return row() < kMaxRows; }
    bool is_spilled() const { return !in_memory() && has_row(); }
    uint32_t place() const { return row() & ~kSpilled; }
    void SetPlace(uint32_t place) const { row() = place | kSpilled; }
    uint32_t& count() const { return bucket()->count[entry()]; }
    int64_t& version() const { return bucket()->version[entry()]; }
    void MarkChanged() const { bucket()->changes |= 1u << entry(); }
    bool changed() const {  // Also while it is pending.
      return (bucket()->changes & (kChangedAndPending << entry())) != 0;
    }
    // Copies all but the key to `other`.
    void CopyTo(const EntryRef& other) const {
      other.row() = row();
      other.count() = count();
      other.version() = version();
      const uint32_t bits = bucket()->changes >> entry() & kChangedAndPending;
      other.bucket()->changes |= bits << other.entry();
    }

   private:
    static constexpr uint32_t kChangedAndPending = 1u | 1u << Bucket::kEntries;

    uintptr_t word_;
  };

  // The row word of what Find has returned: kNoRow if it is no entry.
  static uint32_t RowWordOf(EntryRef entry) {
    return entry.found() ? entry.row() : kNoRow;
  }

  HashIndex() { SetEmpty(); }
  HashIndex(const HashIndex&) = delete;
  HashIndex& operator=(const HashIndex&) = delete;

  // The bucket in which the search for a key begins. hash: HashKey of the key.
  Bucket* Home(uint64_t hash) const {
    return buckets_ + FastRange(hash, n_buckets_);
  }

  // The entry of `key`, whose home is `home`.
  EntryRef Find(Bucket* home, int64_t key) const {
    EntryRef entry;
    if (!FindAtHome<PortableMatch>(home, key, &entry))
      entry = FindBeyond(home, key);
    return entry;
  }

  // The first step of Find. If false, *entry is not known yet: FindBeyond finds
  // it, and the line that it needs is mostly being prefetched.
  template <typename Match>
  static inline __attribute__((always_inline)) bool FindAtHome(
      Bucket* home, int64_t key, EntryRef* entry) {
    const uint32_t match = Match::Key(home, key);
    if (match != 0) {
      *entry = EntryRef(home, __builtin_ctz(match));
      return true;
    }
    if (home->overflow == 0) {
      *entry = EntryRef();
      return true;
    }
    PrefetchLine(home + 1);
    return false;
  }
  EntryRef FindBeyond(Bucket* home, int64_t key) const {
    // Stops at `home`: all counters of a small or saturated index may be above
    // 0.
    for (Bucket* bucket = Next(home); bucket != home; bucket = Next(bucket)) {
      const uint32_t match = PortableMatch::Key(bucket, key);
      if (match != 0) return EntryRef(bucket, __builtin_ctz(match));
      if (bucket->overflow == 0) break;
    }
    return EntryRef();
  }

  // Adds a key that is absent, with no row, count 0, version -1 and not marked
  // as changed. The caller keeps the number of keys within capacity().
  EntryRef Insert(Bucket* home, int64_t key);

  // Removes the entry that Find(home, key) found. It leaves no tombstone: the
  // overflow counters tell a later Find where to stop.
  void Erase(Bucket* home, EntryRef entry);

  // Makes room for `keys` keys. Entries move. `stagger` in [0, 1) shifts the
  // sizes at which this index grows against those of its siblings. Returns
  // false and changes nothing if there is no memory.
  bool Reserve(uint64_t keys, double stagger);

  // Removes all keys and frees the memory.
  void Clear();

  // Keys that fit without growing: 85 % of the entries.
  uint64_t capacity() const { return capacity_; }
  size_t bytes() const { return BytesOf(memory_); }

  // All buckets; an empty one if there is no key yet.
  const Bucket* begin() const { return buckets_; }
  const Bucket* end() const { return buckets_ + n_buckets_; }

  // Calls visit(entry) for every key; visit may erase it.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (capacity_ == 0) return;
    for (Bucket* bucket = buckets_; bucket != buckets_ + n_buckets_; ++bucket) {
      for (uint32_t used = bucket->used; used != 0; used &= used - 1) {
        visit(EntryRef(bucket, __builtin_ctz(used)));
      }
    }
  }

  // Visits entries like ForEach, each once, but begins at bucket *hand and ends
  // if visit returns false. Sets *hand to the bucket to go on with.
  template <typename Visit>
  void ScanFrom(uint64_t* hand, const Visit& visit) const {
    if (capacity_ == 0) return;
    uint64_t at = *hand % n_buckets_;
    for (uint64_t scanned = 0; scanned < n_buckets_; ++scanned) {
      Bucket* const bucket = buckets_ + at;
      *hand = at = at + 1 == n_buckets_ ? 0 : at + 1;
      for (uint32_t used = bucket->used; used != 0; used &= used - 1) {
        if (!visit(EntryRef(bucket, __builtin_ctz(used)))) return;
      }
    }
  }

  // Calls visit(bucket, entry, number) for every key whose class is in the
  // range, where number is its class minus range.begin. only_changed: leaves
  // out entries that did not change since the last save. A save calls this many
  // times, each time for other classes.
  template <typename Visit>
  void ForEachInRange(const KeyClassRange& range, bool only_changed,
                      const Visit& visit) const {
    WithFastestMatch([&](auto match) __attribute__((always_inline)) {
      ForEachMatch<decltype(match)>(range, only_changed, visit);
    });
  }

  // For every key: the change mark becomes a pending mark.
  void MarkPending();
  // Clears the pending mark of every key.
  void ForgetPending();

 private:
  Bucket* Next(Bucket* bucket) const {
    return ++bucket == buckets_ + n_buckets_ ? buckets_ : bucket;
  }

  template <typename Match, typename Visit>
  inline __attribute__((always_inline)) void ForEachMatch(
      KeyClassRange range, bool only_changed, const Visit& visit) const;

  void SetEmpty();

  Bucket* buckets_;  // Never null: all empty indexes share one bucket.
  uint64_t n_buckets_;
  uint64_t capacity_;    // 0: buckets_ is the shared bucket.
  ZeroedMemory memory_;  // Owns buckets_; null if that is the shared bucket.
};

using EntryRef = HashIndex::EntryRef;

template <typename Match, typename Visit>
inline __attribute__((always_inline)) void HashIndex::ForEachMatch(
    KeyClassRange range, bool only_changed, const Visit& visit) const {
  // Beyond the ends of pages of 4 KiB, where the CPU does not prefetch.
  constexpr size_t kBucketsAhead = 32;
  KeyClassRange::Numbers numbers;
  for (const Bucket* bucket = begin(); bucket != end(); ++bucket) {
    PrefetchLine(bucket + kBucketsAhead);
    // Without a jump for each key: most are of other classes.
    uint32_t matches = Match::Classes(bucket, range, &numbers);
    if (matches == 0) continue;
    matches &= bucket->used;
    if (only_changed) {
      matches &= bucket->changes | bucket->changes >> Bucket::kEntries;
    }
    for (; matches != 0; matches &= matches - 1) {
      const int e = __builtin_ctz(matches);
      visit(*bucket, e, numbers.of(e));
    }
  }
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_INDEX_HASH_INDEX_H_
