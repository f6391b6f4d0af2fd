// SPDX-License-Identifier: Apache-2.0
// Arithmetic on keys: their hashes, ranges of hashes, stripes, and the key
// classes of checkpoints.
//
//   key --MixKey--> the same in every process: stripe, sketch
//       --HashKey-> secret: bucket, cell
//
// Whoever chooses keys knows MixKey, and could choose keys of one bucket, so
// that each search reads all of them. What searches for keys uses HashKey.
// Nothing that a user or a file sees depends on it.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_

#include <cstddef>
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

__extension__ using Uint128 = unsigned __int128;

// Maps a hash onto [0, n) by its high bits. n may be any number. The map is
// monotonic, so a walk in bucket order is a walk in hash order.
// Source: D. Lemire, "Fast random integer generation in an interval", 2019.
inline uint64_t FastRange(uint64_t hash, uint64_t n) {
  return static_cast<uint64_t>((static_cast<Uint128>(hash) * n) >> 64);
}

// A table has this many stripes. The lowest bits of a key's hash choose one.
inline constexpr int kStripes = 64;
inline constexpr int kStripeBits = 6;
static_assert(kStripes == 1 << kStripeBits, "64 stripes");

// hash: MixKey of the key.
inline int StripeOf(uint64_t hash) { return static_cast<int>(hash % kStripes); }

// Random numbers that are drawn when the library is loaded. Never changed while
// anything that is hashed exists: tests set them in between.
struct HashSecret {
  uint64_t first;
  uint64_t second;
};
extern HashSecret hash_secret __attribute__((visibility("hidden")));

// Spreads numbers, which may be chosen by an attacker who does not know the
// secret, over 64 bits. A product of two secret functions of the number has no
// structure left that the number had: multiplied by secrets alone, numbers in a
// sequence stay in a sequence. Its halves are folded, and the last product
// carries the lower bits, which depend on more of the number, to the highest
// (docs/decisions.md).
inline uint64_t HashNumber(uint64_t number) {
  const Uint128 product = static_cast<Uint128>(number ^ hash_secret.first) *
                          (number ^ hash_secret.second);
  return (static_cast<uint64_t>(product) ^
          static_cast<uint64_t>(product >> 64)) *
         0x9E3779B97F4A7C15u;
}

// The hash of a key in this process.
inline uint64_t HashKey(int64_t key) {
  return HashNumber(static_cast<uint64_t>(key));
}

// Sets of stripes are 64-bit masks: bit s stands for stripe s.
inline constexpr uint64_t kAllStripes = ~uint64_t{0};

// The stripes to lock for keys (n): all that they belong to, or, where finding
// these would cost more than it saves, all there are.
uint64_t StripesOf(const int64_t* keys, size_t n);

// Where stripe s is in its growth cycle: 0, 1/64, ... The bits of s are
// reversed, so that neighbours differ and memory grows steadily instead of in
// steps of 30 %.
inline double StripeStagger(int s) {
  int reversed = 0;
  for (int bit = 0; bit < kStripeBits; ++bit) {
    reversed |= ((s >> bit) & 1) << (kStripeBits - 1 - bit);
  }
  return static_cast<double>(reversed) / kStripes;
}

// a modulo m as in Python: the result is in [0, m) for negative a too. m >= 1.
inline int64_t FloorMod(int64_t a, int64_t m) {
  const int64_t r = a % m;
  return r < 0 ? r + m : r;
}

// Checkpoints and partitioned tables sort keys into this many classes, as
// DeepRec does.
inline constexpr int64_t kKeyClasses = 1000;

// The class of a key: floormod(key, kKeyClasses), which is 999 for key -1.
inline int64_t KeyClassOf(int64_t key) { return FloorMod(key, kKeyClasses); }

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_KEY_HASH_H_
