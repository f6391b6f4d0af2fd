// SPDX-License-Identifier: Apache-2.0
// Kernel of refresh_ops.cc.
//
//   read and verify                        commit
//   ┌ table ─▶ RowExchange: rows, room ┐   ┌ table by table: exchange rows ┐
//   └ variable ─▶ a new tensor         ┘ ─▶└ variable by variable          ┘
//
// All that can fail happens on the left, where no reader sees it. The right
// side takes about a millisecond for 100,000 rows. Steps that began to read
// before it go on to read the old rows (refresh_clock.h).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_check.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/core/rows/row_format.h"
#include "ops/core/step/past_rows.h"
#include "ops/core/step/row_exchange.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/serving/refresh_folder.h"
#include "ops/table/refresh_clock.h"
#include "ops/table/table_resource.h"
#include "ops/table/value_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/io/path.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DataTypeCanUseMemcpy;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::tstring;
using ::tensorflow::Var;

// A shard, as the attributes describe it.
struct RefreshedShard {
  std::string table;
  KeyRules rules;
};

// The next rows of a shard.
class TableRefresh {
 public:
  // All of these outlive the object. Holds resource's replace_mutex.
  TableRefresh(TableResource* resource, const RefreshedShard& shard)
      : resource_(*resource),
        shard_(shard),
        exchange_(resource->table().parts()) {}

  // Reads and verifies the changes of the shard. After an error the table is as
  // it was.
  Status Read(CheckpointFile* file) {
    EmbeddingTable& table = resource_.table();
    if (table.tier() != nullptr) {
      return FailedPrecondition("table ", resource_.name(),
                                " must have all rows in memory to be "
                                "refreshed, got one with rows on disk; serve "
                                "it without a storage option");
    }
    StoredTable stored;
    TF_RETURN_IF_ERROR(FindStoredTable(file, shard_.table, &stored));
    TF_RETURN_IF_ERROR(CheckBank(file));
    const bool with_versions =
        UnitOfVersions(*file, stored, resource_.unit_of_versions()) ==
        resource_.unit_of_versions();
    for (const StoredShard& part : stored.shards) {
      if (IsElsewhere(shard_.rules, part)) continue;
      TF_RETURN_IF_ERROR(ReadErased(file, part));
      TF_RETURN_IF_ERROR(ReadRows(file, part, with_versions));
    }
    if (!exchange_.Prepare()) {
      return NoMemoryForRows(resource_, exchange_.written());
    }
    const int64_t limit = table.rules().max_rows;
    const int64_t excess = table.size() + exchange_.growth() - limit;
    if (limit == 0 || excess <= 0) return Status();
    return TooManyRows(resource_, excess, " after the delta");
  }

  // Makes the rows those of `time`. No step reads the table at a time before
  // `oldest`.
  void Commit(int64_t time, int64_t oldest) {
    const auto exchange = [&] {
      exchange_.Commit();
      replaced_.front() = {time, exchange_.TakePast()};
    };
    resource_.ExchangeRows(oldest, exchange, &replaced_);
  }

  const RowExchange& exchange() const { return exchange_; }

 private:
  // A bank never changes while a model trains.
  Status CheckBank(CheckpointFile* file) const {
    const int64_t dim = resource_.table().dim();
    const std::string name = shard_.table + kBank;
    if (!file->Has(name)) return Status();
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(
        file->FindMatrix(name, dim, "dim of the table", &tensor));
    const int64_t rows = tensor.rows;
    std::vector<float> bank(rows * dim);
    TF_RETURN_IF_ERROR(
        RowStream(std::move(tensor)).ReadFloats(rows, bank.data()));
    ValueRounding rounding(Format());
    for (int64_t r = 0; r < rows; ++r) rounding.Round(bank.data() + r * dim);
    if (bank == resource_.table().bank()) return Status();
    return FailedPrecondition(
        "delta ", file->prefix(), " must have the initial vectors of table ",
        shard_.table, " of the model, got others; export the model again");
  }

  RowFormat Format() const {
    const EmbeddingTable& table = resource_.table();
    return RowFormat(table.dim(), table.rules().value);
  }

  Status ReadErased(CheckpointFile* file, const StoredShard& part) {
    StoredRowReader reader(file, shard_.rules, part);
    TF_RETURN_IF_ERROR(reader.OpenKeys(part.name + kKeysErased, ""));
    return ForEachBatch(&reader, [this](const RowBatch& batch) -> Status {
      exchange_.AddErased(batch.keys.data(), batch.n);
      return Status();
    });
  }

