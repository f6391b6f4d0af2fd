// SPDX-License-Identifier: Apache-2.0
// Save by rec_estimator.Saver, step 1: TablesSave takes a snapshot of each
// table and gathers it in slices of bounded size, which CheckpointWriter (step
// 2) writes. TableCommitSave (step 3) marks the saved changes as safe.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/checkpoint/checkpoint_direct_file.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_row_report.h"
#include "ops/checkpoint/checkpoint_writer.h"
#include "ops/core/base/cpu_memory.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::Env;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// Bytes of rows in a chunk. Three chunks exist at a time: one is gathered, one
// waits, and one is written. Of rows on disk, two more are being read.
constexpr int64_t kChunkBytes = int64_t{2} << 20;

// Rows that are fetched before they are copied.
constexpr int64_t kPrefetched = 16;

// Memory for entries that are listed, plus a share of the table's memory. Each
// listing scans the whole index, so there should be few of them. A save may
// take 64 MiB and 1 % in all. Beside the list, chunks take 6 MiB, and entries
// that are read 2. If rows are on disk, the file's buffers take 4, the rows
// that are read 8, and pages that are held for later rows 20 MiB and 0.25 %
// (embedding_table_snapshot.cc).
constexpr int64_t kListedBytes = int64_t{42} << 20;
constexpr int64_t kListedBytesBesidePages = int64_t{22} << 20;
constexpr int64_t kListedShare = 200;  // 1/200 = 0.5 %.

// What is saved of a table, and under which names.
struct TableNames {
  std::string name;  // Name of the shard.
  std::string bank;  // Empty: the bank is not written.
  DataType key_dtype;
  std::vector<SlotSpec> slots;
};

// The checkpoint to which an incremental checkpoint holds the changes.
struct Parent {
  std::string name;      // Empty: none, the save is full.
  std::string identity;  // Identity of its index. Empty: unknown.
};

// Memory of a chunk. It is reused when the writer has released it; allocating
// and freeing it for each chunk would fragment the heap.
struct Chunk {
  int64_t rows = -1;
  Tensor keys, freqs, versions;
  Tensor values;              // Only for keys with a row.
  Tensor scale_offset;        // Only for keys with a row of bytes.
  std::vector<Tensor> slots;  // Only for keys with a row.

  bool IsFree() const {
    const auto is_free = [](const Tensor& tensor) {
      return tensor.NumElements() == 0 || tensor.RefCountIsOne();
    };
    return is_free(keys) && is_free(freqs) && is_free(versions) &&
           is_free(values) && is_free(scale_offset) &&
           std::all_of(slots.begin(), slots.end(), is_free);
  }
};

// Saves one table.
class TableSave {
 public:
  TableSave(OpKernelContext* context, TableResource* resource,
            const TableNames& names, CheckpointWriter* writer)
      : context_(context),
        resource_(*resource),
        names_(names),
        writer_(*writer),
        sources_{names.name},
        report_(resource) {
    for (const SlotSpec& slot : names.slots) {
      sources_.push_back(StrCat(names.name, "/", slot.name));
    }
  }

