// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/key_hash.h"

#include <random>

namespace rec_estimator {
namespace {

HashSecret DrawSecret() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

}  // namespace

HashSecret hash_secret = DrawSecret();

uint64_t StripesOf(const int64_t* keys, size_t n) {
  // So many keys belong to nearly all stripes.
  constexpr size_t kAllFrom = 512;
  if (n >= kAllFrom) return kAllStripes;
  uint64_t mask = 0;
  for (size_t i = 0; i < n; ++i) {
    mask |= uint64_t{1} << StripeOf(MixKey(keys[i]));
  }
  return mask;
}

}  // namespace rec_estimator
