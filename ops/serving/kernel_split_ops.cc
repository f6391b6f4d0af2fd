// SPDX-License-Identifier: Apache-2.0
// KernelRows: the rows of a layer's kernel that belong to users or to
// candidates, for a layer that is split into a part for each.
// Kernel: kernel_split_kernels.cc. Python:
// rec_estimator/sample_compression/rewrite/kernel_split.py.
#include <cstdint>
#include <vector>

#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status KernelRowsShape(InferenceContext* c) {
  ShapeHandle kernel;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &kernel));
  std::vector<int64_t> counts;
  TF_RETURN_IF_ERROR(c->GetAttr("counts", &counts));
  int64_t rows = 0;
  for (const int64_t count : counts) {
    if (count < 0 || __builtin_add_overflow(rows, count, &rows)) {
      return InvalidArgument("counts must be >= 0 with a sum below 2^63, got ",
                             count);
    }
  }
  c->set_output(0, c->Matrix(rows, c->Dim(kernel, 1)));
  return Status();
}

REGISTER_OP("RecEstimator>KernelRows")
    .Input("kernel: T")
    .Output("rows: T")
    .Attr("T: {float, double}")
    .Attr("counts: list(int) >= 1")
    .Attr("terms: list(int) >= 1")
    .Attr("starts: list(int) >= 1")
    .Attr("signs: list(int) >= 1")
    .Attr("keep: bool = false")
    .SetShapeFn(KernelRowsShape)
    .Doc(R"doc(
Concatenates blocks of rows. Each block is a signed sum of equally high blocks of a kernel's rows.

kernel: [K, H].
rows: [sum of counts, H].
counts: Number of rows of each output block.
terms: Number of kernel blocks that are summed for each output block.
starts: First row in the kernel of each kernel block, in order.
signs: 1 for each kernel block that is added, -1 for each that is subtracted.
keep: Whether to reuse the rows in the next step if the kernel has not changed. Requires that no op writes
  to the kernel's buffer while another holds it, as is true for resource variables.
)doc");

}  // namespace
}  // namespace rec_estimator
