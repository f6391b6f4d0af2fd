// SPDX-License-Identifier: Apache-2.0
#include "ops/core/math/narrow_floats.h"

#include "ops/core/math/narrowing.h"
#include "ops/core/math/widening.h"

namespace rec_estimator {
namespace {

template <typename Rounding>
void Narrow(NarrowType type, const float* from, uint64_t noise, int n,
            NarrowFloat* to) {
  WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
    using Widening = decltype(widening);
    type == NarrowType::kHalf
        ? NarrowAll<Widening, ToHalf, Rounding>(from, noise, n, to)
        : NarrowAll<Widening, ToBFloat16, Rounding>(from, noise, n, to);
  });
}

}  // namespace

void WidenFloats(NarrowType type, const NarrowFloat* from, int n, float* to) {
  WithFastestWidening([=](auto widening) __attribute__((always_inline)) {
    using Widening = decltype(widening);
    type == NarrowType::kHalf ? WidenHalves<Widening>(from, n, to)
                              : WidenBFloat16s<Widening>(from, n, to);
  });
}

void NarrowFloats(NarrowType type, const float* from, int n, NarrowFloat* to) {
  Narrow<ToNearest>(type, from, 0, n, to);
}

void NarrowFloatsStochastically(NarrowType type, const float* from,
                                uint64_t noise, int n, NarrowFloat* to) {
  Narrow<Stochastically>(type, from, noise, n, to);
}

}  // namespace rec_estimator