  // Saves the changes since `parent`, or the whole table if it has no name.
  Status Run(const Parent& parent, bool track_changes, bool refuses) {
    const std::shared_lock<std::shared_mutex> lock(resource_.replace_mutex());
    TF_RETURN_IF_ERROR(CheckInitialized(resource_, "it is saved"));
    EmbeddingTable& table = resource_.table();
    const bool is_delta = !parent.name.empty();
    if (is_delta && !table.tracks_changes()) {
      return FailedPrecondition(
          "table ", resource_.name(),
          " must be saved in full, with track_changes, before its changes are, "
          "got delta_of = ",
          parent.name);
    }
    // Before the snapshot, so that no later change is missed.
    if (track_changes) table.TrackChanges();
    Snapshot snapshot(
        table, is_delta ? Snapshot::Keys::kChanged : Snapshot::Keys::kAll);
    TF_RETURN_IF_ERROR(FindSlots(resource_, names_.slots, &slot_offsets_));
    TF_RETURN_IF_ERROR(CheckCountable(resource_.name(), snapshot));
    if (!names_.bank.empty()) {
      TF_RETURN_IF_ERROR(SaveMatrix(names_.bank, table.bank(), table.dim()));
    }
    TF_RETURN_IF_ERROR(SaveEntries(snapshot));
    TF_RETURN_IF_ERROR(report_.Finish(slot_offsets_, refuses));
    TF_RETURN_IF_ERROR(SaveSketch(snapshot));
    if (resource_.unit_of_versions() == kSeconds) {
      TF_RETURN_IF_ERROR(SaveString(kVersionUnit, kSeconds));
    }
    if (is_delta) TF_RETURN_IF_ERROR(SaveErased(snapshot, parent));
    // The save may still fail after this call: changes that are not committed
    // are saved again by the next save.
    if (track_changes) snapshot.MarkSaved();
    return Status();
  }

 private:
  Status Allocate(DataType dtype, const TensorShape& shape, Tensor* tensor) {
    return context_->allocate_temp(dtype, shape, tensor);
  }

  bool HasBytes() const {
    return resource_.table().rules().value.type == ValueType::kInt8;
  }

  Status SaveEntries(const Snapshot& snapshot) {
    const std::vector<int64_t>& admitted = snapshot.admitted_offsets();
    const std::vector<int64_t> none(kKeyClasses + 1, 0);
    const bool saves_filtered = SavesFilteredKeys();
    const std::vector<int64_t>& filtered =
        saves_filtered ? snapshot.filtered_offsets() : none;
    TF_RETURN_IF_ERROR(SaveOffsets(kOffsets, admitted));
    TF_RETURN_IF_ERROR(SaveOffsets(kOffsetsFiltered, filtered));
    TF_RETURN_IF_ERROR(SaveKeys(snapshot, admitted.back(), /*with_row=*/true));
    return SaveKeys(snapshot, filtered.back(), /*with_row=*/false);
  }

  // Saves the offsets of the table and of each slot, which has the same keys.
  Status SaveOffsets(const char* suffix, const std::vector<int64_t>& offsets) {
    const int64_t n = offsets.size();
    Tensor tensor;
    TF_RETURN_IF_ERROR(Allocate(DT_INT32, TensorShape({n}), &tensor));
    std::copy(offsets.begin(), offsets.end(), tensor.flat<int32_t>().data());
    std::vector<TensorRows> slices;
    for (const std::string& source : sources_) {
      slices.push_back({source + suffix, n, 0, tensor});
    }
    return writer_.Add(std::move(slices));
  }

  // Saves the keys with a row, or those without one, which are `total`; none
  // of them if that is 0.
  Status SaveKeys(const Snapshot& snapshot, int64_t total, bool with_row) {
    if (total == 0) return SaveChunk({}, 0, 0, with_row);
    const EmbeddingTable& table = resource_.table();
    int64_t bytes_per_key = 3 * sizeof(int64_t);
    if (with_row) {
      bytes_per_key += table.dim() * sizeof(float);
      for (const SlotSpec& slot : names_.slots) {
        bytes_per_key += slot.width * sizeof(float);
      }
    }
    const int64_t listed_bytes =
        (table.tier() == nullptr ? kListedBytes : kListedBytesBesidePages) +
        table.memory_bytes() / kListedShare;
    EntryReader reader(snapshot, with_row,
                       std::max<int64_t>(1, kChunkBytes / bytes_per_key),
                       listed_bytes);
    for (int64_t begin = 0; begin < total;) {
      const EntryReader::Batch batch = reader.Next();
      TF_RETURN_IF_ERROR(SaveChunk(batch, begin, total, with_row));
      begin += static_cast<int64_t>(batch.n);
    }
    return Status();
  }

