// SPDX-License-Identifier: Apache-2.0
// Op of a layer that is split into a part of users and one of candidates.
// Kernel: kernel_split_kernels.cc. Python: sample_compression/kernel_split.py.
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::tensorflow::Status;
using ::tensorflow::errors::InvalidArgument;
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
      return InvalidArgument("counts must be of rows of a kernel, got ", count);
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
Blocks of a kernel's rows, one below the other; each a sum or difference of such blocks.

kernel: [K, H].
rows: [sum of counts, H].
counts: Of each block, how many rows it has.
terms: Of each block, how many blocks of the kernel are added to make it.
starts: Of each of those, in order, its first row in the kernel.
signs: And 1, or -1 where it is subtracted.
keep: Whether rows are kept for the next step, which is right as long as the kernel's memory is not
  written to while somebody holds it, as that of a resource variable is not.
)doc");

}  // namespace
}  // namespace rec_estimator
