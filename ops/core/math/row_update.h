// SPDX-License-Identifier: Apache-2.0
// The optimizer rules: how a summed gradient changes one row.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace rec_estimator {

// One rule with the hyperparameters of one step. A row is value then slots, all
// contiguous: slot s begins at row + dim + sum of the widths of the slots
// before. Immutable, so threads share it.
class RowUpdate {
 public:
  virtual ~RowUpdate() = default;

  // Number of slots a row must carry.
  virtual int slots() const = 0;

  // Floats of slot `slot` in a row of `dim`: as many, or 1 for what a row has
  // once.
  virtual int slot_width(int slot, int dim) const {
    static_cast<void>(slot);
    return dim;
  }

  // Whether Update wants every occurrence of a key, in batch order, with the
  // gradient as it came (GradientDescent), instead of once per key with the
  // sum.
  virtual bool per_occurrence() const { return false; }

  // Updates n rows in order; a row repeats only if per_occurrence().
  virtual void Update(float* const* rows,         // (n) of (dim + slot widths)
                      const float* const* grads,  // (n) of (dim)
                      size_t n, int dim) const = 0;
};

// Names of the hyperparameters of `rule` ("Adagrad", "Adam", ...) in the order
// MakeRowUpdate takes them; empty for an unknown rule.
std::vector<std::string> HyperparameterNames(const std::string& rule);

// The names of all rules.
std::vector<std::string> RowUpdateRules();

// nullptr if the rule is unknown or hyper.size() is not that of
// HyperparameterNames(rule). Values are not range-checked here: Python does.
std::unique_ptr<RowUpdate> MakeRowUpdate(const std::string& rule,
                                         const std::vector<float>& hyper);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_
