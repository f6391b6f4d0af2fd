// SPDX-License-Identifier: Apache-2.0
// Implements transfer_plan.h.
#include "ops/passes/transfer_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "ops/core/math/row_update.h"
#include "ops/passes/op_names.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rec_estimator::passes {
namespace {

using absl::Status;
using tensorflow::DeviceNameUtils;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::OutputTensor;

bool IsStage(const Node& node) {
  const std::string& type = node.type_string();
  return type == kTableLookup || type == kTablesReserve;
}

bool AreDifferentTasks(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && !DeviceNameUtils::IsSameAddressSpace(a, b);
}

// Looks through what changes neither the keys nor their order.
OutputTensor Source(OutputTensor output) {
  while (output.node->IsIdentity() || output.node->type_string() == kReshape) {
    if (!output.node->input_tensor(0, &output).ok()) break;
  }
  return output;
}

// Whether a constant has no elements.
bool IsEmpty(const OutputTensor& output) {
  const tensorflow::TensorProto* value = nullptr;
  if (!IsConstant(output) ||
      !tensorflow::GetNodeAttr(output.node->attrs(), "value", &value).ok()) {
    return false;
  }
  for (const auto& dim : value->tensor_shape().dim()) {
    if (dim.size() == 0) return true;
  }
  return false;
}

// Whether an output is always this int32 or int64 [].
bool IsAlways(const OutputTensor& output, int64_t expected) {
  tensorflow::Tensor tensor;
  if (!output.node->IsConstant() ||
      !tensorflow::GetNodeAttr(output.node->attrs(), "value", &tensor).ok() ||
      tensor.dims() != 0) {
    return false;
  }
  if (tensor.dtype() == tensorflow::DT_INT32) {
    return tensor.scalar<int32_t>()() == expected;
  }
  return tensor.dtype() == tensorflow::DT_INT64 &&
         tensor.scalar<int64_t>()() == expected;
}

// Appends the lists that a tensor of keys is made of, in order. Concatenated
// lists are split again into the lists of the lookups.
Status AppendSources(const OutputTensor& keys,
                     std::vector<OutputTensor>* sources) {
  const OutputTensor source = Source(keys);
  if (source.node->type_string() == kConcat) {
    const int n = source.node->num_inputs() - 1;
    OutputTensor axis;
    TF_RETURN_IF_ERROR(source.node->input_tensor(n, &axis));
    if (IsAlways(axis, 0)) {
      for (int i = 0; i < n; ++i) {
        OutputTensor part;
        TF_RETURN_IF_ERROR(source.node->input_tensor(i, &part));
        TF_RETURN_IF_ERROR(AppendSources(part, sources));
      }
      return Status();
    }
  }
  if (!IsEmpty(source)) sources->push_back(source);
  return Status();
}

// The type that sends rows of a table without rounding them: float, or the 16
// bits in which it stores them.
tensorflow::DataType ValueDtypeOf(const Node& handle) {
  tensorflow::DataType value_dtype = tensorflow::DT_FLOAT;
  if (handle.type_string() != kTableHandle ||
      !tensorflow::GetNodeAttr(handle.attrs(), "value_dtype", &value_dtype)
           .ok() ||
      value_dtype == tensorflow::DT_UINT8) {
    return tensorflow::DT_FLOAT;
  }
  return value_dtype;
}

// Decides what becomes one request.
class Planner {
 public:
  explicit Planner(const Graph& graph)
      : positions_(FindPositions(graph, IsStage)) {}

  Status Plan(std::vector<std::unique_ptr<Request>>* requests) {
    for (Node* node : positions_.order) {
      if (node->type_string() != kTableLookup) continue;
      TF_RETURN_IF_ERROR(AddLookup(node));
    }
    for (Node* node : positions_.order) {
      if (node->type_string() != kTablesReserve) continue;
      TF_RETURN_IF_ERROR(AddUpdate(node));
    }
    for (auto& [key, request] : requests_) {
      TF_RETURN_IF_ERROR(AddListsOfLookups(request.get()));
      requests->push_back(std::move(request));
    }
    for (auto& request : alone_) requests->push_back(std::move(request));
    return Status();
  }

 private:
  using Key = std::tuple<int, std::string, std::string, int>;

