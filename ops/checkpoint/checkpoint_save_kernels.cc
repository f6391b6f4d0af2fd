// SPDX-License-Identifier: Apache-2.0
// Kernels of TablesSave and TableCommitSave: tables to one checkpoint file, by
// way of little memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_writer.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/strcat.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::DT_STRING;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::tstring;
using ::tensorflow::errors::FailedPrecondition;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::strings::StrCat;

using Snapshot = EmbeddingTable::Snapshot;
using Entries = std::vector<Snapshot::Entry>;

// Bytes of the rows that are gathered at once. Three such chunks are alive: one
// is gathered, one waits, one is being written.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// Bytes of the keys that are listed at once, and the share of the table's bytes
// that may be added. A listing goes over the whole index, so that few are good.
constexpr int64_t kListedBytes = int64_t{20} << 20;
constexpr int64_t kListedShare = 200;  // 0.5 %

// How an op calls a table in the file.
struct TableNames {
  std::string name;  // Of the shard.
  std::string bank;  // Empty: the bank is not written.
  DataType key_dtype;
  std::vector<SlotSpec> slots;
};

// The checkpoint that an incremental one holds the changes to.
struct Parent {
  std::string name;      // Empty: there is none.
  std::string identity;  // Of its index; empty: not known.
};

// Writes one table.
class TableSave {
 public:
  TableSave(OpKernelContext* context, TableResource* resource,
            const TableNames& names, CheckpointWriter* writer)
      : context_(context),
        resource_(*resource),
        names_(names),
        writer_(*writer),
        sources_{names.name} {
    for (const SlotSpec& slot : names.slots) {
      sources_.push_back(StrCat(names.name, "/", slot.name));
    }
  }

  // parent: the checkpoint since which changes are written, if it has a name.
  Status Run(const Parent& parent, bool track_changes) {
    EmbeddingTable& table = resource_.table();
    const bool is_delta = !parent.name.empty();
    if (is_delta && !table.tracks_changes()) {
      return FailedPrecondition(
          "table ", resource_.name(),
          " must be saved in full, with track_changes, before its changes are, "
          "got delta_of = ",
          parent.name);
    }
    // Now, so that nothing can change between this and the snapshot unnoticed.
    if (track_changes) table.TrackChanges();
    Snapshot snapshot(
        table, is_delta ? Snapshot::Keys::kChanged : Snapshot::Keys::kAll);
    TF_RETURN_IF_ERROR(FindSlots(resource_, names_.slots, &places_));
    TF_RETURN_IF_ERROR(CheckCountable(resource_.name(), snapshot));
    if (!names_.bank.empty()) {
      TF_RETURN_IF_ERROR(SaveMatrix(names_.bank, table.bank(), table.dim()));
    }
    TF_RETURN_IF_ERROR(SaveEntries(snapshot));
    TF_RETURN_IF_ERROR(SaveBloom(snapshot));
    if (is_delta) TF_RETURN_IF_ERROR(SaveErased(snapshot, parent));
    // A save that fails hereafter does no harm: pending changes are saved again
    // until they are committed.
    if (track_changes) snapshot.MarkSaved();
    return Status();
  }

 private:
  Status Allocate(DataType dtype, const TensorShape& shape, Tensor* tensor) {
    return context_->allocate_temp(dtype, shape, tensor);
  }

  Status SaveEntries(const Snapshot& snapshot) {
    const std::vector<int64_t>& admitted = snapshot.admitted_offsets();
    const std::vector<int64_t> none(kBuckets + 1, 0);
    const bool saves_filtered = SavesFilteredKeys();
    const std::vector<int64_t>& filtered =
        saves_filtered ? snapshot.filtered_offsets() : none;
    TF_RETURN_IF_ERROR(SaveOffsets(kOffsets, admitted));
    TF_RETURN_IF_ERROR(SaveOffsets(kOffsetsFiltered, filtered));
    if (admitted.back() == 0) {
      TF_RETURN_IF_ERROR(SaveChunk(snapshot, nullptr, 0, 0, 0, true));
    }
    if (filtered.back() == 0) {
      TF_RETURN_IF_ERROR(SaveChunk(snapshot, nullptr, 0, 0, 0, false));
    }
    const int64_t most =
        (kListedBytes + resource_.table().memory_bytes() / kListedShare) /
        static_cast<int64_t>(sizeof(Snapshot::Entry));
    const auto listed = [&](int64_t begin, int64_t end) {
      return admitted[end] - admitted[begin] +
             snapshot.filtered_offsets()[end] -
             snapshot.filtered_offsets()[begin];
    };
    Entries with_row, without;
    // For good: a vector that grows takes twice what it needs, or more.
    with_row.reserve(std::min(most, admitted.back()));
    without.reserve(std::min(most, snapshot.filtered_offsets().back()));
    for (int64_t begin = 0, end; begin < kBuckets; begin = end) {
      end = begin + 1;
      while (end < kBuckets && listed(begin, end + 1) <= most) ++end;
      if (listed(begin, end) == 0) continue;
      snapshot.List(begin, end, IntraOpThreads(context_), &with_row, &without);
      TF_RETURN_IF_ERROR(SaveList(snapshot, with_row, admitted[begin],
                                  admitted.back(), /*with_row=*/true));
      if (!saves_filtered) continue;
      TF_RETURN_IF_ERROR(SaveList(snapshot, without, filtered[begin],
                                  filtered.back(), /*with_row=*/false));
    }
    return Status();
  }

