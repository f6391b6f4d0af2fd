// SPDX-License-Identifier: Apache-2.0
// Restore, a part of step 4: the counts in a table's Bloom filter.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_BLOOM_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_BLOOM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/checkpoint/checkpoint_chain.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "ops/core/table/embedding_table.h"
#include "ops/table/table_resource.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// Reads the Bloom filter's blocks of a chain of checkpoints into a table that
// no other thread changes meanwhile, or only checks them.
class BloomRestore {
 public:
  using Generations = std::vector<EmbeddingTable::BloomGeneration>;

  // `resource` outlives this. table: nullptr: only check.
  BloomRestore(TableResource& resource, EmbeddingTable* table)
      : resource_(resource),
        layout_(resource.table().bloom_layout()),
        table_(table) {}

  // Whether the table has a Bloom filter.
  bool is_enabled() const { return layout_.blocks > 0; }

  // Finds the generations of each stored shard at the end of the chain. Blocks
  // of an earlier link have aged until then, or are forgotten. To be called
  // before Read.
  tensorflow::Status FindGenerations(const std::vector<Link>& chain,
                                     const std::string& name);

  // Reads the blocks of a shard. A table with another Bloom filter, or without
  // one, drops the counts.
  tensorflow::Status Read(CheckpointFile* file, const StoredShard& shard);

 private:
  template <typename Counter>
  tensorflow::Status ReadBlocks(CheckpointFile* file, const StoredShard& shard,
                                Counter*);
  // Reads the next blocks into the generation of this age; -1: only checks
  // them.
  template <typename Counter>
  tensorflow::Status ReadGeneration(const CheckpointFile& file,
                                    const StoredShard& shard, int64_t blocks,
                                    int age, RowStream* numbers,
                                    RowStream* counters);

  TableResource& resource_;
  const EmbeddingTable::BloomLayout layout_;
  EmbeddingTable* const table_;
  // Of the stored shards, by name, at the end of the chain.
  std::map<std::string, Generations> last_generations_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_BLOOM_H_
