// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/log_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>

#include "ops/core/base/crc32c.h"

namespace rec_estimator {
namespace {

constexpr char kMagic[16] = "recestimator/1\n";
constexpr char kPrefix[] = "rec_estimator-";
constexpr char kSuffix[] = ".rows";
constexpr size_t kIdDigits = 16;
// Names that may be taken before an error is certain.
constexpr int kAttempts = 8;

struct FileHeader {
  char magic[sizeof(kMagic)];
  uint64_t run_id;
  int64_t process;
  int64_t created;    // Seconds since 1970.
  uint32_t checksum;  // Covers all of the above.
};
static_assert(sizeof(FileHeader) <= LogFile::kHeaderBytes, "fits");

uint32_t ChecksumOf(const FileHeader& header) {
  return ExtendCrc32c(0, &header, offsetof(FileHeader, checksum));
}

uint64_t RandomId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

bool IsLogName(const std::string& name) {
  const size_t prefix = sizeof(kPrefix) - 1;
  return name.size() == prefix + kIdDigits + sizeof(kSuffix) - 1 &&
         name.compare(0, prefix, kPrefix) == 0 &&
         name.compare(prefix + kIdDigits, std::string::npos, kSuffix) == 0 &&
         name.find_first_not_of("0123456789abcdef", prefix) ==
             prefix + kIdDigits;
}

// Whether an open file was made by LogFile: it has a header, or the process was
// killed before it wrote one.
bool IsLog(int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  if (status.st_size == 0) return true;
  FileHeader header;
  if (pread(file, &header, sizeof(header), 0) != sizeof(header)) return false;
  return std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
         header.checksum == ChecksumOf(header);
}

// Returns 0 or errno.
int WriteHeader(int file, uint64_t run_id) {
  char block[LogFile::kHeaderBytes] = {};
  FileHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.run_id = run_id;
  header.process = getpid();
  header.created = static_cast<int64_t>(std::time(nullptr));
  header.checksum = ChecksumOf(header);
  std::memcpy(block, &header, sizeof(header));
  const ssize_t written = pwrite(file, block, sizeof(block), 0);
  if (written < 0) return errno;
  return written == sizeof(block) ? 0 : ENOSPC;
}

// Creates a file and locks it. Returns its descriptor, or -errno. -EAGAIN:
// DeleteStaleFiles of another process saw it before it was locked.
int CreateLocked(const std::string& path) {
  const int file =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
           S_IRUSR | S_IWUSR);
  if (file < 0) return -errno;
  struct stat status;
  const bool is_locked = flock(file, LOCK_EX | LOCK_NB) == 0;
  const int error = is_locked || errno == EWOULDBLOCK ? EAGAIN : errno;
  if (is_locked && fstat(file, &status) == 0 && status.st_nlink > 0) {
    return file;
  }
  unlink(path.c_str());
  close(file);
  return -error;
}

}  // namespace

DiskError DiskErrorOf(const std::string& must, int error) {
  const std::string text = must + ", got '" +
                           std::generic_category().message(error) +
                           "' (errno " + std::to_string(error) + "); ";
  const auto failed = [&](const char* remedy) -> DiskError {
    return {StorageFault::kFailed, text + remedy};
  };
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return {StorageFault::kNoSpace, text + "free space there or add a path"};
    case EACCES:
    case EPERM:
    case EROFS:
      return failed("make it writable or choose another path");
    case ENOENT:
    case ENOTDIR:
      return failed("create the folder or choose another path");
    case EIO:
      return failed("check the disk (dmesg, smartctl) or choose another path");
    default:
      return failed("check the path and its disk");
  }
}

int DeleteStaleFiles(const std::string& directory) {
  DIR* const folder = opendir(directory.c_str());
  if (folder == nullptr) return 0;
  int deleted = 0;
  while (const dirent* entry = readdir(folder)) {
    if (!IsLogName(entry->d_name)) continue;
    const std::string path = directory + "/" + entry->d_name;
    const int file =
        open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    // The lock is held until the file is gone, so that a process that has just
    // created it notices.
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && IsLog(file)) {
      deleted += unlink(path.c_str()) == 0;
    }
    close(file);
  }
  closedir(folder);
  return deleted;
}

std::unique_ptr<LogFile> LogFile::Create(const std::string& directory,
                                         DiskError* error) {
  DeleteStaleFiles(directory);
  const std::string must =
      "storage path '" + directory + "' must be a folder with room for files";
  int result = -EEXIST;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t run_id = RandomId();
    char name[sizeof(kPrefix) + kIdDigits + sizeof(kSuffix)];
    std::snprintf(name, sizeof(name), "%s%016" PRIx64 "%s", kPrefix, run_id,
                  kSuffix);
    const std::string path = directory + "/" + name;
    result = CreateLocked(path);
    if (result == -EAGAIN || result == -EEXIST) continue;
    if (result < 0) break;
    std::unique_ptr<LogFile> file(new LogFile(result, path, run_id));
    result = -WriteHeader(file->file_, run_id);
    if (result < 0) break;
    file->is_direct_ = fcntl(file->file_, F_SETFL, O_DIRECT) == 0;
    return file;
  }
  *error = DiskErrorOf(must, -result);
  return nullptr;
}

LogFile::LogFile(int file, const std::string& path, uint64_t run_id)
    : file_(file), path_(path), run_id_(run_id), owner_(getpid()) {}

LogFile::~LogFile() {
  // A process that was forked leaves the file to its parent.
  if (getpid() == owner_) unlink(path_.c_str());
  close(file_);
}

}  // namespace rec_estimator