  // Saves a batch, which is keys [begin, begin + batch.n) of `total`.
  Status SaveChunk(const EntryReader::Batch& batch, int64_t begin,
                   int64_t total, bool with_row) {
    const auto n = static_cast<int64_t>(batch.n);
    Chunk* chunk;
    TF_RETURN_IF_ERROR(AcquireChunk(n, with_row, &chunk));
    Tensor keys = chunk->keys.Slice(0, n), freqs = chunk->freqs.Slice(0, n);
    Tensor versions = chunk->versions.Slice(0, n), values, scale_offset;
    std::vector<Tensor> slots;
    std::vector<ValueRows> slot_outs;
    std::optional<ValueRows> value_out;
    if (with_row) {
      values = chunk->values.Slice(0, n);
      if (HasBytes()) scale_offset = chunk->scale_offset.Slice(0, n);
      value_out.emplace(values, scale_offset);
      for (const Tensor& slot : chunk->slots) {
        slots.push_back(slot.Slice(0, n));
        slot_outs.emplace_back(slots.back());
      }
    }
    int64_t* freq_out = freqs.flat<int64_t>().data();
    int64_t* version_out = versions.flat<int64_t>().data();
    const int64_t row_floats = resource_.table().row_floats();
    const auto copy = [&](int64_t first, int64_t end) {
      RowReport::Part report(&report_);
      for (int64_t i = first; i < end; ++i) {
        freq_out[i] = batch.entries[i].count;
        version_out[i] = batch.entries[i].version;
        if (!with_row) continue;
        if (i + kPrefetched < end) {
          PrefetchLines(batch.rows[i + kPrefetched],
                        row_floats * sizeof(float));
        }
        CopyRowAndSlots(batch.rows[i], i, *value_out, slot_offsets_, slot_outs);
        report.Add(batch.entries[i], batch.rows[i]);
      }
    };
    // A cache miss for the row, then about a cycle per float.
    OpThreads(context_)(n, 200 + row_floats, copy);
    TF_RETURN_IF_ERROR(
        CopyKeys(n, [&](int64_t i) { return batch.entries[i].key; }, &keys));
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
    if (with_row && HasBytes()) {
      slices.push_back(
          {names_.name + kScaleOffset, total, begin, scale_offset});
    }
    return writer_.Add(std::move(slices));
  }

  // Finds or allocates a free chunk of at least n rows.
  Status AcquireChunk(int64_t n, bool with_row, Chunk** chunk) {
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
    TF_RETURN_IF_ERROR(
        Allocate(DataTypeOf(resource_.table().rules().value.type),
                 TensorShape({n, dim}), &it->values));
    if (HasBytes()) {
      TF_RETURN_IF_ERROR(
          Allocate(DT_FLOAT, TensorShape({n, 2}), &it->scale_offset));
    }
    it->slots.resize(slot_offsets_.size());
    for (size_t s = 0; s < slot_offsets_.size(); ++s) {
      const int width = slot_offsets_[s].slot.width;
      TF_RETURN_IF_ERROR(Allocate(SlotTypeOf(resource_.table(), width),
                                  TensorShape({n, width}), &it->slots[s]));
    }
    return Status();
  }

  // Copies key_at(i) for i in [0, n) to `keys`, in its dtype. InvalidArgument
  // if a key does not fit.
  template <typename KeyAt>
  Status CopyKeys(int64_t n, const KeyAt& key_at, Tensor* keys) const {
    if (keys->dtype() == DT_INT64) {
      int64_t* out = keys->flat<int64_t>().data();
      for (int64_t i = 0; i < n; ++i) out[i] = key_at(i);
      return Status();
    }
    int32_t* out = keys->flat<int32_t>().data();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t key = key_at(i);
      out[i] = static_cast<int32_t>(key);
      if (out[i] != key) {
        return InvalidArgument("keys of table ", resource_.name(),
                               " must fit into int32 to be saved so, got ", key,
                               "; save it with int64 keys");
      }
    }
    return Status();
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

