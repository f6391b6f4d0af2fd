// SPDX-License-Identifier: Apache-2.0
// Decides which lookups and updates of a graph become one request to the tables
// of another task. pack_transfers_pass.cc explains requests.
#ifndef REC_ESTIMATOR_OPS_PASSES_TRANSFER_PLAN_H_
#define REC_ESTIMATOR_OPS_PASSES_TRANSFER_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/passes/graph_edits.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator::passes {

// A list of keys that the worker packs.
struct KeyList {
  tensorflow::OutputTensor keys;
  int section;
  const char* use;  // As KeysPack names it.
};

// The keys of one table.
struct KeySection {
  tensorflow::OutputTensor handle;
  std::string unknown;  // As its lookups say; empty: there is none.
  int64_t dim = 0;
  // The type in which its rows are sent.
  tensorflow::DataType value_dtype = tensorflow::DT_FLOAT;
};

// TablesReserve and TablesApply. By table: its section and its lists.
struct StepUpdate {
  tensorflow::Node* reserve;
  tensorflow::Node* apply;
  std::vector<int> sections;
  std::vector<std::vector<int>> gradient_lists;
  bool before_read;  // Whether TablesRead waits for it.
};

struct Request {
  int level;
  std::string worker, ps;
  std::vector<tensorflow::Node*> lookups;
  std::vector<int> list_of_lookup;
  std::vector<StepUpdate> updates;
  std::vector<KeySection> sections;
  std::vector<KeyList> lists;

  // The section of a table for lookups with this `unknown`; empty: for any of
  // its lookups. Adds it if there is none.
  int SectionOf(const tensorflow::OutputTensor& handle,
                const std::string& unknown);
  int AddList(const tensorflow::OutputTensor& keys, int section,
              const char* use) {
    lists.push_back({keys, section, use});
    return static_cast<int>(lists.size()) - 1;
  }
};

// Constants can be copied to another task.
inline bool IsConstant(const tensorflow::OutputTensor& output) {
  return output.node->IsConstant();
}

absl::Status PlanTransfers(const tensorflow::Graph& graph,
                           std::vector<std::unique_ptr<Request>>* requests);

}  // namespace rec_estimator::passes

#endif  // REC_ESTIMATOR_OPS_PASSES_TRANSFER_PLAN_H_
