// SPDX-License-Identifier: Apache-2.0
// A graph pass that packs what a step sends to the tables of another task.
//
//   keys a -> TableLookup a -> a        keys a, b -> KeysPack => TablesRead
//   keys b -> TableLookup b -> b   =>     a, b <- RowsSpread <=
//
// => crosses from a worker to a parameter server (ps) or back, as one tensor.
// All lookups whose keys come from one worker and whose tables are on one ps
// become one request: each distinct key of a table once, its row once. The
// update of a step joins in. TablesReserve becomes TablesReservePacked, which
// takes the same packed keys, with their counts. TablesApply becomes
// TablesApplyPacked, which takes one tensor of GradientsPack: the summed
// gradient of each distinct key, the versions and the hyperparameters. If a
// gradient is gathered for a shard, GradientsPack reads it in its place
// instead. Python's graph does not change. packed_ops.cc documents the ops, and
// graph_edits.h levels, on which it rests that no cycle arises, and which pass
// runs when.
//
// Stages are lookups and reservations. A request has the lookups of one level.
// A reservation of this level or a higher one may take its packed keys: no node
// of the request depends on such a reservation. If it is of this very level, it
// also does not depend on the request, and TablesRead waits for it, so that the
// rows tell the worker that the step has room.
//
// A control edge between two tasks is a tensor, too. route_controls.h leads the
// edges of a request so that few of them cross.
//
// What is not packed stays as it is: lookups in control flow, lookups that
// combine rows (TableGroupLookup), and the update of a rule that has one update
// for each occurrence, because the sum of a key's gradients loses these.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/passes/graph_edits.h"
#include "ops/passes/reduce_control_edges.h"
#include "ops/passes/transfer_plan.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace rec_estimator {
namespace {

using absl::Status;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDefBuilder;

// Puts the packed ops of one request into the graph.
class Packer {
 public:
  Packer(Graph* graph, Request* request, ControlRoutes* routes)
      : graph_(graph), request_(*request), routes_(*routes) {
    for (const Node* lookup : request->lookups) {
      parts_.push_back(lookup->name());
    }
    for (const List& list : request->lists) {
      parts_.push_back(absl::StrCat(list.keys.node->name(), ":",
                                    list.keys.index, " ", list.section, " ",
                                    list.use));
    }
    for (const Section& section : request->sections) {
      parts_.push_back(absl::StrCat(section.handle.node->name(), " ",
                                    section.dim, " ", section.unknown));
    }
  }

  Status Run() {
    TF_RETURN_IF_ERROR(AddKeysPack());
    if (!request_.lookups.empty()) TF_RETURN_IF_ERROR(ReplaceLookups());
    for (const Update& update : request_.updates) {
      TF_RETURN_IF_ERROR(ReplaceUpdate(update));
    }
    return Status();
  }

 private:
  const std::string& BaseName() const {
    return request_.lookups.empty() ? request_.updates[0].reserve->name()
                                    : request_.lookups[0]->name();
  }

  int NumSections() const { return static_cast<int>(request_.sections.size()); }

  Status AddKeysPack() {
    std::vector<Output> keys;
    std::vector<int> sections;
    std::vector<std::string> uses;
    for (const List& list : request_.lists) {
      keys.push_back(list.keys);
      if (IsConstant(list.keys)) {
        TF_RETURN_IF_ERROR(CopyToWorker(&keys.back()));
      }
      sections.push_back(list.section);
      uses.push_back(list.use);
    }
    NodeDefBuilder builder(graph_->NewName(BaseName() + "/keys"),
                           "RecEstimator>KeysPack");
    builder.Input(NodeOutsOf(keys))
        .Attr("sections", sections)
        .Attr("uses", uses)
        .Attr("num_sections", NumSections());
    return AddNode(&builder, keys, request_.worker, graph_, &pack_);
  }

