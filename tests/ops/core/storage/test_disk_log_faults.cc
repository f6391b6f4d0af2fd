// SPDX-License-Identifier: Apache-2.0
// DiskLog when the disk fails: errors that name file and offset, no row lost.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/core/storage/disk_log.h"
#include "ops/core/storage/ordered_reader.h"
#include "tests/ops/core/storage/disk_rows.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr uint64_t kSegment = uint64_t{1} << 20;
constexpr size_t kPageRow = 1000;  // One a page.
// Rows that fill all buffers.
constexpr int64_t kBuffered = 4 * 256;

// Replaces bytes of a file behind the log's back.
void Overwrite(const std::string& path, uint64_t offset,
               const std::vector<char>& bytes) {
  const int file = open(path.c_str(), O_RDWR);
  EXPECT_EQ(
      pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
      static_cast<ssize_t>(bytes.size()));
  close(file);
}

std::vector<char> BytesOf(const std::string& path, uint64_t offset, size_t n) {
  std::vector<char> bytes(n);
  const int file = open(path.c_str(), O_RDONLY);
  EXPECT_EQ(pread(file, bytes.data(), n, static_cast<off_t>(offset)),
            static_cast<ssize_t>(n));
  close(file);
  return bytes;
}

TEST(AFailedWriteLosesNothingAndIsRepeated) {
  const Folder folder;
  FaultyIo::Faults faults;
  DiskRows rows({{folder.path()}}, kPageRow,
                std::make_unique<FaultyIo>(&faults));
  for (int good = 0; good < 6; ++good) {
    faults.writes = good;
    int64_t key = 0;
    while (rows.Put(key)) ++key;
    EXPECT_TRUE(Contains(rows.error(), folder.Files()[0]));
    EXPECT_TRUE(Contains(rows.error(), "at offset "));
    EXPECT_TRUE(Contains(rows.error(), "Input/output error"));
    EXPECT_TRUE(Contains(rows.error(), "check the disk"));
    rows.Check();
    EXPECT_FALSE(rows.Put(key));
    rows.Check();
    faults.writes = -1;
    EXPECT_TRUE(rows.Put(key));
    rows.Check();
  }
}

TEST(AFullPathIsFollowedByTheNextOne) {
  const Folder first, second;
  FaultyIo::Faults faults;
  faults.error = ENOSPC;
  DiskRows rows({{first.path()}, {second.path()}}, kPageRow,
                std::make_unique<FaultyIo>(&faults));
  EXPECT_TRUE(rows.PutAll(kBuffered));
  faults.writes = 0;
  EXPECT_FALSE(rows.Put(kBuffered));
  EXPECT_TRUE(Contains(rows.error(), second.path()));
  EXPECT_TRUE(Contains(rows.error(), "free space there or add a path"));
  rows.Check();
  faults.writes = -1;
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  rows.Check();
}

TEST(ARealLimitOfFileSizesIsAnErrorAndPasses) {
  const Folder folder;
  EXPECT_EQ(InChild([&] {
              DiskRows rows({{folder.path()}}, kPageRow);
              signal(SIGXFSZ, SIG_IGN);
              rlimit before, limit;
              getrlimit(RLIMIT_FSIZE, &before);
              limit = before;
              limit.rlim_cur = 4096 + 2 * kSegment + 4096;
              setrlimit(RLIMIT_FSIZE, &limit);
              int64_t key = 0;
              while (rows.Put(key)) ++key;
              EXPECT_EQ(key, kBuffered + 2 * 256);
              EXPECT_TRUE(Contains(rows.error(), "File too large"));
              rows.Check();
              setrlimit(RLIMIT_FSIZE, &before);
              EXPECT_TRUE(rows.PutAll(3 * kBuffered));
              rows.Check();
              return testing::Failures() == 0 ? 0 : 1;
            }),
            0);
}

