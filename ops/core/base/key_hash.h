// SPDX-License-Identifier: Apache-2.0
// Arithmetic on keys: their hash, ranges of hashes, shards, and checkpoint
// buckets.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_

#include <cstdint>

namespace rec_estimator {

// Mixes a key so that each of its bits affects every bit of the result. The
// function is a bijection: two different keys always differ in their 64 bits.
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

// Maps a hash onto [0, n) by its high bits. n may be any number. The map is
// monotonic, so a walk in bucket order is a walk in hash order.
// Source: D. Lemire, "Fast random integer generation in an interval", 2019.
inline uint64_t FastRange(uint64_t hash, uint64_t n) {
  __extension__ using Uint128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Uint128>(hash) * n) >> 64);
}

// A table has this many shards. The lowest bits of a key's hash choose one.
inline constexpr int kShards = 64;
inline constexpr int kShardBits = 6;
static_assert(kShards == 1 << kShardBits, "64 shards");

inline int ShardOf(uint64_t hash) { return static_cast<int>(hash % kShards); }

// Where shard s is in its growth cycle: 0, 1/64, ... The bits of s are
// reversed, so that neighbours differ and memory grows steadily instead of in
// steps of 30 %.
inline double ShardStagger(int s) {
  int reversed = 0;
  for (int bit = 0; bit < kShardBits; ++bit) {
    reversed |= ((s >> bit) & 1) << (kShardBits - 1 - bit);
  }
  return static_cast<double>(reversed) / kShards;
}

// a modulo m as in Python: the result is in [0, m) for negative a too. m >= 1.
inline int64_t FloorMod(int64_t a, int64_t m) {
  const int64_t r = a % m;
  return r < 0 ? r + m : r;
}

// Checkpoints and partitioned tables sort keys into this many buckets, as
// DeepRec does.
inline constexpr int64_t kBuckets = 1000;

// The bucket of a key: floormod(key, kBuckets), which is 999 for key -1.
inline int64_t BucketOf(int64_t key) { return FloorMod(key, kBuckets); }

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_
