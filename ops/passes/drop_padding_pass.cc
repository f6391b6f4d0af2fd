// SPDX-License-Identifier: Apache-2.0
// A graph pass that removes padding from dense ids by one op.
//
//   ids --> NotEqual -1 --> Where --> indices      ids --> IdsWithoutPadding
//     \                       |               =>             |          |
//      ------------------> GatherNd --> values            indices    values
//
// These are the ops of EmbeddingFeature (rec_estimator/features.py) and of
// TensorFlow's feature columns. As graph_edits.h explains, the pass rewrites
// the part of a graph that a step runs: passes in Python and exports see the
// ops of TensorFlow. OptimizerOptions.L0 turns it off.
#include <string>
#include <vector>

#include "ops/passes/graph_edits.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

// The ops that one op replaces.
struct Removal {
  Output ids;
  int64_t padding;
  Node* constant;  // Of the padding.
  Node* test;      // NotEqual
  Node* where;     // Where
  std::vector<Node*> gathers;
};

// Finds the ids and the padding that NotEqual compares. TensorFlow's optimizer
// sorts the inputs of a commutative op by name.
bool IsTest(const Node& node, Removal* removal) {
  Output inputs[2];
  if (node.type_string() != "NotEqual" ||
      node.input_type(0) != tensorflow::DT_INT64 ||
      !InputOf(node, 0, &inputs[0]).ok() ||
      !InputOf(node, 1, &inputs[1]).ok()) {
    return false;
  }
  for (const int i : {0, 1}) {
    if (!IsConstantScalar(inputs[i], &removal->padding)) continue;
    removal->constant = inputs[i].node;
    removal->ids = inputs[1 - i];
    return true;
  }
  return false;
}

// Whether nothing but its inputs lets the node wait, on the device of `other`.
bool IsFree(const Node& node, const Node& other) {
  return ControlInputs(node).empty() &&
         node.assigned_device_name() == other.assigned_device_name();
}

// Whether `where` removes padding from ids.
bool IsRemoval(Node* where, Removal* removal) {
  Output test;
  if (where->type_string() != "Where" || !InputOf(*where, 0, &test).ok() ||
      !IsTest(*test.node, removal) || !IsFree(*where, *where) ||
      !IsFree(*test.node, *where)) {
    return false;
  }
  for (const Edge* edge : where->out_edges()) {
    Node* const gather = edge->dst();
    Output ids;
    if (edge->IsControlEdge() || gather->type_string() != "GatherNd" ||
        edge->dst_input() != 1 || !InputOf(*gather, 0, &ids).ok() ||
        !(ids == removal->ids) || !IsFree(*gather, *where)) {
      continue;
    }
    removal->gathers.push_back(gather);
  }
  removal->test = test.node;
  removal->where = where;
  return !removal->gathers.empty();
}

Status Replace(const Removal& removal, Graph* graph) {
  NodeDefBuilder builder(graph->NewName(removal.where->name() + "/ids"),
                         "RecEstimator>IdsWithoutPadding");
  builder.Input(NodeOutOf(removal.ids)).Attr("padding", removal.padding);
  Node* node;
  TF_RETURN_IF_ERROR(AddNode(&builder, {removal.ids},
                             removal.where->assigned_device_name(), graph,
                             &node));
  for (Node* before : ControlInputs(*removal.constant)) {
    graph->AddControlEdge(before, node);
  }
  for (Node* gather : removal.gathers) {
    MoveConsumers({gather, 0}, {node, 1}, graph);
    MoveControls(gather, node, graph);
    graph->RemoveNode(gather);
  }
  MoveConsumers({removal.where, 0}, {node, 0}, graph);
  MoveControls(removal.where, node, graph);
  graph->RemoveNode(removal.where);
  bool is_used = false;
  for (const Edge* edge : removal.test->out_edges()) {
    is_used |= edge->dst()->IsOp();
  }
  if (!is_used) graph->RemoveNode(removal.test);
  return Status();
}

class DropPaddingPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<Removal> removals;
    for (Node* node : graph->op_nodes()) {
      Removal removal;
      if (IsRemoval(node, &removal)) removals.push_back(removal);
    }
    for (const Removal& removal : removals) {
      TF_RETURN_IF_ERROR(Replace(removal, graph));
    }
    if (!removals.empty()) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// Before the passes that move lookups, which keep the ops before them.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    DropPaddingPass);

}  // namespace
}  // namespace rec_estimator
