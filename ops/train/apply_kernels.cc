// SPDX-License-Identifier: Apache-2.0
// Kernels of apply_ops.cc, and those of packed_ops.cc that train: check a
// training step and pass it to the tables.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/core/math/regularization.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/kernel/op_threads.h"
#include "ops/kernel/storage_status.h"
#include "ops/lookup/step_keys.h"
#include "ops/table/slot_attributes.h"
#include "ops/table/table_resource.h"
#include "ops/train/packed_inputs.h"
#include "ops/train/trained_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::Variant;

// What a refused step says.
Status ErrorOf(const TrainingStep::Outcome& outcome, const TrainingStep& step,
               const std::vector<TrainedTable>& tables) {
  if (outcome.ok()) return Status();
  TableResource& table = *tables[outcome.table].resource;
  if (outcome.refusal == TrainingStep::Refusal::kTooManyRows) {
    return TooManyRows(table, outcome.excess_rows,
                       " with this step, nothing of which was applied");
  }
  if (outcome.refusal == TrainingStep::Refusal::kStorage) {
    return StorageStatus(
        outcome.fault,
        absl::StrCat(outcome.message, "; nothing of the step was applied"));
  }
  const StepBatch& batch = step.batch(outcome.table);
  return ResourceExhausted(
      "table ", table.name(), " must fit into memory, got no memory for ",
      batch.n + batch.n_counted, " keys of this step over ",
      table.table().size(), " rows of ",
      table.table().row_floats() * sizeof(float),
      " bytes; nothing of the step was applied; give the process more memory, "
      "make the batch smaller, or evict keys");
}

// Returns work(), or ResourceExhausted if it throws std::bad_alloc. Nothing is
// allocated with `new` once a table changes.
template <typename Work>
Status OrNothingApplied(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        "a training step must fit into memory, got a failed allocation; "
        "nothing of the step was applied; give the process more memory or make "
        "the batch smaller");
  }
}

// A step between its two ops. Unused, it returns what it reserved.
struct Reservation {
  std::shared_ptr<const std::vector<std::vector<SlotSpec>>> slots;
  std::string rule;
  std::vector<TrainedTable> tables;
  std::vector<Tensor> keys;  // With counted keys; `step` reads them.
  std::vector<std::shared_ptr<const RowHints>> hints;  // From lookups, or null.
  bool is_packed = false;  // Whether TablesApplyPacked applies it.
  PackedKeys sections;     // Only if it is packed.
  std::unique_ptr<TrainingStep> step;
  std::atomic<bool> is_used{false};
};

// A Reservation in a tensor.
class ReservationVariant {
 public:
  ReservationVariant() = default;
  explicit ReservationVariant(std::shared_ptr<Reservation> reservation)
      : reservation_(std::move(reservation)) {}
  Reservation* get() const { return reservation_.get(); }

