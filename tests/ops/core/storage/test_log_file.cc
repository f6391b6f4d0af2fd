// SPDX-License-Identifier: Apache-2.0
// LogFile: who owns a file, and what is deleted.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "ops/core/storage/log_file.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr char kName[] = "rec_estimator-0123456789abcdef.rows";

std::unique_ptr<LogFile> MustCreate(const Folder& folder) {
  DiskError error;
  auto file = LogFile::Create(folder.path(), &error);
  EXPECT_EQ(error.text, "");
  return file;
}

TEST(AFileLivesAsLongAsItsOwner) {
  const Folder folder;
  auto file = MustCreate(folder);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  EXPECT_EQ(folder.Files()[0], file->path());
  file.reset();
  EXPECT_TRUE(folder.Files().empty());
}

TEST(TheFileOfAKilledProcessIsDeletedByTheNextOne) {
  const Folder folder;
  EXPECT_EQ(InChild([&] {
              const auto file = MustCreate(folder);
              kill(getpid(), SIGKILL);
              return 0;
            }),
            -1);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  const auto file = MustCreate(folder);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  EXPECT_EQ(folder.Files()[0], file->path());
}

TEST(AFileInUseIsNotDeleted) {
  const Folder folder;
  const auto first = MustCreate(folder);
  const auto second = MustCreate(folder);
  EXPECT_TRUE(first->run_id() != second->run_id());
  EXPECT_EQ(DeleteStaleFiles(folder.path()), 0);
  // Nor by another process.
  EXPECT_EQ(InChild([&] { return DeleteStaleFiles(folder.path()); }), 0);
  EXPECT_EQ(folder.Files().size(), size_t{2});
}

TEST(AProcessThatWasForkedLeavesTheFileToItsParent) {
  const Folder folder;
  auto file = MustCreate(folder);
  EXPECT_EQ(InChild([&] {
              file.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(folder.Files().size(), size_t{1});
  EXPECT_EQ(DeleteStaleFiles(folder.path()), 0);
}

TEST(AFileWithoutItsHeaderYetIsDeleted) {
  const Folder folder;
  folder.Write(kName, "");
  EXPECT_EQ(DeleteStaleFiles(folder.path()), 1);
}

TEST(FilesOfOthersAreNeverDeleted) {
  const Folder folder;
  folder.Write(kName, std::string(8192, 'x'));  // Another header.
  folder.Write("rec_estimator-0123456789abcdeg.rows", "");
  folder.Write("rec_estimator-0123456789abcdef.row", "");
  folder.Write("model.ckpt", "");
  EXPECT_EQ(DeleteStaleFiles(folder.path()), 0);
  EXPECT_EQ(folder.Files().size(), size_t{4});
}

TEST(AHeaderWithAFlippedBitIsNotAHeader) {
  const Folder folder;
  EXPECT_EQ(InChild([&] {
              const auto file = MustCreate(folder);
              kill(getpid(), SIGKILL);
              return 0;
            }),
            -1);
  const std::string path = folder.Files()[0];
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(20);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(20);
  file.put(flipped);
  file.close();
  EXPECT_EQ(DeleteStaleFiles(folder.path()), 0);
}

TEST(AFolderThatCannotBeUsedIsNamedWithARemedy) {
  const Folder folder;
  folder.Write("plain", "");
  DiskError error;
  EXPECT_TRUE(LogFile::Create(folder.path() + "/none", &error) == nullptr);
  EXPECT_TRUE(Contains(error.text, folder.path() + "/none"));
  EXPECT_TRUE(Contains(error.text, "No such file or directory"));
  EXPECT_TRUE(Contains(error.text, "create the folder"));
  EXPECT_TRUE(LogFile::Create(folder.path() + "/plain", &error) == nullptr);
  EXPECT_TRUE(Contains(error.text, "Not a directory"));
}

TEST(AReadOnlyFolderIsAnError) {
  // sysfs takes no files, from root either.
  DiskError error;
  EXPECT_TRUE(LogFile::Create("/sys", &error) == nullptr);
  EXPECT_TRUE(Contains(error.text, "storage path '/sys'"));
  EXPECT_TRUE(Contains(error.text, "make it writable"));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
