// SPDX-License-Identifier: Apache-2.0
// The op that evicts keys of a table.
// Kernel: evict_kernels.cc. Python: rec_estimator/table/table.py.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

Status TableEvictShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return Status();
}

// An attribute for each rule (core/evict/eviction_rule.h). Its default turns
// the rule off.
REGISTER_OP("RecEstimator>TableEvict")
    .Input("table: resource")
    .Input("global_step: int64")
    .Output("evicted: int64")
    .Output("evicted_rows: int64")
    .Output("rows_before: int64")
    .Attr("steps_to_live: int = -1")
    .Attr("l2_weight_threshold: float = -1.0")
    .Attr("seconds_to_live: int = -1")
    .SetIsStateful()
    .SetShapeFn(TableEvictShape)
    .Doc(R"doc(
Evicts keys that were not trained for many steps or seconds, or rows whose values are small.

table: [].
global_step: []. With seconds_to_live the time in seconds. Keys get this version if theirs is -1 or larger, as it can be after a warm start.
evicted: []. Number of evicted keys, including keys that were only counted.
evicted_rows: []. How many of them had a row.
rows_before: []. Number of rows before the eviction.
steps_to_live: If >= 0, evicts keys with global_step - version > steps_to_live. -1 disables this rule.
l2_weight_threshold: If > 0, evicts rows whose squared values, summed and halved, are below it, and rows with a
  NaN or an infinity. Of keys that are only counted, keeps the last 4 per row, or 65536. -1 disables this rule.
seconds_to_live: If >= 0, evicts keys with global_step - version > seconds_to_live, and nothing while the time is not
  known, that is, not positive. -1 disables this rule.
)doc");

}  // namespace
}  // namespace rec_estimator