  // What a Variant needs. A reservation cannot leave its process.
  std::string TypeName() const { return "rec_estimator::Reservation"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<Reservation> reservation_;
};

class TablesReserveOp : public OpKernel {
 public:
  explicit TablesReserveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule_));
    const std::vector<std::string> rules = RowUpdateRules();
    OP_REQUIRES(context,
                std::find(rules.begin(), rules.end(), rule_) != rules.end(),
                InvalidArgument("rule must be one of ", ListOf(rules),
                                ", got '", rule_, "'"));
    OP_REQUIRES_OK(context, ReadSlotsOfTables(context));
    OP_REQUIRES_OK(context, ReadRegularizations(context));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, OrNothingApplied([&] { return Reserve(context); }));
  }

 protected:
  using Batches = std::vector<StepBatch>;

  const RowUpdate& update() const { return *update_; }

 private:
  // Reads and checks the keys of each table; stores the tensors that the
  // batches point into.
  virtual Status ReadBatches(OpKernelContext* context, Reservation* reservation,
                             Batches* batches) const {
    OpInputList keys, counted_keys;
    TF_RETURN_IF_ERROR(context->input_list("keys", &keys));
    TF_RETURN_IF_ERROR(context->input_list("counted_keys", &counted_keys));
    const StepKeys::Ptr step_keys = StepKeys::Of(context);
    for (int i = 0; i < keys.size(); ++i) {
      TableResource& table = *reservation->tables[i].resource;
      TF_RETURN_IF_ERROR(CheckKeys(keys[i], "keys", "[n]", table));
      TF_RETURN_IF_ERROR(
          CheckKeys(counted_keys[i], "counted_keys", "[m]", table));
      batches->push_back(BatchOf(keys[i], counted_keys[i]));
      reservation->keys.push_back(keys[i]);
      reservation->keys.push_back(counted_keys[i]);
      if (step_keys == nullptr ||
          !StepKeys::IsWorthwhile(keys[i].NumElements())) {
        continue;
      }
      reservation->hints.push_back(step_keys->ForStep(&table, keys[i]));
      batches->back().hints = reservation->hints.back().get();
      table.mutable_hand_over()->NoteStep(batches->back().hints != nullptr);
    }
    return Status();
  }

  // Tells the lookups that follow what the reservation has found.
  virtual void HandOver(OpKernelContext*, const Reservation&) const {}

  Status Reserve(OpKernelContext* context) const {
    OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
    auto reservation = std::make_shared<Reservation>();
    reservation->slots = slots_;
    reservation->rule = rule_;
    std::vector<EmbeddingTable*> tables;
    for (int i = 0; i < handles.size(); ++i) {
      TablePtr resource;
      TF_RETURN_IF_ERROR(FindTable(context, handles[i], &resource));
      tables.push_back(&resource->table());
      reservation->tables.push_back({std::move(resource), &(*slots_)[i]});
    }
    Batches batches;
    TF_RETURN_IF_ERROR(ReadBatches(context, reservation.get(), &batches));
    for (size_t i = 0; i < batches.size(); ++i) {
      batches[i].regularization = regularizations_[i];
    }
    TF_RETURN_IF_ERROR(CheckDistinct(tables, reservation->tables));
    for (const TrainedTable& table : reservation->tables) {
      TF_RETURN_IF_ERROR(CheckWidths(table));
    }
    for (const TrainedTable& table : reservation->tables) {
      const std::shared_lock<std::shared_mutex> lock(
          table.resource->replace_mutex());
      TF_RETURN_IF_ERROR(table.Prepare(rule_));
    }
    std::vector<TableParts> parts;
    for (EmbeddingTable* table : tables) parts.push_back(table->parts());
    reservation->step =
        std::make_unique<TrainingStep>(std::move(parts), std::move(batches));
    TF_RETURN_IF_ERROR(ErrorOf(reservation->step->Reserve(OpThreads(context)),
                               *reservation->step, reservation->tables));
    HandOver(context, *reservation);
    Tensor *output, *rows;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &output));
    TF_RETURN_IF_ERROR(
        context->allocate_output(1, TensorShape({handles.size()}), &rows));
    for (int i = 0; i < handles.size(); ++i) {
      rows->vec<int64_t>()(i) = reservation->step->RowsAfter(i);
    }
    output->scalar<Variant>()() = ReservationVariant(std::move(reservation));
    return Status();
  }

  Status ReadSlotsOfTables(OpKernelConstruction* context) {
    int64_t n;
    SlotAttributes attrs;
    TF_RETURN_IF_ERROR(context->GetAttr("N", &n));
    TF_RETURN_IF_ERROR(attrs.Read(context));
    const size_t each = attrs.names.size();
    if (attrs.initials.size() != each ||
        attrs.widths.size() != each * static_cast<size_t>(n)) {
      return InvalidArgument(
          "slot_names, slot_initials and, for each table, slot_widths must be "
          "of equal length, got ",
          each, ", ", attrs.initials.size(), " and ", attrs.widths.size(),
          " for ", n, " tables");
    }
    auto slots = std::make_shared<std::vector<std::vector<SlotSpec>>>(n);
    const std::vector<int64_t> widths(attrs.widths.begin(), attrs.widths.end());
    for (int64_t i = 0; i < n; ++i) {
      attrs.widths.assign(widths.begin() + i * each,
                          widths.begin() + (i + 1) * each);
      TF_RETURN_IF_ERROR(attrs.AppendTo(0, each, &(*slots)[i]));
    }
    // Constructed only to ask how many slots the rule has.
    update_ = MakeRowUpdate(
        rule_, std::vector<float>(HyperparameterNames(rule_).size(), 0.0f));
    if (update_ == nullptr || static_cast<int>(each) != update_->slots()) {
      return InvalidArgument("slot_names must be the ", update_->slots(),
                             " slots of ", rule_, ", got ", each);
    }
    slots_ = std::move(slots);
    return Status();
  }

  Status ReadRegularizations(OpKernelConstruction* context) {
    int64_t n;
    std::vector<float> l2_scales, decay_rates;
    TF_RETURN_IF_ERROR(context->GetAttr("N", &n));
    TF_RETURN_IF_ERROR(context->GetAttr("l2_scales", &l2_scales));
    TF_RETURN_IF_ERROR(context->GetAttr("decay_rates", &decay_rates));
    regularizations_.resize(n);
    const auto read = [&](const char* name, const std::vector<float>& values,
                          float below, float Regularization::*setting) {
      if (!values.empty() && static_cast<int64_t>(values.size()) != n) {
        return InvalidArgument(name, " must be none or, for ", n, " tables, ",
                               n, ", got ", values.size());
      }
      for (size_t i = 0; i < values.size(); ++i) {
        if (!(values[i] >= 0.0f && values[i] < below)) {
          return InvalidArgument(name, " must be in [0, ", below, "), got ",
                                 values[i]);
        }
        regularizations_[i].*setting = values[i];
      }
      return Status();
    };
    constexpr float kInfinite = std::numeric_limits<float>::infinity();
    TF_RETURN_IF_ERROR(
        read("l2_scales", l2_scales, kInfinite, &Regularization::l2_scale));
    return read("decay_rates", decay_rates, 1.0f, &Regularization::decay_rate);
  }

  static Status CheckKeys(const Tensor& keys, const char* name,
                          const char* shape, TableResource& table) {
    if (keys.dims() == 1) return Status();
    return InvalidArgument(name, " of table ", table.name(), " must be ", shape,
                           ", got shape ", keys.shape().DebugString());
  }

  static StepBatch BatchOf(const Tensor& keys, const Tensor& counted_keys) {
    StepBatch batch = {};
    batch.keys = keys.flat<int64_t>().data();
    batch.n = static_cast<size_t>(keys.NumElements());
    batch.counted_keys = counted_keys.flat<int64_t>().data();
    batch.n_counted = static_cast<size_t>(counted_keys.NumElements());
    return batch;
  }

  static Status CheckDistinct(std::vector<EmbeddingTable*> tables,
                              const std::vector<TrainedTable>& named) {
    std::sort(tables.begin(), tables.end(), std::less<EmbeddingTable*>());
    const auto twice = std::adjacent_find(tables.begin(), tables.end());
    if (twice == tables.end()) return Status();
    const auto name = std::find_if(
        named.begin(), named.end(),
        [&](const TrainedTable& table) { return &table.table() == *twice; });
    return InvalidArgument("tables must be distinct, got ", name->name(),
                           " twice; concatenate its keys");
  }

  Status CheckWidths(const TrainedTable& table) const {
    for (size_t s = 0; s < table.slots->size(); ++s) {
      const SlotSpec& slot = (*table.slots)[s];
      const int dim = table.table().dim();
      const int width = update_->slot_width(static_cast<int>(s), dim);
      if (slot.width != width) {
        return InvalidArgument("slot_widths of ", rule_, " must be ", width,
                               " for slot ", slot.name, " of table ",
                               table.name(), " of dim ", dim, ", got ",
                               slot.width);
      }
    }
    return Status();
  }

  std::string rule_;
  std::unique_ptr<RowUpdate> update_;
  std::shared_ptr<const std::vector<std::vector<SlotSpec>>> slots_;
  std::vector<Regularization> regularizations_;  // By table.
};

