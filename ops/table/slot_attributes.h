// SPDX-License-Identifier: Apache-2.0
// Reads and checks the attributes that describe the slots of a table.
#ifndef REC_ESTIMATOR_OPS_TABLE_SLOT_ATTRIBUTES_H_
#define REC_ESTIMATOR_OPS_TABLE_SLOT_ATTRIBUTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/table/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rec_estimator {

// Longest row in floats, value and slots together: 64 MiB. The core counts the
// floats of a row in an int and allocates many rows at once.
constexpr int64_t kMaxRowFloats = int64_t{1} << 24;

// Values of the attributes slot_names, slot_widths and slot_initials. The lists
// have one element per slot.
struct SlotAttributes {
  std::vector<std::string> names;
  std::vector<int64_t> widths;  // Floats per row.
  std::vector<float> initials;

  // Reads the three attributes. Checks nothing.
  absl::Status Read(tensorflow::OpKernelConstruction* context);

  bool HaveLength(size_t n) const {
    return names.size() == n && widths.size() == n && initials.size() == n;
  }

  // Appends elements [begin, end) to `slots`. InvalidArgument unless the names
  // are distinct and not empty and the widths fit into one row.
  absl::Status AppendTo(size_t begin, size_t end,
                        std::vector<SlotSpec>* slots) const;
};

// Reads and checks the slots of an op on one table.
absl::Status ReadSlots(tensorflow::OpKernelConstruction* context,
                       std::vector<SlotSpec>* slots);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_SLOT_ATTRIBUTES_H_
