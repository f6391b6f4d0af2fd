// SPDX-License-Identifier: Apache-2.0
// Restore, step 4: TableRestore replaces a table by the contents of a chain of
// checkpoints, in bounded memory. Step 1 (checkpoint_chain) finds the chain,
// steps 2 and 3 (checkpoint_file, checkpoint_rows) read it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_check.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/checkpoint/checkpoint_sketch.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/logging.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrAppend;
using ::absl::StrCat;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::tstring;

// Most threads that insert. Each needs the memory of a batch.
constexpr int64_t kWorkers = 4;

// Which versions restored keys get.
class RestoredVersions {
 public:
  // table_unit: what the table's versions count; '' if it takes any.
  RestoredVersions(const RestoreRequest& request, std::string table_unit)
      : request_(request), table_unit_(std::move(table_unit)) {}

  // Finds out whether the versions of a checkpoint mean anything in the table.
  void ReadUnit(const CheckpointFile& file, const StoredTable& stored) {
    unit_ = UnitOfVersions(file, stored, table_unit_);
    is_other_unit_ = !table_unit_.empty() && unit_ != table_unit_;
    are_lost_ |= is_other_unit_ && request_.reads_versions();
    if (is_other_unit_) unit_ = table_unit_;
  }

  // Whether those of the checkpoint are read.
  bool are_read() const { return request_.reads_versions() && !is_other_unit_; }

  // The versions of a batch; nullptr: -1.
  const int64_t* Of(RowBatch* batch) const {
    if (!request_.reads_versions()) {
      batch->versions.assign(batch->n, request_.version);
    }
    return batch->versions.empty() ? nullptr : batch->versions.data();
  }

  // What the restored versions count.
  const std::string& unit() const { return unit_; }
  // Whether any had another unit than the table's.
  bool are_lost() const { return are_lost_; }

 private:
  const RestoreRequest& request_;
  const std::string table_unit_;
  std::string unit_;
  bool is_other_unit_ = false;  // In the checkpoint that is being read.
  bool are_lost_ = false;
};

std::vector<std::string> AbsentSlots(const CheckpointFile& file,
                                     const StoredShard& shard,
                                     const std::vector<SlotSpec>& slots) {
  std::vector<std::string> absent;
  for (const SlotSpec& slot : slots) {
    if (file.Has(StrCat(shard.name, "/", slot.name, kValues))) continue;
    absent.push_back(slot.name);
  }
  return absent;
}

// Makes rows of `from` floats shorter, or longer: their last floats are then
// those of initial(i), the initial row i of `to` floats.
template <typename Initial>
void ResizeRows(size_t n, size_t from, size_t to, const Initial& initial,
                std::vector<float>* rows) {
  if (from == to || rows->empty()) return;
  const size_t kept = std::min(from, to);
  std::vector<float> resized(n * to);
  for (size_t i = 0; i < n; ++i) {
    float* const row = resized.data() + i * to;
    if (to > from) std::copy_n(initial(i), to, row);
    std::copy_n(rows->data() + i * from, kept, row);
  }
  rows->swap(resized);
}

// The widths of the rows and slots in a checkpoint and in a table.
class StoredWidths {
 public:
  StoredWidths(const RestoreRequest& request, int dim)
      : slots_(request.slots), dim_(static_cast<size_t>(dim)) {
    const std::vector<int64_t>& widths = request.stored_widths;
    stored_dim_ = widths.empty() ? dim : widths[0];
    stored_slots_ = slots_;
    for (size_t s = 0; s + 1 < widths.size(); ++s) {
      stored_slots_[s].width = static_cast<int>(widths[s + 1]);
    }
  }

  int64_t dim() const { return stored_dim_; }
  // The slots as the checkpoint has them.
  const std::vector<SlotSpec>& slots() const { return stored_slots_; }

