// SPDX-License-Identifier: Apache-2.0
// Save by a stock Saver, the only step: TableExport copies a whole table to
// tensors at one instant, and the Saver writes them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/checkpoint/checkpoint_format.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/op_threads.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::OpOutputList;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// Rows that are loaded at once.
constexpr int64_t kRowsAtOnce = int64_t{1} << 16;

// A tensor of the Bloom filter that has an output of its own: older graphs save
// it.
struct OlderTensor {
  const char* suffix;
  const char* output;
  std::vector<int64_t> empty_shape;
};
const OlderTensor kOlderTensors[] = {
    {"-cbf_blocks", "bloom_blocks", {0}},
    {"-cbf_counters", "bloom_counters", {0, 0}},
    {"-cbf_layout", "bloom_layout", {4}},
    {"-cbf_generations", "bloom_generations", {1, 3}}};

class TableExportOp : public OpKernel {
 public:
  explicit TableExportOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    OP_REQUIRES_OK(context, context->GetAttr("value_dtype", &value_dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("bloom_type", &bloom_type_));
    OP_REQUIRES_OK(context, context->GetAttr("sketch_types", &sketch_types_));
    int64_t num_slots;
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots));
    OP_REQUIRES(context, static_cast<int64_t>(slots_.size()) == num_slots,
                InvalidArgument("slot_names must be of length num_slots = ",
                                num_slots, ", got ", slots_.size()));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));

    OP_REQUIRES_OK(context, CheckDim(*resource, dim_));
    OP_REQUIRES_OK(context, CheckValueDtype(*resource, value_dtype_));
    const std::shared_lock<std::shared_mutex> lock(resource->replace_mutex());
    OP_REQUIRES_OK(context, CheckInitialized(*resource, "it is saved"));
    const std::vector<Sketch::Tensor> sketch = SketchTensors(resource->table());
    OP_REQUIRES_OK(context, CheckTypes(*resource, sketch));

    OP_REQUIRES_OK(context, OrStatus(resource->name(), [&] {
                     return Export(context, *resource, sketch);
                   }));
  }

 private:
  // The heads and the columns of the table's sketch, in this order.
  static std::vector<Sketch::Tensor> SketchTensors(
      const EmbeddingTable& table) {
    if (table.sketch() == nullptr) return {};
    Sketch::Format format = table.sketch()->format();
    std::vector<Sketch::Tensor> tensors = std::move(format.heads);
    tensors.insert(tensors.end(), format.columns.begin(), format.columns.end());
    return tensors;
  }

  // Whether a graph of an older release has the op. Such a graph knows one
  // sketch, the Bloom filter, and has an output for each of its tensors.
  bool IsOlder() const { return sketch_types_.empty(); }

  Status CheckTypes(TableResource& resource,
                    const std::vector<Sketch::Tensor>& sketch) const {
    std::vector<DataType> types;
    for (const Sketch::Tensor& tensor : sketch) types.push_back(TypeOf(tensor));
    if (!IsOlder() || types.empty()) {
      if (types == sketch_types_) return Status();
      return InvalidArgument("sketch_types must be those of table ",
                             resource.name(), ", ",
                             tensorflow::DataTypeSliceString(types), ", got ",
                             tensorflow::DataTypeSliceString(sketch_types_));
    }
    for (const Sketch::Tensor& tensor : sketch) {
      if (OlderOutput(tensor) == nullptr) {
        return InvalidArgument(
            "sketch_types must be those of table ", resource.name(), ", ",
            tensorflow::DataTypeSliceString(types), ", got none");
      }
      if (TypeOf(tensor) != bloom_type_ &&
          tensor.type != Sketch::Type::kInt64) {
        return InvalidArgument(
            "bloom_type must be that of the counters of "
            "table ",
            resource.name(), ", ", DataTypeString(TypeOf(tensor)), ", got ",
            DataTypeString(bloom_type_));
      }
    }
    return Status();
  }

  // The output for a tensor of a sketch in an older graph; nullptr: none.
  static const char* OlderOutput(const Sketch::Tensor& tensor) {
    for (const OlderTensor& each : kOlderTensors) {
      if (tensor.suffix == each.suffix) return each.output;
    }
    return nullptr;
  }

  Status Export(OpKernelContext* context, TableResource& resource,
                const std::vector<Sketch::Tensor>& sketch) const {
    const EmbeddingTable& table = resource.table();
    const Snapshot snapshot(table);
    // Bank and slots change only under the locks of all shards, so they belong
    // to the instant of the snapshot.
    const std::vector<float> bank = table.bank();
    std::vector<SlotOffset> offsets;
    TF_RETURN_IF_ERROR(FindSlots(resource, slots_, &offsets));
    TF_RETURN_IF_ERROR(CheckCountable(resource.name(), snapshot));
    std::vector<int64_t> filtered_offsets = snapshot.filtered_offsets();
    if (!SavesFilteredKeys()) {
      filtered_offsets.assign(filtered_offsets.size(), 0);
    }

    const int64_t n = snapshot.admitted_offsets().back();
    const int64_t bank_rows = static_cast<int64_t>(bank.size()) / dim_;
    Tensor *bank_out, *values;
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bank", TensorShape({bank_rows, dim_}), &bank_out));
    TF_RETURN_IF_ERROR(
        context->allocate_output("values", TensorShape({n, dim_}), &values));
    OpOutputList slot_values;
    TF_RETURN_IF_ERROR(context->output_list("slot_values", &slot_values));
    std::vector<ValueRows> slot_outs;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Tensor* out;
      TF_RETURN_IF_ERROR(
          slot_values.allocate(i, TensorShape({n, slots_[i].width}), &out));
      slot_outs.emplace_back(*out);
    }
    TF_RETURN_IF_ERROR(WriteSketch(context, snapshot, sketch));
    Tensor* unit;
    TF_RETURN_IF_ERROR(
        context->allocate_output("version_unit", TensorShape({}), &unit));
    unit->scalar<tstring>()() = resource.unit_of_versions();
    TF_RETURN_IF_ERROR(
        WriteOffsets(context, "partition_offset", snapshot.admitted_offsets()));
    TF_RETURN_IF_ERROR(
        WriteOffsets(context, "partition_filter_offset", filtered_offsets));
    std::copy(bank.begin(), bank.end(), bank_out->flat<float>().data());
    const ValueRows values_out(*values);
    const auto write_rows = [&](const EntryReader::Batch& batch, int64_t at) {
      // A cache miss for the row, then about a cycle per float: memory
      // bandwidth is the limit.
      OpThreads(context)(batch.n, 200 + table.row_floats(),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i) {
                             CopyRowAndSlots(batch.rows[i], at + i, values_out,
                                             offsets, slot_outs);
                           }
                         });
    };
    TF_RETURN_IF_ERROR(WriteEntries(context, snapshot, /*with_row=*/true, n,
                                    {"keys", "freqs", "versions"}, write_rows));
    return WriteEntries(
        context, snapshot, /*with_row=*/false, filtered_offsets.back(),
        {"keys_filtered", "freqs_filtered", "versions_filtered"},
        [](const EntryReader::Batch&, int64_t) {});
  }

  struct EntryOutputs {
    const char* keys;
    const char* freqs;
    const char* versions;
  };

  // Writes the n entries with a row, or those without one, and calls
  // write_rows(batch, at) for the entries [at, at + batch.n).
  template <typename WriteRows>
  static Status WriteEntries(OpKernelContext* context, const Snapshot& snapshot,
                             bool with_row, int64_t n,
                             const EntryOutputs& names,
                             const WriteRows& write_rows) {
    Tensor *keys, *freqs, *versions;
    const TensorShape shape({n});
    TF_RETURN_IF_ERROR(context->allocate_output(names.keys, shape, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(names.freqs, shape, &freqs));
    TF_RETURN_IF_ERROR(
        context->allocate_output(names.versions, shape, &versions));
    if (n == 0) return Status();
    EntryReader reader(snapshot, with_row, kRowsAtOnce);
    for (int64_t at = 0; at < n;) {
      const EntryReader::Batch batch = reader.Next();
      for (size_t i = 0; i < batch.n; ++i) {
        const auto to = at + static_cast<int64_t>(i);
        keys->flat<int64_t>()(to) = batch.entries[i].key;
        freqs->flat<int64_t>()(to) = batch.entries[i].count;
        versions->flat<int64_t>()(to) = batch.entries[i].version;
      }
      write_rows(batch, at);
      at += static_cast<int64_t>(batch.n);
    }
    return Status();
  }

  static Status WriteOffsets(OpKernelContext* context, const char* name,
                             const std::vector<int64_t>& offsets) {
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(
        name, TensorShape({static_cast<int64_t>(offsets.size())}), &out));
    std::copy(offsets.begin(), offsets.end(), out->flat<int32_t>().data());
    return Status();
  }

  Status WriteSketch(OpKernelContext* context, const Snapshot& snapshot,
                     const std::vector<Sketch::Tensor>& sketch) const {
    std::vector<Tensor*> outputs(sketch.size());
    OpOutputList list;
    TF_RETURN_IF_ERROR(context->output_list("sketch", &list));
    const Sketch::Heads& heads = snapshot.sketch_heads();
    for (size_t i = 0; i < sketch.size(); ++i) {
      const TensorShape shape = ShapeOf(
          sketch[i], i < heads.size() ? HeadRows(sketch[i], heads[i].size())
                                      : snapshot.sketch_rows());
      TF_RETURN_IF_ERROR(
          IsOlder() ? context->allocate_output(OlderOutput(sketch[i]), shape,
                                               &outputs[i])
                    : list.allocate(static_cast<int>(i), shape, &outputs[i]));
    }
    if (!IsOlder() || sketch.empty()) {
      TF_RETURN_IF_ERROR(WriteOlderOutputs(context));
    }
    for (size_t i = 0; i < heads.size(); ++i) {
      std::copy(heads[i].begin(), heads[i].end(),
                outputs[i]->flat<int64_t>().data());
    }
    if (sketch.empty() || snapshot.sketch_rows() == 0) return Status();
    int64_t row_number = 0;
    snapshot.ForEachSketchRow([&](const void* const* row) {
      for (size_t i = heads.size(); i < sketch.size(); ++i) {
        const size_t bytes = RowBytes(sketch[i]);
        std::memcpy(static_cast<char*>(outputs[i]->data()) + row_number * bytes,
                    row[i - heads.size()], bytes);
      }
      ++row_number;
    });
    return Status();
  }

  // Zeros, as without a Bloom filter.
  static Status WriteOlderOutputs(OpKernelContext* context) {
    for (const OlderTensor& each : kOlderTensors) {
      Tensor* out;
      TF_RETURN_IF_ERROR(context->allocate_output(
          each.output, TensorShape(each.empty_shape), &out));
      // The data of an empty tensor may be null, which memset must not get.
      if (out->TotalBytes() > 0) std::memset(out->data(), 0, out->TotalBytes());
    }
    return Status();
  }

  int64_t dim_ = 0;
  std::vector<SlotSpec> slots_;
  DataType value_dtype_ = tensorflow::DT_FLOAT;
  DataType bloom_type_ = tensorflow::DT_UINT8;
  std::vector<DataType> sketch_types_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableExport").Device(DEVICE_CPU),
                        Guarded<TableExportOp>);

}  // namespace
}  // namespace rec_estimator
