// SPDX-License-Identifier: Apache-2.0
// Where the rows of a table are: in memory, which it may share with other
// tables, or beyond that in files. The core does the work (memory_budget.h,
// disk_tier.h); here are the attributes of the handle.
#ifndef REC_ESTIMATOR_OPS_TABLE_TABLE_STORAGE_H_
#define REC_ESTIMATOR_OPS_TABLE_TABLE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/evict/memory_budget.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rec_estimator {

class EmbeddingTable;

// Numbers that TableTierCounts returns.
inline constexpr int64_t kTierCounts = 10;
// Numbers that TableActivity returns.
inline constexpr int64_t kActivityCounts = 9;

// The handle's attributes of the same names. Without paths all rows are in
// memory.
struct TableStorage {
  std::vector<std::string> storage_paths;
  int64_t memory_rows = 0;
  int64_t memory_bytes = 0;
  int64_t memory_limit = 0;
  int64_t memory_budget = 0;
  std::string spilled_first;
  // Shared by all tables of the session with this memory_budget; nullptr if it
  // is 0.
  std::shared_ptr<MemoryBudget> budget = nullptr;

  // Reads and checks the attributes.
  absl::Status Read(tensorflow::OpKernelConstruction* context);
  // InvalidArgument if a later call gives a table other settings than these,
  // with which it was created. `name` is that of the table.
  absl::Status CheckSame(const std::string& name,
                         const TableStorage& given) const;
  // Creates the folders that are missing, and opens files there, or gives the
  // table its budget. `name` is that of the table, for messages. Throws
  // std::bad_alloc.
  absl::Status Open(const std::string& name, EmbeddingTable* table) const;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_TABLE_STORAGE_H_