  Status SaveSketch(const Snapshot& snapshot) {
    const Sketch* sketch = resource_.table().sketch();
    if (sketch == nullptr) return Status();
    const Sketch::Format format = sketch->format();
    for (size_t h = 0; h < format.heads.size(); ++h) {
      const std::vector<int64_t>& head = snapshot.sketch_heads()[h];
      const int64_t n = HeadRows(format.heads[h], head.size());
      Tensor tensor;
      TF_RETURN_IF_ERROR(
          Allocate(DT_INT64, ShapeOf(format.heads[h], n), &tensor));
      std::copy(head.begin(), head.end(), tensor.flat<int64_t>().data());
      TF_RETURN_IF_ERROR(
          writer_.Add({{names_.name + format.heads[h].suffix, n, 0, tensor}}));
    }
    if (format.columns.empty()) return Status();
    return SaveSketchRows(snapshot, format.columns);
  }

  Status SaveSketchRows(const Snapshot& snapshot,
                        const std::vector<Sketch::Tensor>& columns) {
    const int64_t total = snapshot.sketch_rows();
    size_t widest = 1;
    for (const Sketch::Tensor& column : columns) {
      widest = std::max(widest, RowBytes(column));
    }
    const int64_t most =
        std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(widest));
    Status status;
    std::vector<Tensor> chunk(columns.size());
    int64_t begin = 0;   // First row of the chunk.
    int64_t n = 0;       // Rows in the chunk.
    int64_t filled = 0;  // Rows copied to the chunk so far.
    const auto open = [&]() -> Status {
      n = std::min(most, total - begin);
      filled = 0;
      for (size_t c = 0; c < columns.size(); ++c) {
        // A tensor of its own: the writer still has the previous one.
        chunk[c] = Tensor();
        TF_RETURN_IF_ERROR(
            Allocate(TypeOf(columns[c]), ShapeOf(columns[c], n), &chunk[c]));
      }
      return Status();
    };
    const auto close = [&] {
      std::vector<TensorRows> slices;
      for (size_t c = 0; c < columns.size(); ++c) {
        slices.push_back(
            {names_.name + columns[c].suffix, total, begin, chunk[c]});
      }
      return writer_.Add(std::move(slices));
    };
    TF_RETURN_IF_ERROR(open());
    if (total == 0) return close();
    snapshot.ForEachSketchRow([&](const void* const* row) {
      if (!status.ok() || begin + filled == total) return;
      for (size_t c = 0; c < columns.size(); ++c) {
        const size_t bytes = RowBytes(columns[c]);
        std::memcpy(static_cast<char*>(chunk[c].data()) + filled * bytes,
                    row[c], bytes);
      }
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
      TF_RETURN_IF_ERROR(
          CopyKeys(n, [&](int64_t i) { return erased[at + i]; }, &keys));
      TF_RETURN_IF_ERROR(writer_.Add({{name, total, at, keys}}));
    }
    TF_RETURN_IF_ERROR(SaveString(kDeltaOf, parent.name));
    if (parent.identity.empty()) return Status();
    return SaveString(kDeltaOfIndex, parent.identity);
  }

  Status SaveString(const char* suffix, const std::string& value) {
    return writer_.Add({{names_.name + suffix, 1, 0, Tensor(tstring(value))}});
  }

  OpKernelContext* const context_;
  TableResource& resource_;
  const TableNames& names_;
  CheckpointWriter& writer_;
  std::vector<std::string> sources_;  // Names of the shard and of its slots.
  std::vector<SlotOffset> slot_offsets_;
  std::array<std::vector<Chunk>, 2> chunks_;  // [1]: for keys with a row.
  RowReport report_;
};

