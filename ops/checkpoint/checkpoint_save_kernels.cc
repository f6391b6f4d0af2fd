// SPDX-License-Identifier: Apache-2.0
// Save by rec_estimator.Saver, step 1: TablesSave takes a snapshot of each
// table and gathers it in slices of bounded size, which CheckpointWriter (step
// 2) writes. TableCommitSave (step 3) marks the saved changes as safe.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/checkpoint/checkpoint_direct_file.h"
#include "ops/checkpoint/checkpoint_entries.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_writer.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/snapshot.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DataType;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::DT_FLOAT;
using ::tensorflow::DT_INT64;
using ::tensorflow::Env;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// The checkpoint to which an incremental checkpoint holds the changes.
struct Parent {
  std::string name;      // Empty: none, the save is full.
  std::string identity;  // Identity of its index. Empty: unknown.
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
        entries_(context, resource, names, writer) {}

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
    if (!names_.bank.empty()) {
      TF_RETURN_IF_ERROR(SaveMatrix(names_.bank, table.bank(), table.dim()));
    }
    TF_RETURN_IF_ERROR(entries_.Run(snapshot, refuses));
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
      TF_RETURN_IF_ERROR(CopyKeys(
          resource_.name(), n, [&](int64_t i) { return erased[at + i]; },
          &keys));
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
  EntriesSave entries_;
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
