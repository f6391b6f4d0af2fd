// SPDX-License-Identifier: Apache-2.0
// A graph pass on tables with several shards. One op divides the keys of a
// batch among the shards, one brings their rows into the order of the batch,
// and one divides their gradient.
//
//   keys --> DynamicPartition <--.
//     `----> FloorMod, Cast, FloorMod = shards
//   0, 1, 2, ... --> DynamicPartition <--'
//                     |           |
//   rows --> DynamicStitch    GatherV2 <-- gradient
//
//                    =>
//
//   keys --> ShardKeysSplit --> shards
//   shards --> ShardRowsMerge     shards --> ShardRowsSplit
//   rows   --/                  gradient --/
//
// TensorFlow's ops take a place for each row, and copy row by row to and from
// these places. If the rows come from other tasks, ShardRowsSpread takes each
// distinct row of a shard once, so that only one op copies rows. As
// graph_edits.h explains, the pass rewrites the part of a graph that a step
// runs. OptimizerOptions.L0 turns it off.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/passes/graph_edits.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

constexpr char kKeysSplit[] = "RecEstimator>ShardKeysSplit";
constexpr char kSpread[] = "RecEstimator>RowsSpread";

// Whether an output is 0, 1, 2, ...
bool IsCount(const Output& output) {
  Output start, delta;
  if (output.node->type_string() == "Range") {
    return InputOf(*output.node, 0, &start).ok() &&
           InputOf(*output.node, 2, &delta).ok() && IsAlways(start, 0) &&
           IsAlways(delta, 1);
  }
  tensorflow::Tensor tensor;
  if (!output.node->IsConstant() ||
      !tensorflow::GetNodeAttr(output.node->attrs(), "value", &tensor).ok() ||
      tensor.dtype() != tensorflow::DT_INT32 || tensor.dims() != 1) {
    return false;
  }
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    if (tensor.flat<int32_t>()(i) != i) return false;
  }
  return true;
}

// Whether a node makes the rows of a lookup.
bool IsLookup(const Node& node) {
  return node.type_string() == "RecEstimator>TableLookup" ||
         node.type_string() == kSpread;
}

// The places of the rows of each shard, and what uses them.
struct ShardPlaces {
  Node* partition;
  std::vector<Node*> stitches;
  // By gradient: the gather of each shard, or null.
  std::map<std::pair<Node*, int>, std::vector<Node*>> gathers;

  int n_shards() const { return partition->num_outputs(); }
};

// Whether the node stitches the rows of lookups at these places.
bool IsStitch(const ShardPlaces& places, const Node& node) {
  const int n = places.n_shards();
  if (node.type_string() != "DynamicStitch" || node.num_inputs() != 2 * n ||
      node.output_type(0) != tensorflow::DT_FLOAT) {
    return false;
  }
  for (int i = 0; i < n; ++i) {
    Output place, rows;
    if (!InputOf(node, i, &place).ok() || !InputOf(node, n + i, &rows).ok() ||
        !(place == Output{places.partition, i}) || !IsLookup(*rows.node)) {
      return false;
    }
  }
  return true;
}

// False: the node does not divide places among shards.
bool FindUses(Node* partition, ShardPlaces* places) {
  Output count;
  if (partition->type_string() != "DynamicPartition" ||
      !InputOf(*partition, 0, &count).ok() || !IsCount(count) ||
      !ControlInputs(*partition).empty()) {
    return false;
  }
  places->partition = partition;
  for (const Edge* edge : partition->out_edges()) {
    if (edge->IsControlEdge() || edge->dst()->assigned_device_name() !=
                                     partition->assigned_device_name()) {
      continue;
    }
    Node* const use = edge->dst();
    Output values;
    if (edge->dst_input() == 0 && IsStitch(*places, *use)) {
      places->stitches.push_back(use);
    } else if (edge->dst_input() == 1 && IsRowGather(*use, &values)) {
      auto& of_values = places->gathers[{values.node, values.index}];
      of_values.resize(static_cast<size_t>(places->n_shards()));
      of_values[static_cast<size_t>(edge->src_output())] = use;
    }
  }
  // What only gathers is not of a table.
  return !places->stitches.empty();
}

