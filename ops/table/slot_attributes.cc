// SPDX-License-Identifier: Apache-2.0
// Implements slot_attributes.h.
#include "ops/table/slot_attributes.h"

#include <set>

#include "ops/kernel/errors.h"

namespace rec_estimator {

using ::absl::Status;
using ::tensorflow::OpKernelConstruction;

Status SlotAttributes::Read(OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("slot_names", &names));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_widths", &widths));
  return context->GetAttr("slot_initials", &initials);
}

Status SlotAttributes::AppendTo(size_t begin, size_t end,
                                std::vector<SlotSpec>* slots) const {
  std::set<std::string> seen;
  int64_t floats = 0;
  for (size_t i = begin; i < end; ++i) {
    if (names[i].empty() || !seen.insert(names[i]).second) {
      return InvalidArgument("slot_names must be distinct and not empty, got '",
                             names[i], "' at ", i);
    }
    // Each width is bounded before it is added, so the sum cannot overflow.
    if (widths[i] < 1 || widths[i] > kMaxRowFloats ||
        (floats += widths[i]) > kMaxRowFloats) {
      return InvalidArgument("slot_widths must be >= 1 and at most ",
                             kMaxRowFloats, " in sum, got ", widths[i],
                             " for slot ", names[i]);
    }
    slots->push_back({names[i], static_cast<int>(widths[i]), initials[i]});
  }
  return Status();
}

Status ReadSlots(OpKernelConstruction* context, std::vector<SlotSpec>* slots) {
  SlotAttributes attrs;
  TF_RETURN_IF_ERROR(attrs.Read(context));
  const size_t n = attrs.names.size();
  if (attrs.HaveLength(n)) return attrs.AppendTo(0, n, slots);
  return InvalidArgument(
      "slot_names, slot_widths and slot_initials must be of equal length, got ",
      n, ", ", attrs.widths.size(), " and ", attrs.initials.size());
}

}  // namespace rec_estimator
