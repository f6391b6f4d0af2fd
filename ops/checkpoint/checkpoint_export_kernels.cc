// SPDX-License-Identifier: Apache-2.0
// Save by a stock Saver, the only step: TableExport copies a whole table to
// tensors at one instant, and the Saver writes them.
#include <algorithm>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/checkpoint/checkpoint_format.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/intra_op_threads.h"
#include "ops/table/slot_attrs.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::OpOutputList;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::errors::InvalidArgument;

using Snapshot = EmbeddingTable::Snapshot;
using Entries = std::vector<Snapshot::Entry>;

class TableExportOp : public OpKernel {
 public:
  explicit TableExportOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    OP_REQUIRES_OK(context, context->GetAttr("bloom_type", &bloom_type_));
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
    const std::shared_lock<std::shared_mutex> lock(resource->replace_mutex());
    OP_REQUIRES_OK(context, CheckInitialized(*resource, "it is saved"));
    const EmbeddingTable::BloomLayout layout = resource->table().bloom_layout();
    OP_REQUIRES(
        context, layout.blocks == 0 || bloom_type_ == BloomCounterType(layout),
        InvalidArgument("bloom_type must be that of the counters of table ",
                        resource->name(), ", ",
                        DataTypeString(BloomCounterType(layout)), ", got ",
                        DataTypeString(bloom_type_)));

    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return Export(context, *resource, layout);
                   }));
  }

 private:
  Status Export(OpKernelContext* context, TableResource& resource,
                const EmbeddingTable::BloomLayout& layout) const {
    const EmbeddingTable& table = resource.table();
    const Snapshot snapshot(table);
    // Bank and slots change only under the locks of all shards, so they belong
    // to the instant of the snapshot.
    const std::vector<float> bank = table.bank();
    std::vector<SlotPlace> places;
    TF_RETURN_IF_ERROR(FindSlots(resource, slots_, &places));
    TF_RETURN_IF_ERROR(CheckCountable(resource.name(), snapshot));
    Entries admitted, filtered;
    snapshot.List(0, kBuckets, IntraOpThreads(context), &admitted, &filtered);
    std::vector<int64_t> filtered_offsets = snapshot.filtered_offsets();
    if (!SavesFilteredKeys()) {
      filtered.clear();
      filtered_offsets.assign(filtered_offsets.size(), 0);
    }

    const int64_t n = admitted.size();
    const int64_t bank_rows = static_cast<int64_t>(bank.size()) / dim_;
    Tensor *bank_out, *values;
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bank", TensorShape({bank_rows, dim_}), &bank_out));
    TF_RETURN_IF_ERROR(
        context->allocate_output("values", TensorShape({n, dim_}), &values));
    OpOutputList slot_values;
    TF_RETURN_IF_ERROR(context->output_list("slot_values", &slot_values));
    std::vector<float*> slot_outs;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Tensor* out;
      TF_RETURN_IF_ERROR(
          slot_values.allocate(i, TensorShape({n, slots_[i].width}), &out));
      slot_outs.push_back(out->flat<float>().data());
    }
    TF_RETURN_IF_ERROR(WriteBloom(context, snapshot, layout));
    TF_RETURN_IF_ERROR(
        WriteOffsets(context, "partition_offset", snapshot.admitted_offsets()));
    TF_RETURN_IF_ERROR(
        WriteOffsets(context, "partition_filter_offset", filtered_offsets));
    TF_RETURN_IF_ERROR(
        WriteKeys(context, snapshot, admitted, "keys", "freqs", "versions"));
    TF_RETURN_IF_ERROR(WriteKeys(context, snapshot, filtered, "keys_filtered",
                                 "freqs_filtered", "versions_filtered"));
    std::copy(bank.begin(), bank.end(), bank_out->flat<float>().data());
    float* values_out = values->flat<float>().data();
    // A cache miss for the row, then about a cycle per float: memory bandwidth
    // is the limit.
    IntraOpThreads(context)(
        n, 200 + table.row_floats(), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            CopyRowAndSlots(snapshot.Row(admitted[i]), i, dim_, places,
                            values_out, slot_outs);
          }
        });
    return Status();
  }

  static Status WriteKeys(OpKernelContext* context, const Snapshot& snapshot,
                          const Entries& entries, const char* keys_name,
                          const char* freqs_name, const char* versions_name) {
    const TensorShape shape({static_cast<int64_t>(entries.size())});
    Tensor *keys, *freqs, *versions;
    TF_RETURN_IF_ERROR(context->allocate_output(keys_name, shape, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(freqs_name, shape, &freqs));
    TF_RETURN_IF_ERROR(
        context->allocate_output(versions_name, shape, &versions));
    for (size_t i = 0; i < entries.size(); ++i) {
      keys->flat<int64_t>()(i) = entries[i].key;
      freqs->flat<int64_t>()(i) = snapshot.Freq(entries[i]);
      versions->flat<int64_t>()(i) = snapshot.Version(entries[i]);
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

  Status WriteBloom(OpKernelContext* context, const Snapshot& snapshot,
                    const EmbeddingTable::BloomLayout& layout) const {
    const int64_t n = snapshot.bloom_blocks();
    const int64_t width = layout.cells_per_block;
    Tensor *blocks, *counters, *geometry;
    TF_RETURN_IF_ERROR(
        context->allocate_output("bloom_blocks", TensorShape({n}), &blocks));
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bloom_counters", TensorShape({n, width}), &counters));
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bloom_layout", TensorShape({kBloomLayoutSize}), &geometry));
    CopyLayout(layout, geometry->flat<int64_t>().data());
    const auto& generations = snapshot.bloom_generations();
    const int64_t n_generations = generations.size();
    Tensor* ages;
    TF_RETURN_IF_ERROR(context->allocate_output(
        "bloom_generations", TensorShape({n_generations, kBloomGenerationSize}),
        &ages));
    CopyGenerations(generations, ages->flat<int64_t>().data());
    if (n == 0) return Status();
    WithCounterType(bloom_type_, [&](auto* type) {
      using Counter = std::remove_pointer_t<decltype(type)>;
      int64_t* number_out = blocks->flat<int64_t>().data();
      Counter* out = counters->flat<Counter>().data();
      snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* cells) {
        *number_out++ = number;
        out = CopyCells(cells, width, out);
      });
    });
    return Status();
  }

  int64_t dim_ = 0;
  std::vector<SlotSpec> slots_;
  DataType bloom_type_ = tensorflow::DT_UINT8;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableExport").Device(DEVICE_CPU),
                        TableExportOp);

}  // namespace
}  // namespace rec_estimator