  // Gives the rows the width of the table.
  void ResizeValues(const InitialVectors& initial, RowBatch* batch) const {
    ResizeRows(
        batch->n, static_cast<size_t>(stored_dim_), dim_,
        [&](size_t i) { return initial.Of(batch->keys[i]); }, &batch->values);
  }
  void ResizeSlot(size_t slot, size_t n, std::vector<float>* rows) const {
    const SlotSpec& to = slots_[slot];
    const std::vector<float> initial(static_cast<size_t>(to.width), to.initial);
    ResizeRows(
        n, static_cast<size_t>(stored_slots_[slot].width),
        static_cast<size_t>(to.width), [&](size_t) { return initial.data(); },
        rows);
  }

 private:
  const std::vector<SlotSpec>& slots_;  // As the table has them.
  const size_t dim_;
  int64_t stored_dim_;
  std::vector<SlotSpec> stored_slots_;
};

// Reads a chain of checkpoints into a table that no other thread changes
// meanwhile. Without a table it only checks that the chain can be read. That
// check does not detect repeats among keys that are not ordered by key class,
// which only a table can.
class TableRestore {
 public:
  TableRestore(OpKernelContext* context, TableResource& resource,
               const RestoreRequest& request, EmbeddingTable* table)
      : context_(context),
        resource_(resource),
        request_(request),
        rules_(request.rules),
        slots_(request.slots),
        widths_(request, resource.table().dim()),
        versions_(request, resource.version_unit()),
        table_(table),
        sketch_(resource, table) {
    if (table == nullptr) return;
    if (!request.stored_widths.empty()) bank_ = table->bank();
    const std::vector<SlotSpec> present = table->slots();
    num_slots_ = present.size();
    for (const SlotSpec& slot : slots_) {
      const auto it = std::find_if(
          present.begin(), present.end(),
          [&](const SlotSpec& other) { return other.name == slot.name; });
      slot_numbers_.push_back(it - present.begin());
    }
  }

  // Reads the table from the chain. To be called once.
  Status Run(const std::vector<Link>& chain) {
    const std::string& name = request_.name;
    TF_RETURN_IF_ERROR(sketch_.FindLast(chain, name));
    for (const Link& link : chain) {
      CheckpointFile file(link.prefix);
      TF_RETURN_IF_ERROR(OpenLink(link, &file));
      StoredTable stored;
      TF_RETURN_IF_ERROR(FindStoredTable(&file, name, &stored));
      const bool is_delta = !stored.delta_of.empty();
      versions_.ReadUnit(file, stored);
      if (!is_delta) {
        absent_slots_ = AbsentSlots(file, stored.shards[0], slots_);
      }
      for (const StoredShard& shard : stored.shards) {
        if (IsElsewhere(rules_, shard)) continue;
        if (is_delta) TF_RETURN_IF_ERROR(ReadErased(&file, shard));
        TF_RETURN_IF_ERROR(ReadRows(&file, shard, is_delta));
        TF_RETURN_IF_ERROR(ReadFiltered(&file, shard, is_delta));
        TF_RETURN_IF_ERROR(sketch_.Read(&file, shard));
      }
    }
    return Status();
  }

  const RestoredVersions& versions() const { return versions_; }

  // The slots that the full checkpoint of the chain lacks.
  const std::vector<std::string>& absent_slots() const { return absent_slots_; }

 private:
  // Calls insert(batch) for each batch of the reader, on several threads.
  // insert() returns false if there is no memory. `count` gets the number of
  // keys. Without a table the batches are only read.
  template <typename InsertBatch>
  Status ForEachBatch(StoredRowReader* reader, const InsertBatch& insert,
                      int64_t* count) {
    std::atomic<int64_t> keys{0};
    // So expensive that each worker becomes a separate block of the loop.
    constexpr int64_t kCycles = int64_t{1} << 30;
    OpThreads(context_)(kWorkers, kCycles, [&](int64_t, int64_t) {
      RowBatch batch;
      Status status;
      do {
        status = OrStatus(resource_.name(), [&]() -> Status {
          TF_RETURN_IF_ERROR(reader->Next(&batch));
          if (table_ != nullptr && batch.n > 0 && !insert(&batch)) {
            return NoMemoryForRows(resource_, batch.n);
          }
          return Status();
        });
        keys += batch.n;
      } while (status.ok() && batch.n > 0);
      reader->Stop(status);
    });
    *count = keys;
    RowBatch none;
    return reader->Next(&none);
  }

