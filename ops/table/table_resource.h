// SPDX-License-Identifier: Apache-2.0
// What the kernels share: the table as TensorFlow's resource manager holds it,
// how a kernel finds it, and the threads it works with.
#ifndef REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_
#define REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_

#include <cstdint>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/table/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// Longest row in floats, value and slots together: 64 MiB. The core counts a
// row's floats in an int and allocates many rows at once.
constexpr int64_t kMaxRowFloats = int64_t{1} << 24;

// Checkpoints and shards sort keys into this many buckets, as DeepRec's do.
constexpr int64_t kBuckets = 1000;

// Bucket of a key: floormod(key, kBuckets), so 999 for -1.
inline int64_t BucketOf(int64_t key) {
  const int64_t bucket = key % kBuckets;
  return bucket < 0 ? bucket + kBuckets : bucket;
}

// A table in a session's resource manager. Thread-safe as the table is.
class TableResource : public tensorflow::ResourceBase {
 public:
  TableResource(std::string name, int dim, float default_value,
                const FilterSpec& filter, const RowRules& rules)
      : name_(std::move(name)),
        default_value_(default_value),
        table_(dim, default_value, filter, rules) {}

  std::string DebugString() const override;
  int64_t MemoryUsed() const override { return table_.memory_bytes(); }

  const std::string& name() const { return name_; }
  float default_value() const { return default_value_; }
  EmbeddingTable& table() { return table_; }

  // Exclusive while all rows are replaced, which takes several calls of the
  // table, shared by training steps: a step is applied to the rows from before
  // or to those from after, and two restores do not leave the rows of both.
  std::shared_mutex& replace_mutex() { return replace_mutex_; }

 private:
  const std::string name_;  // The handle's shared_name, for messages.
  const float default_value_;
  EmbeddingTable table_;
  std::shared_mutex replace_mutex_;
};

using TablePtr = tensorflow::core::RefCountPtr<TableResource>;

// The table behind a handle, kept alive by `table`.
tensorflow::Status FindTable(tensorflow::OpKernelContext* context,
                             const tensorflow::Tensor& handle, TablePtr* table);

// The same for the input named "table".
tensorflow::Status FindTable(tensorflow::OpKernelContext* context,
                             TablePtr* table);

// FailedPrecondition if the table has no bank yet. `use`: what the caller was
// about to do, as in "it is read".
tensorflow::Status CheckInitialized(TableResource& table, const char* use);

// InvalidArgument if attr dim is not the table's.
tensorflow::Status CheckDim(TableResource& table, int64_t dim);

// Reads slot_names, slot_widths and slot_initials, checked: of one length,
// names distinct and not empty, widths that fit a row.
tensorflow::Status ReadSlots(tensorflow::OpKernelConstruction* context,
                             std::vector<SlotSpec>* slots);

// work(), whose status it returns, or ResourceExhausted if it throws
// std::bad_alloc, which would end the process: what the core cannot do without
// memory and has no other way to say (a new table, bank or slots, a snapshot).
template <typename Work>
tensorflow::Status OrResourceExhausted(const std::string& table,
                                       const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return tensorflow::errors::ResourceExhausted(
        "table ", table, " must fit into memory, got none from the system");
  }
}

// ResourceExhausted: the table would have `too_many` more rows than it may.
tensorflow::Status TooManyRows(TableResource& table, int64_t too_many,
                               const char* what_is_left);

// The device's intra-op threads. The calling thread never waits for a piece
// that has not begun, so it may hold locks of a table that pieces of another
// op, running in the same pool, wait for. Valid during Compute.
ParallelFor IntraOpThreads(tensorflow::OpKernelContext* context);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_
