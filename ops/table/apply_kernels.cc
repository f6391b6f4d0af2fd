// SPDX-License-Identifier: Apache-2.0
// Kernel of apply_ops.cc: checks a training step and hands it to the table.
#include <algorithm>
#include <cmath>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "ops/core/math/row_update.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/strcat.h"

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
using ::tensorflow::strings::StrAppend;

std::string Listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    StrAppend(&list, list.empty() ? "" : ", ", name);
  }
  return list.empty() ? "none" : list;
}

std::vector<std::string> Names(const std::vector<SlotSpec>& slots) {
  std::vector<std::string> names;
  for (const SlotSpec& slot : slots) names.push_back(slot.name);
  return names;
}

// Whether the first n slots of both are the same, initial values aside.
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
                InvalidArgument("rule must be one of ", Listed(rules),
                                ", got '", rule_, "'"));
    int64_t num_hyper;
    OP_REQUIRES_OK(context, context->GetAttr("num_hyper", &num_hyper));
    hyper_names_ = HyperparameterNames(rule_);
    OP_REQUIRES(context, static_cast<int64_t>(hyper_names_.size()) == num_hyper,
                InvalidArgument("hyper of ", rule_, " must be ",
                                hyper_names_.size(), " tensors (",
                                Listed(hyper_names_), "), got ", num_hyper));
    // Made to be asked only; every step makes its own.
    const std::unique_ptr<RowUpdate> update =
        MakeRowUpdate(rule_, std::vector<float>(hyper_names_.size(), 0.0f));
    OP_REQUIRES(context, update != nullptr,
                tensorflow::errors::Internal("rule ", rule_, " is not made"));
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
    OP_REQUIRES_OK(context, CheckInitialized(*resource, "it is trained"));
    OP_REQUIRES(context, TensorShapeUtils::IsVector(keys->shape()),
                InvalidArgument("keys must be [n], got shape ",
                                keys->shape().DebugString()));
    OP_REQUIRES(context,
                TensorShapeUtils::IsMatrix(grads->shape()) &&
                    grads->dim_size(0) == keys->dim_size(0) &&
                    grads->dim_size(1) == table.dim(),
                InvalidArgument("grads of table ", resource->name(),
                                " must be [n, dim] = [", keys->dim_size(0), ",",
                                table.dim(), "], got shape ",
                                grads->shape().DebugString()));
    OP_REQUIRES(context, TensorShapeUtils::IsVector(counted_keys->shape()),
                InvalidArgument("counted_keys must be [m], got shape ",
                                counted_keys->shape().DebugString()));
    OP_REQUIRES(context, TensorShapeUtils::IsScalar(version->shape()),
                InvalidArgument("version must be [], got shape ",
                                version->shape().DebugString()));
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
    OP_REQUIRES(context, update != nullptr,
                tensorflow::errors::Internal("rule ", rule_, " is not made"));
    std::shared_lock<std::shared_mutex> lock(resource->replace_mutex());
    OP_REQUIRES_OK(context, OrResourceExhausted(resource->name(), [&] {
                     return PrepareSlots(*update, *resource);
                   }));

    EmbeddingTable::Batch batch;
    batch.keys = keys->flat<int64_t>().data();
    batch.grads = grads->flat<float>().data();
    batch.n = keys->NumElements();
    batch.counted_keys = counted_keys->flat<int64_t>().data();
    batch.m = counted_keys->NumElements();
    batch.version = version->scalar<int64_t>()();
    int64_t too_many;
    const bool applied =
        table.Apply(batch, *update, IntraOpThreads(context), &too_many);
    OP_REQUIRES(context, too_many == 0,
                TooManyRows(*resource, too_many,
                            " with this step, nothing of which was applied"));
    OP_REQUIRES(
        context, applied,
        ResourceExhausted("table ", resource->name(),
                          " must fit into memory, got no memory for a step of ",
                          batch.n + batch.m, " keys over ", table.size(),
                          " rows; nothing of the step was applied"));
  }

 private:
  // Makes the table's rows begin with the rule's slots, or says why they
  // cannot.
  Status PrepareSlots(const RowUpdate& update, TableResource& resource) const {
    EmbeddingTable& table = resource.table();
    const size_t n = slots_.size();
    // Also where the table has the slots: a restore may have made them wider.
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
    // Checked before, so that a refused step leaves no slots behind, and after,
    // since another step may have made its slots in between.
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
        Listed(Names(slots_)), "), got ", Listed(Names(present)),
        "; one table has one optimizer");
  }

  std::string rule_;
  std::vector<std::string> hyper_names_;  // Of the rule.
  std::vector<SlotSpec> slots_;           // The rule's, in its order.
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
    batch.m = counted_keys->NumElements();
    int64_t too_many;
    OP_REQUIRES(
        context,
        resource->table().CountTooMany(batch, IntraOpThreads(context),
                                       &too_many),
        ResourceExhausted("keys of table ", resource->name(),
                          " must be few enough to be counted, got no memory "
                          "for ",
                          batch.n + batch.m));
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