  // Replaces the output of a node without state by that of a copy on the
  // worker. Its inputs are not copied.
  Status CopyToWorker(Output* output) {
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
    std::vector<Output> handles;
    std::vector<int> sections, position(request_.sections.size(), -1);
    std::vector<int64_t> dims;
    std::vector<std::string> unknowns;
    for (int i = 0; i < NumSections(); ++i) {
      const Section& section = request_.sections[i];
      if (section.unknown.empty()) continue;
      position[i] = static_cast<int>(handles.size());
      handles.push_back(section.handle);
      sections.push_back(i);
      dims.push_back(section.dim);
      unknowns.push_back(section.unknown);
    }
    NodeDefBuilder read_builder(NameOfParts(BaseName() + "/rows", parts_),
                                "RecEstimator>TablesRead");
    const Output packed{pack_, 0};
    read_builder.Input(NodeOutsOf(handles))
        .Input(NodeOutOf(packed))
        .Attr("sections", sections)
        .Attr("num_sections", NumSections())
        .Attr("dims", dims)
        .Attr("unknowns", unknowns);
    std::vector<Output> inputs = handles;
    inputs.push_back(packed);
    TF_RETURN_IF_ERROR(
        AddNode(&read_builder, inputs, request_.ps, graph_, &read_));

    std::vector<Output> index;
    std::vector<int> lookups;
    for (const int list : request_.list_of_lookup) {
      index.push_back({pack_, 1 + list});
      lookups.push_back(position[request_.lists[list].section]);
    }
    NodeDefBuilder spread_builder(graph_->NewName(BaseName() + "/values"),
                                  "RecEstimator>RowsSpread");
    inputs = {{read_, 0}, packed};
    spread_builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutOf(packed))
        .Input(NodeOutsOf(index))
        .Attr("lookups", lookups)
        .Attr("sections", sections)
        .Attr("num_sections", NumSections())
        .Attr("dims", dims);
    inputs.insert(inputs.end(), index.begin(), index.end());
    TF_RETURN_IF_ERROR(
        AddNode(&spread_builder, inputs, request_.worker, graph_, &spread_));
    for (size_t i = 0; i < request_.lookups.size(); ++i) {
      ReplaceLookup(request_.lookups[i], static_cast<int>(i));
    }
    return Status();
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

  Status ReplaceUpdate(const Update& update) {
    Node *reserve, *gradients, *apply;
    TF_RETURN_IF_ERROR(AddReserve(update, &reserve));
    if (update.before_read && read_ != nullptr) {
      graph_->AddControlEdge(reserve, read_);
    }
    TF_RETURN_IF_ERROR(AddGradientsPack(update, &gradients));
    const std::vector<Output> inputs = {{reserve, 0}, {gradients, 0}};
    NodeDefBuilder builder(
        NameOfParts(update.apply->name() + "/packed", parts_),
        "RecEstimator>TablesApplyPacked");
    builder.Input(NodeOutOf(inputs[0])).Input(NodeOutOf(inputs[1]));
    TF_RETURN_IF_ERROR(AddNode(&builder, inputs, request_.ps, graph_, &apply));
    MoveControls(update.apply, apply, graph_);
    MoveControls(update.reserve, reserve, graph_);
    MoveConsumers({update.reserve, 1}, {reserve, 1}, graph_);
    graph_->RemoveNode(update.apply);
    graph_->RemoveNode(update.reserve);
    routes_.AddReservation(
        {reserve, gradients, apply, request_.worker,
         update.before_read && spread_ != nullptr ? spread_ : reserve});
    return Status();
  }

  Status AddReserve(const Update& update, Node** reserve) {
    const Node& old = *update.reserve;
    std::vector<Output> inputs;
    TF_RETURN_IF_ERROR(AppendInputs(
        old, 0, static_cast<int>(update.sections.size()), &inputs));
    NodeDefBuilder builder(NameOfParts(old.name() + "/packed", parts_),
                           "RecEstimator>TablesReservePacked");
    builder.Input(NodeOutsOf(inputs));
    inputs.push_back({pack_, 0});
    builder.Input(NodeOutOf(inputs.back()))
        .Attr("sections", update.sections)
        .Attr("num_sections", NumSections());
    for (const char* name :
         {"rule", "slot_names", "slot_widths", "slot_initials"}) {
      builder.Attr(name, *old.attrs().Find(name));
    }
    return AddNode(&builder, inputs, request_.ps, graph_, reserve);
  }

  Status AddGradientsPack(const Update& update, Node** gradients) {
    const Node& old = *update.apply;
    const int n = static_cast<int>(update.sections.size());
    const int n_hyper = old.num_inputs() - n - 2;
    std::vector<Output> inputs = {{pack_, 0}}, index, grads, places, hyper;
    std::vector<int> lists;
    for (const std::vector<int>& of_table : update.gradient_lists) {
      lists.push_back(static_cast<int>(of_table.size()));
      for (const int list : of_table) index.push_back({pack_, 1 + list});
    }
    TF_RETURN_IF_ERROR(AppendInputs(old, 1, n, &grads));
    if (std::all_of(lists.begin(), lists.end(), [](int k) { return k == 1; })) {
      TakeGathered(&grads, &places);
    }
    TF_RETURN_IF_ERROR(AppendInputs(old, 1 + n, 1 + n_hyper, &hyper));
    for (Output& scalar : hyper) {
      TF_RETURN_IF_ERROR(BringToWorker(&scalar, update.apply));
    }
    NodeDefBuilder builder(graph_->NewName(old.name() + "/gradients"),
                           "RecEstimator>GradientsPack");
    builder.Input(NodeOutOf(inputs[0]))
        .Input(NodeOutsOf(index))
        .Input(NodeOutsOf(grads))
        .Input(NodeOutsOf(places))
        .Input(NodeOutOf(hyper[0]))
        .Input(NodeOutsOf({hyper.begin() + 1, hyper.end()}))
        .Attr("lists", lists)
        .Attr("sections", update.sections)
        .Attr("num_sections", NumSections());
    for (const std::vector<Output>& list : {index, grads, places, hyper}) {
      inputs.insert(inputs.end(), list.begin(), list.end());
    }
    return AddNode(&builder, inputs, request_.worker, graph_, gradients);
  }