  // Offsets of the table and of each slot, which has the same keys.
  Status SaveOffsets(const char* ending, const std::vector<int64_t>& offsets) {
    const int64_t n = offsets.size();
    Tensor tensor;
    TF_RETURN_IF_ERROR(Allocate(DT_INT32, TensorShape({n}), &tensor));
    std::copy(offsets.begin(), offsets.end(), tensor.flat<int32_t>().data());
    std::vector<TensorRows> slices;
    for (const std::string& source : sources_) {
      slices.push_back({source + ending, n, 0, tensor});
    }
    return writer_.Add(std::move(slices));
  }

  // Keys begin, begin + 1, … of `total`, those with or without a row.
  Status SaveList(const Snapshot& snapshot, const Entries& entries,
                  int64_t begin, int64_t total, bool with_row) {
    int64_t bytes_per_key = 3 * sizeof(int64_t);
    if (with_row) {
      bytes_per_key += resource_.table().dim() * sizeof(float);
      for (const SlotSpec& slot : names_.slots) {
        bytes_per_key += slot.width * sizeof(float);
      }
    }
    const int64_t most = std::max<int64_t>(1, kChunkBytes / bytes_per_key);
    const int64_t size = entries.size();
    for (int64_t at = 0; at < size; at += most) {
      TF_RETURN_IF_ERROR(SaveChunk(snapshot, entries.data() + at,
                                   std::min(most, size - at), begin + at, total,
                                   with_row));
    }
    return Status();
  }

  Status SaveChunk(const Snapshot& snapshot, const Snapshot::Entry* entries,
                   int64_t n, int64_t begin, int64_t total, bool with_row) {
    Chunk* chunk;
    TF_RETURN_IF_ERROR(TakeChunk(n, with_row, &chunk));
    Tensor keys = chunk->keys.Slice(0, n);
    Tensor freqs = chunk->freqs.Slice(0, n);
    Tensor versions = chunk->versions.Slice(0, n);
    Tensor values;
    std::vector<Tensor> slots;
    std::vector<float*> slot_outs;
    const int dim = resource_.table().dim();
    float* value_out = nullptr;
    if (with_row) {
      values = chunk->values.Slice(0, n);
      value_out = values.flat<float>().data();
      for (const Tensor& slot : chunk->slots) {
        slots.push_back(slot.Slice(0, n));
        slot_outs.push_back(slots.back().flat<float>().data());
      }
    }
    int64_t* freq_out = freqs.flat<int64_t>().data();
    int64_t* version_out = versions.flat<int64_t>().data();
    // A miss for the entry and one for the row, then about a cycle a float.
    IntraOpThreads(context_)(
        n, 300 + resource_.table().row_floats(),
        [&](int64_t first, int64_t end) {
          constexpr int64_t kAhead = 32;
          for (int64_t i = first; i < end; ++i) {
            if ((i - first) % kAhead == 0) {
              snapshot.Prefetch(entries + i, std::min(kAhead, end - i));
            }
            freq_out[i] = snapshot.Freq(entries[i]);
            version_out[i] = snapshot.Version(entries[i]);
            if (!with_row) continue;
            const float* row = snapshot.Row(entries[i]);
            std::copy_n(row, dim, value_out + i * dim);
            for (size_t s = 0; s < places_.size(); ++s) {
              CopySlot(row, places_[s],
                       slot_outs[s] + i * places_[s].slot.width);
            }
          }
        });
    TF_RETURN_IF_ERROR(CopyKeys(entries, n, &keys));

    std::vector<TensorRows> slices;
    for (size_t s = 0; s < sources_.size(); ++s) {
      const std::string& source = sources_[s];
      slices.push_back(
          {source + (with_row ? kKeys : kKeysFiltered), total, begin, keys});
      slices.push_back(
          {source + (with_row ? kFreqs : kFreqsFiltered), total, begin, freqs});
      slices.push_back({source + (with_row ? kVersions : kVersionsFiltered),
                        total, begin, versions});
      if (with_row) {
        slices.push_back(
            {source + kValues, total, begin, s == 0 ? values : slots[s - 1]});
      }
    }
    return writer_.Add(std::move(slices));
  }

