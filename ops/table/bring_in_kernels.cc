// SPDX-License-Identifier: Apache-2.0
// Kernel of bring_in_ops.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "ops/core/table/rows_ahead.h"
#include "ops/table/guarded_kernel.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rec_estimator {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

class TablesBringInOp : public OpKernel {
 public:
  explicit TablesBringInOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("batches_ahead", &batches_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList handles, keys;
    OP_REQUIRES_OK(context, context->input_list("tables", &handles));
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    // One batch of each table, whatever the number of its lookups.
    std::vector<TablePtr> tables;
    std::vector<std::vector<KeySpan>> lists;
    for (int i = 0; i < handles.size(); ++i) {
      TablePtr table;
      OP_REQUIRES_OK(context, FindTable(context, handles[i], &table));
      size_t t = 0;
      while (t < tables.size() && tables[t].get() != table.get()) ++t;
      if (t == tables.size()) {
        tables.push_back(std::move(table));
        lists.emplace_back();
      }
      lists[t].push_back({keys[i].flat<int64_t>().data(),
                          static_cast<size_t>(keys[i].NumElements())});
    }
    const auto batches = static_cast<uint32_t>(
        std::min<int64_t>(batches_, RowsAhead::kMostBatches));
    for (size_t t = 0; t < tables.size(); ++t) {
      TableReader reader;
      // The dataset may start before the table has rows, and go on while they
      // are replaced.
      if (!reader.Open(tables[t].get()).ok()) continue;
      // If it fails, so does the step, which says more about it.
      tables[t]->table().BringInAhead(lists[t], batches);
    }
  }

 private:
  int64_t batches_ = 1;
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TablesBringIn").Device(tensorflow::DEVICE_CPU),
    Guarded<TablesBringInOp>);

}  // namespace
}  // namespace rec_estimator