  // DataLoss unless all keys were distinct. If the reader cannot tell, they
  // were if the table has grown by as many keys as were inserted.
  static Status CheckDistinct(const CheckpointFile& file,
                              const std::string& name,
                              const StoredRowReader& reader, bool is_delta,
                              int64_t inserted, int64_t growth) {
    if (reader.distinct() || (!is_delta && inserted == growth)) return Status();
    if (is_delta) {
      return DataLoss("tensor ", name, " of ", file.prefix(),
                      " must be ordered by floormod(key, 1000), got another "
                      "order; the file is damaged");
    }
    return DataLoss("tensor ", name, " of ", file.prefix(),
                    " must have distinct keys, got ", inserted, " of which ",
                    growth, " are; the file is damaged");
  }

  // Reads the erased keys of a delta.
  Status ReadErased(CheckpointFile* file, const StoredShard& shard) {
    StoredRowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenKeys(shard.name + kKeysErased, ""));
    reader.Start();
    int64_t count;
    return ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          table_->Erase(batch->keys.data(), batch->n);
          return true;
        },
        &count);
  }

  Status ReadRows(CheckpointFile* file, const StoredShard& shard,
                  bool is_delta) {
    StoredRowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(
        reader.OpenRows(widths_.dim(), widths_.slots(), versions_.are_read()));
    reader.CheckRange(resource_.table().rules().value.type);
    reader.Start();
    // The keys of a file spread evenly over the shards of the table.
    if (table_ != nullptr) table_->Reserve(reader.rows() / rules_.num_parts);
    const int64_t before = table_ == nullptr ? 0 : table_->size();
    int64_t count;
    TF_RETURN_IF_ERROR(ForEachBatch(
        &reader, [&](RowBatch* batch) { return Insert(batch, is_delta); },
        &count));
    if (table_ != nullptr) {
      TF_RETURN_IF_ERROR(CheckDistinct(*file, shard.name + kKeys, reader,
                                       is_delta, count,
                                       table_->size() - before));
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (reader.slot_differs(i)) {
        TF_RETURN_IF_ERROR(ReadSlot(file, shard, i));
      }
    }
    return Status();
  }

  bool Insert(RowBatch* batch, bool is_delta) {
    // A checkpoint without frequencies: all its keys were admitted.
    if (batch->freqs.empty()) {
      batch->freqs.assign(batch->n,
                          std::max<int64_t>(1, table_->filter().threshold));
    }
    const int dim = table_->dim();
    widths_.ResizeValues(
        InitialVectors(bank_.data(), static_cast<int64_t>(bank_.size()) / dim,
                       dim),
        batch);
    RestoredRows rows;
    rows.keys = batch->keys.data();
    rows.n = batch->n;
    rows.values = batch->values.data();
    rows.slots.assign(num_slots_, nullptr);
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (batch->slots[i].empty()) continue;
      widths_.ResizeSlot(i, batch->n, &batch->slots[i]);
      rows.slots[slot_numbers_[i]] = batch->slots[i].data();
    }
    rows.freqs = batch->freqs.data();
    rows.versions = versions_.Of(batch);
    rows.are_new = !is_delta;
    return table_->Insert(rows);
  }

  // Reads a slot that is stored under other keys than the rows. Keys without a
  // row are ignored.
  Status ReadSlot(CheckpointFile* file, const StoredShard& shard, size_t i) {
    const std::string source = StrCat(shard.name, "/", slots_[i].name);
    StoredRowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenKeys(source + kKeys, source + kOffsets));
    TF_RETURN_IF_ERROR(reader.OpenValues(source, widths_.slots()[i].width,
                                         "width of the slot"));
    reader.Start();
    int64_t count;
    return ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          widths_.ResizeSlot(i, batch->n, &batch->values);
          table_->SetSlot(slot_numbers_[i], batch->keys.data(), batch->n,
                          batch->values.data());
          return true;
        },
        &count);
  }

  Status ReadFiltered(CheckpointFile* file, const StoredShard& shard,
                      bool is_delta) {
    const std::string name = shard.name + kKeysFiltered;
    if (!file->Has(name)) return Status();
    StoredRowReader reader(file, rules_, shard);
    TF_RETURN_IF_ERROR(reader.OpenFiltered(versions_.are_read()));
    reader.Start();
    const bool into_sketch = sketch_.CountsFiltered(*file, shard);
    const int64_t before = table_ == nullptr ? 0 : table_->total_count();
    int64_t count;
    TF_RETURN_IF_ERROR(ForEachBatch(
        &reader,
        [&](RowBatch* batch) {
          return table_->InsertFiltered(
              batch->keys.data(), batch->n,
              batch->freqs.empty() ? nullptr : batch->freqs.data(),
              versions_.Of(batch), into_sketch);
        },
        &count));
    // A repeated key in a sketch does no harm.
    if (table_ == nullptr || into_sketch) return Status();
    return CheckDistinct(*file, name, reader, is_delta, count,
                         table_->total_count() - before);
  }

  OpKernelContext* const context_;
  TableResource& resource_;
  const RestoreRequest& request_;
  const KeyRules& rules_;
  const std::vector<SlotSpec>& slots_;
  const StoredWidths widths_;
  RestoredVersions versions_;
  EmbeddingTable* const table_;  // nullptr: only check.
  SketchRestore sketch_;
  std::vector<float> bank_;  // The table's.
  std::vector<std::string> absent_slots_;
  size_t num_slots_ = 0;              // Number of slots of the table.
  std::vector<size_t> slot_numbers_;  // Position of each of slots_ among them.
};

