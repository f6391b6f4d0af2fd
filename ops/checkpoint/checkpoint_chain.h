// SPDX-License-Identifier: Apache-2.0
// Which checkpoints make up a table: a full one and, where it was saved
// incrementally, the changes to it, each of which names the one before.
//
//   model-100 <-- model-110 <-- model-120        -delta_of: model-110
//    (full)        (delta)       (delta)         -delta_of_index: 1234-9a8b7c6d
//
// A name is not enough: whoever writes model-100 anew, without knowing of the
// others, would make their rows a mixture. So each says as well what the index
// of the one before was, and a chain whose links do not fit is an error.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_

#include <string>
#include <vector>

#include "ops/checkpoint/checkpoint_file.h"
#include "ops/checkpoint/checkpoint_rows.h"
#include "tensorflow/core/platform/status.h"

namespace rec_estimator {

// A table in a checkpoint: what the file calls its shards, the checkpoint that
// this one is a change to, or '', and the identity of that one's index, '' in
// files that were written before there was any.
struct StoredTable {
  std::vector<StoredShard> shards;
  std::string delta_of;
  std::string delta_of_index;
};

// A checkpoint of a chain, as it was when the chain was found.
struct Link {
  std::string prefix;
  std::string identity;
};

// The table's shards in an open file. DataLoss if one is missing, NotFound if
// all are.
tensorflow::Status FindStored(CheckpointFile* file, const std::string& name,
                              StoredTable* table);

// The checkpoints that make up the table: the full one, then changes, in order.
tensorflow::Status FindChain(const std::string& prefix, const std::string& name,
                             std::vector<Link>* chain);

// Opens a link of a chain again, which must not have been written meanwhile.
tensorflow::Status OpenLink(const Link& link, CheckpointFile* file);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_CHAIN_H_
