// SPDX-License-Identifier: Apache-2.0
// A TensorFlow V2 checkpoint as TablesSave writes it: in slices of tensors, by
// a thread of its own while the next slice is being gathered.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace rec_estimator {

// Rows [begin, begin + dim 0 of `rows`) of a tensor of `total` rows. A scalar
// is one row.
struct TensorRows {
  std::string name;
  int64_t total;
  int64_t begin;
  tensorflow::Tensor rows;
};

class CheckpointWriter {
 public:
  explicit CheckpointWriter(const std::string& prefix);
  // Removes what has been written, unless Finish() returned OK.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Writes these, in any order; all of an empty tensor must be added too.
  // Returns when what was added before is being written. May return the error
  // of an earlier call.
  tensorflow::Status Add(std::vector<TensorRows> slices);

  // Waits until all is written and puts the files in place.
  tensorflow::Status Finish();

 private:
  void WriteSlices();  // The thread.
  tensorflow::Status Write(const TensorRows& slice);
  void StartWriteback();
  void Join();
  // Files that BundleWriter has not finished: <file>.tempstate<number>.
  std::vector<std::string> Unfinished(const std::string& file) const;
  void RemoveFiles(bool placed);

  const std::string prefix_;
  int data_file_ = -1;     // Its descriptor; -1: not on a local disk.
  int64_t unflushed_ = 0;  // Bytes written since the last StartWriteback.
  tensorflow::BundleWriter writer_;  // The thread's, while there is one.
  bool finished_ = false;
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::vector<TensorRows> waiting_;
  bool no_more_ = false;
  tensorflow::Status status_;                   // Of the thread.
  std::unique_ptr<tensorflow::Thread> thread_;  // Last: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_