  // If each gradient is gathered, as for one shard of a table: lets `grads` be
  // what they are gathered from, and `places` the rows there. The update must
  // be removed then: it has lost these inputs.
  void TakeGathered(std::vector<Output>* grads, std::vector<Output>* places) {
    std::vector<Output> from, at;
    std::vector<Node*> unused, gathers;
    for (Output gathered : *grads) {
      // tf.gradients lets the rows of each shard wait for those of all.
      while (IsPassedOn(*gathered.node)) {
        unused.push_back(gathered.node);
        if (!InputOf(*gathered.node, 0, &gathered).ok()) return;
      }
      Output values, place;
      if (!IsRowGather(*gathered.node, &values) ||
          gathered.node->assigned_device_name() != request_.worker ||
          !InputOf(*gathered.node, 1, &place).ok()) {
        return;
      }
      gathers.push_back(gathered.node);
      from.push_back(values);
      at.push_back(place);
    }
    for (Node* node : unused) graph_->RemoveNode(node);
    for (Node* node : gathers) routes_.AddSpare(node);
    *grads = std::move(from);
    *places = std::move(at);
  }

  // Whether a node gives its input, in whatever shape, to one other node, and
  // waits for gathers only.
  static bool IsPassedOn(const Node& node) {
    const std::vector<Node*> before = ControlInputs(node);
    Output values;
    return (node.IsIdentity() || node.type_string() == "Reshape") &&
           node.out_edges().size() == 1 &&
           std::all_of(before.begin(), before.end(), [&values](Node* each) {
             return IsRowGather(*each, &values);
           });
  }

  // Replaces a scalar that the ps makes of what is constant, or of what another
  // task has, by one that the worker makes. `apply` waits for what the scalar
  // waited for.
  Status BringToWorker(Output* scalar, Node* apply) {
    Node* const node = scalar->node;
    const std::string& type = node->type_string();
    const bool is_chain =
        node->IsIdentity() || type == "Cast" || type == "Pack";
    if (node->assigned_device_name() != request_.ps ||
        !(node->IsConstant() || is_chain)) {
      return Status();
    }
    for (Node* before : ControlInputs(*node)) {
      graph_->AddControlEdge(before, apply);
    }
    std::vector<Output> inputs;
    TF_RETURN_IF_ERROR(AppendInputs(*node, 0, node->num_inputs(), &inputs));
    for (Output& input : inputs) {
      TF_RETURN_IF_ERROR(BringToWorker(&input, apply));
    }
    TF_RETURN_IF_ERROR(CopyToWorker(scalar));
    for (size_t i = 0; i < inputs.size(); ++i) {
      graph_->AddEdge(inputs[i].node, inputs[i].index, scalar->node,
                      static_cast<int>(i));
    }
    routes_.AddSpare(node);
    return Status();
  }

  Graph* const graph_;
  Request& request_;
  ControlRoutes& routes_;
  std::vector<std::string> parts_;  // What the request is made of.
  Node* pack_ = nullptr;
  Node* read_ = nullptr;
  Node* spread_ = nullptr;
};

class PackTransfersPass : public tensorflow::GraphOptimizationPass {
 public:
  Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || PassesAreOff(options)) return Status();
    Graph* graph = options.graph->get();
    std::vector<std::unique_ptr<Request>> requests;
    TF_RETURN_IF_ERROR(PlanTransfers(*graph, &requests));
    if (requests.empty()) return Status();
    ControlRoutes routes(graph);
    for (const auto& request : requests) {
      TF_RETURN_IF_ERROR(Packer(graph, request.get(), &routes).Run());
      routes.AddDevices(request->worker, request->ps);
    }
    TF_RETURN_IF_ERROR(routes.Run());
    tensorflow::FixupSourceAndSinkEdges(graph);
    return Status();
  }
};

// Before shard_rows_pass.cc.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    PackTransfersPass);

}  // namespace
}  // namespace rec_estimator
