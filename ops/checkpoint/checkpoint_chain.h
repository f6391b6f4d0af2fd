// SPDX-License-Identifier: Apache-2.0
// Restore, step 1: finds the checkpoints that make up a table. These are a full
// checkpoint and the deltas that incremental saves wrote after it. Each delta
// names its parent.
//
//   model-100 <-- model-110 <-- model-120        -delta_of: model-110
//    (full)        (delta)       (delta)         -delta_of_index: 1234-9a8b7c6d
//
// The name alone is not enough: if model-100 is overwritten, its deltas would
// be applied to the wrong rows. Therefore each delta also stores the identity
// of its parent's index, and a chain with a mismatch is an error.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_rows.h"

namespace rec_estimator {

// A table in a checkpoint.
struct StoredTable {
  std::vector<StoredShard> shards;
  std::string delta_of;        // Name of the parent; '' in a full checkpoint.
  std::string delta_of_index;  // Identity of the parent's index; '' if unknown.
  std::string version_unit;    // kSteps or kSeconds; '' if not in the file.
};

// A checkpoint of a chain and its identity when the chain was found.
struct Link {
  std::string prefix;
  std::string identity;
};

// Finds the table's shards in an open file. NotFound if all are missing.
// DataLoss if some are, or if a delta does not name its parent.
absl::Status FindStoredTable(CheckpointFile* file, const std::string& name,
                             StoredTable* table);

// What the versions of a table in a checkpoint count. Without the tensor they
// are steps. Older releases wrote it for no table, and with kTimestamp their
// versions may be seconds: then they have the unit of the table that is
// restored, `present`, and are seconds if that is ''.
std::string UnitOfVersions(const CheckpointFile& file, const StoredTable& table,
                           const std::string& present);

// Finds the checkpoints that make up the table: the full one first, then the
// deltas in the order in which they are applied.
absl::Status FindChain(const std::string& prefix, const std::string& name,
                       std::vector<Link>* chain);

// Opens a checkpoint of a chain again. FailedPrecondition if it was overwritten
// since FindChain.
absl::Status OpenLink(const Link& link, CheckpointFile* file);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_
