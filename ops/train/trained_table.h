// SPDX-License-Identifier: Apache-2.0
// A table of a training step with the slots that the step's rule needs.
#ifndef REC_ESTIMATOR_OPS_TRAIN_TRAINED_TABLE_H_
#define REC_ESTIMATOR_OPS_TRAIN_TRAINED_TABLE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "ops/table/table_resource.h"

namespace rec_estimator {

inline std::string ListOf(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

inline std::vector<std::string> NamesOf(const std::vector<SlotSpec>& slots) {
  std::vector<std::string> names;
  for (const SlotSpec& slot : slots) names.push_back(slot.name);
  return names;
}

// Whether the first n slots of both have the same names and widths.
inline bool SameSlots(const std::vector<SlotSpec>& a,
                      const std::vector<SlotSpec>& b, size_t n) {
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

  // An error unless the table is ready and can be trained. Adds the slots if it
  // has none; an error if it has those of another rule. The caller holds
  // replace_mutex, shared at least.
  absl::Status Prepare(const std::string& rule) const {
    TF_RETURN_IF_ERROR(CheckInitialized(*resource, "it is trained"));
    if (table().rules().value.type == ValueType::kInt8) {
      return FailedPrecondition(
          "table ", name(),
          " has rows of 8 bits, which an export reads and no step trains; "
          "train the model from its checkpoint, and export again");
    }
    return OrStatus(name(), [&] { return PrepareSlots(rule); });
  }

 private:
  absl::Status PrepareSlots(const std::string& rule) const {
    if (table().BeginsWithSlots(*slots)) return absl::Status();
    const size_t n = slots->size();
    // Checked before EnsureSlots, so that a refused step adds no slots, and
    // after it, because another step may have added its slots in between.
    std::vector<SlotSpec> present = table().slots();
    if (SameSlots(present, *slots, std::min(n, present.size()))) {
      const bool ensured = table().EnsureSlots(*slots);
      present = table().slots();
      if (SameSlots(present, *slots, n)) return absl::Status();
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

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TRAIN_TRAINED_TABLE_H_
