// SPDX-License-Identifier: Apache-2.0
// A graph pass that runs lookups which are ready at the same time in one op.
//
//   ids a -> TableGroupLookup -> a      ids a -> TableGroupLookup -> a
//   ids b -> TableGroupLookup -> b  =>  ids b -> with three       -> b
//   ids c -> TableGroupLookup -> c      ids c -> lookups          -> c
//
// These are the lookups that combine rows, as those of feature columns and of
// embedding_lookup_sparse. Their gradients are fused in the same way. A
// TableLookup stays alone: fused, many of them took as long as before.
//
// The pass rewrites the part of a graph that a step runs, after the fetches and
// feeds of that step are known. The user's graph does not change: a step that
// fetches one lookup runs that lookup alone. OptimizerOptions.L0 turns the pass
// off.
//
// Two lookups are ready at the same time if neither depends on the other. A
// lookup's level is the largest number of lookups on a path to it. Lookups of
// one level do not depend on each other, and all paths go from lower to higher
// levels. So if lookups of one level are fused, no cycle arises.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/table/fused_lookups.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session_options.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

constexpr char kGroupLookup[] = "RecEstimator>TableGroupLookup";
constexpr char kGroupLookupGrad[] = "RecEstimator>TableGroupLookupGrad";

// Parts of the types of ops that wait for something that is not an input. It
// may be done by an op that depends on another lookup, and the graph has no
// path that tells. _Recv is also the feed of a partial run, which may come
// after the fetch of another lookup.
constexpr const char* kWaiting[] = {"Dequeue",    "Unstage",      "Recv",
                                    "TakeMany",   "TakeGradient", "Nccl",
                                    "Collective", "PyFunc"};

// Whether what depends on this op may have to run apart from other lookups:
// between Enter and Exit, an op runs several times.
bool SetsApart(const Node& node) {
  if (node.IsEnter()) return true;
  const std::string& type = node.type_string();
  return std::any_of(
      std::begin(kWaiting), std::end(kWaiting),
      [&](const char* part) { return type.find(part) != std::string::npos; });
}

bool IsFusible(const Node& node) {
  const std::string& type = node.type_string();
  return type == kGroupLookup || type == kGroupLookupGrad;
}

// What can be one op: lookups, or gradients, of a level on a device.
using GroupKey = std::tuple<int, bool, std::string>;
using Groups = std::map<GroupKey, std::vector<Node*>>;

// Which nodes depend on one that SetsApart, by id.
std::vector<bool> NodesApart(const Graph& graph) {
  std::vector<bool> apart(graph.num_node_ids(), false);
  std::vector<const Node*> stack;
  for (const Node* node : graph.op_nodes()) {
    if (SetsApart(*node)) stack.push_back(node);
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (apart[node->id()]) continue;
    apart[node->id()] = true;
    for (const Edge* edge : node->out_edges()) stack.push_back(edge->dst());
  }
  return apart;
}

// Where a node is in the graph.
struct Place {
  int level = 0;
  int branches = 0;  // Conditional branches around the node, which may skip it.
};

// Requires the places of the inputs.
Place PlaceOf(const Node& node, const std::vector<Place>& places) {
  Place place;
  for (const Edge* edge : node.in_edges()) {
    const Place& before = places[edge->src()->id()];
    place.level = std::max(place.level, before.level + IsFusible(*edge->src()));
    place.branches = std::max(place.branches, before.branches);
  }
  if (node.IsSwitch()) ++place.branches;
  if (node.IsMerge()) place.branches = std::max(0, place.branches - 1);
  return place;
}

// The lookups to fuse. Loops are apart, so all other nodes form an acyclic
// graph.
Groups FindGroups(const Graph& graph) {
  const std::vector<bool> apart = NodesApart(graph);
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph, &order,
                                  tensorflow::NodeComparatorID());
  std::vector<Place> places(graph.num_node_ids());
  Groups groups;
  for (Node* node : order) {
    if (apart[node->id()]) continue;
    const Place place = places[node->id()] = PlaceOf(*node, places);
    if (!IsFusible(*node) || place.branches > 0) continue;
    const bool is_gradient = node->type_string() == kGroupLookupGrad;
    groups[{place.level, is_gradient, node->assigned_device_name()}].push_back(
        node);
  }
  return groups;
}

struct Output {
  Node* node;
  int index;
};

// Appends the inputs [begin, begin + n) of a node.
Status AppendInputs(const Node& node, int begin, int n,
                    std::vector<Output>* inputs) {
  for (int i = begin; i < begin + n; ++i) {
    const Edge* edge;
    TF_RETURN_IF_ERROR(node.input_edge(i, &edge));
    inputs->push_back({edge->src(), edge->src_output()});
  }
  return Status();
}

template <typename T>
Status AppendAttr(const Node& node, const char* name, std::vector<T>* values) {
  std::vector<T> list;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node.attrs(), name, &list));
  values->insert(values->end(), list.begin(), list.end());
  return Status();
}

