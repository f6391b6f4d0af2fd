// SPDX-License-Identifier: Apache-2.0
// A graph pass that packs what a step sends to the tables of another task.
//
//   keys a -> TableLookup a -> a        keys a, b -> KeysPack => TablesRead
//   keys b -> TableLookup b -> b   =>     a, b <- RowsSpread <=
//
// => crosses from a worker to a parameter server (ps) or back, as one tensor.
// All lookups whose keys come from one worker and whose tables are on one ps
// become one request: each distinct key of a table once, its row once. Tables
// that store values in 16 bits have a TablesRead and a RowsSpread of their own,
// one for each type, so that their rows cross in half the bytes. The update of
// a step joins in. TablesReserve becomes TablesReservePacked, which takes the
// same packed keys, with their counts. TablesApply becomes TablesApplyPacked,
// which takes one tensor of GradientsPack: the summed gradient of each distinct
// key, the versions and the hyperparameters. If a gradient is divided among
// shards (ShardRowsSplit), GradientsPack reads it undivided instead.
// packed_ops.cc documents the ops. graph_edits.h says what levels are, why no
// cycle arises from them, and which pass runs when.
//
// Stages are lookups and reservations. A request has the lookups of one level.
// A reservation of this level or a higher one may take its packed keys: no node
// of the request depends on such a reservation. If it is of this very level, it
// also does not depend on the request, and TablesRead waits for it, so that the
// rows tell the worker that the step has room.
//
// A control edge between two tasks is a tensor, too. reduce_control_edges.h
// leads the edges of a request so that few of them cross.
//
// What is not packed stays as it is: lookups in control flow, lookups that
// combine rows (TableGroupLookup), and the update of a rule that has one update
// for each occurrence, because the sum of a key's gradients loses these.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/passes/graph_edits.h"
#include "ops/passes/op_names.h"
#include "ops/passes/reduce_control_edges.h"
#include "ops/passes/transfer_plan.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator::passes {
namespace {

using absl::Status;
using tensorflow::DataType;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;
using tensorflow::OutputTensor;

// Whether a node divides rows among shards, and waits for nothing else. An op
// that reads the undivided rows in its place waits for nothing more.
bool IsRowsSplit(const Node* node) {
  return node->type_string() == kShardRowsSplit && ControlInputs(*node).empty();
}

// Whether a node gives its input, in whatever shape, to one other node, and
// waits for divisions of rows only.
bool IsPassedOn(const Node& node) {
  const std::vector<Node*> before = ControlInputs(node);
  return (node.IsIdentity() || node.type_string() == kReshape) &&
         node.out_edges().size() == 1 &&
         std::all_of(before.begin(), before.end(), IsRowsSplit);
}

// How rows of one type come to the worker: TablesRead and RowsSpread take the
// place of the lookups of those tables of a request that have this type.
class RowsTransfer {
 public:
  RowsTransfer(Graph* graph, Request* request, Node* pack, DataType value_dtype)
      : graph_(graph),
        request_(*request),
        pack_(pack),
        value_dtype_(value_dtype),
        position_(request->sections.size(), -1) {
    for (size_t i = 0; i < request_.sections.size(); ++i) {
      const KeySection& section = request_.sections[i];
      if (section.unknown.empty() || section.value_dtype != value_dtype) {
        continue;
      }
      position_[i] = static_cast<int>(sections_.size());
      sections_.push_back(static_cast<int>(i));
      dims_.push_back(section.dim);
    }
  }

  Node* read() const { return read_; }
  Node* spread() const { return spread_; }

  // name: of the request. parts: what it is made of.
  Status Add(const std::string& name, const std::vector<std::string>& parts) {
    TF_RETURN_IF_ERROR(AddRead(name, parts));
    std::vector<Node*> lookups;
    TF_RETURN_IF_ERROR(AddSpread(name, &lookups));
    for (size_t i = 0; i < lookups.size(); ++i) {
      ReplaceLookup(lookups[i], static_cast<int>(i));
    }
    return Status();
  }

