// SPDX-License-Identifier: Apache-2.0
// The optimizer rules: how a gradient changes a row.
#ifndef REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_
#define REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace rec_estimator {

// One rule with the hyperparameters of one step. A row is contiguous: the
// value, then the slots. Slot s begins at row + dim + the widths of the slots
// before it. Immutable, so threads can share an object.
class RowUpdate {
 public:
  virtual ~RowUpdate() = default;

  // The number of slots of a row.
  virtual int slots() const = 0;

  // Floats of a slot in a row of `dim`: dim, or 1 for a slot with one number
  // per row.
  virtual int slot_width(int slot, int dim) const {
    static_cast<void>(slot);
    return dim;
  }

  // Whether Update is called for every occurrence of a key, in batch order,
  // with the raw gradient (GradientDescent). Otherwise it is called once per
  // key, with the summed gradient.
  virtual bool per_occurrence() const { return false; }

  // Updates n rows in order. A row occurs twice only if per_occurrence().
  virtual void Update(float* const* rows,         // (n) of (dim + slot widths)
                      const float* const* grads,  // (n) of (dim)
                      size_t n, int dim) const = 0;
};

// The hyperparameters of `rule` ("Adagrad", "Adam", ...) in the order in which
// MakeRowUpdate takes them; empty for an unknown rule.
std::vector<std::string> HyperparameterNames(const std::string& rule);

// The names of all rules.
std::vector<std::string> RowUpdateRules();

// Returns nullptr if the rule is unknown or hyper.size() differs from that of
// HyperparameterNames(rule). Python checks the ranges of the values.
std::unique_ptr<RowUpdate> MakeRowUpdate(const std::string& rule,
                                         const std::vector<float>& hyper);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_MATH_ROW_UPDATE_H_
