// SPDX-License-Identifier: Apache-2.0
// Kernels of write_ops.cc.
//
// All arguments are checked before a row changes. The keys and rows are copied
// first: another thread may write to the inputs (read_once.h), and what was
// checked must be what is written.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "ops/core/rows/row_format.h"
#include "ops/core/step/batch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/table/table_resource.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// What the checks of rows need to know about a table.
struct WrittenTable {
  std::string name;
  int64_t dim;
  bool has_padding;
  ValueType type;
};

WrittenTable WrittenTableOf(TableResource& table) {
  const RowRules& rules = table.table().rules();
  return {table.name(), table.table().dim(), rules.has_padding,
          rules.value.type};
}

std::vector<int64_t> CopyKeys(const Tensor& keys) {
  const int64_t* const data = keys.flat<int64_t>().data();
  return {data, data + keys.NumElements()};
}

// Rows that were copied and checked.
struct WrittenRows {
  std::vector<int64_t> keys;
  std::vector<float> values;    // (keys, dim)
  std::vector<int64_t> counts;  // (keys), or none.

  // Reads the inputs "keys", "rows" and, if asked for, "counts".
  Status Read(OpKernelContext* context, const WrittenTable& table,
              bool with_counts) {
    const Tensor *keys_in, *rows_in, *counts_in;
    TF_RETURN_IF_ERROR(context->input("keys", &keys_in));
    TF_RETURN_IF_ERROR(context->input("rows", &rows_in));
    TF_RETURN_IF_ERROR(CheckRank(*keys_in, 1, "keys", "[n]"));
    const int64_t n = keys_in->NumElements();
    if (rows_in->dims() != 2 || rows_in->dim_size(0) != n ||
        rows_in->dim_size(1) != table.dim) {
      return InvalidArgument("rows of table ", table.name,
                             " must be [n, dim] = [", n, ",", table.dim,
                             "], got shape ", rows_in->shape().DebugString());
    }
    keys = CopyKeys(*keys_in);
    const float* const floats = rows_in->flat<float>().data();
    values.assign(floats, floats + rows_in->NumElements());
    if (with_counts) {
      TF_RETURN_IF_ERROR(context->input("counts", &counts_in));
      TF_RETURN_IF_ERROR(ReadCounts(*counts_in, table));
    }
    TF_RETURN_IF_ERROR(CheckDistinctKeys(table));
    TF_RETURN_IF_ERROR(CheckValues(table));
    return CheckRange(table);
  }

 private:
  Status ReadCounts(const Tensor& tensor, const WrittenTable& table) {
    TF_RETURN_IF_ERROR(CheckRank(tensor, 1, "counts", "[n]"));
    counts = CopyKeys(tensor);
    if (!counts.empty() && counts.size() != keys.size()) {
      return InvalidArgument("counts of table ", table.name,
                             " must be one for each of the ", keys.size(),
                             " keys, got ", counts.size());
    }
    for (const int64_t count : counts) {
      if (count >= 0) continue;
      return InvalidArgument("counts of table ", table.name,
                             " must be >= 0, got ", count);
    }
    return Status();
  }

  Status CheckDistinctKeys(const WrittenTable& table) const {
    std::vector<int64_t> sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    const auto repeated = std::adjacent_find(sorted.begin(), sorted.end());
    if (repeated != sorted.end()) {
      return InvalidArgument("keys of table ", table.name,
                             " must be distinct, got ", *repeated,
                             " twice; give each key one row");
    }
    if (table.has_padding &&
        std::binary_search(sorted.begin(), sorted.end(), kPaddingKey)) {
      return InvalidArgument("keys of table ", table.name,
                             " must not be padding, got ", kPaddingKey,
                             ", which never owns a row; leave it out");
    }
    return Status();
  }

  Status CheckValues(const WrittenTable& table) const {
    const auto broken =
        std::find_if(values.begin(), values.end(),
                     [](float value) { return !std::isfinite(value); });
    if (broken == values.end()) return Status();
    const int64_t row = (broken - values.begin()) / table.dim;
    return InvalidArgument(
        "rows of table ", table.name, " must be finite, got ", *broken,
        " in row ", row, " of key ", keys[row], "; mend or leave out the row");
  }

  Status CheckRange(const WrittenTable& table) const {
    if (keys.empty()) return Status();
    ValueRounding rounding(
        RowFormat(static_cast<int>(table.dim), {table.type}));
    for (size_t row = 0; row < keys.size(); ++row) {
      const float* const value =
          values.data() + row * static_cast<size_t>(table.dim);
      const int lost = rounding.FirstLost(value);
      if (lost < 0) continue;
      return InvalidArgument("rows of table ", table.name,
                             " must be finite in ", NameOf(table.type),
                             ", got ", value[lost], " in row ", row, " of key ",
                             keys[row],
                             "; choose float32, or bfloat16 in place of "
                             "float16 and int8, for larger numbers");
    }
    return Status();
  }
};

// ResourceExhausted if the table would have too many rows. A step that runs at
// the same time may still add those that it has reserved.
Status CheckRowsFit(TableResource& table, const std::vector<int64_t>& keys) {
  const int64_t limit = table.table().rules().max_rows;
  if (limit == 0) return Status();
  const std::unique_ptr<bool[]> owns_row(new bool[keys.size()]);
  table.table().Contains(keys.data(), keys.size(), owns_row.get());
  const int64_t added =
      std::count(owns_row.get(), owns_row.get() + keys.size(), false);
  const int64_t excess = table.table().size() + added - limit;
  if (excess <= 0) return Status();
  return TooManyRows(table, excess, " after the write");
}

