// SPDX-License-Identifier: Apache-2.0
// A graph pass that lets one op bring the rows of a partitioned table's shards
// into the order of the batch, and one op divide their gradient.
//
//   0, 1, 2, ... --> DynamicPartition <-- shards
//                     |           |
//   rows --> DynamicStitch    GatherV2 <-- gradient
//
//                    =>
//
//   shards --> ShardRowsMerge     shards --> ShardRowsSplit
//   rows   --/                  gradient --/
//
// TensorFlow's ops take a place for each row, and copy row by row to and from
// these places. As graph_edits.h explains, the pass rewrites the part of a
// graph that a step runs. OptimizerOptions.L0 turns it off.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/table/graph_edits.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

bool IsAlways(const Output& output, int64_t expected) {
  int64_t value;
  return IsConstantScalar(output, &value) && value == expected;
}

// Whether an output is 0, 1, 2, ...
bool IsCount(const Output& output) {
  Output start, delta;
  if (output.node->type_string() == "Range") {
    return InputOf(*output.node, 0, &start).ok() &&
           InputOf(*output.node, 2, &delta).ok() && IsAlways(start, 0) &&
           IsAlways(delta, 1);
  }
  tensorflow::Tensor tensor;
  if (!output.node->IsConstant() ||
      !tensorflow::GetNodeAttr(output.node->attrs(), "value", &tensor).ok() ||
      tensor.dtype() != tensorflow::DT_INT32 || tensor.dims() != 1) {
    return false;
  }
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    if (tensor.flat<int32_t>()(i) != i) return false;
  }
  return true;
}

bool IsFloat(const Node& node, const char* attr) {
  tensorflow::DataType type;
  return tensorflow::GetNodeAttr(node.attrs(), attr, &type).ok() &&
         type == tensorflow::DT_FLOAT;
}

// Whether a node makes the rows of a lookup.
bool IsLookup(const Node& node) {
  return node.type_string() == "RecEstimator>TableLookup" ||
         node.type_string() == "RecEstimator>RowsSpread";
}

// The places of the rows of each shard, and what uses them.
struct ShardPlaces {
  Node* partition;
  std::vector<Node*> stitches;
  // By gradient: the gather of each shard, or null.
  std::map<std::pair<Node*, int>, std::vector<Node*>> gathers;

  int n_shards() const { return partition->num_outputs(); }
};

// Whether the node stitches the rows of lookups at these places.
bool IsStitch(const ShardPlaces& places, const Node& node) {
  const int n = places.n_shards();
  if (node.type_string() != "DynamicStitch" || node.num_inputs() != 2 * n ||
      !IsFloat(node, "T")) {
    return false;
  }
  for (int i = 0; i < n; ++i) {
    Output place, rows;
    if (!InputOf(node, i, &place).ok() || !InputOf(node, n + i, &rows).ok() ||
        !(place == Output{places.partition, i}) || !IsLookup(*rows.node)) {
      return false;
    }
  }
  return true;
}

// Whether the node gathers rows of a tensor at the places of one shard.
bool IsGather(const Node& node, Output* values) {
  Output axis;
  int batch_dims = 0;
  // One op for all shards waits for what any of them waits for, so none may
  // wait for more than its inputs: that may depend on another shard's rows.
  return node.type_string() == "GatherV2" && IsFloat(node, "Tparams") &&
         ControlInputs(node).empty() &&
         tensorflow::GetNodeAttr(node.attrs(), "batch_dims", &batch_dims)
             .ok() &&
         batch_dims == 0 && InputOf(node, 0, values).ok() &&
         InputOf(node, 2, &axis).ok() && IsAlways(axis, 0);
}