// Rows that ShardRowsSpread takes as TablesRead sends them, each once, instead
// of from RowsSpread, which writes a row for each key.
class Unpacked {
 public:
  explicit Unpacked(Graph* graph) : graph_(graph) {}

  // If RowsSpread makes all rows, on this device: lets `rows` be those of the
  // tables, and `index` which of them each key has. Otherwise does nothing.
  Status Replace(const std::string& device, std::vector<Output>* rows,
                 std::vector<Output>* index) {
    for (const Output& each : *rows) {
      if (each.node->type_string() != kSpread ||
          each.node->assigned_device_name() != device) {
        return Status();
      }
    }
    for (Output& each : *rows) {
      Node* const spread = each.node;
      Node*& unpack = unpacks_[spread];
      if (unpack == nullptr) TF_RETURN_IF_ERROR(Unpack(*spread, &unpack));
      std::vector<int> lookups;
      TF_RETURN_IF_ERROR(GetNodeAttr(spread->attrs(), "lookups", &lookups));
      TF_RETURN_IF_ERROR(AppendInputs(*spread, 2 + each.index, 1, index));
      each = {unpack, lookups[static_cast<size_t>(each.index)]};
    }
    return Status();
  }

  // Leaves to each RowsSpread what is still read.
  Status RemoveSpread() {
    for (const auto& [spread, unpack] : unpacks_) {
      std::vector<Output> inputs, index;
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
        NodeDefBuilder builder(graph_->NewName(spread->name()), kSpread);
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

 private:
  Status Unpack(const Node& spread, Node** unpack) {
    std::vector<Output> inputs;
    std::vector<int> dims;
    TF_RETURN_IF_ERROR(AppendInputs(spread, 0, 2, &inputs));
    TF_RETURN_IF_ERROR(GetNodeAttr(spread.attrs(), "dims", &dims));
    NodeDefBuilder builder(graph_->NewName(spread.name() + "/unpack"),
                           "RecEstimator>RowsUnpack");
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutOf(inputs[1]))
        .Attr("N", static_cast<int>(dims.size()));
    return AddTables(spread, &builder, inputs, unpack);
  }

  // Adds the node of a builder, with the tables of `spread`.
  Status AddTables(const Node& spread, NodeDefBuilder* builder,
                   const std::vector<Output>& inputs, Node** node) {
    for (const char* name : {"sections", "num_sections", "dims"}) {
      builder->Attr(name, *spread.attrs().Find(name));
    }
    return AddNode(builder, inputs, spread.assigned_device_name(), graph_,
                   node);
  }

  static bool IsRead(const Output& output) {
    for (const Edge* edge : output.node->out_edges()) {
      if (edge->src_output() == output.index) return true;
    }
    return false;
  }

  Graph* const graph_;
  // Of each RowsSpread.
  std::map<Node*, Node*, tensorflow::NodeComparatorID> unpacks_;
};

using Nodes = std::set<Node*, tensorflow::NodeComparatorID>;

// The keys of which `shards` says the shard, as _shard_of in
// rec_estimator/table/lookup.py does. Adds the nodes that say it. False: it is
// not one of n_shards.
bool IsShardOfKeys(const Output& shards, int n_shards, Output* keys,
                   Nodes* nodes) {
  Output bucket, wide, modulus;
  const auto is_modulus = [&](const Node& node, int64_t expected) {
    return node.type_string() == "FloorMod" &&
           InputOf(node, 1, &modulus).ok() && IsAlways(modulus, expected);
  };
  if (!is_modulus(*shards.node, n_shards)) return false;
  nodes->insert({shards.node, modulus.node});
  if (shards.node->output_type(0) != tensorflow::DT_INT32 ||
      !InputOf(*shards.node, 0, &bucket).ok() ||
      bucket.node->type_string() != "Cast" ||
      !InputOf(*bucket.node, 0, &wide).ok() ||
      !is_modulus(*wide.node, kKeyClasses) ||
      wide.node->output_type(0) != tensorflow::DT_INT64) {
    return false;
  }
  nodes->insert({bucket.node, wide.node, modulus.node});
  return InputOf(*wide.node, 0, keys).ok();
}

class Replacer {
 public:
  Replacer(const ShardPlaces& places, Graph* graph, Unpacked* unpacked)
      : places_(places), graph_(graph), unpacked_(*unpacked) {}