// Replaces the nodes of one group.
class Fusion {
 public:
  Fusion(Graph* graph, const std::vector<Node*>& nodes)
      : graph_(graph), nodes_(nodes), is_gradient_(IsGradient(*nodes[0])) {}

  Status Run() {
    inputs_.resize(is_gradient_ ? 2 : 4);
    for (Node* node : nodes_) TF_RETURN_IF_ERROR(Collect(*node));
    Node* fused = nullptr;
    TF_RETURN_IF_ERROR(AddFused(&fused));
    int first = 0;  // Output of `fused` that is output 0 of the node.
    for (Node* node : nodes_) {
      const int outputs = node->num_outputs();
      Replace(node, fused, first);
      first += outputs;
    }
    return Status();
  }

 private:
  static bool IsGradient(const Node& node) {
    return node.type_string() == kGroupLookupGrad;
  }

  // Appends the inputs and attributes of a node to those of the fused op.
  Status Collect(const Node& node) {
    const int n = node.num_outputs();
    for (int i = 0; i < n; ++i) {
      names_.push_back(node.name() + ":" + std::to_string(i));
    }
    for (size_t list = 0; list < inputs_.size(); ++list) {
      TF_RETURN_IF_ERROR(
          AppendInputs(node, static_cast<int>(list) * n, n, &inputs_[list]));
    }
    TF_RETURN_IF_ERROR(AppendAttr(node, "combiners", &combiners_));
    if (is_gradient_) return Status();
    TF_RETURN_IF_ERROR(AppendAttr(node, "dims", &dims_));
    return AppendAttr(node, "unknowns", &unknowns_);
  }

  Status AddFused(Node** fused) {
    NodeDefBuilder builder(graph_->NewName(nodes_[0]->name() + "/fused"),
                           is_gradient_ ? kGroupLookupGrad : kGroupLookup);
    for (const std::vector<Output>& list : inputs_) {
      std::vector<NodeDefBuilder::NodeOut> outs;
      for (const Output& out : list) {
        outs.emplace_back(out.node->name(), out.index,
                          out.node->output_type(out.index));
      }
      builder.Input(outs);
    }
    builder.Attr("combiners", combiners_).Attr(kFusedLookupNames, names_);
    if (!is_gradient_) builder.Attr("dims", dims_).Attr("unknowns", unknowns_);
    builder.Device(nodes_[0]->requested_device());
    tensorflow::NodeDef def;
    TF_RETURN_IF_ERROR(builder.Finalize(&def));
    Status status;
    *fused = graph_->AddNode(def, &status);
    TF_RETURN_IF_ERROR(status);
    (*fused)->set_assigned_device_name(nodes_[0]->assigned_device_name());
    int input = 0;
    for (const std::vector<Output>& list : inputs_) {
      for (const Output& out : list) {
        graph_->AddEdge(out.node, out.index, *fused, input++);
      }
    }
    return Status();
  }

  // Moves the control inputs and the consumers of `node` to `fused`. Output i
  // becomes output first + i.
  void Replace(Node* node, Node* fused, int first) {
    std::vector<Node*> before, after;
    std::vector<std::tuple<int, Node*, int>> consumers;
    for (const Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge()) before.push_back(edge->src());
    }
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge()) {
        after.push_back(edge->dst());
      } else {
        consumers.emplace_back(edge->src_output(), edge->dst(),
                               edge->dst_input());
      }
    }
    graph_->RemoveNode(node);
    for (Node* other : before) graph_->AddControlEdge(other, fused);
    for (Node* other : after) graph_->AddControlEdge(fused, other);
    for (const auto& [output, consumer, input] : consumers) {
      graph_->AddEdge(fused, first + output, consumer, input);
    }
  }

  Graph* const graph_;
  const std::vector<Node*>& nodes_;
  const bool is_gradient_;
  std::vector<std::vector<Output>> inputs_;  // By list input of the fused op.
  std::vector<std::string> names_, combiners_, unknowns_;
  std::vector<int64_t> dims_;
};

class FuseLookupsPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || IsOff(options)) return Status();
    Graph* graph = options.graph->get();
    bool changed = false;
    for (const auto& [key, nodes] : FindGroups(*graph)) {
      if (nodes.size() < 2) continue;
      TF_RETURN_IF_ERROR(Fusion(graph, nodes).Run());
      changed = true;
    }
    if (changed) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }

 private:
  static bool IsOff(const tensorflow::GraphOptimizationPassOptions& options) {
    return options.session_options != nullptr &&
           options.session_options->config.graph_options()
                   .optimizer_options()
                   .opt_level() == tensorflow::OptimizerOptions::L0;
  }
};

// Then a graph is placed and pruned to what the fetches need. All earlier
// passes rewrite the graph of the session, from which later fetches are pruned.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    FuseLookupsPass);

}  // namespace
}  // namespace rec_estimator
