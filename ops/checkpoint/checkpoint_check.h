// SPDX-License-Identifier: Apache-2.0
// Restore, before step 4: what is restored into a table, and whether it can be.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHECK_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace rec_estimator {

// The value of the attribute version with which keys keep their versions.
constexpr int64_t kStoredVersion = -2;

// The attributes of an op that restores a table.
struct RestoreRequest {
  std::string name;  // The logical table's name in the checkpoint.
  KeyRules rules{0, 1, tensorflow::DT_INT64};
  std::vector<SlotSpec> slots;
  int64_t version = kStoredVersion;  // What every key gets.
  // Floats of a row and of each slot in the checkpoint; empty: those of the
  // table.
  std::vector<int64_t> stored_widths;

  bool reads_versions() const { return version == kStoredVersion; }
};

absl::Status ReadRequest(tensorflow::OpKernelConstruction* context,
                         RestoreRequest* request);

// Reads the bank of the last checkpoint that has one. Leaves `bank` empty if
// there is none.
absl::Status ReadBank(const std::vector<Link>& chain, const std::string& name,
                      int64_t dim, std::vector<float>* bank);

// Checks that a chain of checkpoints can be restored into a table. Changes
// nothing. Reads the index, and values only if the table stores them in fewer
// bits.
class RestoreCheck {
 public:
  // The arguments outlive this.
  RestoreCheck(TableResource& resource, const RestoreRequest& request)
      : resource_(resource), request_(request) {}

  // Checks the types and shapes of all tensors that a restore reads, and
  // CheckRoom. all_keys: also reads all keys and counts. Otherwise reads those
  // that the table may refuse.
  absl::Status Run(const std::vector<Link>& chain, bool all_keys);

  // A sentence on the counts that a restore drops. Empty: none.
  const std::string& loss() const { return loss_; }

  // Checks that the rows of the chain fit into the table.
  absl::Status CheckRoom(const std::vector<Link>& chain);

 private:
  using VisitKey = std::function<void(int64_t key, int64_t freq)>;

  absl::Status CheckShard(CheckpointFile* file, const StoredShard& shard,
                          bool is_delta, bool reads_keys);
  // Checks that the table can hold the values of a shard.
  absl::Status CheckValues(CheckpointFile* file, const StoredShard& shard);
  // Calls visit(key, freq) for the keys of a tensor that belong to the table.
  // freq is 0 if the file has none.
  absl::Status ForEachKey(CheckpointFile* file, const StoredShard& shard,
                          const char* keys, const char* freqs,
                          const VisitKey& visit);
  // Calls visit(file, shard, is_delta) for the shards of the chain that may
  // have keys of the table, those of the newest checkpoint first.
  using VisitShard =
      std::function<absl::Status(CheckpointFile*, const StoredShard&, bool)>;
  absl::Status ForEachShard(const std::vector<Link>& chain,
                            const VisitShard& visit);
  // A number that the table's rows do not exceed. Reads no keys.
  absl::Status MostRows(const std::vector<Link>& chain, int64_t* rows);
  // Counts the rows that the table will have. Needs memory for the keys of the
  // deltas.
  absl::Status CountRows(const std::vector<Link>& chain, int64_t* rows);

  TableResource& resource_;
  const RestoreRequest& request_;
  std::string loss_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHECK_H_
