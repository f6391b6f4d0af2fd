// SPDX-License-Identifier: Apache-2.0
// Checks of packed keys, which the kernels of packed_ops.cc share.
#ifndef REC_ESTIMATOR_OPS_TRAIN_PACKED_INPUTS_H_
#define REC_ESTIMATOR_OPS_TRAIN_PACKED_INPUTS_H_

#include <cstdint>
#include <vector>

#include "ops/core/keys/packed_keys.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rec_estimator {

// Attributes num_sections and sections: the packed keys have num_sections
// sections, and the op uses some of them in this order.
struct PackedSections {
  // More sections than tables that a graph can have, and a bound on what is
  // allocated for them.
  static constexpr int64_t kMost = int64_t{1} << 20;

  int64_t count = 0;
  std::vector<int64_t> used;

  // Reads and checks both. `n`: the length that `sections` must have.
  absl::Status Read(tensorflow::OpKernelConstruction* context, int64_t n) {
    TF_RETURN_IF_ERROR(context->GetAttr("num_sections", &count));
    TF_RETURN_IF_ERROR(context->GetAttr("sections", &used));
    if (count < 1 || count > kMost) {
      return InvalidArgument("num_sections must be in [1, ", kMost, "], got ",
                             count);
    }
    if (static_cast<int64_t>(used.size()) != n) {
      return InvalidArgument("sections must be of length N = ", n, ", got ",
                             used.size());
    }
    for (const int64_t section : used) {
      if (section < 0 || section >= count) {
        return InvalidArgument(
            "sections must be in [0, num_sections), num_sections = ", count,
            ", got ", section);
      }
    }
    return absl::Status();
  }

  // Finds the sections in a tensor.
  absl::Status Open(const tensorflow::Tensor& packed, PackedKeys* keys) const {
    if (!tensorflow::TensorShapeUtils::IsVector(packed.shape()) ||
        !keys->Open(packed.flat<int64_t>().data(),
                    static_cast<size_t>(packed.NumElements()),
                    static_cast<size_t>(count))) {
      return InvalidArgument(
          "packed must be the output of KeysPack with num_sections = ", count,
          ", got ", packed.DebugString());
    }
    return absl::Status();
  }
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TRAIN_PACKED_INPUTS_H_
