// SPDX-License-Identifier: Apache-2.0
// A graph pass that copies rows of other tasks once where they would be copied
// twice: to their keys, and into the order of the batch.
//
//   rows --> RowsSpread --> ShardRowsMerge --> values
//
//                    =>
//
//   rows --> RowsUnpack --> ShardRowsSpread --> values
//
// RowsUnpack copies nothing: it gives each distinct row of a shard as
// TablesRead has sent it, also in 16 bits, which ShardRowsSpread widens.
#include <map>
#include <string>
#include <vector>

#include "ops/passes/graph_edits.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator::passes {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;
using tensorflow::OutputTensor;

class RowsUnpacker {
 public:
  explicit RowsUnpacker(Graph* graph) : graph_(graph) {}

  // Replaces a ShardRowsMerge of which all rows come from RowsSpread, on its
  // device and of one type. RemoveSpreads must follow.
  Status ReplaceMerge(Node* merge) {
    const int n = merge->num_inputs() - 1;
    const std::string& device = merge->assigned_device_name();
    std::vector<OutputTensor> inputs, rows, index;
    TF_RETURN_IF_ERROR(AppendInputs(*merge, 0, 1, &inputs));
    TF_RETURN_IF_ERROR(AppendInputs(*merge, 1, n, &rows));
    for (const OutputTensor& each : rows) {
      if (each.node->type_string() != kRowsSpread ||
          each.node->assigned_device_name() != device ||
          each.node->input_type(0) != rows[0].node->input_type(0)) {
        return Status();
      }
    }
    for (OutputTensor& each : rows) {
      Node* const spread = each.node;
      Node*& unpack = unpacks_[spread];
      if (unpack == nullptr) TF_RETURN_IF_ERROR(AddUnpack(*spread, &unpack));
      std::vector<int> lookups;
      TF_RETURN_IF_ERROR(GetNodeAttr(spread->attrs(), "lookups", &lookups));
      TF_RETURN_IF_ERROR(AppendInputs(*spread, 2 + each.index, 1, &index));
      each = {unpack, lookups[static_cast<size_t>(each.index)]};
    }
    NodeDefBuilder builder(graph_->NewName(merge->name() + "/spread"),
                           kShardRowsSpread);
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutsOf(rows))
        .Input(NodeOutsOf(index));
    inputs.insert(inputs.end(), rows.begin(), rows.end());
    inputs.insert(inputs.end(), index.begin(), index.end());
    Node* node;
    TF_RETURN_IF_ERROR(AddNode(&builder, inputs, device, graph_, &node));
    MoveConsumers({merge, 0}, {node, 0}, graph_);
    MoveControls(merge, node, graph_);
    graph_->RemoveNode(merge);
    return Status();
  }

  // Leaves to each RowsSpread what is still read.
  Status RemoveSpreads() {
    for (const auto& [spread, unpack] : unpacks_) {
      std::vector<OutputTensor> inputs, index;
      std::vector<int> all, lookups, outputs;
      TF_RETURN_IF_ERROR(GetNodeAttr(spread->attrs(), "lookups", &all));
      TF_RETURN_IF_ERROR(AppendInputs(*spread, 0, 2, &inputs));
      for (int i = 0; i < spread->num_outputs(); ++i) {
        if (!IsRead({spread, i})) continue;
        TF_RETURN_IF_ERROR(AppendInputs(*spread, 2 + i, 1, &index));
        lookups.push_back(all[static_cast<size_t>(i)]);
        outputs.push_back(i);
      }
      if (!outputs.empty()) {
        NodeDefBuilder builder(graph_->NewName(spread->name()), kRowsSpread);
        builder.Input(NodeOutOf(inputs[0]))
            .Input(NodeOutOf(inputs[1]))
            .Input(NodeOutsOf(index))
            .Attr("lookups", lookups);
        inputs.insert(inputs.end(), index.begin(), index.end());
        Node* rest;
        TF_RETURN_IF_ERROR(AddTables(*spread, &builder, inputs, &rest));
        for (size_t i = 0; i < outputs.size(); ++i) {
          MoveConsumers({spread, outputs[i]}, {rest, static_cast<int>(i)},
                        graph_);
        }
      }
      MoveControls(spread, unpack, graph_);
      graph_->RemoveNode(spread);
    }
    return Status();
  }

  bool has_changed() const { return !unpacks_.empty(); }

 private:
  Status AddUnpack(const Node& spread, Node** unpack) {
    std::vector<OutputTensor> inputs;
    std::vector<int> dims;
    TF_RETURN_IF_ERROR(AppendInputs(spread, 0, 2, &inputs));
    TF_RETURN_IF_ERROR(GetNodeAttr(spread.attrs(), "dims", &dims));
    NodeDefBuilder builder(graph_->NewName(spread.name() + "/unpack"),
                           kRowsUnpack);
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutOf(inputs[1]))
        .Attr("N", static_cast<int>(dims.size()));
    return AddTables(spread, &builder, inputs, unpack);
  }

  // Adds the node of a builder, with the tables of `spread`.
  Status AddTables(const Node& spread, NodeDefBuilder* builder,
                   const std::vector<OutputTensor>& inputs, Node** node) {
    for (const char* name :
         {"sections", "num_sections", "dims", "value_dtype"}) {
      builder->Attr(name, *spread.attrs().Find(name));
    }
    return AddNode(builder, inputs, spread.assigned_device_name(), graph_,
                   node);
  }

  static bool IsRead(const OutputTensor& output) {
    for (const Edge* edge : output.node->out_edges()) {
      if (edge->src_output() == output.index) return true;
    }
    return false;
  }

  Graph* const graph_;
  // The RowsUnpack of each RowsSpread.
  std::map<Node*, Node*, tensorflow::NodeComparatorID> unpacks_;
};

class SpreadShardRowsPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<Node*> merges;
    for (Node* node : graph->op_nodes()) {
      if (node->type_string() == kShardRowsMerge) merges.push_back(node);
    }
    RowsUnpacker unpacker(graph);
    for (Node* merge : merges) {
      TF_RETURN_IF_ERROR(unpacker.ReplaceMerge(merge));
    }
    TF_RETURN_IF_ERROR(unpacker.RemoveSpreads());
    if (unpacker.has_changed()) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// After pack_transfers_pass.cc, which adds RowsSpread.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1,
    SpreadShardRowsPass);

}  // namespace
}  // namespace rec_estimator::passes