 private:
  Status AddRead(const std::string& request,
                 const std::vector<std::string>& parts) {
    std::vector<OutputTensor> inputs;
    std::vector<std::string> unknowns;
    for (const int i : sections_) {
      inputs.push_back(request_.sections[i].handle);
      unknowns.push_back(request_.sections[i].unknown);
    }
    std::string name = request + "/rows";
    if (value_dtype_ != tensorflow::DT_FLOAT) {
      absl::StrAppend(&name, "_", DataTypeString(value_dtype_));
    }
    NodeDefBuilder builder(NameOfParts(name, parts), kTablesRead);
    const OutputTensor packed{pack_, 0};
    builder.Input(NodeOutsOf(inputs))
        .Input(NodeOutOf(packed))
        .Attr("unknowns", unknowns)
        .Attr("value_dtype", value_dtype_);
    SetTables(&builder);
    inputs.push_back(packed);
    return AddNode(&builder, inputs, request_.ps, graph_, &read_);
  }

  // Sets the lookups whose values the node gives, in order.
  Status AddSpread(const std::string& request, std::vector<Node*>* lookups) {
    std::vector<OutputTensor> index;
    std::vector<int> tables;
    for (size_t i = 0; i < request_.lookups.size(); ++i) {
      const int list = request_.list_of_lookup[i];
      const int table = position_[request_.lists[list].section];
      if (table < 0) continue;
      index.push_back({pack_, 1 + list});
      tables.push_back(table);
      lookups->push_back(request_.lookups[i]);
    }
    NodeDefBuilder builder(graph_->NewName(request + "/values"), kRowsSpread);
    std::vector<OutputTensor> inputs = {{read_, 0}, {pack_, 0}};
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutOf(inputs[1]))
        .Input(NodeOutsOf(index))
        .Attr("lookups", tables);
    SetTables(&builder);
    inputs.insert(inputs.end(), index.begin(), index.end());
    return AddNode(&builder, inputs, request_.worker, graph_, &spread_);
  }

  void SetTables(NodeDefBuilder* builder) const {
    builder->Attr("sections", sections_)
        .Attr("num_sections", static_cast<int>(request_.sections.size()))
        .Attr("dims", dims_);
  }

  void ReplaceLookup(Node* node, int i) {
    for (Node* before : ControlInputs(*node)) {
      const bool is_local = before->assigned_device_name() == request_.worker;
      graph_->AddControlEdge(before, is_local ? pack_ : read_);
    }
    for (Node* after : ControlOutputs(*node)) {
      const bool is_local = after->assigned_device_name() == request_.ps;
      graph_->AddControlEdge(is_local ? read_ : spread_, after);
    }
    MoveConsumers({node, 0}, {spread_, i}, graph_);
    graph_->RemoveNode(node);
  }

  Graph* const graph_;
  const Request& request_;
  Node* const pack_;
  const DataType value_dtype_;
  std::vector<int> sections_;  // The sections of tables of this type.
  std::vector<int64_t> dims_;  // Their dimensions.
  std::vector<int> position_;  // Each section's place in them; -1: none.
  Node* read_ = nullptr;
  Node* spread_ = nullptr;
};

// Puts the packed ops of one request into the graph.
class Packer {
 public:
  Packer(Graph* graph, Request* request, ControlEdgeReducer* control_edges)
      : graph_(graph),
        request_(*request),
        control_edges_(*control_edges),
        base_name_(request->lookups.empty()
                       ? request->updates[0].reserve->name()
                       : request->lookups[0]->name()) {
    for (const Node* lookup : request->lookups) {
      parts_.push_back(lookup->name());
    }
    for (const KeyList& list : request->lists) {
      parts_.push_back(absl::StrCat(list.keys.node->name(), ":",
                                    list.keys.index, " ", list.section, " ",
                                    list.use));
    }
    for (const KeySection& section : request->sections) {
      parts_.push_back(absl::StrCat(section.handle.node->name(), " ",
                                    section.dim, " ", section.unknown));
    }
  }

  Status Run() {
    TF_RETURN_IF_ERROR(AddKeysPack());
    if (!request_.lookups.empty()) TF_RETURN_IF_ERROR(ReplaceLookups());
    for (const StepUpdate& update : request_.updates) {
      TF_RETURN_IF_ERROR(ReplaceUpdate(update));
    }
    return Status();
  }

 private:
  int NumSections() const { return static_cast<int>(request_.sections.size()); }

  Status AddKeysPack() {
    std::vector<OutputTensor> keys;
    std::vector<int> sections;
    std::vector<std::string> uses;
    for (const KeyList& list : request_.lists) {
      keys.push_back(list.keys);
      if (IsConstant(list.keys)) {
        TF_RETURN_IF_ERROR(CopyToWorker(&keys.back()));
      }
      sections.push_back(list.section);
      uses.push_back(list.use);
    }
    NodeDefBuilder builder(graph_->NewName(base_name_ + "/keys"), kKeysPack);
    builder.Input(NodeOutsOf(keys))
        .Attr("sections", sections)
        .Attr("uses", uses)
        .Attr("num_sections", NumSections());
    return AddNode(&builder, keys, request_.worker, graph_, &pack_);
  }