TEST(AFullDiskIsAnErrorAndPasses) {
  const Folder folder;
  // Where mounting is not allowed, the two tests above have to do.
  EXPECT_EQ(
      InChild([&] {
        if (unshare(CLONE_NEWNS) != 0 ||
            mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("rows", folder.path().c_str(), "tmpfs", 0, "size=6m") != 0) {
          return 0;
        }
        folder.Write("other", std::string(3 * kSegment, 'x'));
        DiskRows rows({{folder.path()}}, kPageRow);
        int64_t key = 0;
        while (rows.Put(key)) ++key;
        EXPECT_TRUE(key >= kBuffered + 256);
        EXPECT_TRUE(Contains(rows.error(), "No space left on device"));
        rows.Check();
        unlink((folder.path() + "/other").c_str());
        for (int more = 0; more < 2 * 256; ++more) {
          EXPECT_TRUE(rows.Put(key + more));
        }
        rows.Check();
        return testing::Failures() == 0 ? 0 : 1;
      }),
      0);
}

TEST(AFailedReadNamesFileAndOffset) {
  const Folder folder;
  FaultyIo::Faults faults;
  DiskRows rows({{folder.path()}}, kPageRow,
                std::make_unique<FaultyIo>(&faults));
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  for (const int good : {0, 1, 40}) {
    faults.reads = good;
    std::vector<float> read(100 * kPageRow);
    std::vector<DiskLog::Item> items;
    // Neighbours would share a read.
    for (int64_t i = 0; i < 100; ++i) {
      items.push_back({rows.PlaceOf(2 * i), 2 * i, &read[i * kPageRow]});
    }
    DiskError error;
    EXPECT_FALSE(
        rows.log()->Read(items.data(), items.size(), kPageRow, &error));
    EXPECT_TRUE(Contains(error.text, folder.Files()[0]));
    EXPECT_TRUE(Contains(error.text, "Input/output error"));
    EXPECT_TRUE(Contains(
        error.text, "at offset " + std::to_string(4096 + good * 2 * 4096)));
    EXPECT_TRUE(error.fault == StorageFault::kFailed);
  }
  faults.reads = -1;
  rows.Check();
}

TEST(AFlippedBitIsFoundAndHarmsItsPageOnly) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  const std::string path = folder.Files()[0];
  std::mt19937 random(3);
  std::vector<float> row;
  for (int flip = 0; flip < 200; ++flip) {
    const int64_t key = random() % 256;  // In page `key` of the first segment.
    const uint64_t offset = 4096 + key * 4096 + random() % 4096;
    const std::vector<char> byte = BytesOf(path, offset, 1);
    Overwrite(path, offset, {static_cast<char>(byte[0] ^ 1 << random() % 8)});
    EXPECT_FALSE(rows.Read(key, &row));
    EXPECT_TRUE(Contains(rows.error(), path));
    EXPECT_TRUE(Contains(rows.error(),
                         "at offset " + std::to_string(4096 + key * 4096)));
    EXPECT_TRUE(Contains(rows.error(), "start again from the last checkpoint"));
    EXPECT_TRUE(rows.Read((key + 1) % 256, &row));
    Overwrite(path, offset, byte);
    EXPECT_TRUE(rows.Read(key, &row));
  }
  rows.Check();
}

TEST(ADamagedPageAheadFailsTheReadThatWantsIt) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  OrderedReader reader(rows.log(), kPageRow, size_t{4} << 20);
  const std::string path = folder.Files()[0];
  const std::vector<char> byte = BytesOf(path, 4096 + 6 * 4096, 1);
  Overwrite(path, 4096 + 6 * 4096, {static_cast<char>(byte[0] ^ 1)});
  DiskError error;
  EXPECT_TRUE(rows.ReadInOrder(4, &reader, &error));
  EXPECT_TRUE(rows.ReadInOrder(5, &reader, &error));
  EXPECT_FALSE(rows.ReadInOrder(6, &reader, &error));
  EXPECT_TRUE(Contains(error.text, "at offset " + std::to_string(7 * 4096)));
  EXPECT_TRUE(error.fault == StorageFault::kDamaged);
  EXPECT_TRUE(rows.ReadInOrder(7, &reader, &error));
  EXPECT_TRUE(rows.ReadInOrder(8, &reader, &error));
}

