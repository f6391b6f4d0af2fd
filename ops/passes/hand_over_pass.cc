// SPDX-License-Identifier: Apache-2.0
// A graph pass that makes TablesReserve wait for the lookups of its keys, so
// that it can use what they have found (step_keys.h).
//
//   keys --> TableLookup -------------> values
//     \            : (new control edge)
//      --> Reshape --> TablesReserve
//
// Both need the keys only; without the edge, either may run first. It runs
// after the passes that move lookups: those of other tasks are packed by then.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/passes/graph_edits.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator::passes {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::OutputTensor;

bool IsReserve(const Node& node) {
  return node.type_string() == kTablesReserve;
}

bool IsLookup(const Node& node) {
  const std::string& type = node.type_string();
  return type == kTableLookup || type == kTableGroupLookup;
}

// A tensor: the node that makes it, by id, and the output.
using Origin = std::pair<int, int>;

// Where the memory comes from that input i of a node reads.
Origin OriginOf(const Node& node, int i) {
  OutputTensor output;
  if (!node.input_tensor(i, &output).ok()) return {-1, 0};
  while (output.node->IsIdentity() || output.node->type_string() == kReshape) {
    if (!output.node->input_tensor(0, &output).ok()) return {-1, 0};
  }
  return {output.node->id(), output.index};
}

// What the keys of a node are, which follow its N tables or its one.
std::set<Origin> KeysOf(const Node& node) {
  int64_t n = 1;
  if (!tensorflow::GetNodeAttr(node.attrs(), "N", &n).ok()) n = 1;
  std::set<Origin> keys;
  for (int i = 0; i < n; ++i) {
    keys.insert(OriginOf(node, static_cast<int>(n) + i));
  }
  return keys;
}

bool HaveCommon(const std::set<Origin>& a, const std::set<Origin>& b) {
  for (const Origin& each : a) {
    if (b.count(each) > 0) return true;
  }
  return false;
}

// By id: whether there is a path from `from` to the node.
std::vector<bool> ReachableFrom(const Node& from, const Graph& graph) {
  std::vector<bool> reachable(graph.num_node_ids(), false);
  std::vector<const Node*> stack = {&from};
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (reachable[node->id()]) continue;
    reachable[node->id()] = true;
    for (const Edge* edge : node->out_edges()) stack.push_back(edge->dst());
  }
  return reachable;
}

// Lets `reserve` wait for its lookups, except those that wait for it.
void WaitForLookups(Node* reserve, const std::vector<Node*>& lookups,
                    const Positions& positions, Graph* graph) {
  const std::set<Origin> keys = KeysOf(*reserve);
  const std::vector<bool> waits = ReachableFrom(*reserve, *graph);
  for (Node* lookup : lookups) {
    if (!waits[lookup->id()] &&
        lookup->assigned_device_name() == reserve->assigned_device_name() &&
        positions[*lookup].feeds == positions[*reserve].feeds &&
        HaveCommon(KeysOf(*lookup), keys)) {
      graph->AddControlEdge(lookup, reserve);
    }
  }
}

class HandOverPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<Node*> lookups, reserves;
    for (Node* node : graph->op_nodes()) {
      if (IsLookup(*node)) lookups.push_back(node);
      if (IsReserve(*node)) reserves.push_back(node);
    }
    if (lookups.empty() || reserves.empty()) return Status();
    const Positions positions = FindPositions(*graph, IsReserve);
    // A node in a branch or a loop need not run when the other one does.
    const auto is_apart = [&](const Node* node) {
      return !positions[*node].can_join();
    };
    lookups.erase(std::remove_if(lookups.begin(), lookups.end(), is_apart),
                  lookups.end());
    for (Node* reserve : reserves) {
      if (is_apart(reserve)) continue;
      WaitForLookups(reserve, lookups, positions, graph);
    }
    return Status();
  }
};

REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 3,
    HandOverPass);

}  // namespace
}  // namespace rec_estimator::passes
