// SPDX-License-Identifier: Apache-2.0
// To be preloaded: kills the process in a compaction of rows on disk. Only a
// compaction reads a segment, of at least 1 MiB, at once.
//   KILL_AFTER_SEGMENTS  the segment, counted from 1, that is the last one read
//   KILL_IN              "read": when it was read; "write": in the middle of
//                        the next write
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kSegment = size_t{1} << 20;

std::atomic<int> segments{0};

bool IsRowsFile(int file) {
  const char link[] = "/proc/self/fd/";
  char name[64], path[4096];
  char* end = name + sizeof(name) - 1;
  *end = '\0';
  for (int rest = file; rest > 0 || end[0] == '\0'; rest /= 10) {
    *--end = static_cast<char>('0' + rest % 10);
  }
  end -= sizeof(link) - 1;
  std::memcpy(end, link, sizeof(link) - 1);
  const ssize_t size = readlink(end, path, sizeof(path) - 1);
  if (size < 0) return false;
  path[size] = '\0';
  return std::strstr(path, ".rows") != nullptr;
}

bool IsLast(const char* where) {
  static const int last = std::atoi(std::getenv("KILL_AFTER_SEGMENTS"));
  return segments >= last && std::strcmp(std::getenv("KILL_IN"), where) == 0;
}

}  // namespace

extern "C" {

ssize_t pread64(int file, void* to, size_t bytes, off64_t at) {
  const ssize_t n = syscall(SYS_pread64, file, to, bytes, at);
  if (bytes < kSegment || !IsRowsFile(file)) return n;
  ++segments;
  if (IsLast("read")) kill(getpid(), SIGKILL);
  return n;
}

ssize_t pread(int file, void* to, size_t bytes, off_t at) {
  return pread64(file, to, bytes, at);
}

ssize_t pwrite64(int file, const void* from, size_t bytes, off64_t at) {
  if (bytes >= kSegment && IsRowsFile(file) && IsLast("write")) {
    syscall(SYS_pwrite64, file, from, bytes / 2, at);
    kill(getpid(), SIGKILL);
  }
  return syscall(SYS_pwrite64, file, from, bytes, at);
}

ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) {
  return pwrite64(file, from, bytes, at);
}

}  // extern "C"