TEST(CompactionSparesADamagedSegmentAndMovesItsOtherRows) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(30 * 256));
  const std::string path = folder.Files()[0];
  Overwrite(path, 4096 + 40 * 4096 + 100, {1, 2, 3, 4, 5});
  uint64_t visited = 0;
  DiskError error;
  const auto count = [&](uint32_t, int64_t, const float*) { ++visited; };
  EXPECT_FALSE(rows.log()->ReadSegment(0, count, &error));
  EXPECT_EQ(visited, uint64_t{255});
  EXPECT_TRUE(
      Contains(error.text, "at offset " + std::to_string(4096 + 40 * 4096)));
  // It now has the fewest rows, and compaction is due.
  for (int64_t key = 0; key < 26 * 256; ++key) {
    if (key % (key < 256 ? 8 : 4) != 0) rows.Remove(key);
  }
  uint32_t segment = 0;
  EXPECT_TRUE(rows.log()->PickSegment(&segment));
  EXPECT_TRUE(segment != 0);
  std::vector<float> row;
  EXPECT_FALSE(rows.Read(40, &row));
  EXPECT_TRUE(rows.Read(48, &row));
}

TEST(ACompactionThatCannotWriteLosesNothing) {
  const Folder folder;
  FaultyIo::Faults faults;
  DiskRows rows({{folder.path()}}, kPageRow,
                std::make_unique<FaultyIo>(&faults));
  EXPECT_TRUE(rows.PutAll(30 * 256));
  for (int64_t key = 0; key < 30 * 256; ++key) {
    if (key % 3 != 0) rows.Remove(key);
  }
  faults.writes = 1;
  EXPECT_FALSE(rows.Compact(1000));
  rows.Check();
  faults.writes = -1;
  EXPECT_TRUE(rows.Compact(1000));
  rows.Check();
}

TEST(AnOldPageAtTheSamePositionIsNotTakenForTheNewOne) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(kBuffered + 1));
  const std::string path = folder.Files()[0];
  const std::vector<char> old = BytesOf(path, 4096, 4 * kSegment);
  // The same keys at the same positions, in their next version.
  const DiskLog::Counters before = rows.log()->counters();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(rows.PutAll(kBuffered + 1));
  }
  EXPECT_TRUE(rows.log()->counters().bytes_written > before.bytes_written);
  rows.Check();
  Overwrite(path, 4096, old);  // As a disk does that lost the last writes.
  int failed = 0, old_rows = 0;
  std::vector<float> row;
  for (int64_t key = 0; key <= kBuffered; ++key) {
    if (!rows.Read(key, &row)) {
      ++failed;
    } else {
      old_rows += row == rows.RowOf(key, 0);
    }
  }
  EXPECT_TRUE(failed > 0);
  EXPECT_EQ(old_rows, 0);
}

TEST(AFileThatAnotherProgramCutIsAnError) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  EXPECT_EQ(truncate(folder.Files()[0].c_str(), 4096), 0);
  std::vector<float> row;
  EXPECT_FALSE(rows.Read(0, &row));
  EXPECT_TRUE(Contains(rows.error(), "another program cut the file"));
  DiskError error;
  const auto ignore = [](uint32_t, int64_t, const float*) {};
  EXPECT_FALSE(rows.log()->ReadSegment(0, ignore, &error));
  EXPECT_TRUE(rows.Read(2 * kBuffered - 1, &row));  // From the buffer.
}

TEST(AFolderThatVanishesTakesNothingWithIt) {
  auto folder = std::make_unique<Folder>();
  DiskRows rows({{folder->path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  folder.reset();  // Deletes the file, which the log has open.
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  rows.Check();
}

TEST(AMissingPathAmongSeveralIsNamedAndLeavesNoFile) {
  const Folder folder;
  DiskError error;
  EXPECT_TRUE(DiskLog::Open({{folder.path()}, {folder.path() + "/none"}}, 4,
                            std::make_unique<DiskIo>(), &error) == nullptr);
  EXPECT_TRUE(Contains(error.text, folder.path() + "/none"));
  EXPECT_TRUE(folder.Files().empty());
}

TEST(AProcessKilledWhileItCompactsLeavesAFileThatTheNextOneDeletes) {
  const Folder folder;
  EXPECT_EQ(InChild([&] {
              DiskRows rows({{folder.path()}}, kPageRow);
              rows.PutAll(30 * 256);
              for (int64_t key = 0; key < 30 * 256; ++key) {
                if (key % 3 != 0) rows.Remove(key);
              }
              rows.Compact(3);
              kill(getpid(), SIGKILL);
              return 0;
            }),
            -1);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  const std::string left = folder.Files()[0];
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  EXPECT_TRUE(folder.Files()[0] != left);
  EXPECT_TRUE(rows.PutAll(2 * kBuffered));
  rows.Check();
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
