// SPDX-License-Identifier: Apache-2.0
// Kernel of bring_in_ops.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/spared_rows.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace rec_estimator {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using Status = absl::Status;

// What a batch reads of a table.
struct TableBatch {
  TablePtr table;
  std::vector<KeySpan> lists;
};

Status ListTables(OpKernelContext* context, std::vector<TableBatch>* batches) {
  OpInputList handles, keys;
  TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
  TF_RETURN_IF_ERROR(context->input_list("keys", &keys));
  for (int i = 0; i < handles.size(); ++i) {
    TablePtr table;
    TF_RETURN_IF_ERROR(FindTable(context, handles[i], &table));
    const auto is_same = [&](const TableBatch& batch) {
      return batch.table.get() == table.get();
    };
    // One batch of each table, whatever the number of its lookups.
    auto batch = std::find_if(batches->begin(), batches->end(), is_same);
    if (batch == batches->end()) {
      batches->push_back({std::move(table), {}});
      batch = batches->end() - 1;
    }
    batch->lists.push_back({keys[i].flat<int64_t>().data(),
                            static_cast<size_t>(keys[i].NumElements())});
  }
  return Status();
}

class TablesBringInOp : public AsyncOpKernel {
 public:
  explicit TablesBringInOp(OpKernelConstruction* context)
      : AsyncOpKernel(context) {
    int64_t batches = 1;
    OP_REQUIRES_OK(context, context->GetAttr("batches_ahead", &batches));
    batches_ahead_ = static_cast<uint32_t>(
        std::min<int64_t>(batches, SparedRows::kMostBatches));
  }

  // The disk is waited for on a thread of its own: those of TensorFlow are few
  // and have steps to run.
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto work = [this, context, done] {
      context->SetStatus(BringIn(context));
      done();
    };
    try {
      context->env()->SchedClosure(work);
    } catch (const std::exception&) {  // No memory, or no thread.
      work();
    }
  }

 private:
  Status BringIn(OpKernelContext* context) const {
    try {
      std::vector<TableBatch> batches;
      TF_RETURN_IF_ERROR(ListTables(context, &batches));
      for (const TableBatch& batch : batches) {
        TableReader reader;
        // The dataset may start before the table has rows, and go on while they
        // are replaced.
        if (!reader.Open(batch.table.get()).ok()) continue;
        // If it fails, so does the step, which says more about it.
        batch.table->table().BringInAhead(batch.lists, batches_ahead_);
      }
    } catch (const std::bad_alloc&) {
      return NoMemoryFor(name());
    }
    return Status();
  }

  uint32_t batches_ahead_ = 1;
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TablesBringIn").Device(tensorflow::DEVICE_CPU),
    GuardedAsync<TablesBringInOp>);

}  // namespace
}  // namespace rec_estimator
