// SPDX-License-Identifier: Apache-2.0
// The op that reads rows from disk ahead of the step that needs them.
// Kernel: bring_in_kernels.cc. Python: rec_estimator/graph_modifier/.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TablesBringInShape(InferenceContext* c) {
  std::vector<ShapeHandle> tables;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->input("tables", &tables));
  for (const ShapeHandle& table : tables) {
    TF_RETURN_IF_ERROR(c->WithRank(table, 0, &unused));
  }
  return Status();
}

REGISTER_OP("RecEstimator>TablesBringIn")
    .Input("tables: N * resource")
    .Input("keys: N * int64")
    .Attr("N: int >= 1")
    .Attr("batches_ahead: int >= 1")
    .SetIsStateful()
    .SetShapeFn(TablesBringInShape)
    .Doc(R"doc(
Brings the rows of keys from disk into memory before the training step that needs them, and keeps them there until that
step must have run. Changes nothing that a read of a table sees, apart from the counts of TableTierCounts. A dataset
calls it once for each batch.

A table that is not initialized, or that has no rows on disk, is left alone. If the disk fails, rows stay there: the
step that needs them reports it.

tables: Each []. A table may occur several times.
keys: Any shapes. What the step reads of each table. Repeats are allowed. Keys without a row cost nothing.
batches_ahead: How many calls keep the rows of a batch in memory, its own included: the batches that may be between the
  dataset and the end of a step. At most 63 of them do.
)doc");

}  // namespace
}  // namespace rec_estimator