// Logs what is not kept of a checkpoint, if anything.
void WarnOfLosses(const std::string& table, const std::string& prefix,
                  const TableRestore& restore) {
  std::string losses;
  if (restore.versions().are_lost()) {
    losses = StrCat("; its versions do not count ", restore.versions().unit(),
                    "s, so that all keys count as trained at the first "
                    "eviction");
  }
  if (!restore.absent_slots().empty()) {
    StrAppend(&losses, "; it lacks slots ",
              absl::StrJoin(restore.absent_slots(), ", "),
              ", which start fresh");
  }
  if (losses.empty()) return;
  LOG(WARNING) << "Table " << table << " is restored from " << prefix << losses
               << ".";
}

class TableRestoreOp : public OpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadRequest(context, &request_));
    OP_REQUIRES_OK(context, context->GetAttr("warns", &warns_));
    std::vector<int64_t>* const widths = &request_.stored_widths;
    OP_REQUIRES_OK(context, context->GetAttr("stored_widths", widths));
    const size_t rows = 1 + request_.slots.size();
    const bool are_widths = std::all_of(
        widths->begin(), widths->end(),
        [](int64_t width) { return width > 0 && width <= kMaxRowFloats; });
    OP_REQUIRES(context,
                widths->empty() || (widths->size() == rows && are_widths),
                InvalidArgument("stored_widths must be none or ", rows,
                                " numbers in [1, ", kMaxRowFloats, "], got ",
                                absl::StrJoin(*widths, ", ")));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *prefix, *bank;
    OP_REQUIRES_OK(context, context->input("prefix", &prefix));
    OP_REQUIRES_OK(context, context->input("bank", &bank));

    OP_REQUIRES_OK(context, CheckRank(*prefix, 0, "prefix", "[]"));
    OP_REQUIRES_OK(context, CheckBank(*resource, *bank));
    std::vector<SlotOffset> offsets;
    OP_REQUIRES_OK(context, FindSlots(*resource, request_.slots, &offsets));

    const Status status = OrStatus(resource->name(), [&] {
      return Restore(context, prefix->scalar<tstring>()(),
                     bank->flat<float>().data(), bank->dim_size(0),
                     resource.get());
    });
    OP_REQUIRES_OK(context, AsFatal(status, absl::StatusCode::kDataLoss));
  }

 private:
  Status Restore(OpKernelContext* context, const std::string& prefix,
                 const float* bank, int64_t bank_rows,
                 TableResource* resource) const {
    EmbeddingTable& table = resource->table();
    std::vector<Link> chain;
    TF_RETURN_IF_ERROR(FindChain(prefix, request_.name, &chain));
    std::vector<float> stored_bank;
    TF_RETURN_IF_ERROR(
        ReadStoredBank(chain, bank, bank_rows, table.dim(), &stored_bank));
    if (!stored_bank.empty()) {
      bank = stored_bank.data();
      bank_rows = static_cast<int64_t>(stored_bank.size()) / table.dim();
      TF_RETURN_IF_ERROR(CheckInitialVectors(*resource, bank, bank_rows));
    }

    std::lock_guard<std::shared_mutex> lock(resource->replace_mutex());
    // A table that is not empty must survive a damaged checkpoint, so the whole
    // chain is checked first. total_count() does not include the counts in a
    // sketch.
    const bool has_sketch = table.sketch() != nullptr;
    const bool was_ready = resource->ready();
    const bool has_contents =
        was_ready && (table.total_count() > 0 || has_sketch);
    if (has_contents) TF_RETURN_IF_ERROR(Check(context, chain, resource));
    const std::vector<float> old_bank = table.bank();
    resource->BeginReplacement();
    table.Clear();
    const Status status = OrStatus(resource->name(), [&] {
      return Fill(context, chain, bank, bank_rows, resource);
    });
    if (!status.ok()) table.Clear();
    if (!status.ok() && was_ready) {
      table.SetBank(old_bank.data(),
                    static_cast<int64_t>(old_bank.size()) / table.dim());
    }
    // An empty table is as it was.
    if (status.ok() || (was_ready && !has_contents)) resource->set_ready();
    if (status.ok() || !has_contents) return status;
    return Status(status.code(),
                  StrCat(status.message(), "; table ", resource->name(),
                         " has lost its rows: restore a checkpoint or "
                         "initialize the table"));
  }

  // Reads the bank of the checkpoint, with rows of the table's width. What the
  // checkpoint lacks comes from `bank`. Leaves *stored empty if it has none.
  Status ReadStoredBank(const std::vector<Link>& chain, const float* bank,
                        int64_t bank_rows, int dim,
                        std::vector<float>* stored) const {
    const size_t width = static_cast<size_t>(StoredWidths(request_, dim).dim());
    TF_RETURN_IF_ERROR(
        ReadBank(chain, request_.name, static_cast<int64_t>(width), stored));
    const InitialVectors initial(bank, bank_rows, dim);
    ResizeRows(
        stored->size() / width, width, static_cast<size_t>(dim),
        [&](size_t i) { return initial.Of(static_cast<int64_t>(i)); }, stored);
    return Status();
  }

  // Checks that the chain can be read and that its rows fit into the table.
  Status Check(OpKernelContext* context, const std::vector<Link>& chain,
               TableResource* resource) const {
    TableRestore check(context, *resource, request_, nullptr);
    TF_RETURN_IF_ERROR(check.Run(chain));
    return RestoreCheck(*resource, request_).CheckRoom(chain);
  }

  Status Fill(OpKernelContext* context, const std::vector<Link>& chain,
              const float* bank, int64_t bank_rows,
              TableResource* resource) const {
    EmbeddingTable& table = resource->table();
    // Before the first row is inserted, so that no row has to move.
    if (!table.EnsureSlots(request_.slots)) {
      return ResourceExhausted("table ", resource->name(),
                               " must fit into memory with its slots, got no "
                               "memory for a first row");
    }
    table.SetBank(bank, bank_rows);
    TableRestore restore(context, *resource, request_, &table);
    TF_RETURN_IF_ERROR(restore.Run(chain));
    resource->set_restored_unit(restore.versions().unit());
    if (warns_ && request_.rules.part == 0) {
      WarnOfLosses(resource->name(), chain.back().prefix, restore);
    }
    // The checkpoint may come from a table without a padding key.
    if (table.rules().has_padding) table.Erase(&EmbeddingTable::kPadding, 1);
    const int64_t limit = table.rules().max_rows;
    if (limit == 0 || table.size() <= limit) return Status();
    return TooManyRows(*resource, table.size() - limit, " in the checkpoint");
  }

  RestoreRequest request_;
  bool warns_ = false;
};

