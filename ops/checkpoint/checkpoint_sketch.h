// SPDX-License-Identifier: Apache-2.0
// Restore, a part of step 4: the counts in a table's sketch.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_SKETCH_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_SKETCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/core/filter/sketch.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"

namespace rec_estimator {

// Reads the tensors of the sketch from a chain of checkpoints into a table that
// no other thread changes meanwhile, or only checks them. Does nothing for a
// table without a sketch, or with one that is not saved.
class SketchRestore {
 public:
  // `resource` outlives this. table: nullptr: only check.
  SketchRestore(TableResource& resource, EmbeddingTable* table)
      : resource_(resource), sketch_(resource.table().sketch()), table_(table) {
    if (sketch_ != nullptr) format_ = sketch_->format();
  }

  // Whether the sketch counts the filtered keys of a shard. If the file has a
  // sketch, that holds the counts, and the filtered keys are those that could
  // not be removed from it.
  bool CountsFiltered(const CheckpointFile& file,
                      const StoredShard& shard) const {
    return sketch_ != nullptr && !HasSketch(file, shard);
  }

  // Checks the types and shapes of the tensors of a shard. `loss` gets a
  // sentence if the restore will drop counts of the shard.
  absl::Status Check(CheckpointFile* file, const StoredShard& shard,
                     std::string* loss) const;

  // Finds what each stored shard holds at the end of the chain. To be called
  // before Read: counts of an earlier link may have aged until then.
  absl::Status FindLast(const std::vector<Link>& chain,
                        const std::string& name);

  // Reads the counts of a shard. A table with a sketch that cannot take over
  // the layout, or without one, drops the counts.
  absl::Status Read(CheckpointFile* file, const StoredShard& shard);

 private:
  // The heads of a stored shard, and the number of its rows.
  struct Stored {
    Sketch::Format format;
    Sketch::Heads heads;
    int64_t rows = 0;
  };

  bool HasSketch(const CheckpointFile& file, const StoredShard& shard) const {
    return !format_.heads.empty() &&
           file.Has(shard.name + format_.heads[0].suffix);
  }
  // Leaves `stored` empty if the file has no sketch, or one of a layout that
  // the table cannot take over; `loss` gets a sentence on that.
  absl::Status ReadHeads(CheckpointFile* file, const StoredShard& shard,
                         std::optional<Stored>* stored,
                         std::string* loss) const;
  std::string Loss(const CheckpointFile& file, const StoredShard& shard,
                   const std::string& why) const;
  absl::Status ReadHead(CheckpointFile* file, const StoredShard& shard,
                        const Sketch::Tensor& head,
                        std::vector<int64_t>* numbers) const;
  absl::Status OpenColumns(CheckpointFile* file, const StoredShard& shard,
                           const Stored& stored,
                           std::vector<RowStream>* columns) const;
  absl::Status ReadRows(const CheckpointFile& file, const StoredShard& shard,
                        const Stored& stored,
                        std::vector<RowStream>* columns) const;
  // DataLoss, if there is a damage.
  static absl::Status Damaged(const CheckpointFile& file,
                              const StoredShard& shard,
                              const std::optional<Sketch::Damage>& damage);

  TableResource& resource_;
  const Sketch* const sketch_;  // nullptr: none.
  Sketch::Format format_;
  EmbeddingTable* const table_;
  // The stored shards by name, at the end of the chain.
  std::map<std::string, Stored> last_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_SKETCH_H_