  // The rows of float32 of a delta are rounded as an export rounds them, which
  // refuses what does not fit into fewer bits.
  Status CheckRange(const CheckpointFile& file, const RowBatch& batch) const {
    const RowFormat format = Format();
    if (!format.is_narrow()) return Status();
    const size_t dim = static_cast<size_t>(format.dim());
    ValueRounding rounding(format);
    std::vector<float> value(dim);
    for (size_t i = 0; i < batch.n; ++i) {
      std::copy_n(batch.values.data() + i * dim, dim, value.data());
      rounding.Round(value.data());
      if (std::all_of(value.begin(), value.end(),
                      [](float x) { return std::isfinite(x); })) {
        continue;
      }
      return FailedPrecondition(
          "rows of table ", shard_.table, " in delta ", file.prefix(),
          " must fit into the ",
          tensorflow::DataTypeString(
              DataTypeOf(resource_.table().rules().value.type)),
          " of the model, got key ", batch.keys[i],
          " with numbers that are too large or not finite; export the model "
          "again with another row_dtype");
    }
    return Status();
  }

  Status ReadRows(CheckpointFile* file, const StoredShard& part,
                  bool with_versions) {
    StoredRowReader reader(file, shard_.rules, part);
    TF_RETURN_IF_ERROR(
        reader.OpenRows(resource_.table().dim(), {}, with_versions));
    const int64_t admitted =
        std::max<int64_t>(1, resource_.table().filter().threshold);
    TF_RETURN_IF_ERROR(
        ForEachBatch(&reader, [&](const RowBatch& batch) -> Status {
          TF_RETURN_IF_ERROR(CheckRange(*file, batch));
          RestoredRows rows;
          rows.keys = batch.keys.data();
          rows.n = batch.n;
          rows.values = batch.values.data();
          // Without counts all keys were admitted.
          std::vector<int64_t> freqs = batch.freqs;
          if (freqs.empty()) freqs.assign(batch.n, admitted);
          rows.freqs = freqs.data();
          rows.versions =
              batch.versions.empty() ? nullptr : batch.versions.data();
          if (exchange_.Add(rows)) return Status();
          return NoMemoryForRows(resource_, batch.n);
        }));
    if (reader.distinct()) return Status();
    return DataLoss("tensor ", part.name, kKeys, " of ", file->prefix(),
                    " must be ordered by floormod(key, 1000), got another "
                    "order; the file is damaged");
  }

  // Calls add(batch), which returns a Status, for all batches.
  template <typename Add>
  Status ForEachBatch(StoredRowReader* reader, const Add& add) {
    reader->Start();
    RowBatch batch;
    do {
      TF_RETURN_IF_ERROR(reader->Next(&batch));
      if (batch.n > 0) TF_RETURN_IF_ERROR(add(batch));
    } while (batch.n > 0);
    return Status();
  }

  TableResource& resource_;
  const RefreshedShard& shard_;
  RowExchange exchange_;
  // Before the commit, an element for what it replaces; afterwards, what no
  // step reads any more.
  std::list<KeptRows> replaced_{1};
};

// The next value of a variable.
struct VariableRefresh {
  tensorflow::core::RefCountPtr<Var> variable;
  Tensor value;

  Status Read(OpKernelContext* context, CheckpointFile* file,
              const std::string& name) {
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    {
      tensorflow::tf_shared_lock lock(*variable->mu());
      if (!variable->tensor()->IsInitialized()) {
        return FailedPrecondition("variable ", name,
                                  " must be initialized before it is "
                                  "refreshed; load the model again");
      }
      dtype = variable->tensor()->dtype();
      shape = variable->tensor()->shape();
    }
    if (!DataTypeCanUseMemcpy(dtype)) {
      return InvalidArgument("variable ", name, " must have numbers to be ",
                             "refreshed, got ",
                             tensorflow::DataTypeString(dtype));
    }
    StoredTensor stored;
    TF_RETURN_IF_ERROR(file->FindVariable(name, dtype, shape, &stored));
    TF_RETURN_IF_ERROR(context->allocate_temp(dtype, shape, &value));
    const int64_t rows = stored.rows;
    if (rows == 0) return Status();
    return RowStream(std::move(stored)).Read(rows, value.data());
  }

  void Commit() {
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = value;
  }
};