  // Replaces the output of a node without state by that of a copy on the
  // worker. Its inputs are not copied.
  Status CopyToWorker(OutputTensor* output) {
    Node* const node = output->node;
    if (node->assigned_device_name() == request_.worker) return Status();
    Node* const copy = graph_->CopyNode(node);
    copy->set_name(graph_->NewName(node->name() + "/copy"));
    copy->set_requested_device(request_.worker);
    copy->set_assigned_device_name(request_.worker);
    output->node = copy;
    return Status();
  }

  Status ReplaceLookups() {
    std::set<DataType> types;
    for (const KeySection& section : request_.sections) {
      if (!section.unknown.empty()) types.insert(section.value_dtype);
    }
    for (const DataType value_dtype : types) {
      transfers_.emplace_back(graph_, &request_, pack_, value_dtype);
      TF_RETURN_IF_ERROR(transfers_.back().Add(base_name_, parts_));
    }
    return Status();
  }

  Status ReplaceUpdate(const StepUpdate& update) {
    Node *reserve, *gradients, *apply;
    TF_RETURN_IF_ERROR(AddReserve(update, &reserve));
    Node* notice = reserve;
    if (update.before_read && !transfers_.empty()) {
      for (const RowsTransfer& transfer : transfers_) {
        graph_->AddControlEdge(reserve, transfer.read());
      }
      notice = transfers_[0].spread();
    }
    TF_RETURN_IF_ERROR(AddGradientsPack(update, &gradients));
    const std::vector<OutputTensor> inputs = {{reserve, 0}, {gradients, 0}};
    NodeDefBuilder builder(
        NameOfParts(update.apply->name() + "/packed", parts_),
        kTablesApplyPacked);
    builder.Input(NodeOutOf(inputs[0])).Input(NodeOutOf(inputs[1]));
    TF_RETURN_IF_ERROR(AddNode(&builder, inputs, request_.ps, graph_, &apply));
    MoveControls(update.apply, apply, graph_);
    MoveControls(update.reserve, reserve, graph_);
    MoveConsumers({update.reserve, 1}, {reserve, 1}, graph_);
    graph_->RemoveNode(update.apply);
    graph_->RemoveNode(update.reserve);
    control_edges_.AddReservation(
        {reserve, gradients, apply, request_.worker, notice});
    return Status();
  }

  Status AddReserve(const StepUpdate& update, Node** reserve) {
    const Node& old = *update.reserve;
    std::vector<OutputTensor> inputs;
    TF_RETURN_IF_ERROR(AppendInputs(
        old, 0, static_cast<int>(update.sections.size()), &inputs));
    NodeDefBuilder builder(NameOfParts(old.name() + "/packed", parts_),
                           kTablesReservePacked);
    builder.Input(NodeOutsOf(inputs));
    inputs.push_back({pack_, 0});
    builder.Input(NodeOutOf(inputs.back()))
        .Attr("sections", update.sections)
        .Attr("num_sections", NumSections());
    for (const char* name : {"rule", "slot_names", "slot_widths",
                             "slot_initials", "l2_scales", "decay_rates"}) {
      builder.Attr(name, *old.attrs().Find(name));
    }
    return AddNode(&builder, inputs, request_.ps, graph_, reserve);
  }

