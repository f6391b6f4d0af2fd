// SPDX-License-Identifier: Apache-2.0
// Implements table_storage.h.
#include "ops/table/table_storage.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/tier/disk_tier.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/storage_status.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"

namespace rec_estimator {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::OpKernelConstruction;

namespace {

// A budget in the session's resource manager.
class BudgetResource : public tensorflow::ResourceBase {
 public:
  explicit BudgetResource(int64_t bytes)
      : budget_(std::make_shared<MemoryBudget>(bytes)) {}
  std::string DebugString() const override { return "memory of tables"; }
  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }

 private:
  const std::shared_ptr<MemoryBudget> budget_;
};

// Finds the budget of this size; the first call makes it.
Status FindBudget(OpKernelConstruction* context, int64_t bytes,
                  std::shared_ptr<MemoryBudget>* budget) {
  tensorflow::ResourceMgr* const resources = context->resource_manager();
  BudgetResource* found = nullptr;
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<BudgetResource>(
      resources->default_container(),
      StrCat("rec_estimator_memory_budget_", bytes), &found,
      [bytes](BudgetResource** created) {
        *created = new BudgetResource(bytes);
        return Status();
      }));
  *budget = found->budget();
  found->Unref();
  return Status();
}

}  // namespace

Status TableStorage::Read(OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("storage_paths", &storage_paths));
  TF_RETURN_IF_ERROR(context->GetAttr("memory_rows", &memory_rows));
  TF_RETURN_IF_ERROR(context->GetAttr("memory_bytes", &memory_bytes));
  TF_RETURN_IF_ERROR(context->GetAttr("memory_limit", &memory_limit));
  TF_RETURN_IF_ERROR(context->GetAttr("memory_budget", &memory_budget));
  TF_RETURN_IF_ERROR(context->GetAttr("spilled_first", &spilled_first));
  for (const std::string& path : storage_paths) {
    if (path.empty()) {
      return InvalidArgument(
          "storage_paths must be folders, got ''; '.' is the working folder");
    }
  }
  const int limits =
      (memory_rows != 0) + (memory_bytes != 0) + (memory_limit != 0);
  if (limits > (storage_paths.empty() ? 0 : 1)) {
    return InvalidArgument(
        storage_paths.empty()
            ? "memory_rows, memory_bytes and memory_limit must be 0 without "
              "storage_paths, got "
            : "one of memory_rows, memory_bytes and memory_limit must be above "
              "0 at most, got ",
        memory_rows, ", ", memory_bytes, " and ", memory_limit);
  }
  if (memory_budget == 0) return Status();
  if (memory_budget < 0 || !storage_paths.empty()) {
    return InvalidArgument(
        "memory_budget must be >= 0, and 0 with storage_paths, got ",
        memory_budget);
  }
  return FindBudget(context, memory_budget, &budget);
}

Status TableStorage::CheckSame(const std::string& name,
                               const TableStorage& given) const {
  const auto check = [&](const char* attr, const auto& present,
                         const auto& other) {
    if (present == other) return Status();
    return InvalidArgument(attr, " of table ", name, " must be ", present,
                           ", the value it was created with, got ", other,
                           "; give all graphs of a server the same");
  };
  const auto listed = [](const std::vector<std::string>& paths) {
    return StrCat("[", absl::StrJoin(paths, ", "), "]");
  };
  TF_RETURN_IF_ERROR(check("storage_paths", listed(storage_paths),
                           listed(given.storage_paths)));
  TF_RETURN_IF_ERROR(check("memory_rows", memory_rows, given.memory_rows));
  TF_RETURN_IF_ERROR(check("memory_bytes", memory_bytes, given.memory_bytes));
  TF_RETURN_IF_ERROR(check("memory_limit", memory_limit, given.memory_limit));
  TF_RETURN_IF_ERROR(
      check("memory_budget", memory_budget, given.memory_budget));
  return check("spilled_first", spilled_first, given.spilled_first);
}

Status TableStorage::Open(const std::string& name,
                          EmbeddingTable* table) const {
  if (budget != nullptr) table->ShareMemory(budget);
  if (storage_paths.empty()) return Status();
  TierSpec spec;
  spec.owner = StrCat("table ", name);
  spec.memory_rows = memory_rows;
  spec.memory_bytes = memory_bytes;
  spec.limit_bytes = memory_limit;
  spec.warn = [owner = spec.owner](const std::string& message) {
    LOG(WARNING) << owner << ": " << message;
  };
  spec.victims =
      spilled_first == "oldest" ? Victims::kOldest : Victims::kLeastCounted;
  for (const std::string& path : storage_paths) {
    const Status created =
        tensorflow::Env::Default()->RecursivelyCreateDir(path);
    if (!created.ok()) {
      return FailedPrecondition(spec.owner, ": storage path '", path,
                                "' must be a folder, got '", created.message(),
                                "'; create the folder or choose another path");
    }
    spec.paths.push_back({path});
  }
  DiskError error;
  if (!table->OpenTier(spec, std::make_unique<DiskIo>(), &error)) {
    return StorageStatus(error.fault, error.text);
  }
  const DiskLog& log = *table->tier()->log();
  LOG(INFO) << spec.owner << " keeps rows that do not fit into memory in "
            << absl::StrJoin(storage_paths, ", ") << ", reads them with "
            << log.reader_name()
            << (log.is_direct() ? "" : " through the page cache");
  return Status();
}

}  // namespace rec_estimator
