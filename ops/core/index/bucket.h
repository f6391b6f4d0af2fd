// SPDX-License-Identifier: Apache-2.0
// Bucket: five entries of an index in two cache lines.
#ifndef REC_ESTIMATOR_OPS_CORE_INDEX_BUCKET_H_
#define REC_ESTIMATOR_OPS_CORE_INDEX_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {

struct alignas(kCacheLine) Bucket {
  static constexpr int kEntries = 5;  // What two cache lines hold.

  // First line: all that a lookup reads.
  uint8_t used;      // Bit e: entry e holds a key.
  uint8_t overflow;  // Keys whose home is this bucket or an earlier one and
                     // that live in a later one. 255 means "255 or more" and
                     // is never decremented.
  uint16_t spare;
  uint32_t row[kEntries];  // Row words (hash_index.h).
  int64_t key[kEntries];
  // Second line: only applies, saves and evictions use it.
  int64_t version[kEntries];  // global_step of the last apply; -1: never.
  uint32_t count[kEntries];   // Saturates at 2^32 - 1.
  // For incremental saves. Bit e: entry e changed since the last save. Bit
  // kEntries + e: it changed before that save, which is not committed yet.
  uint32_t changes;
};
static_assert(sizeof(Bucket) == 2 * kCacheLine, "a bucket is two lines");
static_assert(offsetof(Bucket, version) == kCacheLine,
              "a lookup reads one line");

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_INDEX_BUCKET_H_
