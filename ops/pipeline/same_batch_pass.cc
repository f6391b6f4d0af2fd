// SPDX-License-Identifier: Apache-2.0
// Where graph modification has given a step another IteratorGetNext, the old
// one is still in the graph, and a user may fetch from it. Before placement
// this pass puts an identity of the new one's first outputs in its place, so
// that such a fetch sees the batch of its step.

#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::Status;

// Both in rec_estimator/graph_modifier/iterator_swap.py: on an IteratorGetNext
// that is replaced, and on the one it waits for, which replaces it.
constexpr char kReplaced[] = "_rec_estimator_replaced";
constexpr char kReplacement[] = "_rec_estimator_replacement";
constexpr char kGetNext[] = "IteratorGetNext";

bool IsReplaced(const Node& node) {
  return node.type_string() == kGetNext &&
         node.attrs().Find(kReplaced) != nullptr;
}

// The IteratorGetNext that gives the batch of `node`, which is replaced; null
// if there is none.
Node* SourceOf(Node* node) {
  // A graph may be modified again: then what replaced `node` is replaced, too.
  while (node != nullptr && IsReplaced(*node)) {
    Node* next = nullptr;
    for (const Edge* edge : node->in_edges()) {
      // It may wait for another user's batch, too.
      const Node& before = *edge->src();
      if (edge->IsControlEdge() && before.attrs().Find(kReplacement) != nullptr)
        next = edge->src();
    }
    node = next;
  }
  return node;
}

Status ReplaceByIdentity(Graph* graph, Node* node, Node* source) {
  if (source == nullptr || source->num_outputs() < node->num_outputs()) {
    return tensorflow::errors::Internal(
        node->name(), " must wait for the IteratorGetNext that replaces it");
  }
  tensorflow::NodeDefBuilder builder(node->name(), "IdentityN");
  std::vector<tensorflow::NodeDefBuilder::NodeOut> inputs;
  for (int i = 0; i < node->num_outputs(); ++i) {
    inputs.emplace_back(source->name(), i, source->output_type(i));
  }
  builder.Input(inputs).Device(node->requested_device());
  tensorflow::NodeDef identity_def;
  TF_RETURN_IF_ERROR(builder.Finalize(&identity_def));
  struct End {
    Node* node;
    int input, output;
  };
  std::vector<End> consumers;
  for (const Edge* edge : node->out_edges()) {
    consumers.push_back({edge->dst(), edge->dst_input(), edge->src_output()});
  }
  graph->RemoveNode(node);
  Status status;
  Node* identity = graph->AddNode(identity_def, &status);
  TF_RETURN_IF_ERROR(status);
  for (int i = 0; i < identity->num_inputs(); ++i)
    graph->AddEdge(source, i, identity, i);
  for (const End& end : consumers)
    graph->AddEdge(identity, end.output, end.node, end.input);
  return status;
}

class SameBatchPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr) return Status();
    Graph* graph = options.graph->get();
    std::vector<std::pair<Node*, Node*>> replaced;
    for (Node* node : graph->op_nodes()) {
      if (IsReplaced(*node)) replaced.emplace_back(node, SourceOf(node));
    }
    for (const auto& [node, source] : replaced) {
      TF_RETURN_IF_ERROR(ReplaceByIdentity(graph, node, source));
    }
    return Status();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 0,
                      SameBatchPass);

}  // namespace
}  // namespace rec_estimator