// TablesReserve with the keys of all tables in one tensor.
class TablesReservePackedOp : public TablesReserveOp {
 public:
  explicit TablesReservePackedOp(OpKernelConstruction* context)
      : TablesReserveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES(context, !update().per_occurrence(),
                InvalidArgument(
                    "rule must have one update for each key, got one for each "
                    "occurrence; use TablesReserve"));
    int64_t n;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, sections_.Read(context, n));
  }

 private:
  Status ReadBatches(OpKernelContext* context, Reservation* reservation,
                     Batches* batches) const override {
    const Tensor* packed;
    PackedKeys& keys = reservation->sections;
    TF_RETURN_IF_ERROR(context->input("packed", &packed));
    TF_RETURN_IF_ERROR(sections_.Open(*packed, &keys));
    for (const int64_t at : sections_.used) {
      const PackedKeys::Section& section = keys[static_cast<size_t>(at)];
      StepBatch batch = {};
      batch.keys = section.keys;
      batch.n = section.n_gradient;
      batch.counted_keys = section.keys + section.n_gradient;
      batch.n_counted = section.n_counted;
      batch.counts = section.counts;
      batches->push_back(batch);
    }
    reservation->keys.push_back(*packed);
    reservation->is_packed = true;
    return Status();
  }

  void HandOver(OpKernelContext* context,
                const Reservation& reservation) const override {
    const StepKeys::Ptr step_keys = StepKeys::Of(context);
    if (step_keys == nullptr) return;
    const Tensor& packed = reservation.keys[0];
    const TrainingStep& step = *reservation.step;
    for (size_t i = 0; i < reservation.tables.size(); ++i) {
      TableResource& table = *reservation.tables[i].resource;
      const PackedKeys::Section& section =
          reservation.sections[static_cast<size_t>(sections_.used[i])];
      if (section.size() < uint64_t{StepKeys::kLeast}) continue;
      auto hints = step.HintsForLookup(i, section.n_read);
      if (hints == nullptr) continue;
      step_keys->Keep(&table, packed, section.keys, std::move(hints));
    }
  }

  PackedSections sections_;
};