  // Memory of a chunk, used again once the writer is done with it: freed and
  // allocated for each, it would be scattered over the heap.
  struct Chunk {
    int64_t rows = -1;
    Tensor keys, freqs, versions;
    Tensor values;              // Of keys with a row.
    std::vector<Tensor> slots;  // The same.

    bool IsFree() const {
      const auto is_free = [](const Tensor& tensor) {
        return tensor.NumElements() == 0 || tensor.RefCountIsOne();
      };
      return is_free(keys) && is_free(freqs) && is_free(versions) &&
             is_free(values) &&
             std::all_of(slots.begin(), slots.end(), is_free);
    }
  };

  Status TakeChunk(int64_t n, bool with_row, Chunk** chunk) {
    std::vector<Chunk>& chunks = chunks_[with_row];
    auto it = std::find_if(chunks.begin(), chunks.end(),
                           [](const Chunk& each) { return each.IsFree(); });
    if (it == chunks.end()) it = chunks.insert(it, Chunk());
    *chunk = &*it;
    if (it->rows >= n) return Status();
    *it = Chunk();
    it->rows = n;
    const TensorShape per_key({n});
    TF_RETURN_IF_ERROR(Allocate(names_.key_dtype, per_key, &it->keys));
    TF_RETURN_IF_ERROR(Allocate(DT_INT64, per_key, &it->freqs));
    TF_RETURN_IF_ERROR(Allocate(DT_INT64, per_key, &it->versions));
    if (!with_row) return Status();
    const int64_t dim = resource_.table().dim();
    TF_RETURN_IF_ERROR(Allocate(DT_FLOAT, TensorShape({n, dim}), &it->values));
    it->slots.resize(places_.size());
    for (size_t s = 0; s < places_.size(); ++s) {
      TF_RETURN_IF_ERROR(Allocate(
          DT_FLOAT, TensorShape({n, places_[s].slot.width}), &it->slots[s]));
    }
    return Status();
  }

