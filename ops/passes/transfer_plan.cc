// SPDX-License-Identifier: Apache-2.0
// Implements transfer_plan.h.
#include "ops/passes/transfer_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "ops/core/math/row_update.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rec_estimator {
namespace {

using absl::Status;
using tensorflow::DeviceNameUtils;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

constexpr char kLookup[] = "RecEstimator>TableLookup";
constexpr char kReserve[] = "RecEstimator>TablesReserve";
constexpr char kApply[] = "RecEstimator>TablesApply";

bool IsStage(const Node& node) {
  const std::string& type = node.type_string();
  return type == kLookup || type == kReserve;
}

bool AreDifferentTasks(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && !DeviceNameUtils::IsSameAddressSpace(a, b);
}

// Looks through what changes neither the keys nor their order.
Output Source(Output output) {
  while (output.node->IsIdentity() || output.node->type_string() == "Reshape") {
    if (!InputOf(*output.node, 0, &output).ok()) break;
  }
  return output;
}

// Whether a constant has no elements.
bool IsEmpty(const Output& output) {
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

// Appends the lists of which a tensor of keys is made, in order. Lists that
// were concatenated are taken apart, so that they are those of the lookups.
Status AppendSources(const Output& keys, std::vector<Output>* sources) {
  const Output source = Source(keys);
  if (source.node->type_string() == "ConcatV2") {
    const int n = source.node->num_inputs() - 1;
    Output axis;
    TF_RETURN_IF_ERROR(InputOf(*source.node, n, &axis));
    if (IsAlways(axis, 0)) {
      for (int i = 0; i < n; ++i) {
        Output part;
        TF_RETURN_IF_ERROR(InputOf(*source.node, i, &part));
        TF_RETURN_IF_ERROR(AppendSources(part, sources));
      }
      return Status();
    }
  }
  if (!IsEmpty(source)) sources->push_back(source);
  return Status();
}

// Decides what becomes one request.
class Planner {
 public:
  explicit Planner(const Graph& graph) : places_(FindPlaces(graph, IsStage)) {}

  Status Plan(std::vector<std::unique_ptr<Request>>* requests) {
    for (Node* node : places_.order) {
      if (node->type_string() != kLookup) continue;
      TF_RETURN_IF_ERROR(AddLookup(node));
    }
    for (Node* node : places_.order) {
      if (node->type_string() != kReserve) continue;
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
    Output handle, keys;
    TF_RETURN_IF_ERROR(InputOf(*node, 0, &handle));
    TF_RETURN_IF_ERROR(InputOf(*node, 1, &keys));
    const Place& place = places_[*node];
    const std::string& ps = node->assigned_device_name();
    const std::string& worker = keys.node->assigned_device_name();
    if (!place.can_join() || !AreDifferentTasks(ps, worker) ||
        handle.node->assigned_device_name() != ps) {
      return Status();
    }
    auto& request = requests_[{place.level, worker, ps, place.feeds}];
    if (request == nullptr) request = NewRequest(place.level, worker, ps);
    request->lookups.push_back(node);
    std::string unknown;
    TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "unknown", &unknown));
    Section& section = request->sections[request->SectionOf(handle, unknown)];
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
      if (apply != nullptr || edge->dst()->type_string() != kApply) {
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
    const Place& place = places_[*reserve];
    Node* const apply = ApplyOf(*reserve);
    const std::string& ps = reserve->assigned_device_name();
    std::string rule;
    TF_RETURN_IF_ERROR(GetNodeAttr(reserve->attrs(), "rule", &rule));
    if (!place.can_join() || apply == nullptr || !places_[*apply].can_join() ||
        apply->assigned_device_name() != ps || IsPerOccurrence(rule)) {
      return Status();
    }
    int n;
    TF_RETURN_IF_ERROR(GetNodeAttr(reserve->attrs(), "N", &n));
    std::vector<std::vector<Output>> lists(2 * n);
    for (int i = 0; i < 2 * n; ++i) {
      Output keys;
      TF_RETURN_IF_ERROR(InputOf(*reserve, n + i, &keys));
      TF_RETURN_IF_ERROR(AppendSources(keys, &lists[i]));
    }
    std::string worker;
    int level = 0;
    if (!ComeFromOneWorker(lists, ps, &worker, &level)) return Status();
    Request* request = FindRequest(worker, ps, level, place);
    if (request == nullptr) {
      alone_.push_back(NewRequest(place.level, worker, ps));
      request = alone_.back().get();
    }
    Update update{reserve, apply, {}, {}, request->level == place.level};
    for (int i = 0; i < n; ++i) {
      Output handle;
      TF_RETURN_IF_ERROR(InputOf(*reserve, i, &handle));
      const int section = request->SectionOf(handle, "");
      update.sections.push_back(section);
      update.gradient_lists.emplace_back();
      for (const Output& keys : lists[i]) {
        update.gradient_lists.back().push_back(
            request->AddList(keys, section, "gradient"));
      }
      for (const Output& keys : lists[n + i]) {
        request->AddList(keys, section, "counted");
      }
    }
    request->updates.push_back(std::move(update));
    return Status();
  }

  // Whether the lists, which are not all constant, are on one worker. Sets the
  // highest level of their nodes.
  bool ComeFromOneWorker(const std::vector<std::vector<Output>>& lists,
                         const std::string& ps, std::string* worker,
                         int* level) const {
    for (const std::vector<Output>& of_table : lists) {
      for (const Output& keys : of_table) {
        if (IsConstant(keys)) continue;
        const std::string& device = keys.node->assigned_device_name();
        if (!AreDifferentTasks(device, ps)) return false;
        if (!worker->empty() && *worker != device) return false;
        *worker = device;
        const Place& place = places_[*keys.node];
        *level = std::max(*level, place.level + IsStage(*keys.node));
      }
    }
    return !worker->empty();
  }

  // The request that an update joins: lists of `level` are known before its
  // lookups, and none of them depends on the reservation.
  Request* FindRequest(const std::string& worker, const std::string& ps,
                       int level, const Place& reservation) {
    for (; level <= reservation.level; ++level) {
      const auto found = requests_.find({level, worker, ps, reservation.feeds});
      if (found != requests_.end()) return found->second.get();
    }
    return nullptr;
  }

  // Adds the keys of lookups that no gradient has brought.
  static Status AddListsOfLookups(Request* request) {
    for (Node* node : request->lookups) {
      Output handle, keys;
      std::string unknown;
      TF_RETURN_IF_ERROR(InputOf(*node, 0, &handle));
      TF_RETURN_IF_ERROR(InputOf(*node, 1, &keys));
      TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "unknown", &unknown));
      const int section = request->SectionOf(handle, unknown);
      // A list has the shape of its keys, which the values of a lookup need.
      const auto has_keys = [&](const List& list) {
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

  const Places places_;
  std::map<Key, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> alone_;
};

}  // namespace

int Request::SectionOf(const Output& handle, const std::string& unknown) {
  for (size_t i = 0; i < sections.size(); ++i) {
    Section& section = sections[i];
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

}  // namespace rec_estimator
