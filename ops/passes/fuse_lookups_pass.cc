// SPDX-License-Identifier: Apache-2.0
// A graph pass that runs lookups which are ready at the same time in few ops.
//
//   ids a -> TableGroupLookup -> a      ids a -> TableGroupLookup -> a
//   ids b -> TableGroupLookup -> b  =>  ids b -> with two lookups -> b
//   ids c -> TableGroupLookup -> c      ids c -> TableGroupLookup -> c
//   ids d -> TableGroupLookup -> d      ids d -> with two lookups -> d
//
// There are as many of them as threads that run ops, here two: each thread
// begins one at once. These are the lookups that combine rows, as those of
// feature columns and of embedding_lookup_sparse. The sums of weighted lookups
// (CombineWeighted) and the gradients of all these are fused in the same way. A
// TableLookup stays alone: fused, many of them took as long as before.
//
// The pass rewrites the part of a graph that a step runs, after the fetches and
// feeds of that step are known. The user's graph does not change: a step that
// fetches one lookup runs that lookup alone. OptimizerOptions.L0 turns the pass
// off.
//
// Two lookups are ready at the same time if they are on one level and wait for
// the same feeds. graph_edits.h explains levels, and which pass runs when.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/kernel/op_threads.h"
#include "ops/lookup/fused_lookups.h"
#include "ops/passes/graph_edits.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/public/session_options.h"

namespace rec_estimator::passes {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;
using tensorflow::OutputTensor;

bool IsFusible(const Node& node) {
  const std::string& type = node.type_string();
  return type == kTableGroupLookup || type == kTableGroupLookupGrad ||
         type == kCombineWeighted || type == kCombineWeightedGrad;
}

// What can be one op: ops of a level, a type and a type of numbers on a device
// with the same feeds.
using GroupKey =
    std::tuple<int, std::string, tensorflow::DataType, std::string, int>;
using Groups = std::map<GroupKey, std::vector<Node*>>;

// The lookups that can be fused.
Groups FindGroups(const Graph& graph) {
  const Positions positions = FindPositions(graph, IsFusible);
  Groups groups;
  for (Node* node : positions.order) {
    const Position& position = positions[*node];
    if (!IsFusible(*node) || !position.can_join()) continue;
    groups[{position.level, node->type_string(), node->output_type(0),
            node->assigned_device_name(), position.feeds}]
        .push_back(node);
  }
  return groups;
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
  Fusion(Graph* graph, std::vector<Node*> nodes)
      : graph_(graph),
        nodes_(std::move(nodes)),
        type_(nodes_[0]->type_string()),
        inputs_(nodes_[0]->num_inputs() / nodes_[0]->num_outputs()) {}

  Status Run() {
    for (Node* node : nodes_) TF_RETURN_IF_ERROR(Collect(*node));
    Node* fused = nullptr;
    TF_RETURN_IF_ERROR(AddFused(&fused));
    int first = 0;  // OutputTensor of `fused` that is output 0 of the node.
    for (Node* node : nodes_) {
      const int outputs = node->num_outputs();
      Replace(node, fused, first);
      first += outputs;
    }
    return Status();
  }

 private:
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
    if (type_ != kTableGroupLookup) return Status();
    TF_RETURN_IF_ERROR(AppendAttr(node, "dims", &dims_));
    return AppendAttr(node, "unknowns", &unknowns_);
  }

  Status AddFused(Node** fused) {
    NodeDefBuilder builder(NameOfParts(nodes_[0]->name() + "/fused", names_),
                           type_);
    std::vector<OutputTensor> all;
    for (const std::vector<OutputTensor>& list : inputs_) {
      builder.Input(NodeOutsOf(list));
      all.insert(all.end(), list.begin(), list.end());
    }
    builder.Attr("combiners", combiners_).Attr(kFusedLookupNames, names_);
    if (type_ == kTableGroupLookup) {
      builder.Attr("dims", dims_).Attr("unknowns", unknowns_);
    }
    return AddNode(&builder, all, nodes_[0]->assigned_device_name(), graph_,
                   fused);
  }

  // Moves the control inputs and the consumers of `node` to `fused`.
  // OutputTensor i becomes output first + i.
  void Replace(Node* node, Node* fused, int first) {
    MoveControls(node, fused, graph_);
    for (int i = 0; i < node->num_outputs(); ++i) {
      MoveConsumers({node, i}, {fused, first + i}, graph_);
    }
    graph_->RemoveNode(node);
  }

  Graph* const graph_;
  const std::vector<Node*> nodes_;
  const std::string type_;
  std::vector<std::vector<OutputTensor>> inputs_;  // By list input of the op.
  std::vector<std::string> names_, combiners_, unknowns_;
  std::vector<int64_t> dims_;
};

// The ops to make of lookups that are ready at the same time.
size_t OpsAtOnce(const tensorflow::GraphOptimizationPassOptions& options) {
  int64_t threads = 0;
  if (options.session_options != nullptr) {
    threads = InterOpThreads(options.session_options->config);
  }
  if (threads == 0) threads = tensorflow::port::MaxParallelism();
  return static_cast<size_t>(std::max<int64_t>(1, threads));
}

class FuseLookupsPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    const size_t parts = OpsAtOnce(options);
    bool changed = false;
    for (const auto& [key, nodes] : FindGroups(*graph)) {
      for (size_t part = 0; part < parts; ++part) {
        const auto begin = nodes.begin() + nodes.size() * part / parts;
        const auto end = nodes.begin() + nodes.size() * (part + 1) / parts;
        if (end - begin < 2) continue;
        TF_RETURN_IF_ERROR(Fusion(graph, {begin, end}).Run());
        changed = true;
      }
    }
    if (changed) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// After spread_shard_rows_pass.cc.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 2,
    FuseLookupsPass);

}  // namespace
}  // namespace rec_estimator::passes