class ModelRefreshOp : public OpKernel {
 public:
  explicit ModelRefreshOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadAttributes(context));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* delta;
    OP_REQUIRES_OK(context, context->input("delta", &delta));
    OP_REQUIRES_OK(context, CheckRank(*delta, 0, "delta", "[]"));
    const std::string name = delta->scalar<tstring>()();
    Result result;
    const Status status = OrStatus(
        shards_[0].table, [&] { return Refresh(context, name, &result); });
    OP_REQUIRES_OK(context, AsFatal(status, absl::StatusCode::kDataLoss));

    const int64_t numbers[] = {result.model.step, result.rows_written,
                               result.rows_deleted, result.variables_written};
    for (int i = 0; i < 4; ++i) {
      Tensor* number;
      OP_REQUIRES_OK(context, context->allocate_output(i, {}, &number));
      number->scalar<int64_t>()() = numbers[i];
    }
    Tensor* checkpoint;
    OP_REQUIRES_OK(context, context->allocate_output(4, {}, &checkpoint));
    checkpoint->scalar<tstring>()() = result.model.checkpoint;
  }

 private:
  struct Result {
    RefreshedTo model;
    int64_t rows_written = 0;
    int64_t rows_deleted = 0;
    int64_t variables_written = 0;
  };

  Status ReadAttributes(OpKernelConstruction* context) {
    std::vector<std::string> tables;
    std::vector<int64_t> parts, num_parts;
    std::vector<tensorflow::DataType> key_dtypes;
    int64_t n, v;
    TF_RETURN_IF_ERROR(context->GetAttr("N", &n));
    TF_RETURN_IF_ERROR(context->GetAttr("V", &v));
    TF_RETURN_IF_ERROR(context->GetAttr("table_names", &tables));
    TF_RETURN_IF_ERROR(context->GetAttr("parts", &parts));
    TF_RETURN_IF_ERROR(context->GetAttr("num_parts", &num_parts));
    TF_RETURN_IF_ERROR(context->GetAttr("key_dtypes", &key_dtypes));
    TF_RETURN_IF_ERROR(context->GetAttr("variable_names", &variable_names_));
    TF_RETURN_IF_ERROR(context->GetAttr("step_name", &step_name_));
    TF_RETURN_IF_ERROR(context->GetAttr("folder", &folder_));
    TF_RETURN_IF_ERROR(context->GetAttr("base_checkpoint", &base_.checkpoint));
    TF_RETURN_IF_ERROR(context->GetAttr("base_identity", &base_.identity));
    TF_RETURN_IF_ERROR(context->GetAttr("base_step", &base_.step));
    const size_t size = static_cast<size_t>(n);
    if (tables.size() != size || parts.size() != size ||
        num_parts.size() != size || key_dtypes.size() != size) {
      return InvalidArgument(
          "table_names, parts, num_parts and key_dtypes must be of length N = ",
          n, ", got ", tables.size(), ", ", parts.size(), ", ",
          num_parts.size(), " and ", key_dtypes.size());
    }
    if (variable_names_.size() != static_cast<size_t>(v)) {
      return InvalidArgument("variable_names must be of length V = ", v,
                             ", got ", variable_names_.size());
    }
    for (size_t i = 0; i < size; ++i) {
      if (parts[i] < 0 || parts[i] >= num_parts[i]) {
        return InvalidArgument("parts must be in [0, ", num_parts[i], "), got ",
                               parts[i]);
      }
      shards_.push_back({tables[i], {parts[i], num_parts[i], key_dtypes[i]}});
    }
    return Status();
  }

  Status Refresh(OpKernelContext* context, const std::string& name,
                 Result* result) const {
    OpInputList handles, variable_handles;
    TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
    TF_RETURN_IF_ERROR(context->input_list("variables", &variable_handles));
    std::vector<TablePtr> tables(shards_.size());
    for (size_t i = 0; i < tables.size(); ++i) {
      TF_RETURN_IF_ERROR(FindTable(context, handles[i], &tables[i]));
    }
    std::vector<VariableRefresh> variables(variable_names_.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckRank(variable_handles[i], 0, "variables", "[]"));
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(
          context, variable_handles[i].scalar<tensorflow::ResourceHandle>()(),
          &variables[i].variable));
    }
    // One refresh at a time, and meanwhile no restore, save or step.
    std::vector<std::unique_lock<std::shared_mutex>> locks;
    TF_RETURN_IF_ERROR(Lock(tables, &locks));
    TF_RETURN_IF_ERROR(FindModel(tables, &result->model));
    if (name.empty()) return Status();

    std::string prefix;
    TF_RETURN_IF_ERROR(FindDelta(folder_, name, &prefix));
    CheckpointFile file(prefix);
    TF_RETURN_IF_ERROR(file.Open());
    TF_RETURN_IF_ERROR(CheckFits(&file, name, result->model));
    std::vector<std::unique_ptr<TableRefresh>> refreshes;
    for (size_t i = 0; i < tables.size(); ++i) {
      refreshes.push_back(
          std::make_unique<TableRefresh>(tables[i].get(), shards_[i]));
      TF_RETURN_IF_ERROR(refreshes[i]->Read(&file));
      result->rows_written += refreshes[i]->exchange().written();
      result->rows_deleted += refreshes[i]->exchange().erased();
    }
    for (size_t i = 0; i < variables.size(); ++i) {
      TF_RETURN_IF_ERROR(variables[i].Read(context, &file, variable_names_[i]));
    }
    RefreshedTo next = {std::string(tensorflow::io::Basename(prefix)),
                        file.identity(), result->model.step};
    if (file.Has(step_name_)) {
      TF_RETURN_IF_ERROR(file.ReadInteger(step_name_, &next.step));
    }
    result->variables_written = static_cast<int64_t>(variables.size());
    std::vector<RefreshedTo> positions(tables.size(), next);
    result->model = std::move(next);

    // Nothing below fails.
    Commit(tables, &refreshes, &variables);
    for (size_t i = 0; i < tables.size(); ++i) {
      tables[i]->set_refreshed_to(std::move(positions[i]));
    }
    return Status();
  }

  // Makes all that was read visible together to steps that begin to read later.
  static void Commit(const std::vector<TablePtr>& tables,
                     std::vector<std::unique_ptr<TableRefresh>>* refreshes,
                     std::vector<VariableRefresh>* variables) {
    const auto commit = [&](int64_t time, int64_t oldest) {
      for (const auto& refresh : *refreshes) refresh->Commit(time, oldest);
      for (VariableRefresh& variable : *variables) variable.Commit();
    };
    // A graph may have tables that are not refreshable, which keep nothing.
    // They do not wait for readers while the clock stands still: those readers
    // may wait for the clock (StepTime::Of).
    RefreshClock* const clock = tables[0]->clock();
    const bool have_one =
        clock != nullptr &&
        std::all_of(tables.begin(), tables.end(), [clock](const auto& table) {
          return table->clock() == clock;
        });
    if (have_one) {
      clock->Advance(commit);
    } else {
      commit(0, 0);
    }
  }

  // Locks the tables against all that changes them, in an order that all
  // refreshes keep to.
  static Status Lock(const std::vector<TablePtr>& tables,
                     std::vector<std::unique_lock<std::shared_mutex>>* locks) {
    std::vector<TableResource*> ordered;
    for (const TablePtr& table : tables) ordered.push_back(table.get());
    std::sort(ordered.begin(), ordered.end());
    if (std::unique(ordered.begin(), ordered.end()) != ordered.end()) {
      return InvalidArgument("tables must be distinct, got one twice");
    }
    for (TableResource* table : ordered) {
      locks->emplace_back(table->replace_mutex());
    }
    return Status();
  }

  // Finds the checkpoint of which the tables have the rows.
  Status FindModel(const std::vector<TablePtr>& tables,
                   RefreshedTo* model) const {
    for (const TablePtr& table : tables) {
      TF_RETURN_IF_ERROR(CheckInitialized(*table, "it is refreshed"));
      const RefreshedTo& at = table->refreshed_to().value_or(base_);
      const bool was_restored =
          !table->refreshed_to().has_value() && table->replacements() > 1;
      if (table == tables[0]) *model = at;
      if (was_restored || at.identity != model->identity) {
        return FailedPrecondition(
            "table ", table->name(), " must have the rows of ",
            model->checkpoint,
            ", got one that was restored after the model was loaded; load the "
            "model again");
      }
    }
    return Status();
  }

  // OK if the delta holds the changes to the model's checkpoint.
  Status CheckFits(CheckpointFile* file, const std::string& name,
                   const RefreshedTo& model) const {
    if (file->identity() == model.identity) {
      return AlreadyExists("delta ", name, " is in the model already, at step ",
                           model.step);
    }
    StoredTable first;
    for (const RefreshedShard& shard : shards_) {
      StoredTable stored;
      TF_RETURN_IF_ERROR(FindStoredTable(file, shard.table, &stored));
      if (&shard == &shards_[0]) first = stored;
      if (stored.delta_of_index != first.delta_of_index ||
          stored.delta_of != first.delta_of) {
        return DataLoss(
            "delta ", name, " must have one parent for all tables, got ",
            first.delta_of, " and ", stored.delta_of, "; the file is damaged");
      }
    }
    if (first.delta_of.empty()) {
      return FailedPrecondition(
          "delta ", name, " must hold the changes to ", model.checkpoint,
          ", got a full checkpoint; export the model again");
    }
    if (first.delta_of_index == model.identity) return Status();
    return FailedPrecondition(
        "delta ", name, " must hold the changes to ", model.checkpoint,
        " of identity ", model.identity, ", which the model has at step ",
        model.step, ", got those to ", first.delta_of, " of identity ",
        first.delta_of_index,
        "; apply the deltas in order, or export the model again");
  }

  std::vector<RefreshedShard> shards_;
  std::vector<std::string> variable_names_;
  std::string step_name_, folder_;
  RefreshedTo base_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>ModelRefresh").Device(DEVICE_CPU),
                        Guarded<ModelRefreshOp>);

}  // namespace
}  // namespace rec_estimator