// Checks that TableRestore can read a table, before anything is restored.
class TableCheckRestoreOp : public OpKernel {
 public:
  explicit TableCheckRestoreOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadRequest(context, &request_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *prefix, *all_keys;
    OP_REQUIRES_OK(context, context->input("prefix", &prefix));
    OP_REQUIRES_OK(context, context->input("all_keys", &all_keys));
    OP_REQUIRES_OK(context, CheckRank(*prefix, 0, "prefix", "[]"));
    OP_REQUIRES_OK(context, CheckRank(*all_keys, 0, "all_keys", "[]"));
    std::vector<SlotOffset> offsets;
    OP_REQUIRES_OK(context, FindSlots(*resource, request_.slots, &offsets));
    RestoreCheck check(*resource, request_);
    const Status status = OrStatus(resource->name(), [&]() -> Status {
      std::vector<Link> chain;
      TF_RETURN_IF_ERROR(
          FindChain(prefix->scalar<tstring>()(), request_.name, &chain));
      return check.Run(chain, all_keys->scalar<bool>()());
    });
    OP_REQUIRES_OK(context, AsFatal(status, absl::StatusCode::kDataLoss));
    Tensor* loss;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &loss));
    loss->scalar<tstring>()() = check.loss();
  }

 private:
  RestoreRequest request_;
};

