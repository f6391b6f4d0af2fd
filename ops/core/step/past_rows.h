// SPDX-License-Identifier: Apache-2.0
// PastRows: what some keys read before an exchange (row_exchange.h), for
// readers that began before it and go on.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_PAST_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_PAST_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/step/training_step.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Thread rule: after Own, threads may call the const methods at the same time,
// while the table is not cleared and its bank is not replaced. Readers that
// began before several exchanges ask the newest object first and the oldest one
// last.
class PastRows {
 public:
  struct Row {
    int64_t key;
    uint32_t row;  // HashIndex::kNoRow: the key had none.
  };

  // The table outlives the object, and is not cleared before its end.
  explicit PastRows(const TableParts& table);
  // Frees the rows, if it owns them.
  ~PastRows();
  PastRows(const PastRows&) = delete;
  PastRows& operator=(const PastRows&) = delete;

  // Sets those of a stripe. Keys are distinct.
  void Set(int stripe, std::vector<Row> rows);
  // Called after the exchange: from now on no entry has the rows.
  void Own() { owns_rows_ = true; }

  size_t size() const { return size_; }  // Keys.

  // The methods below change what keys (n) have just read of the table to what
  // they read before the exchange. Keys that it did not change are left out.

  // out (n, dim) has their values.
  void Correct(const int64_t* keys, size_t n, UnknownKey unknown,
               float* out) const;
  // owns_row[i]: whether keys[i] owns a row.
  void Correct(const int64_t* keys, size_t n, bool* owns_row) const;

 private:
  // Calls visit(i, the Row of keys[i]) for the keys that are here.
  template <typename Visit>
  void ForEach(const int64_t* keys, size_t n, const Visit& visit) const;
  // What the key read, in the format of rows.
  const float* Vector(const Row& past, UnknownKey unknown) const;

  const RowStore& store_;
  StripeSet& stripes_;
  std::array<std::vector<Row>, kStripes> rows_;  // By stripe, then by key.
  size_t size_ = 0;
  bool owns_rows_ = false;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_PAST_ROWS_H_
