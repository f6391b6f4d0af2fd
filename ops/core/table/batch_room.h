// SPDX-License-Identifier: Apache-2.0
// Internal to EmbeddingTable: how several applies share the rows that a table
// with a limit may still get.
//
// An apply that fits whatever its keys turn out to be announces so many rows
// and goes on beside others. One that may not fit waits until it is alone,
// counts the keys that are new, and then changes the table or does not. So a
// step that fits is never refused for what another one only might have added.
// Costs: two atomic additions and a sum over the shards a batch; near the limit
// a tenth of an apply's time (embedding_table.h), and applies of one table one
// after the other.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_ROOM_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_ROOM_H_

#include <cstdint>

#include "ops/core/table/embedding_table.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

// While it lives, other applies do not take what this one was promised of the
// rows that the table may have.
class EmbeddingTable::Impl::RoomForBatch {
 public:
  RoomForBatch(Impl* table, const Batch& batch) : table_(*table) {
    if (table_.rules.max_rows == 0) return;
    rows_ = static_cast<int64_t>(batch.n + batch.m);
    table_.limit_mutex.lock_shared();
    // Its rows are added before they are withdrawn from may_add: an apply that
    // ends in between is counted twice rather than never.
    const int64_t may_add = table_.may_add.fetch_add(rows_) + rows_;
    if (table_.n_rows() + may_add <= table_.rules.max_rows) return;
    table_.may_add.fetch_sub(rows_);
    table_.limit_mutex.unlock_shared();
    table_.limit_mutex.lock();
    is_certain_ = false;
  }
  ~RoomForBatch() {
    if (table_.rules.max_rows == 0) return;
    if (is_certain_) {
      table_.may_add.fetch_sub(rows_);
      table_.limit_mutex.unlock_shared();
    } else {
      table_.limit_mutex.unlock();
    }
  }
  RoomForBatch(const RoomForBatch&) = delete;
  RoomForBatch& operator=(const RoomForBatch&) = delete;

  // Whether there is room even if all occurrences are new keys. Otherwise no
  // other apply runs, and what is new can be counted.
  bool is_certain() const { return is_certain_; }

 private:
  Impl& table_;
  int64_t rows_ = 0;
  bool is_certain_ = true;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_ROOM_H_
