// SPDX-License-Identifier: Apache-2.0
// Save by rec_estimator.Saver, step 2: writes slices of tensors to a TensorFlow
// V2 checkpoint. A separate thread writes while the caller gathers the next
// slices. If the process may not start one more thread, the caller writes.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace rec_estimator {

// A slice: rows [begin, begin + rows.dim_size(0)) of a tensor of `total` rows.
// A scalar counts as one row.
struct TensorRows {
  std::string name;
  int64_t total;
  int64_t begin;
  tensorflow::Tensor rows;
};

// Writes one checkpoint. Add() and Finish() are called by one thread.
class CheckpointWriter {
 public:
  // `env` creates the files.
  CheckpointWriter(tensorflow::Env* env, const std::string& prefix);
  // Removes the written files unless Finish() returned OK.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Queues slices for writing, in any order. A tensor without rows needs one
  // empty slice. Waits until the thread has taken the slices of the previous
  // call. Returns the first error of the thread so far.
  absl::Status Add(std::vector<TensorRows> slices);

  // Waits until all slices are written and moves the files into place.
  absl::Status Finish();

 private:
  void WriteAll();  // Runs on the thread.
  absl::Status WriteSlices(const std::vector<TensorRows>& slices);
  absl::Status Write(const TensorRows& slice);
  void StartWriteback();
  void Join();
  // Temporary files of BundleWriter: <file>.tempstate<number>.
  std::vector<std::string> TemporaryFiles(const std::string& file) const;
  // Removes the temporary files and, if `moved`, the final ones.
  void RemoveFiles(bool moved);

  const std::string prefix_;
  int data_file_ = -1;     // File descriptor; -1 if not on a local disk.
  int64_t unflushed_ = 0;  // Bytes written since the last StartWriteback().
  tensorflow::BundleWriter writer_;  // Used by the thread until it ends.
  bool finished_ = false;
  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::vector<TensorRows> waiting_;  // Added and not yet taken by the thread.
  bool no_more_ = false;             // No Add() follows.
  absl::Status status_;              // First error of the thread.
  std::thread thread_;               // Last: it uses the others.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_WRITER_H_
