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
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/session_options.h"

namespace rec_estimator {
namespace {

using absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

// Parts of the types of ops that wait for something that is not an input. It
// may be done by an op that depends on another stage, and the graph has no path
// that tells.
constexpr const char* kWaiting[] = {"Dequeue",    "Unstage",      "Recv",
                                    "TakeMany",   "TakeGradient", "Nccl",
                                    "Collective", "PyFunc"};

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

Places FindPlaces(const Graph& graph,
                  const std::function<bool(const Node&)>& is_stage) {
  Places places;
  places.of.resize(graph.num_node_ids());
  std::vector<const Node*> stack;
  for (const Node* node : graph.op_nodes()) {
    if (SetsApart(*node)) stack.push_back(node);
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (places.of[node->id()].is_apart) continue;
    places.of[node->id()].is_apart = true;
    for (const Edge* edge : node->out_edges()) stack.push_back(edge->dst());
  }
  std::vector<Node*> order;
  tensorflow::GetReversePostOrder(graph, &order,
                                  tensorflow::NodeComparatorID());
  FeedSets feeds;
  for (Node* node : order) {
    Place& place = places.of[node->id()];
    if (place.is_apart) continue;
    places.order.push_back(node);
    if (IsFeed(*node)) place.feeds = feeds.Of(node->id());
    for (const Edge* edge : node->in_edges()) {
      const Place& before = places.of[edge->src()->id()];
      place.level =
          std::max(place.level, before.level + is_stage(*edge->src()));
      place.branches = std::max(place.branches, before.branches);
      place.feeds = feeds.Union(place.feeds, before.feeds);
    }
    if (node->IsSwitch()) ++place.branches;
    if (node->IsMerge()) place.branches = std::max(0, place.branches - 1);
  }
  return places;
}

Status InputOf(const Node& node, int i, Output* output) {
  const Edge* edge;
  TF_RETURN_IF_ERROR(node.input_edge(i, &edge));
  *output = {edge->src(), edge->src_output()};
  return Status();
}

bool IsConstantScalar(const Output& output, int64_t* value) {
  tensorflow::Tensor tensor;
  if (!output.node->IsConstant() ||
      !tensorflow::GetNodeAttr(output.node->attrs(), "value", &tensor).ok() ||
      tensor.dims() != 0) {
    return false;
  }
  if (tensor.dtype() == tensorflow::DT_INT32) {
    *value = tensor.scalar<int32_t>()();
    return true;
  }
  if (tensor.dtype() != tensorflow::DT_INT64) return false;
  *value = tensor.scalar<int64_t>()();
  return true;
}

bool IsAlways(const Output& output, int64_t expected) {
  int64_t value;
  return IsConstantScalar(output, &value) && value == expected;
}

bool IsRowGather(const Node& node, Output* values) {
  Output axis;
  int batch_dims = 0;
  return node.type_string() == "GatherV2" &&
         node.input_type(0) == tensorflow::DT_FLOAT &&
         node.input_type(1) == tensorflow::DT_INT32 &&
         ControlInputs(node).empty() &&
         tensorflow::GetNodeAttr(node.attrs(), "batch_dims", &batch_dims)
             .ok() &&
         batch_dims == 0 && InputOf(node, 0, values).ok() &&
         InputOf(node, 2, &axis).ok() && IsAlways(axis, 0);
}

Status AppendInputs(const Node& node, int begin, int n,
                    std::vector<Output>* inputs) {
  for (int i = begin; i < begin + n; ++i) {
    Output input;
    TF_RETURN_IF_ERROR(InputOf(node, i, &input));
    inputs->push_back(input);
  }
  return Status();
}

NodeDefBuilder::NodeOut NodeOutOf(const Output& output) {
  return {output.node->name(), output.index,
          output.node->output_type(output.index)};
}

std::vector<NodeDefBuilder::NodeOut> NodeOutsOf(
    const std::vector<Output>& outputs) {
  std::vector<NodeDefBuilder::NodeOut> outs;
  for (const Output& output : outputs) outs.push_back(NodeOutOf(output));
  return outs;
}

Status AddNode(NodeDefBuilder* builder, const std::vector<Output>& inputs,
               const std::string& device, Graph* graph, Node** node) {
  tensorflow::NodeDef def;
  TF_RETURN_IF_ERROR(builder->Device(device).Finalize(&def));
  Status status;
  *node = graph->AddNode(def, &status);
  TF_RETURN_IF_ERROR(status);
  (*node)->set_assigned_device_name(device);
  int input = 0;
  for (const Output& output : inputs) {
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

void MoveConsumers(const Output& from, const Output& to, Graph* graph) {
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

}  // namespace rec_estimator
