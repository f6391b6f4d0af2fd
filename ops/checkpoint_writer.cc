// Slices to a BundleWriter, one after the other, on a thread of their own.
#include "checkpoint_writer.h"

#include <utility>

#include "table_resource.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace rec_estimator {

using ::tensorflow::Env;
using ::tensorflow::Status;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

CheckpointWriter::CheckpointWriter(const std::string& prefix)
    : prefix_(prefix),
      writer_(Env::Default(), prefix),
      status_(writer_.status()) {
  thread_.reset(Env::Default()->StartThread(tensorflow::ThreadOptions(),
                                            "rec_estimator_checkpoint_writer",
                                            [this] { WriteSlices(); }));
}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.clear();
  }
  Join();
  if (!finished_) RemoveFiles(/*placed=*/false);
}

Status CheckpointWriter::Add(std::vector<TensorRows> slices) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() || !status_.ok(); });
  TF_RETURN_IF_ERROR(status_);
  waiting_ = std::move(slices);
  changed_.notify_all();
  return Status();
}

void CheckpointWriter::WriteSlices() {
  for (;;) {
    std::vector<TensorRows> slices;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !waiting_.empty() || no_more_; });
      if (waiting_.empty() || !status_.ok()) return;
      slices.swap(waiting_);
      changed_.notify_all();
    }
    for (const TensorRows& slice : slices) {
      const Status status =
          OrResourceExhausted(slice.name, [&] { return Write(slice); });
      if (status.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      status_ = status;
      changed_.notify_all();
      return;
    }
  }
}

Status CheckpointWriter::Write(const TensorRows& slice) {
  const int64_t n = slice.rows.dims() == 0 ? 1 : slice.rows.dim_size(0);
  // So that a tensor of one slice is stored as anyone stores it.
  if (n == slice.total) return writer_.Add(slice.name, slice.rows);
  TensorShape shape = slice.rows.shape();
  shape.set_dim(0, slice.total);
  TensorSlice place(shape.dims());
  place.set_start(0, slice.begin);
  place.set_length(0, n);
  return writer_.AddSlice(slice.name, shape, place, slice.rows);
}

void CheckpointWriter::Join() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    no_more_ = true;
  }
  changed_.notify_all();
  thread_.reset();
}

Status CheckpointWriter::Finish() {
  Join();
  TF_RETURN_IF_ERROR(status_);
  const Status status = writer_.Finish();
  finished_ = true;
  // It may have put the data file in place, but not the index.
  if (!status.ok()) RemoveFiles(/*placed=*/true);
  return status;
}

// BundleWriter writes to <file>.tempstate<number> and renames.
void CheckpointWriter::RemoveFiles(bool placed) {
  Env* env = Env::Default();
  std::string folder(tensorflow::io::Dirname(prefix_));
  if (folder.empty()) folder = ".";
  std::vector<std::string> names;
  env->GetChildren(folder, &names).IgnoreError();
  for (const std::string& file : {tensorflow::MetaFilename(prefix_),
                                  tensorflow::DataFilename(prefix_, 0, 1)}) {
    const std::string name(tensorflow::io::Basename(file));
    const std::string unfinished = name + ".tempstate";
    for (const std::string& child : names) {
      if (child.compare(0, unfinished.size(), unfinished) == 0) {
        env->DeleteFile(tensorflow::io::JoinPath(folder, child)).IgnoreError();
      }
    }
    if (placed) env->DeleteFile(file).IgnoreError();
  }
}

}  // namespace rec_estimator
