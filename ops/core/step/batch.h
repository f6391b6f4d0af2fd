// SPDX-License-Identifier: Apache-2.0
// What a step or a restore brings to one table.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_BATCH_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/math/regularization.h"

namespace rec_estimator {

class RowHints;

// What one training step has for one table.
struct StepBatch {
  const int64_t* keys;  // (n) occurrences, repeats allowed.
  const float* grads;   // (n, dim)
  size_t n;
  const int64_t* counted_keys;  // (n_counted) counted without a gradient.
  size_t n_counted;
  int64_t version;  // Stamped on every key of the batch.
  // (n + n_counted) the occurrences that each of the keys, then each of the
  // counted keys stands for; nullptr: one.
  const uint32_t* counts = nullptr;
  // What EmbeddingTable::LookupListed found for `keys`, to be used unless the
  // table has changed since; nullptr: nothing. They outlive the step.
  const RowHints* hints = nullptr;
  Regularization regularization = {};
};

// Rows to insert or overwrite, as a checkpoint holds them. If a key is there
// twice, the last row wins.
struct RestoredRows {
  const int64_t* keys;  // (n)
  size_t n;
  const float* values;  // (n, dim); nullptr: initial vectors.
  std::vector<const float*>
      slots;                // One per slot: (n, width) or nullptr: initial.
  const int64_t* freqs;     // (n); nullptr: 0. Saturates to 32 bits.
  const int64_t* versions;  // (n); nullptr: -1.
  // Whether the table hardly has any of the keys. Insert is then faster: it
  // writes the rows one behind the other, before it looks for the keys. For
  // each key that the table does have, memory of one row becomes free. No
  // other thread may call Clear, EnsureSlots or SetBank meanwhile.
  bool are_new = false;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_BATCH_H_
