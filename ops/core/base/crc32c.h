// SPDX-License-Identifier: Apache-2.0
// CRC-32C as checkpoints use it: Castagnoli's polynomial, reflected, inverted
// before and after.
//
// The CPU's instruction takes 8 bytes and waits three cycles for its own last
// result. So three lanes of a block are computed side by side, each in its own
// register, and are then combined:
//
//   block  |lane a, kLane bytes |lane b             |lane c             |
//   crc    = shift(shift(a) ^ b) ^ c     shift: appends kLane zero bytes
//
// A shift is linear. It takes four reads from tables of 256 words, 4 KiB in
// all, which the compiler computes. The speed is 20 GB/s for data in the
// second-level cache, three times that of one lane. CPUs without the
// instruction work byte by byte.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_CRC32C_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace rec_estimator {

// Extends `crc`, the CRC of some bytes, by `bytes` (n). The CRC of no bytes is
// 0.
uint32_t ExtendCrc32c(uint32_t crc, const void* bytes, size_t n);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_CRC32C_H_