  Status AddGradientsPack(const StepUpdate& update, Node** gradients) {
    const Node& old = *update.apply;
    const int n = static_cast<int>(update.sections.size());
    const int n_hyper = old.num_inputs() - n - 2;
    std::vector<OutputTensor> inputs = {{pack_, 0}}, index, grads, positions,
                              hyper;
    std::vector<int> lists;
    for (const std::vector<int>& of_table : update.gradient_lists) {
      lists.push_back(static_cast<int>(of_table.size()));
      for (const int list : of_table) index.push_back({pack_, 1 + list});
    }
    TF_RETURN_IF_ERROR(AppendInputs(old, 1, n, &grads));
    if (std::all_of(lists.begin(), lists.end(), [](int k) { return k == 1; })) {
      TakeUndivided(&grads, &positions);
    }
    TF_RETURN_IF_ERROR(AppendInputs(old, 1 + n, 1 + n_hyper, &hyper));
    for (OutputTensor& scalar : hyper) {
      TF_RETURN_IF_ERROR(BringToWorker(&scalar, update.apply));
    }
    NodeDefBuilder builder(graph_->NewName(old.name() + "/gradients"),
                           kGradientsPack);
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutsOf(index))
        .Input(NodeOutsOf(grads))
        .Input(NodeOutsOf(positions))
        .Input(NodeOutOf(hyper[0]))
        .Input(NodeOutsOf({hyper.begin() + 1, hyper.end()}))
        .Attr("lists", lists)
        .Attr("sections", update.sections)
        .Attr("num_sections", NumSections());
    for (const std::vector<OutputTensor>& list :
         {index, grads, positions, hyper}) {
      inputs.insert(inputs.end(), list.begin(), list.end());
    }
    return AddNode(&builder, inputs, request_.worker, graph_, gradients);
  }

  // If each gradient is the part of a shard: makes `grads` the gradients of all
  // shards, and `positions` the rows of the shard there. The update must then
  // be removed: it has lost these inputs.
  void TakeUndivided(std::vector<OutputTensor>* grads,
                     std::vector<OutputTensor>* positions) {
    std::vector<OutputTensor> undivided, rows;
    std::vector<Node*> unused, splits;
    for (OutputTensor part : *grads) {
      // tf.gradients makes the rows of each shard wait for those of all.
      while (IsPassedOn(*part.node)) {
        unused.push_back(part.node);
        if (!part.node->input_tensor(0, &part).ok()) return;
      }
      Node* const split = part.node;
      OutputTensor shards, values;
      if (!IsRowsSplit(split) ||
          split->assigned_device_name() != request_.worker ||
          !split->input_tensor(0, &shards).ok() ||
          !split->input_tensor(1, &values).ok()) {
        return;
      }
      const int n = split->num_outputs();
      if (shards.node->type_string() != kShardKeysSplit || shards.index != 0 ||
          shards.node->num_outputs() != 1 + 2 * n) {
        return;
      }
      splits.push_back(split);
      undivided.push_back(values);
      rows.emplace_back(shards.node, 1 + n + part.index);
    }
    for (Node* node : unused) graph_->RemoveNode(node);
    for (Node* node : splits) control_edges_.AddSpare(node);
    *grads = std::move(undivided);
    *positions = std::move(rows);
  }

  // Replaces a scalar that the ps makes of what is constant, or of what another
  // task has, by one that the worker makes. `apply` waits for what the scalar
  // waited for.
  Status BringToWorker(OutputTensor* scalar, Node* apply) {
    Node* const node = scalar->node;
    const std::string& type = node->type_string();
    const bool is_chain = node->IsIdentity() || type == kCast || type == kPack;
    if (node->assigned_device_name() != request_.ps ||
        !(node->IsConstant() || is_chain)) {
      return Status();
    }
    for (Node* before : ControlInputs(*node)) {
      graph_->AddControlEdge(before, apply);
    }
    std::vector<OutputTensor> inputs;
    TF_RETURN_IF_ERROR(AppendInputs(*node, 0, node->num_inputs(), &inputs));
    for (OutputTensor& input : inputs) {
      TF_RETURN_IF_ERROR(BringToWorker(&input, apply));
    }
    TF_RETURN_IF_ERROR(CopyToWorker(scalar));
    for (size_t i = 0; i < inputs.size(); ++i) {
      graph_->AddEdge(inputs[i].node, inputs[i].index, scalar->node,
                      static_cast<int>(i));
    }
    control_edges_.AddSpare(node);
    return Status();
  }

  Graph* const graph_;
  Request& request_;
  ControlEdgeReducer& control_edges_;
  const std::string base_name_;     // Its nodes' names begin with it.
  std::vector<std::string> parts_;  // What the request is made of.
  Node* pack_ = nullptr;
  std::vector<RowsTransfer> transfers_;  // One for each type of rows.
};

class PackTransfersPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<std::unique_ptr<Request>> requests;
    TF_RETURN_IF_ERROR(PlanTransfers(*graph, &requests));
    if (requests.empty()) return Status();
    ControlEdgeReducer control_edges(graph);
    for (const auto& request : requests) {
      TF_RETURN_IF_ERROR(Packer(graph, request.get(), &control_edges).Run());
      control_edges.AddDevices(request->worker, request->ps);
    }
    TF_RETURN_IF_ERROR(control_edges.Run());
    tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// Before spread_shard_rows_pass.cc.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    PackTransfersPass);

}  // namespace
}  // namespace rec_estimator::passes
