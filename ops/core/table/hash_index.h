// SPDX-License-Identifier: Apache-2.0
// One internal shard's index: key -> row, count, version. Open addressing over
// buckets of two cache lines; embedding_table.h says how it fits in.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_HASH_INDEX_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_HASH_INDEX_H_

#include <cstddef>
#include <cstdint>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {

// Mixes a key so that every bit of it moves every bit of the result. A
// bijection: two keys never share all 64 bits, so that any set of keys spreads.
// Source: "moremur", Pelle Evensen 2019, a tuned murmur3 finalizer.
inline uint64_t MixKey(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key);
  x ^= x >> 27;
  x *= 0x3C79AC492BA7B653u;
  x ^= x >> 33;
  x *= 0x1C69B3F74AC4AE35u;
  x ^= x >> 27;
  return x;
}

// Maps a hash onto [0, n) by its high bits, monotonically: any n will do, and a
// walk in bucket order is a walk in hash order.
// Source: D. Lemire, "Fast random integer generation in an interval", 2019.
inline uint64_t FastRange(uint64_t hash, uint64_t n) {
  __extension__ using Uint128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Uint128>(hash) * n) >> 64);
}

// a modulo m as Python has it: in [0, m) for negative a too. m >= 1.
inline int64_t FloorMod(int64_t a, int64_t m) {
  const int64_t r = a % m;
  return r < 0 ? r + m : r;
}

class HashIndex {
 public:
  static constexpr int kEntries = 5;  // What two cache lines hold.

  // Row word of a key that is counted but owns no row. The top bit of all
  // others is clear and kept for the tier a row lives in.
  static constexpr uint32_t kNoRow = 0xFFFFFFFFu;
  static constexpr uint64_t kMaxRows = uint64_t{1} << 31;

  struct alignas(kCacheLine) Bucket {
    // First line: all that a lookup reads.
    uint8_t used;      // Bit e: entry e holds a key.
    uint8_t overflow;  // Keys that hash here or before and live further on; 255
                       // means "255 or more" and is never counted down again.
    uint16_t spare;
    uint32_t row[kEntries];
    int64_t key[kEntries];
    // Second line: what only an apply, a save or an eviction needs.
    int64_t version[kEntries];  // global_step of the last apply; -1: never.
    uint32_t count[kEntries];   // What was counted; stays at 2^32 - 1.
    // For incremental saves: bit e, entry e changed since the last one; bit
    // kEntries + e, it changed before, but that save is not committed yet.
    uint32_t changes;
  };
  static_assert(sizeof(Bucket) == 2 * kCacheLine, "a bucket is two lines");
  static_assert(offsetof(Bucket, version) == kCacheLine, "metadata apart");

  // An entry, as a pointer to its bucket with its number in the low bits.
  class Place {
   public:
    Place() : word_(0) {}
    Place(Bucket* bucket, int entry)
        : word_(reinterpret_cast<uintptr_t>(bucket) |
                static_cast<uintptr_t>(entry)) {}
    bool found() const { return word_ != 0; }
    Bucket* bucket() const {
      return reinterpret_cast<Bucket*>(word_ & ~uintptr_t{kCacheLine - 1});
    }
    int entry() const { return static_cast<int>(word_ & (kCacheLine - 1)); }
    int64_t key() const { return bucket()->key[entry()]; }
    uint32_t& row() const { return bucket()->row[entry()]; }
    uint32_t& count() const { return bucket()->count[entry()]; }
    int64_t& version() const { return bucket()->version[entry()]; }
    void MarkChanged() const { bucket()->changes |= 1u << entry(); }
    bool changed() const {  // Or pending.
      return (bucket()->changes & (kChangedAndPending << entry())) != 0;
    }
    // What is beside the entry's key goes to `other`.
    void MoveTo(const Place& other) const {
      other.row() = row();
      other.count() = count();
      other.version() = version();
      const uint32_t bits = bucket()->changes >> entry() & kChangedAndPending;
      other.bucket()->changes |= bits << other.entry();
    }

    // As a pointer, for who may not know what an entry is.
    const void* opaque() const { return reinterpret_cast<void*>(word_); }
    explicit Place(const void* opaque)
        : word_(reinterpret_cast<uintptr_t>(opaque)) {}

   private:
    static constexpr uint32_t kChangedAndPending = 1u | 1u << kEntries;

    uintptr_t word_;
  };

  HashIndex() { Forget(); }
  ~HashIndex() { Clear(); }
  HashIndex(const HashIndex&) = delete;
  HashIndex& operator=(const HashIndex&) = delete;

  // Compares the keys of a bucket. Bit e: entry e is used and holds `key`.
  using Matcher = uint32_t(const Bucket* bucket, int64_t key);