class TablesSaveOp : public OpKernel {
 public:
  explicit TablesSaveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("track_changes", &track_changes_));
    OP_REQUIRES_OK(
        context, context->GetAttr("refuses_non_finite", &refuses_non_finite_));
    OP_REQUIRES_OK(context, ReadTables(context));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList handles;
    const Tensor *prefix_in, *delta_of;
    OP_REQUIRES_OK(context, context->input_list("tables", &handles));
    OP_REQUIRES_OK(context, context->input("prefix", &prefix_in));
    OP_REQUIRES_OK(context, context->input("delta_of", &delta_of));

    OP_REQUIRES_OK(context, CheckRank(*prefix_in, 0, "prefix", "[]"));
    const std::string prefix = prefix_in->scalar<tstring>()();
    Parent parent;
    OP_REQUIRES_OK(context, ReadParent(*delta_of, &parent));
    OP_REQUIRES(context, !prefix.empty() && prefix.back() != '/',
                InvalidArgument("prefix must name a file, got '", prefix, "'"));
    std::vector<TablePtr> tables(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      OP_REQUIRES_OK(context, FindTable(context, handles[i], &tables[i]));
    }

    const Status status = OrStatus(
        names_[0].name, [&] { return Save(context, prefix, parent, tables); });
    OP_REQUIRES_OK(context,
                   AsFatal(status, absl::StatusCode::kResourceExhausted));
  }

 private:
  Status Save(OpKernelContext* context, const std::string& prefix,
              const Parent& parent, const std::vector<TablePtr>& tables) const {
    const bool any_on_disk =
        std::any_of(tables.begin(), tables.end(), [](const TablePtr& table) {
          return !table->storage().storage_paths.empty();
        });
    CheckpointWriter writer(any_on_disk ? DirectEnv() : Env::Default(), prefix);
    for (size_t i = 0; i < tables.size(); ++i) {
      TableSave save(context, tables[i].get(), names_[i], &writer);
      TF_RETURN_IF_ERROR(OrStatus(tables[i]->name(), [&] {
        return save.Run(parent, track_changes_, refuses_non_finite_);
      }));
    }
    return writer.Finish();
  }

  Status ReadTables(OpKernelConstruction* context) {
    std::vector<std::string> names, banks;
    std::vector<DataType> key_dtypes;
    std::vector<int64_t> num_slots;
    SlotAttributes attrs;
    TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &names));
    TF_RETURN_IF_ERROR(context->GetAttr("key_dtypes", &key_dtypes));
    TF_RETURN_IF_ERROR(context->GetAttr("bank_names", &banks));
    TF_RETURN_IF_ERROR(context->GetAttr("num_slots", &num_slots));
    TF_RETURN_IF_ERROR(attrs.Read(context));
    const size_t tables = context->num_inputs() - 2;  // prefix and delta_of.
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
      if (n < 0 || static_cast<size_t>(n) > attrs.names.size() - slots) {
        return InvalidArgument("num_slots must be >= 0 and in sum the length ",
                               attrs.names.size(), " of slot_names, got ", n);
      }
      slots += n;
    }
    if (!attrs.HaveLength(slots)) {
      return InvalidArgument(
          "slot_names, slot_widths and slot_initials must be of length ", slots,
          ", the sum of num_slots, got ", attrs.names.size(), ", ",
          attrs.widths.size(), " and ", attrs.initials.size());
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
      TF_RETURN_IF_ERROR(
          attrs.AppendTo(slots, slots + num_slots[i], &names_.back().slots));
      slots += num_slots[i];
    }
    return Status();
  }

  static Status ReadParent(const Tensor& delta_of, Parent* parent) {
    const bool has_identity = delta_of.dims() == 1 && delta_of.dim_size(0) == 2;
    if (!has_identity && delta_of.dims() != 0) {
      return InvalidArgument("delta_of must be [] or [2], got shape ",
                             delta_of.shape().DebugString());
    }
    parent->name = delta_of.flat<tstring>()(0);
    if (has_identity) parent->identity = delta_of.flat<tstring>()(1);
    if (parent->name.find('/') == std::string::npos) return Status();
    return InvalidArgument(
        "delta_of must be the name of a checkpoint in the folder of prefix, "
        "got ",
        parent->name);
  }

  std::vector<TableNames> names_;
  bool track_changes_ = false;
  bool refuses_non_finite_ = false;
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
                        Guarded<TablesSaveOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableCommitSave").Device(DEVICE_CPU),
                        Guarded<TableCommitSaveOp>);

}  // namespace
}  // namespace rec_estimator