// Inserts the rows. Nothing has changed after an error.
Status InsertRows(TableResource& table, const WrittenRows& rows,
                  int64_t version) {
  std::vector<int64_t> freqs = rows.counts;
  if (freqs.empty()) {
    freqs.resize(rows.keys.size());
    table.table().Frequencies(rows.keys.data(), rows.keys.size(), freqs.data());
    const int64_t admitted = table.table().filter().threshold;
    for (int64_t& freq : freqs) freq = std::max(freq, admitted);
  }
  const std::vector<int64_t> versions(rows.keys.size(), version);
  RestoredRows restored = {};
  restored.keys = rows.keys.data();
  restored.n = rows.keys.size();
  restored.values = rows.values.data();
  restored.freqs = freqs.data();
  restored.versions = versions.data();
  if (table.table().Insert(restored)) return Status();
  return ResourceExhausted("table ", table.name(), " must have memory for ",
                           rows.keys.size(),
                           " rows, got a failed allocation; write fewer rows "
                           "at once or give the process more memory");
}

Status ReadVersion(OpKernelContext* context, int64_t* version) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input("version", &tensor));
  TF_RETURN_IF_ERROR(CheckRank(*tensor, 0, "version", "[]"));
  *version = tensor->scalar<int64_t>()();
  return Status();
}

class CheckTableRowsOp : public OpKernel {
 public:
  explicit CheckTableRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &table_.name));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &table_.dim));
    OP_REQUIRES_OK(context,
                   context->GetAttr("has_padding_key", &table_.has_padding));
    tensorflow::DataType value_dtype;
    OP_REQUIRES_OK(context, context->GetAttr("value_dtype", &value_dtype));
    table_.type = ValueTypeOf(value_dtype);
  }

  void Compute(OpKernelContext* context) override {
    WrittenRows rows;
    OP_REQUIRES_OK(context, rows.Read(context, table_, /*with_counts=*/true));
  }

 private:
  WrittenTable table_;
};

class TableAssignOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    WrittenRows rows;
    OP_REQUIRES_OK(context, rows.Read(context, WrittenTableOf(*table),
                                      /*with_counts=*/true));
    int64_t version;
    OP_REQUIRES_OK(context, ReadVersion(context, &version));
    OP_REQUIRES_OK(context, OrStatus(table->name(), [&] {
                     return Assign(*table, rows, version);
                   }));
  }

 private:
  static Status Assign(TableResource& table, const WrittenRows& rows,
                       int64_t version) {
    // No step, save or other write meanwhile.
    const std::lock_guard<std::shared_mutex> lock(table.replace_mutex());
    TF_RETURN_IF_ERROR(CheckInitialized(table, "rows are assigned"));
    TF_RETURN_IF_ERROR(CheckRowsFit(table, rows.keys));
    Status status;
    table.WithoutReaders([&] { status = InsertRows(table, rows, version); });
    return status;
  }
};

class TableEraseOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* keys_in;
    OP_REQUIRES_OK(context, context->input("keys", &keys_in));
    OP_REQUIRES_OK(context, CheckRank(*keys_in, 1, "keys", "[n]"));
    int64_t version;
    OP_REQUIRES_OK(context, ReadVersion(context, &version));
    Tensor* erased;
    OP_REQUIRES_OK(
        context, context->allocate_output("erased", TensorShape({}), &erased));
    const std::vector<int64_t> keys = CopyKeys(*keys_in);
    OP_REQUIRES_OK(
        context, OrStatus(table->name(), [&] {
          const std::lock_guard<std::shared_mutex> lock(table->replace_mutex());
          TF_RETURN_IF_ERROR(CheckInitialized(*table, "rows are erased"));
          table->WithoutReaders([&] {
            erased->scalar<int64_t>()() = static_cast<int64_t>(
                table->table().EvictKeys(keys.data(), keys.size(), version));
          });
          return Status();
        }));
  }
};

class TableInitializeRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* bank;
    OP_REQUIRES_OK(context, context->input("bank", &bank));
    OP_REQUIRES_OK(context, CheckBank(*table, *bank));
    WrittenRows rows;
    OP_REQUIRES_OK(context, rows.Read(context, WrittenTableOf(*table),
                                      /*with_counts=*/false));
    OP_REQUIRES_OK(context, OrStatus(table->name(), [&] {
                     return Replace(*table, *bank, rows);
                   }));
  }

 private:
  static Status Replace(TableResource& table, const Tensor& bank,
                        const WrittenRows& rows) {
    const int64_t limit = table.table().rules().max_rows;
    const auto n = static_cast<int64_t>(rows.keys.size());
    if (limit > 0 && n > limit) {
      return TooManyRows(table.name(), limit, n, " in the file");
    }
    const std::lock_guard<std::shared_mutex> lock(table.replace_mutex());
    table.BeginReplacement();
    table.table().SetBank(bank.flat<float>().data(), bank.dim_size(0));
    table.table().Clear();
    table.table().Reserve(n);
    TF_RETURN_IF_ERROR(InsertRows(table, rows, -1));
    table.set_ready();
    return Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>CheckTableRows").Device(DEVICE_CPU),
                        Guarded<CheckTableRowsOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableAssign").Device(DEVICE_CPU),
                        Guarded<TableAssignOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableErase").Device(DEVICE_CPU),
                        Guarded<TableEraseOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableInitializeRows").Device(DEVICE_CPU),
    Guarded<TableInitializeRowsOp>);

}  // namespace
}  // namespace rec_estimator