// What an update gets for its tables.
struct UpdateInputs {
  // One for all tables, or one for each if their hyperparameters differ.
  std::vector<std::unique_ptr<RowUpdate>> updates;
  std::vector<TrainingStep::Gradients> gradients;  // By table.
};

class TablesApplyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, OrNothingApplied([&] { return Apply(context); }));
  }

 protected:
  // Makes the updates of a rule. value(h, i) is hyperparameter h of table i.
  template <typename Value>
  static Status MakeUpdates(const Reservation& reservation, bool differ,
                            const Value& value, UpdateInputs* inputs) {
    const std::string& rule = reservation.rule;
    const std::vector<std::string> names = HyperparameterNames(rule);
    std::vector<float> values(names.size());
    for (size_t i = 0; i < (differ ? reservation.tables.size() : 1); ++i) {
      for (size_t h = 0; h < names.size(); ++h) {
        values[h] = value(h, i);
        if (!std::isfinite(values[h])) {
          return InvalidArgument(names[h], " of ", rule,
                                 " must be finite, got ", values[h]);
        }
      }
      inputs->updates.push_back(MakeRowUpdate(rule, values));
    }
    return Status();
  }

 private:
  virtual bool is_packed() const { return false; }

  // Reads and checks what the op gets besides the reservation.
  virtual Status ReadInputs(OpKernelContext* context,
                            const Reservation& reservation,
                            UpdateInputs* inputs) const {
    const Tensor* version;
    OpInputList grads, hyper;
    TF_RETURN_IF_ERROR(context->input_list("grads", &grads));
    TF_RETURN_IF_ERROR(context->input("version", &version));
    TF_RETURN_IF_ERROR(context->input_list("hyper", &hyper));
    const size_t n = reservation.tables.size();
    TF_RETURN_IF_ERROR(CheckGrads(grads, reservation));
    TF_RETURN_IF_ERROR(CheckPerTable(*version, n, "version"));
    bool differ = false;
    TF_RETURN_IF_ERROR(CheckHyper(hyper, reservation, &differ));
    const auto value_of = [&](size_t h, size_t i) {
      const Tensor& of_tables = hyper[static_cast<int>(h)];
      return of_tables.flat<float>()(of_tables.dims() == 0 ? 0 : i);
    };
    TF_RETURN_IF_ERROR(MakeUpdates(reservation, differ, value_of, inputs));
    for (size_t i = 0; i < n; ++i) {
      inputs->gradients.push_back(
          {grads[static_cast<int>(i)].flat<float>().data(),
           inputs->updates[differ ? i : 0].get(), Nth(*version, i)});
    }
    return Status();
  }

  Status Apply(OpKernelContext* context) const {
    const Tensor* variant;
    TF_RETURN_IF_ERROR(context->input("reservation", &variant));
    Reservation* reservation = nullptr;
    TF_RETURN_IF_ERROR(Open(*variant, &reservation));
    const std::vector<TrainedTable>& tables = reservation->tables;
    TrainingStep& step = *reservation->step;
    UpdateInputs inputs;
    TF_RETURN_IF_ERROR(ReadInputs(context, *reservation, &inputs));
    if (reservation->is_used.exchange(true)) {
      return InvalidArgument(
          "reservation must be used once, got a second use; reserve again");
    }
    std::vector<std::shared_lock<std::shared_mutex>> locks;
    for (const size_t i : InOneOrder(tables)) {
      locks.emplace_back(tables[i].resource->replace_mutex());
    }
    for (const TrainedTable& table : tables) {
      TF_RETURN_IF_ERROR(table.Prepare(reservation->rule));
    }
    return ErrorOf(step.Apply(inputs.gradients.data(), OpThreads(context)),
                   step, tables);
  }

  Status Open(const Tensor& tensor, Reservation** reservation) const {
    const ReservationVariant* variant =
        TensorShapeUtils::IsScalar(tensor.shape())
            ? tensor.scalar<Variant>()().get<ReservationVariant>()
            : nullptr;
    if (variant == nullptr || variant->get() == nullptr ||
        variant->get()->is_packed != is_packed()) {
      return InvalidArgument("reservation must be the output of TablesReserve",
                             is_packed() ? "Packed" : "", ", got ",
                             tensor.DebugString());
    }
    *reservation = variant->get();
    return Status();
  }

  static Status CheckGrads(const OpInputList& grads,
                           const Reservation& reservation) {
    const std::vector<TrainedTable>& tables = reservation.tables;
    if (static_cast<size_t>(grads.size()) != tables.size()) {
      return InvalidArgument("grads must be one for each of the ",
                             tables.size(), " tables of the reservation, got ",
                             grads.size());
    }
    for (size_t i = 0; i < tables.size(); ++i) {
      const Tensor& each = grads[static_cast<int>(i)];
      const int64_t n = static_cast<int64_t>(reservation.step->batch(i).n);
      const int dim = tables[i].table().dim();
      if (!TensorShapeUtils::IsMatrix(each.shape()) || each.dim_size(0) != n ||
          each.dim_size(1) != dim) {
        return InvalidArgument("grads of table ", tables[i].name(),
                               " must be [n, dim] = [", n, ",", dim,
                               "], got shape ", each.shape().DebugString());
      }
    }
    return Status();
  }

  // InvalidArgument unless the tensor is [] or [n].
  static Status CheckPerTable(const Tensor& tensor, size_t n,
                              const std::string& name) {
    if (TensorShapeUtils::IsScalar(tensor.shape()) ||
        (tensor.dims() == 1 &&
         tensor.NumElements() == static_cast<int64_t>(n))) {
      return Status();
    }
    return InvalidArgument(name, " must be [] or, for ", n, " tables, [", n,
                           "], got shape ", tensor.shape().DebugString());
  }

  static int64_t Nth(const Tensor& version, size_t i) {
    const auto values = version.flat<int64_t>();
    return values(version.dims() == 0 ? 0 : static_cast<int64_t>(i));
  }

  // *differ: whether the tables have different hyperparameters.
  static Status CheckHyper(const OpInputList& hyper,
                           const Reservation& reservation, bool* differ) {
    const std::string& rule = reservation.rule;
    const std::vector<std::string> names = HyperparameterNames(rule);
    if (static_cast<size_t>(hyper.size()) != names.size()) {
      return InvalidArgument("hyper of ", rule, " must be ", names.size(),
                             " tensors (", ListOf(names), "), got ",
                             hyper.size());
    }
    for (int h = 0; h < hyper.size(); ++h) {
      TF_RETURN_IF_ERROR(CheckPerTable(hyper[h], reservation.tables.size(),
                                       absl::StrCat("hyper ", names[h])));
      *differ |= hyper[h].dims() > 0;
    }
    return Status();
  }

  // The positions of the tables in an order in which all steps lock them.
  static std::vector<size_t> InOneOrder(
      const std::vector<TrainedTable>& tables) {
    std::vector<size_t> order(tables.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::less<TableResource*>()(tables[a].resource.get(),
                                         tables[b].resource.get());
    });
    return order;
  }
};