  Status Run() {
    TF_RETURN_IF_ERROR(InputOf(*places_.partition, 1, &shards_));
    TF_RETURN_IF_ERROR(SplitKeys());
    for (Node* stitch : places_.stitches) TF_RETURN_IF_ERROR(Merge(stitch));
    for (const auto& [values, gathers] : places_.gathers) {
      TF_RETURN_IF_ERROR(Split(gathers));
    }
    RemoveUnused(places_.partition);
    return Status();
  }

 private:
  // Lets one op find the shards of keys, and divide the keys and their places.
  Status SplitKeys() {
    const bool is_split =
        shards_.node->type_string() == kKeysSplit && shards_.index == 0 &&
        shards_.node->num_outputs() == 1 + 2 * places_.n_shards();
    Output keys, count;
    Nodes nodes;
    if (shards_.node->assigned_device_name() !=
            places_.partition->assigned_device_name() ||
        !(is_split ||
          IsShardOfKeys(shards_, places_.n_shards(), &keys, &nodes))) {
      return Status();
    }
    TF_RETURN_IF_ERROR(InputOf(*places_.partition, 0, &count));
    nodes.insert(count.node);
    for (const Edge* edge : count.node->in_edges()) {
      if (!edge->IsControlEdge()) nodes.insert(edge->src());
    }
    Nodes waits;
    for (const Node* node : nodes) {
      for (Node* before : ControlInputs(*node)) waits.insert(before);
    }
    if (DependsOnShards(waits)) return Status();
    if (!is_split) TF_RETURN_IF_ERROR(AddSplit(keys));
    for (Node* before : waits) graph_->AddControlEdge(before, shards_.node);
    MoveOutputs(places_.partition, shards_.node, 1 + places_.n_shards());
    return Status();
  }

  Status AddSplit(const Output& keys) {
    NodeDefBuilder builder(graph_->NewName(shards_.node->name() + "/split"),
                           kKeysSplit);
    builder.Input(NodeOutOf(keys)).Attr("N", places_.n_shards());
    Node* split;
    TF_RETURN_IF_ERROR(AddNode(&builder, {keys},
                               places_.partition->assigned_device_name(),
                               graph_, &split));
    for (Node* partition : PartitionsOf(keys)) {
      MoveOutputs(partition, split, 1);
      RemoveUnused(partition);
    }
    const Output old = shards_;
    shards_ = {split, 0};
    MoveConsumers(old, shards_, graph_);
    RemoveUnused(old.node);
    return Status();
  }

  // Whether any of the nodes depends on the shards of the keys.
  bool DependsOnShards(const Nodes& nodes) const {
    bool depends = false;
    tensorflow::DFSFrom(
        *graph_, {shards_.node},
        [&](Node* node) { depends |= nodes.count(node) > 0; }, nullptr);
    return depends;
  }

  // What divides the keys among the shards.
  std::vector<Node*> PartitionsOf(const Output& keys) const {
    std::vector<Node*> partitions;
    for (const Edge* edge : keys.node->out_edges()) {
      Output shards;
      Node* const node = edge->dst();
      if (edge->src_output() == keys.index && edge->dst_input() == 0 &&
          node->type_string() == "DynamicPartition" &&
          node->assigned_device_name() ==
              places_.partition->assigned_device_name() &&
          node->num_outputs() == places_.n_shards() &&
          ControlInputs(*node).empty() && InputOf(*node, 1, &shards).ok() &&
          shards == shards_) {
        partitions.push_back(node);
      }
    }
    return partitions;
  }

