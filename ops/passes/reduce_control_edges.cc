// SPDX-License-Identifier: Apache-2.0
// Implements reduce_control_edges.h.
#include "ops/passes/reduce_control_edges.h"

#include <algorithm>
#include <utility>

#include "ops/passes/graph_edits.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/framework/node_def_builder.h"

namespace rec_estimator::passes {

using absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

namespace {

// Whether a node only reads or computes, so that nothing is lost if it runs
// before a reservation.
bool ChangesNothing(const Node& node) {
  return node.type_string() == kReadVariable || !node.op_def().is_stateful();
}

void RemoveControlEdge(Graph* graph, Node* from, Node* to) {
  std::vector<const Edge*> edges;
  for (const Edge* edge : from->out_edges()) {
    if (edge->IsControlEdge() && edge->dst() == to) edges.push_back(edge);
  }
  for (const Edge* edge : edges) graph->RemoveControlEdge(edge);
}

}  // namespace

void ControlEdgeReducer::AddReservation(const PackedUpdate& update) {
  const PackedUpdate& kept =
      updates_.emplace(update.reserve, update).first->second;
  by_apply_[update.apply] = by_gradients_[update.gradients] = &kept;
}

void ControlEdgeReducer::AddDevices(const std::string& worker,
                                    const std::string& ps) {
  devices_.insert(worker);
  devices_.insert(ps);
}

Status ControlEdgeReducer::Run() {
  RemoveSpare();
  MoveGroups();
  for (Node* node : graph_->op_nodes()) LeaveToGradients(node);
  std::map<Node*, Nodes, tensorflow::NodeComparatorID> waiting;
  for (Node* node : graph_->op_nodes()) {
    Nodes reservations = ReservationsElsewhere(*node);
    if (!reservations.empty()) waiting.emplace(node, std::move(reservations));
  }
  for (const auto& [node, reservations] : waiting) {
    TF_RETURN_IF_ERROR(Reroute(node, reservations));
  }
  return Status();
}

void ControlEdgeReducer::RemoveSpare() {
  // A node comes after its inputs.
  for (size_t i = spare_.size(); i-- > 0;) {
    std::vector<Node*>::iterator end = spare_.begin() + i;
    Node* const node = spare_[i];
    if (std::find(spare_.begin(), end, node) != end) continue;
    const auto& out = node->out_edges();
    if (std::any_of(out.begin(), out.end(),
                    [](const Edge* edge) { return edge->dst()->IsOp(); })) {
      continue;
    }
    graph_->RemoveNode(node);
  }
  spare_.clear();
}

const std::string& ControlEdgeReducer::DeviceOf(const Node& node) const {
  const auto found = updates_.find(&node);
  return found == updates_.end() ? node.assigned_device_name()
                                 : found->second.notice->assigned_device_name();
}

int ControlEdgeReducer::Crossings(const Node& group,
                                  const std::string& device) const {
  int crossings = 0;
  for (const Node* before : ControlInputs(group)) {
    crossings +=
        DeviceOf(*before) != device && before->assigned_device_name() != device;
  }
  std::set<std::string> after;
  for (const Node* each : ControlOutputs(group)) {
    after.insert(each->assigned_device_name());
  }
  after.erase(device);
  return crossings + static_cast<int>(after.size());
}

void ControlEdgeReducer::MoveGroups() {
  for (Node* node : graph_->op_nodes()) {
    if (node->type_string() != kNoOp ||
        devices_.count(node->assigned_device_name()) == 0) {
      continue;
    }
    std::set<std::string> candidates;
    for (const Node* each : ControlInputs(*node)) {
      candidates.insert(DeviceOf(*each));
    }
    for (const Node* each : ControlOutputs(*node)) {
      candidates.insert(each->assigned_device_name());
    }
    std::string best = node->assigned_device_name();
    int fewest = Crossings(*node, best);
    for (const std::string& device : candidates) {
      if (devices_.count(device) == 0) continue;
      const int crossings = Crossings(*node, device);
      if (crossings >= fewest) continue;
      fewest = crossings;
      best = device;
    }
    node->set_assigned_device_name(best);
  }
}

ControlEdgeReducer::Nodes ControlEdgeReducer::ReservationsElsewhere(
    const Node& node) const {
  Nodes found;
  for (Node* before : ControlInputs(node)) {
    if (IsReservation(before) &&
        before->assigned_device_name() != node.assigned_device_name()) {
      found.insert(before);
    }
  }
  return found;
}

Status ControlEdgeReducer::Reroute(Node* node, const Nodes& reservations) {
  const auto apply = by_apply_.find(node);
  Nodes left;
  for (Node* each : reservations) {
    const bool is_notice = updates_.at(each).notice == each;
    const bool stays =
        is_notice && apply == by_apply_.end() && reservations.size() == 1;
    if (stays) continue;
    const bool is_covered =
        apply == by_apply_.end() && HasOtherPath(each, node);
    RemoveControlEdge(graph_, each, node);
    if (!is_covered) left.insert(each);
  }
  if (left.empty()) return Status();
  Node* notice;
  TF_RETURN_IF_ERROR(NoticeOf(left, &notice));
  graph_->AddControlEdge(
      notice, apply == by_apply_.end() ? node : apply->second->gradients);
  return Status();
}

void ControlEdgeReducer::LeaveToGradients(Node* node) {
  const Nodes reservations = ReservationsElsewhere(*node);
  if (reservations.empty() || !ChangesNothing(*node)) return;
  std::vector<const PackedUpdate*> updates;
  for (const Edge* edge : node->out_edges()) {
    if (!edge->dst()->IsOp()) continue;
    const auto found = by_gradients_.find(edge->dst());
    if (found == by_gradients_.end()) return;
    updates.push_back(found->second);
  }
  for (Node* each : reservations) {
    for (const PackedUpdate* update : updates) {
      if (each != update->reserve) graph_->AddControlEdge(each, update->apply);
    }
    RemoveControlEdge(graph_, each, node);
  }
}

bool ControlEdgeReducer::HasOtherPath(Node* from, Node* to) const {
  std::vector<bool> seen(graph_->num_node_ids(), false);
  std::vector<const Node*> stack = {from};
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for (const Edge* edge : node->out_edges()) {
      const Node* next = edge->dst();
      if (next == to && node != from) return true;
      if (next == to || seen[next->id()]) continue;
      seen[next->id()] = true;
      stack.push_back(next);
    }
  }
  return false;
}

Status ControlEdgeReducer::NoticeOf(const Nodes& reservations, Node** notice) {
  Node*& known = notices_[reservations];
  if (known == nullptr) {
    const PackedUpdate& first = updates_.at(*reservations.begin());
    NodeDefBuilder builder(graph_->NewName(first.reserve->name() + "/notice"),
                           kNoOp);
    TF_RETURN_IF_ERROR(AddNode(&builder, {}, first.worker, graph_, &known));
    for (Node* each : reservations) {
      graph_->AddControlEdge(updates_.at(each).notice, known);
    }
  }
  *notice = known;
  return Status();
}

}  // namespace rec_estimator::passes