// False: the node does not divide places among shards.
bool FindUses(Node* partition, ShardPlaces* places) {
  Output count;
  if (partition->type_string() != "DynamicPartition" ||
      !InputOf(*partition, 0, &count).ok() || !IsCount(count) ||
      !ControlInputs(*partition).empty()) {
    return false;
  }
  places->partition = partition;
  for (const Edge* edge : partition->out_edges()) {
    if (edge->IsControlEdge() || edge->dst()->assigned_device_name() !=
                                     partition->assigned_device_name()) {
      continue;
    }
    Node* const use = edge->dst();
    Output values;
    if (edge->dst_input() == 0 && IsStitch(*places, *use)) {
      places->stitches.push_back(use);
    } else if (edge->dst_input() == 1 && IsGather(*use, &values)) {
      auto& of_values = places->gathers[{values.node, values.index}];
      of_values.resize(static_cast<size_t>(places->n_shards()));
      of_values[static_cast<size_t>(edge->src_output())] = use;
    }
  }
  // What only gathers is not of a table.
  return !places->stitches.empty();
}

class Replacer {
 public:
  Replacer(const ShardPlaces& places, Graph* graph)
      : places_(places), graph_(graph) {}

  Status Run() {
    TF_RETURN_IF_ERROR(InputOf(*places_.partition, 1, &shards_));
    for (Node* stitch : places_.stitches) TF_RETURN_IF_ERROR(Merge(stitch));
    for (const auto& [values, gathers] : places_.gathers) {
      TF_RETURN_IF_ERROR(Split(gathers));
    }
    RemoveUnused(places_.partition);
    return Status();
  }

 private:
  Status Merge(Node* stitch) {
    std::vector<Output> rows;
    TF_RETURN_IF_ERROR(
        AppendInputs(*stitch, places_.n_shards(), places_.n_shards(), &rows));
    NodeDefBuilder builder(graph_->NewName(stitch->name() + "/merge"),
                           "RecEstimator>ShardRowsMerge");
    builder.Input(NodeOutOf(shards_)).Input(NodeOutsOf(rows));
    rows.insert(rows.begin(), shards_);
    Node* node;
    TF_RETURN_IF_ERROR(
        AddNode(&builder, rows, stitch->assigned_device_name(), graph_, &node));
    MoveConsumers({stitch, 0}, {node, 0}, graph_);
    MoveControls(stitch, node, graph_);
    graph_->RemoveNode(stitch);
    return Status();
  }

  Status Split(const std::vector<Node*>& gathers) {
    for (const Node* gather : gathers) {
      if (gather == nullptr) return Status();
    }
    // Not those of FindUses, which may have been replaced since.
    Output values;
    TF_RETURN_IF_ERROR(InputOf(*gathers[0], 0, &values));
    NodeDefBuilder builder(graph_->NewName(gathers[0]->name() + "/split"),
                           "RecEstimator>ShardRowsSplit");
    builder.Input(NodeOutOf(shards_))
        .Input(NodeOutOf(values))
        .Attr("N", places_.n_shards());
    Node* node;
    TF_RETURN_IF_ERROR(AddNode(&builder, {shards_, values},
                               gathers[0]->assigned_device_name(), graph_,
                               &node));
    for (int i = 0; i < places_.n_shards(); ++i) {
      Node* const gather = gathers[static_cast<size_t>(i)];
      MoveConsumers({gather, 0}, {node, i}, graph_);
      MoveControls(gather, node, graph_);
      graph_->RemoveNode(gather);
    }
    return Status();
  }

  // Removes the places, and the count that they are made of, unless something
  // else reads them.
  void RemoveUnused(Node* node) {
    for (const Edge* edge : node->out_edges()) {
      if (edge->dst()->IsOp()) return;
    }
    Output count;
    const bool is_partition = node == places_.partition;
    const bool has_count = is_partition && InputOf(*node, 0, &count).ok();
    graph_->RemoveNode(node);
    if (has_count) RemoveUnused(count.node);
  }

  const ShardPlaces& places_;
  Graph* const graph_;
  Output shards_;
};

class ShardRowsPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<ShardPlaces> all;
    for (Node* node : graph->op_nodes()) {
      ShardPlaces places;
      if (FindUses(node, &places)) all.push_back(std::move(places));
    }
    for (const ShardPlaces& places : all) {
      TF_RETURN_IF_ERROR(Replacer(places, graph).Run());
    }
    if (!all.empty()) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// Before the passes that move lookups, or after them: it finds rows from both.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    ShardRowsPass);

}  // namespace
}  // namespace rec_estimator
