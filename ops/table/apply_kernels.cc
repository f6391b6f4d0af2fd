// SPDX-License-Identifier: Apache-2.0
// Kernels of apply_ops.cc: check a training step and pass it to the table.
#include <algorithm>
#include <cmath>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/core/math/row_update.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/input_checks.h"
#include "ops/table/intra_op_threads.h"
#include "ops/table/slot_attrs.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShapeUtils;
using ::tensorflow::errors::InvalidArgument;
using ::tensorflow::errors::ResourceExhausted;

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

class TableApplyOp : public OpKernel {
 public:
  explicit TableApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule_));
    OP_REQUIRES_OK(context, ReadSlots(context, &slots_));
    const std::vector<std::string> rules = RowUpdateRules();
    OP_REQUIRES(context,
                std::find(rules.begin(), rules.end(), rule_) != rules.end(),
                InvalidArgument("rule must be one of ", ListOf(rules),
                                ", got '", rule_, "'"));
    int64_t num_hyper;
    OP_REQUIRES_OK(context, context->GetAttr("num_hyper", &num_hyper));
    hyper_names_ = HyperparameterNames(rule_);
    OP_REQUIRES(context, static_cast<int64_t>(hyper_names_.size()) == num_hyper,
                InvalidArgument("hyper of ", rule_, " must be ",
                                hyper_names_.size(), " tensors (",
                                ListOf(hyper_names_), "), got ", num_hyper));
    // Constructed only to ask how many slots the rule has. Each step constructs
    // one with its own hyperparameters.
    const std::unique_ptr<RowUpdate> update =
        MakeRowUpdate(rule_, std::vector<float>(hyper_names_.size(), 0.0f));
    OP_REQUIRES(context, update != nullptr, NoRowUpdate());
    OP_REQUIRES(context, static_cast<int>(slots_.size()) == update->slots(),
                InvalidArgument("slot_names must be the ", update->slots(),
                                " slots of ", rule_, ", got ", slots_.size()));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *keys, *grads, *counted_keys, *version;
    OP_REQUIRES_OK(context, context->input("keys", &keys));
    OP_REQUIRES_OK(context, context->input("grads", &grads));
    OP_REQUIRES_OK(context, context->input("counted_keys", &counted_keys));
    OP_REQUIRES_OK(context, context->input("version", &version));
    OpInputList hyper_list;
    OP_REQUIRES_OK(context, context->input_list("hyper", &hyper_list));

    EmbeddingTable& table = resource->table();
    OP_REQUIRES_OK(context, CheckRank(*keys, 1, "keys", "[n]"));
    OP_REQUIRES(context,
                TensorShapeUtils::IsMatrix(grads->shape()) &&
                    grads->dim_size(0) == keys->dim_size(0) &&
                    grads->dim_size(1) == table.dim(),
                InvalidArgument("grads of table ", resource->name(),
                                " must be [n, dim] = [", keys->dim_size(0), ",",
                                table.dim(), "], got shape ",
                                grads->shape().DebugString()));
    OP_REQUIRES_OK(context, CheckRank(*counted_keys, 1, "counted_keys", "[m]"));
    OP_REQUIRES_OK(context, CheckRank(*version, 0, "version", "[]"));
    std::vector<float> hyper;
    for (const Tensor& value : hyper_list) {
      OP_REQUIRES(
          context, TensorShapeUtils::IsScalar(value.shape()),
          InvalidArgument("hyper must each be [], got shape ",
                          value.shape().DebugString(), " at ", hyper.size()));
      hyper.push_back(value.scalar<float>()());
      OP_REQUIRES(context, std::isfinite(hyper.back()),
                  InvalidArgument(hyper_names_[hyper.size() - 1], " of ", rule_,
                                  " must be finite, got ", hyper.back()));
    }
    const std::unique_ptr<RowUpdate> update = MakeRowUpdate(rule_, hyper);
    OP_REQUIRES(context, update != nullptr, NoRowUpdate());

    std::shared_lock<std::shared_mutex> lock(resource->replace_mutex());
    OP_REQUIRES_OK(context, CheckInitialized(*resource, "it is trained"));
    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return PrepareSlots(*update, *resource);
                   }));

    EmbeddingTable::Batch batch;
    batch.keys = keys->flat<int64_t>().data();
    batch.grads = grads->flat<float>().data();
    batch.n = keys->NumElements();
    batch.counted_keys = counted_keys->flat<int64_t>().data();
    batch.n_counted = counted_keys->NumElements();
    batch.version = version->scalar<int64_t>()();
    int64_t too_many;
    const bool applied =
        table.Apply(batch, *update, IntraOpThreads(context), &too_many);
    OP_REQUIRES(context, too_many == 0,
                TooManyRows(*resource, too_many,
                            " with this step, nothing of which was applied"));
    OP_REQUIRES(context, applied,
                ResourceExhausted(
                    "table ", resource->name(),
                    " must fit into memory, got no memory for a step of ",
                    batch.n + batch.n_counted, " keys over ", table.size(),
                    " rows; nothing of the step was applied"));
  }

 private:
  Status NoRowUpdate() const {
    return tensorflow::errors::Internal("rule ", rule_,
                                        " must have a RowUpdate, got none");
  }

  // Adds the rule's slots to the table if it has none. An error if it has the
  // slots of another rule.
  Status PrepareSlots(const RowUpdate& update, TableResource& resource) const {
    EmbeddingTable& table = resource.table();
    const size_t n = slots_.size();
    // Checked even if the table has the slots: a restore may have made them
    // wider.
    for (size_t s = 0; s < n; ++s) {
      const int width = update.slot_width(static_cast<int>(s), table.dim());
      if (slots_[s].width != width) {
        return InvalidArgument("slot_widths of ", rule_, " must be ", width,
                               " for slot ", slots_[s].name, " of table ",
                               resource.name(), " of dim ", table.dim(),
                               ", got ", slots_[s].width);
      }
    }
    std::vector<SlotSpec> present = table.slots();
    if (SameSlots(present, slots_, n) &&
        std::equal(slots_.begin(), slots_.end(), present.begin(),
                   [](const SlotSpec& x, const SlotSpec& y) {
                     return x.initial == y.initial;
                   })) {
      return Status();
    }
    // Checked before EnsureSlots, so that a refused step adds no slots, and
    // after it, because another step may have added its slots in between.
    if (SameSlots(present, slots_, std::min(n, present.size()))) {
      const bool ensured = table.EnsureSlots(slots_);
      present = table.slots();
      if (SameSlots(present, slots_, n)) return Status();
      if (!ensured && SameSlots(present, slots_, present.size())) {
        return ResourceExhausted("table ", resource.name(),
                                 " must fit into memory with the slots of ",
                                 rule_, ", got no memory for ", table.size(),
                                 " rows");
      }
    }
    return InvalidArgument(
        "slots of table ", resource.name(), " must be those of ", rule_, " (",
        ListOf(NamesOf(slots_)), "), got ", ListOf(NamesOf(present)),
        "; one table has one optimizer");
  }

  std::string rule_;
  std::vector<std::string> hyper_names_;  // The rule's hyperparameters.
  std::vector<SlotSpec> slots_;           // The rule's slots, in its order.
};

class TableCheckRoomOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr resource;
    OP_REQUIRES_OK(context, FindTable(context, &resource));
    const Tensor *keys, *counted_keys;
    OP_REQUIRES_OK(context, context->input("keys", &keys));
    OP_REQUIRES_OK(context, context->input("counted_keys", &counted_keys));

    EmbeddingTable::Batch batch = {};
    batch.keys = keys->flat<int64_t>().data();
    batch.n = keys->NumElements();
    batch.counted_keys = counted_keys->flat<int64_t>().data();
    batch.n_counted = counted_keys->NumElements();
    int64_t too_many;
    OP_REQUIRES(context,
                resource->table().CountTooMany(batch, IntraOpThreads(context),
                                               &too_many),
                NoMemoryToCount(*resource, keys->NumElements() +
                                               counted_keys->NumElements()));
    OP_REQUIRES(context, too_many == 0,
                TooManyRows(*resource, too_many,
                            " with this step, nothing of which was applied"));
  }
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableCheckRoom").Device(DEVICE_CPU),
                        TableCheckRoomOp);
REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableApply").Device(DEVICE_CPU),
                        TableApplyOp);

}  // namespace
}  // namespace rec_estimator