  // Lets output begin + s of `split` be what a partition gives shard s.
  void MoveOutputs(Node* partition, Node* split, int begin) {
    for (int s = 0; s < places_.n_shards(); ++s) {
      MoveConsumers({partition, s}, {split, begin + s}, graph_);
    }
  }

  Status Merge(Node* stitch) {
    std::vector<Output> rows, index;
    TF_RETURN_IF_ERROR(
        AppendInputs(*stitch, places_.n_shards(), places_.n_shards(), &rows));
    TF_RETURN_IF_ERROR(
        unpacked_.Replace(stitch->assigned_device_name(), &rows, &index));
    NodeDefBuilder builder(graph_->NewName(stitch->name() + "/merge"),
                           index.empty() ? "RecEstimator>ShardRowsMerge"
                                         : "RecEstimator>ShardRowsSpread");
    builder.Input(NodeOutOf(shards_)).Input(NodeOutsOf(rows));
    if (!index.empty()) builder.Input(NodeOutsOf(index));
    rows.insert(rows.begin(), shards_);
    rows.insert(rows.end(), index.begin(), index.end());
    Node* node;
    TF_RETURN_IF_ERROR(
        AddNode(&builder, rows, stitch->assigned_device_name(), graph_, &node));
    MoveConsumers({stitch, 0}, {node, 0}, graph_);
    MoveControls(stitch, node, graph_);
    graph_->RemoveNode(stitch);
    return Status();
  }

  Status Split(const std::vector<Node*>& gathers) {
    for (const Node* gather : gathers) {
      if (gather == nullptr) return Status();
    }
    // Not those of FindUses, which may have been replaced since.
    Output values;
    TF_RETURN_IF_ERROR(InputOf(*gathers[0], 0, &values));
    NodeDefBuilder builder(graph_->NewName(gathers[0]->name() + "/split"),
                           "RecEstimator>ShardRowsSplit");
    builder.Input(NodeOutOf(shards_))
        .Input(NodeOutOf(values))
        .Attr("N", places_.n_shards());
    Node* node;
    TF_RETURN_IF_ERROR(AddNode(&builder, {shards_, values},
                               gathers[0]->assigned_device_name(), graph_,
                               &node));
    for (int i = 0; i < places_.n_shards(); ++i) {
      Node* const gather = gathers[static_cast<size_t>(i)];
      MoveConsumers({gather, 0}, {node, i}, graph_);
      MoveControls(gather, node, graph_);
      graph_->RemoveNode(gather);
    }
    return Status();
  }

  // Removes a node, and those that only it reads, unless something reads it.
  void RemoveUnused(Node* node) {
    const std::string& type = node->type_string();
    if (type != "DynamicPartition" && type != "Range" && type != "Size" &&
        type != "FloorMod" && type != "Cast" && !node->IsConstant()) {
      return;
    }
    for (const Edge* edge : node->out_edges()) {
      if (edge->dst()->IsOp()) return;
    }
    Nodes inputs;
    for (const Edge* edge : node->in_edges()) {
      if (!edge->IsControlEdge()) inputs.insert(edge->src());
    }
    graph_->RemoveNode(node);
    for (Node* input : inputs) RemoveUnused(input);
  }

  const ShardPlaces& places_;
  Graph* const graph_;
  Unpacked& unpacked_;
  Output shards_;
};

class ShardRowsPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<ShardPlaces> all;
    for (Node* node : graph->op_nodes()) {
      ShardPlaces places;
      if (FindUses(node, &places)) all.push_back(std::move(places));
    }
    Unpacked unpacked(graph);
    for (const ShardPlaces& places : all) {
      TF_RETURN_IF_ERROR(Replacer(places, graph, &unpacked).Run());
    }
    TF_RETURN_IF_ERROR(unpacked.RemoveSpread());
    if (!all.empty()) tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// After pack_transfers_pass.cc, which looks for gathers, and before
// fuse_lookups_pass.cc.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1,
    ShardRowsPass);

}  // namespace
}  // namespace rec_estimator