  Status AddLookup(Node* node) {
    OutputTensor handle, keys;
    TF_RETURN_IF_ERROR(node->input_tensor(0, &handle));
    TF_RETURN_IF_ERROR(node->input_tensor(1, &keys));
    const Position& position = positions_[*node];
    const std::string& ps = node->assigned_device_name();
    const std::string& worker = keys.node->assigned_device_name();
    if (!position.can_join() || !AreDifferentTasks(ps, worker) ||
        handle.node->assigned_device_name() != ps) {
      return Status();
    }
    auto& request = requests_[{position.level, worker, ps, position.feeds}];
    if (request == nullptr) request = NewRequest(position.level, worker, ps);
    request->lookups.push_back(node);
    std::string unknown;
    TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "unknown", &unknown));
    KeySection& section =
        request->sections[request->SectionOf(handle, unknown)];
    section.value_dtype = ValueDtypeOf(*handle.node);
    return GetNodeAttr(node->attrs(), "dim", &section.dim);
  }

  static std::unique_ptr<Request> NewRequest(int level,
                                             const std::string& worker,
                                             const std::string& ps) {
    auto request = std::make_unique<Request>();
    request->level = level;
    request->worker = worker;
    request->ps = ps;
    return request;
  }

  // The only consumer of a reservation. nullptr: there is no TablesApply.
  static Node* ApplyOf(const Node& reserve) {
    Node* apply = nullptr;
    for (const Edge* edge : reserve.out_edges()) {
      if (edge->src_output() != 0) continue;
      if (apply != nullptr || edge->dst()->type_string() != kTablesApply) {
        return nullptr;
      }
      apply = edge->dst();
    }
    return apply;
  }

  static bool IsPerOccurrence(const std::string& rule) {
    const auto update = MakeRowUpdate(
        rule, std::vector<float>(HyperparameterNames(rule).size(), 0.0f));
    return update == nullptr || update->per_occurrence();
  }

  Status AddUpdate(Node* reserve) {
    const Position& position = positions_[*reserve];
    Node* const apply = ApplyOf(*reserve);
    const std::string& ps = reserve->assigned_device_name();
    std::string rule;
    TF_RETURN_IF_ERROR(GetNodeAttr(reserve->attrs(), "rule", &rule));
    if (!position.can_join() || apply == nullptr ||
        !positions_[*apply].can_join() || apply->assigned_device_name() != ps ||
        IsPerOccurrence(rule)) {
      return Status();
    }
    int n;
    TF_RETURN_IF_ERROR(GetNodeAttr(reserve->attrs(), "N", &n));
    std::vector<std::vector<OutputTensor>> lists(2 * n);
    for (int i = 0; i < 2 * n; ++i) {
      OutputTensor keys;
      TF_RETURN_IF_ERROR(reserve->input_tensor(n + i, &keys));
      TF_RETURN_IF_ERROR(AppendSources(keys, &lists[i]));
    }
    std::string worker;
    int level = 0;
    if (!ComeFromOneWorker(lists, ps, &worker, &level)) return Status();
    Request* request = FindRequest(worker, ps, level, position);
    if (request == nullptr) {
      alone_.push_back(NewRequest(position.level, worker, ps));
      request = alone_.back().get();
    }
    StepUpdate update{reserve, apply, {}, {}, request->level == position.level};
    for (int i = 0; i < n; ++i) {
      OutputTensor handle;
      TF_RETURN_IF_ERROR(reserve->input_tensor(i, &handle));
      const int section = request->SectionOf(handle, "");
      update.sections.push_back(section);
      update.gradient_lists.emplace_back();
      for (const OutputTensor& keys : lists[i]) {
        update.gradient_lists.back().push_back(
            request->AddList(keys, section, "gradient"));
      }
      for (const OutputTensor& keys : lists[n + i]) {
        request->AddList(keys, section, "counted");
      }
    }
    request->updates.push_back(std::move(update));
    return Status();
  }

  // Whether the lists, which are not all constant, are on one worker. Sets the
  // highest level of their nodes.
  bool ComeFromOneWorker(const std::vector<std::vector<OutputTensor>>& lists,
                         const std::string& ps, std::string* worker,
                         int* level) const {
    for (const std::vector<OutputTensor>& of_table : lists) {
      for (const OutputTensor& keys : of_table) {
        if (IsConstant(keys)) continue;
        const std::string& device = keys.node->assigned_device_name();
        if (!AreDifferentTasks(device, ps)) return false;
        if (!worker->empty() && *worker != device) return false;
        *worker = device;
        const Position& position = positions_[*keys.node];
        *level = std::max(*level, position.level + IsStage(*keys.node));
      }
    }
    return !worker->empty();
  }

  // The request that an update joins: lists of `level` are known before its
  // lookups, and none of them depends on the reservation.
  Request* FindRequest(const std::string& worker, const std::string& ps,
                       int level, const Position& reservation) {
    for (; level <= reservation.level; ++level) {
      const auto found = requests_.find({level, worker, ps, reservation.feeds});
      if (found != requests_.end()) return found->second.get();
    }
    return nullptr;
  }

  // Adds the keys of lookups that no gradient has brought.
  static Status AddListsOfLookups(Request* request) {
    for (Node* node : request->lookups) {
      OutputTensor handle, keys;
      std::string unknown;
      TF_RETURN_IF_ERROR(node->input_tensor(0, &handle));
      TF_RETURN_IF_ERROR(node->input_tensor(1, &keys));
      TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "unknown", &unknown));
      const int section = request->SectionOf(handle, unknown);
      // A list has the shape of its keys, which the values of a lookup need.
      const auto has_keys = [&](const KeyList& list) {
        return list.section == section && list.keys == keys;
      };
      const auto found =
          std::find_if(request->lists.begin(), request->lists.end(), has_keys);
      request->list_of_lookup.push_back(
          found != request->lists.end()
              ? static_cast<int>(found - request->lists.begin())
              : request->AddList(keys, section, "read"));
    }
    return Status();
  }

  const Positions positions_;
  std::map<Key, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> alone_;
};

}  // namespace

int Request::SectionOf(const OutputTensor& handle, const std::string& unknown) {
  for (size_t i = 0; i < sections.size(); ++i) {
    KeySection& section = sections[i];
    if (!(section.handle == handle)) continue;
    if (unknown.empty() || section.unknown == unknown) {
      return static_cast<int>(i);
    }
    if (section.unknown.empty()) {
      section.unknown = unknown;
      return static_cast<int>(i);
    }
  }
  sections.push_back({handle, unknown});
  return static_cast<int>(sections.size()) - 1;
}

Status PlanTransfers(const Graph& graph,
                     std::vector<std::unique_ptr<Request>>* requests) {
  return Planner(graph).Plan(requests);
}

}  // namespace rec_estimator::passes
