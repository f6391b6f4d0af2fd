// SPDX-License-Identifier: Apache-2.0
// Implements graph_edits.h.
#include "ops/passes/graph_edits.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/session_options.h"

namespace rec_estimator::passes {
namespace {

using absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;
using tensorflow::OutputTensor;

// Whether the node brings what the caller of a run feeds.
bool IsFeed(const Node& node) {
  bool is_feed = false;
  return node.IsRecv() &&
         tensorflow::GetNodeAttr(node.attrs(), "client_terminated", &is_feed)
             .ok() &&
         is_feed;
}

bool SetsApart(const Node& node) {
  if (node.IsEnter()) return true;
  if (IsFeed(node)) return false;
  const std::string& type = node.type_string();
  return std::any_of(
      std::begin(kWaiting), std::end(kWaiting),
      [&](const char* part) { return type.find(part) != std::string::npos; });
}

// Numbers of sets of feeds.
class FeedSets {
 public:
  FeedSets() : sets_(1) { numbers_[{}] = 0; }

  int Of(int feed) { return NumberOf({feed}); }
  int Union(int a, int b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const auto known = unions_.find({a, b});
    if (known != unions_.end()) return known->second;
    std::vector<int> both;
    std::set_union(sets_[a].begin(), sets_[a].end(), sets_[b].begin(),
                   sets_[b].end(), std::back_inserter(both));
    return unions_[{a, b}] = NumberOf(both);
  }

 private:
  int NumberOf(const std::vector<int>& set) {
    const auto [at, is_new] =
        numbers_.try_emplace(set, static_cast<int>(sets_.size()));
    if (is_new) sets_.push_back(set);
    return at->second;
  }

  std::vector<std::vector<int>> sets_;
  std::map<std::vector<int>, int> numbers_;
  std::map<std::pair<int, int>, int> unions_;
};

}  // namespace

Positions FindPositions(const Graph& graph,
                        const std::function<bool(const Node&)>& is_stage) {
  Positions positions;
  positions.of.resize(graph.num_node_ids());
  std::vector<const Node*> stack;
  for (const Node* node : graph.op_nodes()) {
    if (SetsApart(*node)) stack.push_back(node);
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (positions.of[node->id()].is_apart) continue;
    positions.of[node->id()].is_apart = true;
    for (const Edge* edge : node->out_edges()) stack.push_back(edge->dst());
  }
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph, &order,
                                  tensorflow::NodeComparatorID());
  FeedSets feeds;
  for (Node* node : order) {
    Position& position = positions.of[node->id()];
    if (position.is_apart) continue;
    positions.order.push_back(node);
    if (IsFeed(*node)) position.feeds = feeds.Of(node->id());
    for (const Edge* edge : node->in_edges()) {
      const Position& before = positions.of[edge->src()->id()];
      position.level =
          std::max(position.level, before.level + is_stage(*edge->src()));
      position.branches = std::max(position.branches, before.branches);
      position.feeds = feeds.Union(position.feeds, before.feeds);
    }
    if (node->IsSwitch()) ++position.branches;
    if (node->IsMerge()) position.branches = std::max(0, position.branches - 1);
  }
  return positions;
}

Status AppendInputs(const Node& node, int begin, int n,
                    std::vector<OutputTensor>* inputs) {
  for (int i = begin; i < begin + n; ++i) {
    OutputTensor input;
    TF_RETURN_IF_ERROR(node.input_tensor(i, &input));
    inputs->push_back(input);
  }
  return Status();
}

NodeDefBuilder::NodeOut NodeOutOf(const OutputTensor& output) {
  return {output.node->name(), output.index,
          output.node->output_type(output.index)};
}

std::vector<NodeDefBuilder::NodeOut> NodeOutsOf(
    const std::vector<OutputTensor>& outputs) {
  std::vector<NodeDefBuilder::NodeOut> outs;
  for (const OutputTensor& output : outputs) outs.push_back(NodeOutOf(output));
  return outs;
}

Status AddNode(NodeDefBuilder* builder, const std::vector<OutputTensor>& inputs,
               const std::string& device, Graph* graph, Node** node) {
  tensorflow::NodeDef def;
  TF_RETURN_IF_ERROR(builder->Device(device).Finalize(&def));
  Status status;
  *node = graph->AddNode(def, &status);
  TF_RETURN_IF_ERROR(status);
  (*node)->set_assigned_device_name(device);
  int input = 0;
  for (const OutputTensor& output : inputs) {
    graph->AddEdge(output.node, output.index, *node, input++);
  }
  return Status();
}

std::string NameOfParts(const std::string& prefix,
                        const std::vector<std::string>& parts) {
  // FNV-1a. No name has a line feed.
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char each : absl::StrJoin(parts, "\n")) {
    hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001B3u;
  }
  return absl::StrCat(prefix, "_", absl::Hex(hash));
}

void MoveConsumers(const OutputTensor& from, const OutputTensor& to,
                   Graph* graph) {
  std::vector<const Edge*> edges;
  for (const Edge* edge : from.node->out_edges()) {
    if (edge->src_output() == from.index) edges.push_back(edge);
  }
  for (const Edge* edge : edges) {
    Node* const consumer = edge->dst();
    const int input = edge->dst_input();
    graph->RemoveEdge(edge);
    graph->AddEdge(to.node, to.index, consumer, input);
  }
}

std::vector<Node*> ControlInputs(const Node& node) {
  std::vector<Node*> before;
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) {
      before.push_back(edge->src());
    }
  }
  return before;
}

std::vector<Node*> ControlOutputs(const Node& node) {
  std::vector<Node*> after;
  for (const Edge* edge : node.out_edges()) {
    if (edge->IsControlEdge() && edge->dst()->IsOp()) {
      after.push_back(edge->dst());
    }
  }
  return after;
}

void MoveControls(Node* from, Node* to, Graph* graph) {
  for (Node* before : ControlInputs(*from)) graph->AddControlEdge(before, to);
  for (Node* after : ControlOutputs(*from)) graph->AddControlEdge(to, after);
}

bool PassesAreOff(const tensorflow::GraphOptimizationPassOptions& options) {
  return options.session_options != nullptr &&
         options.session_options->config.graph_options()
                 .optimizer_options()
                 .opt_level() == tensorflow::OptimizerOptions::L0;
}

}  // namespace rec_estimator::passes