// TablesApply with everything but the reservation in one tensor.
class TablesApplyPackedOp : public TablesApplyOp {
 public:
  using TablesApplyOp::TablesApplyOp;

 private:
  bool is_packed() const override { return true; }

  Status ReadInputs(OpKernelContext* context, const Reservation& reservation,
                    UpdateInputs* inputs) const override {
    const Tensor* packed;
    TF_RETURN_IF_ERROR(context->input("gradients", &packed));
    const size_t n = reservation.tables.size();
    const size_t n_hyper = HyperparameterNames(reservation.rule).size();
    // The products cannot overflow: the gradients of so many keys, which are
    // there, may exceed memory but not 2^63 floats.
    size_t floats = n * (2 + n_hyper);
    for (size_t i = 0; i < n; ++i) {
      floats += reservation.step->batch(i).n *
                static_cast<size_t>(reservation.tables[i].table().dim());
    }
    if (packed->dims() != 1 ||
        static_cast<size_t>(packed->NumElements()) != floats) {
      return InvalidArgument(
          "gradients must be those of the reservation's keys, [", floats,
          "], got shape ", packed->shape().DebugString());
    }
    const float* const versions = packed->flat<float>().data();
    const float* const hyper = versions + 2 * n;
    const auto value_of = [&](size_t h, size_t i) { return hyper[h * n + i]; };
    bool differ = false;
    for (size_t h = 0; h < n_hyper; ++h) {
      for (size_t i = 1; i < n; ++i) differ |= value_of(h, i) != value_of(h, 0);
    }
    TF_RETURN_IF_ERROR(MakeUpdates(reservation, differ, value_of, inputs));
    const float* gradient = hyper + n * n_hyper;
    for (size_t i = 0; i < n; ++i) {
      int64_t version;
      std::memcpy(&version, versions + 2 * i, sizeof(version));
      inputs->gradients.push_back(
          {gradient, inputs->updates[differ ? i : 0].get(), version});
      gradient += reservation.step->batch(i).n *
                  static_cast<size_t>(reservation.tables[i].table().dim());
    }
    return Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesReserve").Device(DEVICE_CPU),
                        Guarded<TablesReserveOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesApply").Device(DEVICE_CPU),
                        Guarded<TablesApplyOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TablesReservePacked").Device(DEVICE_CPU),
    Guarded<TablesReservePackedOp>);
REGISTER_KERNEL_BUILDER(
    Name("RecEstimator>TablesApplyPacked").Device(DEVICE_CPU),
    Guarded<TablesApplyPackedOp>);

}  // namespace
}  // namespace rec_estimator
