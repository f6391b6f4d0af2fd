// SPDX-License-Identifier: Apache-2.0
// What the graph passes on lookups share.
//
// They run at POST_REWRITE_FOR_EXEC: then a graph is placed and pruned to what
// the fetches of a step need. All earlier passes rewrite the graph of the
// session, from which later fetches are pruned. In phase 0:
// pack_transfers_pass.cc, which needs the lookups and their gradients as they
// were written. In phase 1: spread_shard_rows_pass.cc. In phase 2:
// fuse_lookups_pass.cc, which fuses the lookups that are left. In phase 3:
// hand_over_pass.cc. OptimizerOptions.L0 turns all of them off.
// same_batch_pass.cc is not about lookups: it runs before placement, always.
//
// Python's graph, exports and passes in Python never see what these passes add.
//
// STAGES AND LEVELS
//
// A pass joins nodes, its stages, into one. No cycle may arise. A node's level
// is the largest number of stages on a path to it. Stages of one level do not
// depend on each other, and all paths go from lower to higher levels. So if
// stages of one level are joined, no cycle arises. Loops are apart, so the
// other nodes form an acyclic graph.
#ifndef REC_ESTIMATOR_OPS_PASSES_GRAPH_EDITS_H_
#define REC_ESTIMATOR_OPS_PASSES_GRAPH_EDITS_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator::passes {

// Where a node is in the graph.
struct Position {
  // Whether it may have to run apart from all stages: between Enter and Exit an
  // op runs several times; others wait for something that is not an input.
  bool is_apart = false;
  int level = 0;
  int branches = 0;  // Conditional branches around the node, which may skip it.
  // The feeds that it waits for, as a number: equal sets have equal numbers. A
  // partial run may feed one after it has fetched what depends on another.
  int feeds = 0;

  bool can_join() const { return !is_apart && branches == 0; }
};

// The position of each node, by id, and the nodes that are not apart, inputs
// first.
struct Positions {
  std::vector<Position> of;
  std::vector<tensorflow::Node*> order;

  const Position& operator[](const tensorflow::Node& node) const {
    return of[node.id()];
  }
};
Positions FindPositions(
    const tensorflow::Graph& graph,
    const std::function<bool(const tensorflow::Node&)>& is_stage);

// Appends the inputs [begin, begin + n) of a node.
absl::Status AppendInputs(const tensorflow::Node& node, int begin, int n,
                          std::vector<tensorflow::OutputTensor>* inputs);

// What NodeDefBuilder takes as inputs.
tensorflow::NodeDefBuilder::NodeOut NodeOutOf(
    const tensorflow::OutputTensor& output);
std::vector<tensorflow::NodeDefBuilder::NodeOut> NodeOutsOf(
    const std::vector<tensorflow::OutputTensor>& outputs);

// Adds the node of a builder, with the inputs that it was given, in order.
absl::Status AddNode(tensorflow::NodeDefBuilder* builder,
                     const std::vector<tensorflow::OutputTensor>& inputs,
                     const std::string& device, tensorflow::Graph* graph,
                     tensorflow::Node** node);

// "<prefix>_<a hash of the parts>", for a node that is made of these parts. A
// session keeps the kernel of a stateful node by its name, for all its steps.
// So nodes of two steps may have the same name only if they are made of the
// same parts, which Graph::NewName does not see to.
std::string NameOfParts(const std::string& prefix,
                        const std::vector<std::string>& parts);

// Lets the consumers of an output read another one.
void MoveConsumers(const tensorflow::OutputTensor& from,
                   const tensorflow::OutputTensor& to,
                   tensorflow::Graph* graph);

// The nodes before and after a node by control edges, without source and sink.
std::vector<tensorflow::Node*> ControlInputs(const tensorflow::Node& node);
std::vector<tensorflow::Node*> ControlOutputs(const tensorflow::Node& node);

// Gives the control edges of `from` to `to`, which takes its place.
void MoveControls(tensorflow::Node* from, tensorflow::Node* to,
                  tensorflow::Graph* graph);

// Whether OptimizerOptions.L0 turns passes off.
bool PassesAreOff(const tensorflow::GraphOptimizationPassOptions& options);

}  // namespace rec_estimator::passes

#endif  // REC_ESTIMATOR_OPS_PASSES_GRAPH_EDITS_H_
