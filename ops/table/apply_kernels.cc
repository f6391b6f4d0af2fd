// SPDX-License-Identifier: Apache-2.0
// Kernels of apply_ops.cc: check a training step and pass it to the tables.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/core/math/row_update.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/training_step.h"
#include "ops/errors.h"
#include "ops/table/guarded_kernel.h"
#include "ops/table/input_checks.h"
#include "ops/table/intra_op_threads.h"
#include "ops/table/slot_attrs.h"
#include "ops/table/table_resource.h"
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

std::string ListOf(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

std::vector<std::string> NamesOf(const std::vector<SlotSpec>& slots) {
  std::vector<std::string> names;
  for (const SlotSpec& slot : slots) names.push_back(slot.name);
  return names;
}

// Whether the first n slots of both have the same names and widths.
bool SameSlots(const std::vector<SlotSpec>& a, const std::vector<SlotSpec>& b,
               size_t n) {
  return a.size() >= n && b.size() >= n &&
         std::equal(a.begin(), a.begin() + n, b.begin(),
                    [](const SlotSpec& x, const SlotSpec& y) {
                      return x.name == y.name && x.width == y.width;
                    });
}

// A table of a step with the slots that the step's rule needs.
struct TrainedTable {
  TablePtr resource;
  const std::vector<SlotSpec>* slots;

  EmbeddingTable& table() const { return resource->table(); }
  const std::string& name() const { return resource->name(); }

  // An error unless the table is ready. Adds the slots if it has none; an error
  // if it has those of another rule. The caller holds replace_mutex, shared at
  // least.
  Status Prepare(const std::string& rule) const {
    TF_RETURN_IF_ERROR(CheckInitialized(*resource, "it is trained"));
    return OrResourceExhausted(name(), [&] { return PrepareSlots(rule); });
  }

 private:
  Status PrepareSlots(const std::string& rule) const {
    if (table().BeginsWithSlots(*slots)) return Status();
    const size_t n = slots->size();
    // Checked before EnsureSlots, so that a refused step adds no slots, and
    // after it, because another step may have added its slots in between.
    std::vector<SlotSpec> present = table().slots();
    if (SameSlots(present, *slots, std::min(n, present.size()))) {
      const bool ensured = table().EnsureSlots(*slots);
      present = table().slots();
      if (SameSlots(present, *slots, n)) return Status();
      if (!ensured && SameSlots(present, *slots, present.size())) {
        return ResourceExhausted("table ", name(),
                                 " must fit into memory with the slots of ",
                                 rule, ", got no memory for ", table().size(),
                                 " rows; nothing of the step was applied");
      }
    }
    return InvalidArgument("slots of table ", name(), " must be those of ",
                           rule, " (", ListOf(NamesOf(*slots)), "), got ",
                           ListOf(NamesOf(present)),
                           "; one table has one optimizer");
  }
};

// What a refused step says.
Status ErrorOf(const TrainingStep::Outcome& outcome, const TrainingStep& step,
               const std::vector<TrainedTable>& tables) {
  if (outcome.ok()) return Status();
  TableResource& table = *tables[outcome.table].resource;
  if (outcome.refusal == TrainingStep::Refusal::kTooManyRows) {
    return TooManyRows(table, outcome.excess_rows,
                       " with this step, nothing of which was applied");
  }
  const EmbeddingTable::Batch& batch = step.batch(outcome.table);
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
  std::vector<Tensor> keys;  // And counted keys, which `step` reads.
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
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, OrNothingApplied([&] { return Reserve(context); }));
  }

 private:
  Status Reserve(OpKernelContext* context) const {
    OpInputList handles, keys, counted_keys;
    TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
    TF_RETURN_IF_ERROR(context->input_list("keys", &keys));
    TF_RETURN_IF_ERROR(context->input_list("counted_keys", &counted_keys));
    auto reservation = std::make_shared<Reservation>();
    reservation->slots = slots_;
    reservation->rule = rule_;
    std::vector<EmbeddingTable*> tables;
    std::vector<EmbeddingTable::Batch> batches;
    for (int i = 0; i < handles.size(); ++i) {
      TablePtr resource;
      TF_RETURN_IF_ERROR(FindTable(context, handles[i], &resource));
      TF_RETURN_IF_ERROR(CheckKeys(keys[i], "keys", "[n]", *resource));
      TF_RETURN_IF_ERROR(
          CheckKeys(counted_keys[i], "counted_keys", "[m]", *resource));
      tables.push_back(&resource->table());
      batches.push_back(BatchOf(keys[i], counted_keys[i]));
      reservation->keys.push_back(keys[i]);
      reservation->keys.push_back(counted_keys[i]);
      reservation->tables.push_back({std::move(resource), &(*slots_)[i]});
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
    reservation->step =
        std::make_unique<TrainingStep>(tables, std::move(batches));
    TF_RETURN_IF_ERROR(
        ErrorOf(reservation->step->Reserve(IntraOpThreads(context)),
                *reservation->step, reservation->tables));
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
    SlotAttrs attrs;
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

  static Status CheckKeys(const Tensor& keys, const char* name,
                          const char* shape, TableResource& table) {
    if (keys.dims() == 1) return Status();
    return InvalidArgument(name, " of table ", table.name(), " must be ", shape,
                           ", got shape ", keys.shape().DebugString());
  }

  static EmbeddingTable::Batch BatchOf(const Tensor& keys,
                                       const Tensor& counted_keys) {
    EmbeddingTable::Batch batch = {};
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
};

class TablesApplyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, OrNothingApplied([&] { return Apply(context); }));
  }

 private:
  static Status Apply(OpKernelContext* context) {
    const Tensor *variant, *version;
    OpInputList grads, hyper;
    TF_RETURN_IF_ERROR(context->input("reservation", &variant));
    TF_RETURN_IF_ERROR(context->input_list("grads", &grads));
    TF_RETURN_IF_ERROR(context->input("version", &version));
    TF_RETURN_IF_ERROR(context->input_list("hyper", &hyper));
    Reservation* reservation = nullptr;
    TF_RETURN_IF_ERROR(Open(*variant, &reservation));
    const std::vector<TrainedTable>& tables = reservation->tables;
    TrainingStep& step = *reservation->step;
    TF_RETURN_IF_ERROR(CheckGrads(grads, *reservation));
    TF_RETURN_IF_ERROR(CheckPerTable(*version, tables.size(), "version"));
    std::vector<std::unique_ptr<RowUpdate>> updates;
    TF_RETURN_IF_ERROR(MakeUpdates(hyper, *reservation, &updates));
    std::vector<TrainingStep::Gradients> gradients;
    for (size_t i = 0; i < tables.size(); ++i) {
      gradients.push_back({grads[static_cast<int>(i)].flat<float>().data(),
                           updates[updates.size() == 1 ? 0 : i].get(),
                           Nth(*version, i)});
    }
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
    return ErrorOf(step.Apply(gradients.data(), IntraOpThreads(context)), step,
                   tables);
  }

  static Status Open(const Tensor& tensor, Reservation** reservation) {
    const ReservationVariant* variant =
        TensorShapeUtils::IsScalar(tensor.shape())
            ? tensor.scalar<Variant>()().get<ReservationVariant>()
            : nullptr;
    if (variant == nullptr || variant->get() == nullptr) {
      return InvalidArgument(
          "reservation must be the output of TablesReserve, got ",
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

  // Makes one update for all tables, or one for each if hyper differs.
  static Status MakeUpdates(const OpInputList& hyper,
                            const Reservation& reservation,
                            std::vector<std::unique_ptr<RowUpdate>>* updates) {
    const std::string& rule = reservation.rule;
    const std::vector<std::string> names = HyperparameterNames(rule);
    const size_t n = reservation.tables.size();
    if (static_cast<size_t>(hyper.size()) != names.size()) {
      return InvalidArgument("hyper of ", rule, " must be ", names.size(),
                             " tensors (", ListOf(names), "), got ",
                             hyper.size());
    }
    bool differ = false;
    for (int h = 0; h < hyper.size(); ++h) {
      TF_RETURN_IF_ERROR(
          CheckPerTable(hyper[h], n, absl::StrCat("hyper ", names[h])));
      differ |= hyper[h].dims() > 0;
    }
    std::vector<float> values(names.size());
    for (size_t i = 0; i < (differ ? n : 1); ++i) {
      for (int h = 0; h < hyper.size(); ++h) {
        const auto of_tables = hyper[h].flat<float>();
        values[h] =
            of_tables(hyper[h].dims() == 0 ? 0 : static_cast<int64_t>(i));
        if (!std::isfinite(values[h])) {
          return InvalidArgument(names[h], " of ", rule,
                                 " must be finite, got ", values[h]);
        }
      }
      updates->push_back(MakeRowUpdate(rule, values));
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

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesReserve").Device(DEVICE_CPU),
                        Guarded<TablesReserveOp>);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TablesApply").Device(DEVICE_CPU),
                        Guarded<TablesApplyOp>);

}  // namespace
}  // namespace rec_estimator
