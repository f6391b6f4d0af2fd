// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_writer.h on TensorFlow's BundleWriter.
#include "ops/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <new>
#include <system_error>
#include <utility>

#include "ops/table/table_resource.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace rec_estimator {

using ::absl::Status;
using ::tensorflow::Env;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

namespace {

// Bytes after which the kernel is asked to start writing them to the disk.
constexpr int64_t kWritebackBytes = int64_t{32} << 20;

}  // namespace

CheckpointWriter::CheckpointWriter(Env* env, const std::string& prefix)
    : prefix_(prefix), writer_(env, prefix), status_(writer_.status()) {
  const std::vector<std::string> files =
      TemporaryFiles(tensorflow::DataFilename(prefix_, 0, 1));
  if (files.size() == 1) data_file_ = open(files[0].c_str(), O_WRONLY);
  // Env::StartThread would end the process if no thread can start.
  try {
    thread_ = std::thread([this] { WriteAll(); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.clear();
  }
  Join();
  if (data_file_ >= 0) close(data_file_);
  if (finished_) return;
  try {
    RemoveFiles(/*moved=*/false);
  } catch (const std::bad_alloc&) {  // The next save removes them.
  }
}

Status CheckpointWriter::Add(std::vector<TensorRows> slices) {
  if (!thread_.joinable()) {
    if (status_.ok()) status_ = WriteSlices(slices);
    return status_;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() || !status_.ok(); });
  TF_RETURN_IF_ERROR(status_);
  waiting_ = std::move(slices);
  changed_.notify_all();
  return Status();
}

void CheckpointWriter::WriteAll() {
  for (;;) {
    std::vector<TensorRows> slices;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !waiting_.empty() || no_more_; });
      if (waiting_.empty() || !status_.ok()) return;
      slices.swap(waiting_);
      changed_.notify_all();
    }
    const Status status = WriteSlices(slices);
    if (status.ok()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    changed_.notify_all();
    return;
  }
}

Status CheckpointWriter::WriteSlices(const std::vector<TensorRows>& slices) {
  for (const TensorRows& slice : slices) {
    TF_RETURN_IF_ERROR(OrStatus(slice.name, [&] { return Write(slice); }));
    unflushed_ += static_cast<int64_t>(slice.rows.TotalBytes());
    if (unflushed_ >= kWritebackBytes) StartWriteback();
  }
  return Status();
}

Status CheckpointWriter::Write(const TensorRows& slice) {
  const int64_t n = slice.rows.dims() == 0 ? 1 : slice.rows.dim_size(0);
  // A tensor of one slice is stored without slices, as a stock Saver does.
  if (n == slice.total) return writer_.Add(slice.name, slice.rows);
  TensorShape shape = slice.rows.shape();
  shape.set_dim(0, slice.total);
  TensorSlice extent(shape.dims());
  extent.set_start(0, slice.begin);
  extent.set_length(0, n);
  return writer_.AddSlice(slice.name, shape, extent, slice.rows);
}

// Linux starts writing by itself only when dirty pages reach a share of all
// memory. Without this call the disk would be idle until the whole file is
// written, and the Saver would then wait for it.
void CheckpointWriter::StartWriteback() {
  unflushed_ = 0;
#if defined(SYNC_FILE_RANGE_WRITE)
  // Only a hint. A disk error is returned by the write or the fsync.
  if (data_file_ >= 0) {
    sync_file_range(data_file_, 0, 0, SYNC_FILE_RANGE_WRITE);
  }
#endif
}

void CheckpointWriter::Join() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    no_more_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status CheckpointWriter::Finish() {
  Join();
  TF_RETURN_IF_ERROR(status_);
  const Status status = writer_.Finish();
  finished_ = true;
  // BundleWriter may have moved the data file but not the index.
  if (!status.ok()) RemoveFiles(/*moved=*/true);
  return status;
}

std::vector<std::string> CheckpointWriter::TemporaryFiles(
    const std::string& file) const {
  std::string folder(tensorflow::io::Dirname(file));
  if (folder.empty()) folder = ".";
  const std::string start =
      std::string(tensorflow::io::Basename(file)) + ".tempstate";
  std::vector<std::string> names, files;
  Env::Default()->GetChildren(folder, &names).IgnoreError();
  for (const std::string& name : names) {
    if (name.compare(0, start.size(), start) == 0) {
      files.push_back(tensorflow::io::JoinPath(folder, name));
    }
  }
  return files;
}

void CheckpointWriter::RemoveFiles(bool moved) {
  Env* env = Env::Default();
  for (const std::string& file : {tensorflow::MetaFilename(prefix_),
                                  tensorflow::DataFilename(prefix_, 0, 1)}) {
    for (const std::string& temporary : TemporaryFiles(file)) {
      env->DeleteFile(temporary).IgnoreError();
    }
    if (moved) env->DeleteFile(file).IgnoreError();
  }
}

}  // namespace rec_estimator
