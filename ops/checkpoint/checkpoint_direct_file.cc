// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint/checkpoint_direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ops/checkpoint/checkpoint_file.h"
#include "ops/core/base/cpu_memory.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/file_system.h"
#include "tensorflow/core/platform/path.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::tensorflow::Env;
using ::tensorflow::EnvWrapper;
using ::tensorflow::FileSystem;
using ::tensorflow::WritableFile;

// Unit of direct writes: a multiple of the blocks of all common disks.
constexpr size_t kBlock = 4096;
// Bytes of a write; larger ones are not faster.
constexpr size_t kBufferBytes = size_t{1} << 20;
// One that is filled, one that is written, and others that wait, so that the
// disk is busy while the checkpoint's next rows are gathered.
constexpr size_t kBuffers = 4;
static_assert(kBufferBytes >= kPageAlignedBytes, "direct writes need it");

// Copies to memory that only a disk reads. Stores that bypass the caches do not
// wait for lines that another processor has read for the disk.
void StreamCopy(const char* from, size_t n, char* to) {
#if defined(__SSE2__)
  constexpr size_t kStep = sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % kStep == 0) {
    const size_t streamed = n / kStep * kStep;
    for (size_t at = 0; at < streamed; at += kStep) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(to + at),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
    _mm_sfence();
    from += streamed;
    to += streamed;
    n -= streamed;
  }
#endif
  std::memcpy(to, from, n);
}

// One thread calls the methods; another one, which the first full buffer
// starts, writes.
class DirectFile : public WritableFile {
 public:
  explicit DirectFile(const std::string& name) : name_(name) {}
  ~DirectFile() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      no_more_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (file_ >= 0) close(file_);
  }

  // False: this file system or this process cannot; another way may.
  bool Create() {
    if (buffers_ == nullptr) return false;
    file_ =
        open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT,
             S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH);
    return file_ >= 0;
  }

  using WritableFile::Append;
  Status Append(absl::string_view data) override {
    while (!data.empty()) {
      const size_t n = std::min(data.size(), kBufferBytes - buffered_);
      StreamCopy(data.data(), n, Buffer(filled_) + buffered_);
      buffered_ += n;
      data.remove_prefix(n);
      if (buffered_ == kBufferBytes) TF_RETURN_IF_ERROR(StartNextBuffer());
    }
    return Status();
  }

  // The last block, if it is not full, goes through the page cache and stays
  // buffered, to be written again when it is.
  Status Flush() override {
    TF_RETURN_IF_ERROR(WaitForBuffers(0));
    char* const buffer = Buffer(filled_);
    const size_t last = buffered_ % kBlock;
    const size_t full = buffered_ - last;
    TF_RETURN_IF_ERROR(Write(buffer, full));
    std::memmove(buffer, buffer + full, last);
    buffered_ = last;
    if (last == 0) return Status();
    SetDirect(false);
    TF_RETURN_IF_ERROR(Write(buffer, last));
    written_ -= last;
    SetDirect(true);
    return Status();
  }

  Status Sync() override {
    TF_RETURN_IF_ERROR(Flush());
    return fdatasync(file_) == 0 ? Status() : Error(errno);
  }

  Status Close() override {
    if (file_ < 0) return Status();
    Status status = Flush();
    if (close(file_) != 0) status.Update(Error(errno));
    file_ = -1;
    return status;
  }

 private:
  char* Buffer(size_t number) const {
    return buffers_ + number % kBuffers * kBufferBytes;
  }

  Status StartNextBuffer() {
    // Env::StartThread would end the process if no thread can start.
    try {
      if (filled_ == 0) thread_ = std::thread([this] { WriteBuffers(); });
    } catch (const std::system_error&) {
    }
    if (!thread_.joinable()) return Flush();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++filled_;
    }
    buffered_ = 0;
    changed_.notify_all();
    return WaitForBuffers(kBuffers - 1);
  }

  // Waits until at most `most` buffers are not written, or one cannot be.
  Status WaitForBuffers(size_t most) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this, most] {
      return filled_ - emptied_ <= most || !status_.ok();
    });
    return status_;
  }

  void WriteBuffers() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] {
        return (emptied_ < filled_ && status_.ok()) || no_more_;
      });
      if (no_more_) return;
      const char* const buffer = Buffer(emptied_);
      lock.unlock();
      const Status status = Write(buffer, kBufferBytes);
      lock.lock();
      status_ = status;
      if (status.ok()) ++emptied_;
      changed_.notify_all();
    }
  }

  Status Write(const char* data, size_t n) {
    while (n > 0) {
      const ssize_t result = pwrite(file_, data, n, written_);
      if (result > 0) {
        data += result;
        n -= result;
        written_ += result;
      } else if (result == 0) {
        return Error(ENOSPC);
      } else if (errno == EINVAL && is_direct_) {
        // Blocks are larger, or a limit of the file's size is inside of one.
        SetDirect(false);
      } else if (errno != EINTR) {
        return Error(errno);
      }
    }
    return Status();
  }

  void SetDirect(bool is_direct) {
    is_direct_ =
        fcntl(file_, F_SETFL, is_direct ? O_DIRECT : 0) == 0 && is_direct;
  }

  Status Error(int error) const {
    return tensorflow::errors::IOError(name_, error);
  }

  const std::string name_;
  int file_ = -1;  // -1: not open.
  // In huge pages: a disk writes contiguous memory faster.
  const ZeroedMemory memory_ =
      AllocateZeroed(kBuffers * kBufferBytes, Pages::kHuge);
  char* const buffers_ = static_cast<char*>(memory_.get());
  size_t buffered_ = 0;  // Bytes in the buffer that is filled.
  // The thread uses these until all buffers are written.
  off_t written_ = 0;
  bool is_direct_ = true;
  std::thread thread_;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  size_t filled_ = 0;   // Buffers so far,
  size_t emptied_ = 0;  // and those of them that were written.
  Status status_;       // The thread's result.
  bool no_more_ = false;
};

class DirectFileSystem : public tensorflow::WrappedFileSystem {
 public:
  explicit DirectFileSystem(FileSystem* local)
      : WrappedFileSystem(local, nullptr), local_(local) {}

  using WrappedFileSystem::NewWritableFile;
  Status NewWritableFile(const std::string& name,
                         tensorflow::TransactionToken* token,
                         std::unique_ptr<WritableFile>* file) override {
    TF_RETURN_IF_ERROR(CheckRegular(name));
    auto direct = std::make_unique<DirectFile>(name);
    if (!direct->Create()) return local_->NewWritableFile(name, token, file);
    *file = std::move(direct);
    return Status();
  }

 private:
  FileSystem* const local_;
};

class DirectFiles : public EnvWrapper {
 public:
  DirectFiles() : EnvWrapper(Env::Default()) {}

  Status GetFileSystemForFile(const std::string& name,
                              FileSystem** file_system) override {
    absl::string_view scheme, host, path;
    tensorflow::io::ParseURI(name, &scheme, &host, &path);
    if (!scheme.empty() || local_ == nullptr) {
      return target()->GetFileSystemForFile(name, file_system);
    }
    *file_system = local_.get();
    return Status();
  }

 private:
  static std::unique_ptr<FileSystem> Local() {
    FileSystem* local;
    if (!Env::Default()->GetFileSystemForFile("/", &local).ok()) return nullptr;
    return std::make_unique<DirectFileSystem>(local);
  }

  const std::unique_ptr<FileSystem> local_ = Local();
};

}  // namespace

Env* DirectEnv() {
  static Env* const env = new DirectFiles;
  return env;
}

}  // namespace rec_estimator