  // On any processor that TensorFlow runs on.
  static uint32_t Match(const Bucket* bucket, int64_t key) {
#if defined(__SSE4_1__)
    // As 128-bit words, a bucket's first line is: head and rows, the last row
    // and key 0, keys 1 and 2, keys 3 and 4.
    const __m128i wanted = _mm_set1_epi64x(key);
    const __m128i* line = reinterpret_cast<const __m128i*>(bucket);
    const auto equal = [&](int i) {
      return static_cast<uint32_t>(_mm_movemask_pd(
          _mm_castsi128_pd(_mm_cmpeq_epi64(_mm_load_si128(line + i), wanted))));
    };
    return ((equal(1) >> 1) | (equal(2) << 1) | (equal(3) << 3)) & bucket->used;
#else
    uint32_t match = 0;
    for (int e = 0; e < kEntries; ++e) {
      match |= static_cast<uint32_t>(bucket->key[e] == key) << e;
    }
    return match & bucket->used;
#endif
  }

#if defined(__SSE4_1__)
  // With AVX-512, for a caller of the same target that asked HasWideMatch():
  // the whole line at once.
  __attribute__((target("avx512f"))) static inline uint32_t MatchWide(
      const Bucket* bucket, int64_t key) {
    const __mmask8 equal = _mm512_cmpeq_epi64_mask(_mm512_load_si512(bucket),
                                                   _mm512_set1_epi64(key));
    return (static_cast<uint32_t>(equal) >> 3) & bucket->used;
  }
  static bool HasWideMatch() { return __builtin_cpu_supports("avx512f"); }
#endif

  // Where a key with this hash is looked for first.
  Bucket* Home(uint64_t hash) const {
    return buckets_ + FastRange(hash, n_buckets_);
  }

  // The entry of `key`, whose home is `home`.
  Place Find(Bucket* home, int64_t key) const {
    Place place;
    if (!FindAtHome<Match>(home, key, &place)) place = FindBeyond(home, key);
    return place;
  }

  // The first step of Find. False: *place is not known yet, FindBeyond finds
  // it. The line that it needs is on its way then.
  template <Matcher* kMatch>
  inline __attribute__((always_inline)) bool FindAtHome(Bucket* home,
                                                        int64_t key,
                                                        Place* place) const {
    const uint32_t match = kMatch(home, key);
    if (match != 0) {
      *place = Place(home, __builtin_ctz(match));
      return true;
    }
    if (home->overflow == 0) {
      *place = Place();
      return true;
    }
    PrefetchLine(Next(home));
    return false;
  }
  Place FindBeyond(Bucket* home, int64_t key) const {
    // Back at home: all counters of a small or saturated index may be above 0.
    for (Bucket* bucket = Next(home); bucket != home; bucket = Next(bucket)) {
      const uint32_t match = Match(bucket, key);
      if (match != 0) return Place(bucket, __builtin_ctz(match));
      if (bucket->overflow == 0) break;
    }
    return Place();
  }

  // Adds a key that is not there: no row, count 0, version -1, not changed. The
  // caller keeps the number of keys within capacity().
  Place Insert(Bucket* home, int64_t key);

  // Takes away what Find(home, key) found. No tombstone: the counters on the
  // way from home tell a later Find where to stop.
  void Erase(Bucket* home, Place place);

  // Makes room for `keys` keys; entries move. `stagger` in [0, 1) shifts the
  // sizes at which this index grows against those of its siblings. False, with
  // nothing changed: no memory.
  bool Reserve(uint64_t keys, double stagger);

  // Takes all keys away and gives the memory back.
  void Clear();

  // Keys that fit without growing: 85 % of the entries.
  uint64_t capacity() const { return capacity_; }
  size_t bytes() const { return bytes_; }

  // Calls visit(place) for every key; visit may erase it.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (capacity_ == 0) return;
    for (Bucket* bucket = buckets_; bucket != buckets_ + n_buckets_; ++bucket) {
      for (uint32_t used = bucket->used; used != 0; used &= used - 1) {
        visit(Place(bucket, __builtin_ctz(used)));
      }
    }
  }

  // Changed becomes pending, and pending is forgotten, for every key.
  void MarkPending();
  void ForgetPending();

 private:
  Bucket* Next(Bucket* bucket) const {
    return ++bucket == buckets_ + n_buckets_ ? buckets_ : bucket;
  }

  void Forget();

  Bucket* buckets_;  // Never null: an empty index has one bucket it shares.
  uint64_t n_buckets_;
  uint64_t capacity_;  // 0: buckets_ is the shared empty one.
  size_t bytes_;       // Of buckets_ if it is owned.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_HASH_INDEX_H_