  Status CopyKeys(const Snapshot::Entry* entries, int64_t n,
                  Tensor* keys) const {
    if (keys->dtype() == DT_INT64) {
      int64_t* out = keys->flat<int64_t>().data();
      for (int64_t i = 0; i < n; ++i) out[i] = entries[i].key;
      return Status();
    }
    int32_t* out = keys->flat<int32_t>().data();
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<int32_t>(entries[i].key);
      if (out[i] != entries[i].key) return NotInt32(entries[i].key);
    }
    return Status();
  }

  Status NotInt32(int64_t key) const {
    return InvalidArgument("keys of table ", resource_.name(),
                           " must fit into int32 to be saved so, got ", key,
                           "; save it with int64 keys");
  }

  Status SaveMatrix(const std::string& name, const std::vector<float>& matrix,
                    int64_t width) {
    const int64_t total = matrix.size() / width;
    const int64_t most = std::max<int64_t>(
        1, kChunkBytes / (width * static_cast<int64_t>(sizeof(float))));
    for (int64_t at = 0; at < total; at += most) {
      const int64_t n = std::min(most, total - at);
      Tensor rows;
      TF_RETURN_IF_ERROR(Allocate(DT_FLOAT, TensorShape({n, width}), &rows));
      std::copy_n(matrix.data() + at * width, n * width,
                  rows.flat<float>().data());
      TF_RETURN_IF_ERROR(writer_.Add({{name, total, at, rows}}));
    }
    return Status();
  }

  Status SaveBloom(const Snapshot& snapshot) {
    const EmbeddingTable::BloomLayout layout = resource_.table().bloom_layout();
    if (layout.blocks == 0) return Status();
    Tensor tensor;
    TF_RETURN_IF_ERROR(
        Allocate(DT_INT64, TensorShape({kBloomLayoutSize}), &tensor));
    CopyLayout(layout, tensor.flat<int64_t>().data());
    TF_RETURN_IF_ERROR(writer_.Add(
        {{names_.name + kBloomLayout, kBloomLayoutSize, 0, tensor}}));
    const DataType type = BloomCounterType(layout);
    return WithCounterType(type, [&](auto* counter) {
      return SaveBloomBlocks(snapshot, layout.cells_per_block, type, counter);
    });
  }

  template <typename Counter>
  Status SaveBloomBlocks(const Snapshot& snapshot, int64_t width, DataType type,
                         Counter*) {
    const int64_t total = snapshot.bloom_blocks();
    const int64_t most =
        std::max<int64_t>(1, kChunkBytes / (width * sizeof(Counter)));
    Status status;
    Tensor numbers, counters;
    int64_t begin = 0;  // Of the chunk.
    int64_t n = 0;      // Its blocks.
    int64_t filled = 0;
    const auto open = [&]() -> Status {
      n = std::min(most, total - begin);
      filled = 0;
      TF_RETURN_IF_ERROR(Allocate(DT_INT64, TensorShape({n}), &numbers));
      return Allocate(type, TensorShape({n, width}), &counters);
    };
    const auto close = [&] {
      return writer_.Add(
          {{names_.name + kBloomBlocks, total, begin, numbers},
           {names_.name + kBloomCounters, total, begin, counters}});
    };
    TF_RETURN_IF_ERROR(open());
    if (total == 0) return close();
    snapshot.ForEachBloomBlock([&](int64_t number, const uint32_t* cells) {
      if (!status.ok() || begin + filled == total) return;
      numbers.flat<int64_t>().data()[filled] = number;
      Counter* out = counters.flat<Counter>().data() + filled * width;
      std::transform(cells, cells + width, out,
                     [](uint32_t cell) { return static_cast<Counter>(cell); });
      if (++filled < n) return;
      status = close();
      begin += n;
      if (status.ok() && begin < total) status = open();
    });
    return status;
  }

  Status SaveErased(const Snapshot& snapshot, const Parent& parent) {
    const std::vector<int64_t>& erased = snapshot.erased();
    const std::string name = names_.name + kKeysErased;
    const int64_t total = erased.size();
    const int64_t most = kChunkBytes / sizeof(int64_t);
    for (int64_t at = 0; at < std::max<int64_t>(total, 1); at += most) {
      const int64_t n = std::min(most, total - at);
      Tensor keys;
      TF_RETURN_IF_ERROR(Allocate(names_.key_dtype, TensorShape({n}), &keys));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t key = erased[at + i];
        if (keys.dtype() == DT_INT64) {
          keys.flat<int64_t>()(i) = key;
          continue;
        }
        keys.flat<int32_t>()(i) = static_cast<int32_t>(key);
        if (keys.flat<int32_t>()(i) != key) return NotInt32(key);
      }
      TF_RETURN_IF_ERROR(writer_.Add({{name, total, at, keys}}));
    }
    std::vector<TensorRows> strings = {
        {names_.name + kDeltaOf, 1, 0, Scalar(parent.name)}};
    if (!parent.identity.empty()) {
      strings.push_back(
          {names_.name + kDeltaOfIndex, 1, 0, Scalar(parent.identity)});
    }
    return writer_.Add(std::move(strings));
  }

  static Tensor Scalar(const std::string& value) {
    Tensor tensor(DT_STRING, TensorShape({}));
    tensor.scalar<tstring>()() = value;
    return tensor;
  }

  OpKernelContext* const context_;
  TableResource& resource_;
  const TableNames& names_;
  CheckpointWriter& writer_;
  std::vector<std::string> sources_;  // The shard and its slots.
  std::vector<SlotPlace> places_;
  std::array<std::vector<Chunk>, 2> chunks_;  // [1]: of keys with a row.
};

