// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_chain.h: follows parents from a checkpoint to the full
// one.
#include "ops/checkpoint/checkpoint_chain.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/core/table/embedding_table.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/lib/io/path.h"

namespace rec_estimator {

using ::absl::Status;
using ::absl::StrCat;

namespace {

// Longer chains are an error.
constexpr size_t kMaxChainLength = 10000;

// Reads a string of one shard, '' if the shard has none. DataLoss unless it
// equals that of the first shard, which is stored in `value`.
Status ReadSharedString(CheckpointFile* file, const StoredShard& shard,
                        const char* suffix, std::string* value) {
  const std::string name = shard.name + suffix;
  std::string read;
  if (file->Has(name)) TF_RETURN_IF_ERROR(file->ReadString(name, &read));
  if (shard.number == 0) *value = read;
  if (read == *value) return Status();
  return DataLoss("tensor ", name, " of ", file->prefix(),
                  " must be the same for all shards, '", *value, "', got '",
                  read, "'; the file is damaged");
}

// DataLoss if the shard is of a delta and does not name its parent. Without its
// parent it would be taken for a full checkpoint.
Status CheckNamesParent(const CheckpointFile& file, const StoredShard& shard) {
  if (file.Has(shard.name + kDeltaOf)) return Status();
  for (const char* suffix : {kKeysErased, kDeltaOfIndex}) {
    if (!file.Has(shard.name + suffix)) continue;
    return DataLoss("checkpoint ", file.prefix(), " has tensor ", shard.name,
                    suffix, " without ", shard.name, kDeltaOf,
                    "; the file is damaged");
  }
  return Status();
}

// DataLoss unless `file` is the parent of the delta `link`, in which the table
// is `child`.
Status CheckParent(const CheckpointFile& file, const StoredTable& child,
                   const Link& link) {
  // Older releases stored no identity. Then only the name can be checked.
  if (child.delta_of_index.empty() || child.delta_of_index == file.identity()) {
    return Status();
  }
  return DataLoss(
      "checkpoint ", file.prefix(),
      " was written again or exchanged: ", link.prefix,
      " holds the changes to one whose index has the identity ",
      child.delta_of_index, ", got ", file.identity(),
      "; bring back its files, or restore a checkpoint that does not build on "
      "it");
}

}  // namespace

Status FindStoredTable(CheckpointFile* file, const std::string& name,
                       StoredTable* table) {
  std::vector<StoredShard>& shards = table->shards;
  if (file->Has(name + kKeys)) {
    shards.push_back({name, 0, 1});
  } else {
    // A table never has more shards than there are key classes.
    for (int64_t part = 0; part < kKeyClasses; ++part) {
      const std::string source = StrCat(name, "/part_", part);
      if (!file->Has(source + kKeys)) continue;
      if (part != static_cast<int64_t>(shards.size())) {
        return DataLoss(
            "checkpoint ", file->prefix(), " has ", source, "-keys but no ",
            name, "/part_", shards.size(),
            "-keys: shards are missing; restore a whole checkpoint");
      }
      shards.push_back({source, part, 0});
    }
  }
  if (shards.empty()) {
    return NotFound("table ", name, " must be in checkpoint ", file->prefix(),
                    " as ", name, "-keys or ", name,
                    "/part_0-keys, got a file with tables ",
                    file->TableNames());
  }
  for (StoredShard& shard : shards) {
    shard.count = shards.size();
    TF_RETURN_IF_ERROR(CheckNamesParent(*file, shard));
    TF_RETURN_IF_ERROR(
        ReadSharedString(file, shard, kDeltaOf, &table->delta_of));
    TF_RETURN_IF_ERROR(
        ReadSharedString(file, shard, kDeltaOfIndex, &table->delta_of_index));
    TF_RETURN_IF_ERROR(
        ReadSharedString(file, shard, kVersionUnit, &table->version_unit));
  }
  const std::string& unit = table->version_unit;
  if (unit.empty() || unit == kSteps || unit == kSeconds) return Status();
  return DataLoss("tensor ", shards[0].name, kVersionUnit, " of ",
                  file->prefix(), " must be '", kSteps, "' or '", kSeconds,
                  "', got '", unit,
                  "'; the file is damaged or of a later release");
}

std::string UnitOfVersions(const CheckpointFile& file, const StoredTable& table,
                           const std::string& present) {
  if (!table.version_unit.empty()) return table.version_unit;
  if (!file.Has(kTimestamp) || file.HasSuffix(kVersionUnit)) return kSteps;
  return present.empty() ? kSeconds : present;
}

Status FindChain(const std::string& prefix, const std::string& name,
                 std::vector<Link>* chain) {
  std::set<std::string> seen;
  const std::string folder(tensorflow::io::Dirname(prefix));
  std::string next = prefix;
  StoredTable child;
  for (;;) {
    CheckpointFile file(next);
    const Status status = file.Open();
    if (!status.ok()) {
      if (chain->empty() || !absl::IsNotFound(status)) {
        return status;
      }
      return NotFound("checkpoint ", next, ", to which ", chain->back().prefix,
                      " holds the changes, is missing; copy its files to the "
                      "same folder, or restore another checkpoint; ",
                      status.message());
    }
    if (!chain->empty()) {
      TF_RETURN_IF_ERROR(CheckParent(file, child, chain->back()));
    }
    StoredTable table;
    TF_RETURN_IF_ERROR(FindStoredTable(&file, name, &table));
    chain->push_back({next, file.identity()});
    seen.insert(std::string(tensorflow::io::Basename(next)));
    if (table.delta_of.empty()) break;
    if (table.delta_of.find('/') != std::string::npos ||
        !seen.insert(table.delta_of).second ||
        chain->size() > kMaxChainLength) {
      return DataLoss(
          "tensor ", table.shards[0].name, kDeltaOf, " of ", next,
          " must name a checkpoint in the same folder that leads to "
          "a full one in at most ",
          kMaxChainLength, " steps, got ", table.delta_of,
          "; the file is damaged");
    }
    next = tensorflow::io::JoinPath(folder, table.delta_of);
    child = std::move(table);
  }
  std::reverse(chain->begin(), chain->end());
  return Status();
}

Status OpenLink(const Link& link, CheckpointFile* file) {
  TF_RETURN_IF_ERROR(file->Open());
  if (file->identity() == link.identity) return Status();
  return FailedPrecondition(
      "checkpoint ", link.prefix,
      " must not change while it is restored, with an index of identity ",
      link.identity, ", got ", file->identity(), "; restore again");
}

}  // namespace rec_estimator
