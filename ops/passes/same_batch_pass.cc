// SPDX-License-Identifier: Apache-2.0
// A graph pass that lets fetches from a replaced IteratorGetNext see the batch
// of their step, and Savers see the position of the new iterator.
//
// Graph modification replaces an iterator and its IteratorGetNext by new ones,
// but the old nodes stay in the graph: the batch can still be fetched, and a
// Saver that is built later saves and restores the old iterator. Before
// placement, this pass replaces the old IteratorGetNext by an identity of the
// new node's first outputs, and gives the new iterator to all other nodes.
#include <memory>
#include <utility>
#include <vector>

#include "ops/kernel/errors.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator::passes {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

// Attributes that rec_estimator/graph_modifier/iterator_swap.py sets: the first
// on the replaced iterator and its IteratorGetNext, the second on their
// replacements. A replaced node has a control edge from its replacement.
constexpr char kReplaced[] = "_rec_estimator_replaced";
constexpr char kReplacement[] = "_rec_estimator_replacement";

bool IsReplaced(const Node& node) {
  return node.attrs().Find(kReplaced) != nullptr;
}

// Finds the node that replaces `node`. nullptr if there is none.
Node* FindReplacement(Node* node) {
  // If the graph was modified again, the replacement may be replaced too.
  while (node != nullptr && IsReplaced(*node)) {
    Node* next = nullptr;
    for (const Edge* edge : node->in_edges()) {
      // The node may have other control inputs.
      const Node& before = *edge->src();
      if (edge->IsControlEdge() && before.attrs().Find(kReplacement) != nullptr)
        next = edge->src();
    }
    node = next;
  }
  return node;
}

// Gives the handle of the iterator `source` to all nodes that have that of
// `iterator`.
Status ReplaceIterator(Graph* graph, const Node& iterator, Node* source) {
  if (source == nullptr) {
    return Internal(iterator.name(),
                    " must wait for the iterator that replaces it");
  }
  std::vector<const Edge*> uses;
  for (const Edge* edge : iterator.out_edges()) {
    if (!edge->IsControlEdge()) uses.push_back(edge);
  }
  for (const Edge* use : uses) {
    TF_RETURN_IF_ERROR(
        graph->UpdateEdge(source, 0, use->dst(), use->dst_input()));
  }
  return Status();
}

// Replaces `node` by an IdentityN of the first outputs of `source`.
Status ReplaceByIdentity(Graph* graph, Node* node, Node* source) {
  if (source == nullptr || source->num_outputs() < node->num_outputs()) {
    return Internal(node->name(),
                    " must wait for the IteratorGetNext that replaces it");
  }
  tensorflow::NodeDefBuilder builder(node->name(), kIdentityN);
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
      if (IsReplaced(*node)) replaced.emplace_back(node, FindReplacement(node));
    }
    for (const auto& [node, source] : replaced) {
      TF_RETURN_IF_ERROR(node->type_string() == kIteratorGetNext
                             ? ReplaceByIdentity(graph, node, source)
                             : ReplaceIterator(graph, *node, source));
    }
    return Status();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 0,
                      SameBatchPass);

}  // namespace
}  // namespace rec_estimator::passes