class TablesSaveOp : public OpKernel {
 public:
  explicit TablesSaveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("track_changes", &track_changes_));
    OP_REQUIRES_OK(context, ReadTables(context));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList handles;
    OP_REQUIRES_OK(context, context->input_list("tables", &handles));
    std::string prefix;
    Parent parent;
    OP_REQUIRES_OK(context, ReadPrefix(context, &prefix));
    OP_REQUIRES_OK(context, ReadParent(context, &parent));
    OP_REQUIRES(context, !prefix.empty() && prefix.back() != '/',
                InvalidArgument("prefix must name a file, got '", prefix, "'"));
    std::vector<TablePtr> tables(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      OP_REQUIRES_OK(context, FindTable(context, handles[i], &tables[i]));
      OP_REQUIRES_OK(context, CheckInitialized(*tables[i], "it is saved"));
    }

    CheckpointWriter writer(prefix);
    for (int i = 0; i < handles.size(); ++i) {
      TableSave save(context, tables[i].get(), names_[i], &writer);
      OP_REQUIRES_OK(context, OrResourceExhausted(tables[i]->name(), [&] {
                       return save.Run(parent, track_changes_);
                     }));
    }
    OP_REQUIRES_OK(context, writer.Finish());
  }

 private:
  Status ReadTables(OpKernelConstruction* context) {
    std::vector<std::string> names, banks, slot_names;
    std::vector<DataType> key_dtypes;
    std::vector<int64_t> num_slots, slot_widths;
    std::vector<float> slot_initials;
    TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &names));
    TF_RETURN_IF_ERROR(context->GetAttr("key_dtypes", &key_dtypes));
    TF_RETURN_IF_ERROR(context->GetAttr("bank_names", &banks));
    TF_RETURN_IF_ERROR(context->GetAttr("num_slots", &num_slots));
    TF_RETURN_IF_ERROR(context->GetAttr("slot_names", &slot_names));
    TF_RETURN_IF_ERROR(context->GetAttr("slot_widths", &slot_widths));
    TF_RETURN_IF_ERROR(context->GetAttr("slot_initials", &slot_initials));
    const size_t tables = context->num_inputs() - 2;
    if (names.size() != tables || key_dtypes.size() != tables ||
        banks.size() != tables || num_slots.size() != tables) {
      return InvalidArgument(
          "tensor_names, key_dtypes, bank_names and num_slots must be of "
          "length N = ",
          tables, ", got ", names.size(), ", ", key_dtypes.size(), ", ",
          banks.size(), " and ", num_slots.size());
    }
    size_t slots = 0;
    for (const int64_t n : num_slots) {
      if (n < 0 || static_cast<size_t>(n) > slot_names.size() - slots) {
        return InvalidArgument("num_slots must be >= 0 and in sum the length ",
                               slot_names.size(), " of slot_names, got ", n);
      }
      slots += n;
    }
    if (slot_names.size() != slots || slot_widths.size() != slots ||
        slot_initials.size() != slots) {
      return InvalidArgument(
          "slot_names, slot_widths and slot_initials must be of length ", slots,
          ", the sum of num_slots, got ", slot_names.size(), ", ",
          slot_widths.size(), " and ", slot_initials.size());
    }
    std::set<std::string> seen;
    slots = 0;
    for (size_t i = 0; i < tables; ++i) {
      if (names[i].empty() || !seen.insert(names[i]).second) {
        return InvalidArgument(
            "tensor_names must be distinct and not empty, got '", names[i],
            "' at ", i);
      }
      names_.push_back({names[i], banks[i], key_dtypes[i], {}});
      TF_RETURN_IF_ERROR(CheckSlots(slot_names, slot_widths, slot_initials,
                                    slots, slots + num_slots[i],
                                    &names_.back().slots));
      slots += num_slots[i];
    }
    return Status();
  }

  static Status ReadPrefix(OpKernelContext* context, std::string* prefix) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input("prefix", &tensor));
    if (!TensorShapeUtils::IsScalar(tensor->shape())) {
      return InvalidArgument("prefix must be [], got shape ",
                             tensor->shape().DebugString());
    }
    *prefix = tensor->scalar<tstring>()();
    return Status();
  }

  static Status ReadParent(OpKernelContext* context, Parent* parent) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input("delta_of", &tensor));
    const bool has_identity = tensor->dims() == 1 && tensor->dim_size(0) == 2;
    if (!has_identity && tensor->dims() != 0) {
      return InvalidArgument("delta_of must be [] or [2], got shape ",
                             tensor->shape().DebugString());
    }
    parent->name = tensor->flat<tstring>()(0);
    if (has_identity) parent->identity = tensor->flat<tstring>()(1);
    if (parent->name.find('/') == std::string::npos) return Status();
    return InvalidArgument(
        "delta_of must be the name of a checkpoint beside prefix, got ",
        parent->name);
  }

  std::vector<TableNames> names_;
  bool track_changes_ = false;
};

class TableCommitSaveOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));

    resource->table().CommitSaved();
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesSave").Device(DEVICE_CPU),
                        TablesSaveOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableCommitSave").Device(DEVICE_CPU),
                        TableCommitSaveOp);

}  // namespace
}  // namespace rec_estimator
