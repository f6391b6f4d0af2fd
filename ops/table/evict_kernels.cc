// SPDX-License-Identifier: Apache-2.0
// Kernel of evict_ops.cc: makes the rule that the attributes ask for and evicts
// by it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/core/evict/eviction.h"
#include "ops/core/evict/global_step_rule.h"
#include "ops/core/evict/l2_weight_rule.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/guarded_kernel.h"
#include "ops/kernel/input_checks.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

using RulePtr = std::unique_ptr<EvictionRule>;
// Makes the rule of an eviction at this step.
using MakeRule = std::function<Status(int64_t step, RulePtr* rule)>;

// How an attribute of the op is read. *value: its value, for messages. *make
// stays empty if the attribute does not ask for its rule. *rule stays empty if
// nothing is to be evicted at the step.
using ReadRule = Status(OpKernelConstruction* context, const char* attribute,
                        std::string* value, MakeRule* make);

Status ReadGlobalStepRule(OpKernelConstruction* context, const char* attribute,
                          std::string* value, MakeRule* make) {
  int64_t steps;
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, &steps));
  *value = StrCat(steps);
  if (steps == -1) return Status();
  if (steps < 0) {
    return InvalidArgument(attribute, " must be >= 0, got ", steps);
  }
  *make = [steps, attribute](int64_t step, RulePtr* rule) {
    if (step < 0) {
      return InvalidArgument("global_step must be >= 0 for eviction by ",
                             attribute, ", got ", step);
    }
    // Both are >= 0, so the difference cannot overflow. A smaller version is
    // more than `steps` steps old.
    *rule = std::make_unique<GlobalStepRule>(step - steps, step);
    return Status();
  };
  return Status();
}

Status ReadTimeRule(OpKernelConstruction* context, const char* attribute,
                    std::string* value, MakeRule* make) {
  int64_t seconds;
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, &seconds));
  *value = StrCat(seconds);
  if (seconds == -1) return Status();
  if (seconds < 0) {
    return InvalidArgument(attribute, " must be >= 0, got ", seconds);
  }
  *make = [seconds](int64_t time, RulePtr* rule) {
    // Versions are times, so that their age is that of steps.
    if (time > 0)
      *rule = std::make_unique<GlobalStepRule>(time - seconds, time);
    return Status();
  };
  return Status();
}

Status ReadL2WeightRule(OpKernelConstruction* context, const char* attribute,
                        std::string* value, MakeRule* make) {
  float threshold;
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, &threshold));
  *value = StrCat(threshold);
  if (threshold == -1) return Status();
  if (!(threshold > 0) || !std::isfinite(threshold)) {
    return InvalidArgument(attribute, " must be finite and > 0, got ",
                           threshold);
  }
  *make = [threshold](int64_t step, RulePtr* rule) {
    *rule =
        std::make_unique<L2WeightRule>(threshold, std::max<int64_t>(step, -1));
    return Status();
  };
  return Status();
}

// The rules, each with the attribute that asks for it.
constexpr struct {
  const char* attribute;
  ReadRule* read;
} kRules[] = {
    {"steps_to_live", ReadGlobalStepRule},
    {"l2_weight_threshold", ReadL2WeightRule},
    {"seconds_to_live", ReadTimeRule},
};

class TableEvictOp : public OpKernel {
 public:
  explicit TableEvictOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<const char*> attributes;
    std::vector<std::string> values;
    int rules = 0;
    for (const auto& rule : kRules) {
      std::string value;
      MakeRule make;
      OP_REQUIRES_OK(context,
                     rule.read(context, rule.attribute, &value, &make));
      attributes.push_back(rule.attribute);
      values.push_back(value);
      if (make == nullptr) continue;
      make_rule_ = make;
      ++rules;
    }
    OP_REQUIRES(
        context, rules == 1,
        InvalidArgument("exactly one of ", absl::StrJoin(attributes, ", "),
                        " must be given, got ", absl::StrJoin(values, ", ")));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, &table));
    const Tensor* global_step;
    OP_REQUIRES_OK(context, context->input("global_step", &global_step));

    OP_REQUIRES_OK(context, CheckRank(*global_step, 0, "global_step", "[]"));
    RulePtr rule;
    OP_REQUIRES_OK(context,
                   make_rule_(global_step->scalar<int64_t>()(), &rule));

    Evicted evicted;
    OP_REQUIRES_OK(
        context, OrStatus(table->name(), [&] {
          std::shared_lock<std::shared_mutex> lock(table->replace_mutex());
          if (rule == nullptr) {
            evicted.rows_before = table->table().size();
          } else {
            evicted = table->table().Evict(rule.get());
          }
          return Status();
        }));
    const int64_t counts[] = {evicted.keys, evicted.rows, evicted.rows_before};
    for (int i = 0; i < num_outputs(); ++i) {
      Tensor* count;
      OP_REQUIRES_OK(context,
                     context->allocate_output(i, TensorShape({}), &count));
      count->scalar<int64_t>()() = counts[i];
    }
  }

 private:
  MakeRule make_rule_;
};

REGISTER_KERNEL_BUILDER(Name("RecEstimator>TableEvict").Device(DEVICE_CPU),
                        Guarded<TableEvictOp>);

}  // namespace
}  // namespace rec_estimator
