// SPDX-License-Identifier: Apache-2.0
// Reroutes the control edges of a packed step so that few of them cross between
// tasks, where each is a tensor.
//
// Everything that a step changes waits for the reservations of all parameter
// servers. The edges from n reservations to n servers would be n * n tensors.
// But a worker that gets rows knows that their reservation was made. So an op
// on the worker waits for the reservations, what waited for them elsewhere
// waits for this op, and packed gradients carry that to the servers.
#ifndef REC_ESTIMATOR_OPS_PASSES_REDUCE_CONTROL_EDGES_H_
#define REC_ESTIMATOR_OPS_PASSES_REDUCE_CONTROL_EDGES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator::passes {

// A packed update.
struct PackedUpdate {
  tensorflow::Node* reserve;
  tensorflow::Node* gradients;
  tensorflow::Node* apply;
  std::string worker;
  // What tells the worker that the reservation was made: an op on the worker,
  // or the reservation itself.
  tensorflow::Node* notice;
};

class ControlEdgeReducer {
 public:
  explicit ControlEdgeReducer(tensorflow::Graph* graph) : graph_(graph) {}

  void AddReservation(const PackedUpdate& update);
  bool IsReservation(const tensorflow::Node* node) const {
    return updates_.count(node) > 0;
  }
  // A node without state that may have lost its last consumer.
  void AddSpare(tensorflow::Node* node) { spare_.push_back(node); }
  // The devices of a request. Group ops may move between such devices.
  void AddDevices(const std::string& worker, const std::string& ps);

  // Changes the graph, once all requests are in it.
  absl::Status Run();

 private:
  using Nodes = std::set<tensorflow::Node*, tensorflow::NodeComparatorID>;

  void RemoveSpare();
  void MoveGroups();
  int Crossings(const tensorflow::Node& group, const std::string& device) const;
  // Where a control edge from this node starts, for another task.
  const std::string& DeviceOf(const tensorflow::Node& node) const;
  // The reservations of other devices that a node waits for.
  Nodes ReservationsElsewhere(const tensorflow::Node& node) const;
  absl::Status Reroute(tensorflow::Node* node, const Nodes& reservations);
  // If only packed gradients need a node that changes nothing, their updates
  // wait for the reservations in place of the node.
  void LeaveToGradients(tensorflow::Node* node);
  bool HasOtherPath(tensorflow::Node* from, tensorflow::Node* to) const;
  absl::Status NoticeOf(const Nodes& reservations, tensorflow::Node** notice);

  tensorflow::Graph* const graph_;
  std::map<const tensorflow::Node*, PackedUpdate> updates_;  // By reservation.
  std::map<const tensorflow::Node*, const PackedUpdate*> by_apply_;
  std::map<const tensorflow::Node*, const PackedUpdate*> by_gradients_;
  std::map<Nodes, tensorflow::Node*> notices_;
  std::vector<tensorflow::Node*> spare_;
  std::set<std::string> devices_;
};

}  // namespace rec_estimator::passes

#endif  // REC_ESTIMATOR_OPS_PASSES_REDUCE_CONTROL_EDGES_H_
