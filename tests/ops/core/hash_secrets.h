// SPDX-License-Identifier: Apache-2.0
// Secrets of HashKey, and keys that an attacker could choose, for tests of the
// core.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_HASH_SECRETS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_HASH_SECRETS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/core/base/key_hash.h"

namespace rec_estimator {

// Sets the secret while it lives. Nothing hashed may live longer.
class WithSecret {
 public:
  explicit WithSecret(uint64_t seed) : before_(hash_secret) {
    std::mt19937_64 random(seed);
    hash_secret = {random(), random()};
  }
  ~WithSecret() { hash_secret = before_; }
  WithSecret(const WithSecret&) = delete;
  WithSecret& operator=(const WithSecret&) = delete;

 private:
  const HashSecret before_;
};

// The inverse of MixKey.
inline int64_t UnmixKey(uint64_t hash) {
  const auto unshift = [](uint64_t x, int by) {
    uint64_t result = x;
    for (int done = by; done < 64; done += by) result = x ^ (result >> by);
    return result;
  };
  const auto inverse = [](uint64_t odd) {  // modulo 2^64, by Newton
    uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  uint64_t x = unshift(hash, 27);
  x *= inverse(0x1C69B3F74AC4AE35u);
  x = unshift(x, 33);
  x *= inverse(0x3C79AC492BA7B653u);
  return static_cast<int64_t>(unshift(x, 27));
}

// Lists of n distinct keys, n <= 2^17. In all but the last, MixKey returns
// numbers that share bits, or are in a sequence, or differ in some bits only.
inline std::vector<std::vector<int64_t>> ChosenKeys(size_t n) {
  std::vector<std::vector<int64_t>> lists;
  const auto add = [&](const auto& mixed_of) {
    std::vector<int64_t>& keys = lists.emplace_back();
    for (uint64_t i = 0; i < n; ++i) keys.push_back(UnmixKey(mixed_of(i)));
  };
  for (int shift = 0; shift <= 47; ++shift) {
    add([=](uint64_t i) { return i << shift; });
    add([=](uint64_t i) { return ~(i << shift); });
  }
  std::mt19937_64 random(1);
  for (int list = 0; list < 20; ++list) {
    const uint64_t step = random() | 1;
    add([=](uint64_t i) { return i * step; });
    // The bits of i, each anywhere in the number.
    uint64_t bits[17], taken = 0;
    for (uint64_t& bit : bits) {
      do {
        bit = uint64_t{1} << random() % 64;
      } while ((taken & bit) != 0);
      taken |= bit;
    }
    add([&](uint64_t i) {
      uint64_t mixed = 0;
      for (int b = 0; b < 17; ++b) mixed |= (i >> b & 1) * bits[b];
      return mixed;
    });
  }
  add([](uint64_t i) { return i << 32 | i; });
  add([](uint64_t i) { return i << 38 | i << 6; });
  add([](uint64_t i) { return (i & 511) << 6 | (i >> 9) << 33; });
  add([](uint64_t i) { return MixKey(static_cast<int64_t>(i)); });
  return lists;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_HASH_SECRETS_H_