// Reads a variable that a checkpoint may lack.
class CheckpointIntegerOp : public OpKernel {
 public:
  explicit CheckpointIntegerOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &name_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *prefix, *otherwise;
    OP_REQUIRES_OK(context, context->input("prefix", &prefix));
    OP_REQUIRES_OK(context, context->input("otherwise", &otherwise));
    OP_REQUIRES_OK(context, CheckRank(*prefix, 0, "prefix", "[]"));
    OP_REQUIRES_OK(context, CheckRank(*otherwise, 0, "otherwise", "[]"));
    int64_t read = otherwise->scalar<int64_t>()();
    const Status status = OrStatus(name_, [&]() -> Status {
      CheckpointFile file(prefix->scalar<tstring>()());
      TF_RETURN_IF_ERROR(file.Open());
      return file.Has(name_) ? file.ReadInteger(name_, &read) : Status();
    });
    OP_REQUIRES_OK(context, AsFatal(status, absl::StatusCode::kDataLoss));
    Tensor* value;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &value));
    value->scalar<int64_t>()() = read;
  }

 private:
  std::string name_;
};

REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>CheckpointInteger").Device(DEVICE_CPU),
    Guarded<CheckpointIntegerOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableRestore").Device(DEVICE_CPU),
                        Guarded<TableRestoreOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TableCheckRestore").Device(DEVICE_CPU),
    Guarded<TableCheckRestoreOp>);

}  // namespace
}  // namespace rec_estimator
