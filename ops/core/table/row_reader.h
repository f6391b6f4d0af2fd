// SPDX-License-Identifier: Apache-2.0
// RowReader: reads rows of a table while no apply changes them.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_ROW_READER_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_ROW_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/core/rows/table_spec.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

class DiskTier;
class EmbeddingTable;
class RowStore;
struct TableParts;

// Holds shared locks on the stripes of some keys, so that several threads can
// read rows while no apply changes them. Any thread may use it. If rows are on
// disk, both methods throw StorageError and std::bad_alloc.
class RowReader {
 public:
  // Locks the stripes of keys (n). The table outlives the object.
  RowReader(const EmbeddingTable& table, const int64_t* keys, size_t n);
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // rows[i] = the dim floats that keys[i] reads, which are prefetched and stay
  // valid while the reader lives. keys must be among those of the constructor.
  void Rows(const int64_t* keys, size_t n, UnknownKey unknown,
            const float** rows) const;

  // out[i] = what keys[i] reads, like Rows.
  void Copy(const int64_t* keys, size_t n, UnknownKey unknown,
            float* out) const;  // (n, dim)

 private:
  RowReader(const TableParts& table, const int64_t* keys, size_t n);

  const StripeSet& stripes_;
  const RowStore& store_;
  DiskTier* const tier_;  // nullptr: all rows are in memory.
  const SharedLocks locks_;
  mutable std::mutex mutex_;
  // Values that were read from disk or widened. Guarded by mutex_.
  mutable std::vector<std::unique_ptr<float[]>> copies_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_ROW_READER_H_
