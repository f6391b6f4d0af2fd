// SPDX-License-Identifier: Apache-2.0
// OrderedReader: rows in the order of a checkpoint. Faults:
// test_disk_log_faults.cc.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/storage/disk_log.h"
#include "ops/core/storage/ordered_reader.h"
#include "tests/ops/core/storage/disk_rows.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr uint64_t kSegment = uint64_t{1} << 20;

// The keys [0, n) in the order of a checkpoint, in lists of this size.
std::vector<std::vector<int64_t>> InOrder(int64_t n, size_t size) {
  std::vector<int64_t> keys(static_cast<size_t>(n));
  std::iota(keys.begin(), keys.end(), int64_t{0});
  std::sort(keys.begin(), keys.end(), [](int64_t a, int64_t b) {
    return std::make_pair(KeyClassOf(a), a) < std::make_pair(KeyClassOf(b), b);
  });
  std::vector<std::vector<int64_t>> lists;
  for (size_t begin = 0; begin < keys.size(); begin += size) {
    const size_t end = std::min(keys.size(), begin + size);
    lists.emplace_back(keys.begin() + begin, keys.begin() + end);
  }
  return lists;
}

TEST(EachPageIsReadOnceIfThereIsMemoryForOneOfEachSegment) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 32);
  EXPECT_TRUE(rows.PutAll(60000));
  DiskLog* const log = rows.log();
  // A few rows of each segment at a time, less than a page of them.
  const std::vector<std::vector<int64_t>> lists = InOrder(60000, 100);
  const auto read_bytes = [&](size_t max_bytes) {
    const uint64_t before = log->counters().bytes_read;
    OrderedReader reader(log, 32, max_bytes);
    rows.CheckInOrder(lists, &reader);
    return log->counters().bytes_read - before;
  };
  // What is still in buffers is not read.
  const uint64_t written = log->counters().bytes_written;
  EXPECT_TRUE(written > 0);
  EXPECT_TRUE(read_bytes(log->segments() * 7 * 4096) <= written);
  EXPECT_TRUE(read_bytes(log->segments() * 3 * 4096) <= written);
  EXPECT_TRUE(read_bytes(log->segments() * 4096) <= written);
  EXPECT_TRUE(read_bytes(4096) > 2 * written);
  EXPECT_TRUE(read_bytes(0) > 2 * written);
}

TEST_WITHOUT_TSAN(RowsOfEveryWidthAndOfListsOfEverySizeAreRight) {
  for (const size_t floats : {1, 33, 1022, 1023, 5000, 20000}) {
    const Folder folder;
    DiskRows rows({{folder.path()}}, floats);
    const int64_t n = 7 * static_cast<int64_t>(kSegment / (4 * floats + 12));
    const int64_t few = std::min<int64_t>(n, 5000);
    EXPECT_TRUE(rows.PutAll(n));
    OrderedReader reader(rows.log(), floats, size_t{1} << 20);
    OrderedReader without_memory(rows.log(), floats, 0);
    for (const size_t size : {7, 1000, 1000000}) {
      rows.CheckInOrder(InOrder(size == 7 ? few : n, size), &reader);
      rows.CheckInOrder(InOrder(few, size), &without_memory);
    }
  }
}

// Rows are read in any order, and change between the reads.
TEST(RowsThatChangeAreRightInAnyOrder) {
  std::mt19937 random(8);
  for (const size_t floats : {8, 33, 1022, 5000, 20000}) {
    const Folder folder;
    DiskRows rows({{folder.path()}}, floats);
    // Four segments are in buffers.
    const int64_t n = 6 * static_cast<int64_t>(kSegment / (4 * floats + 12));
    EXPECT_TRUE(rows.PutAll(n));
    OrderedReader reader(rows.log(), floats, size_t{1} << 20);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<int64_t>> lists(3);
      for (std::vector<int64_t>& keys : lists) {
        keys.resize(1 + random() % std::min<int64_t>(n, 300));
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % n);
      }
      rows.CheckInOrder(lists, &reader);
      // Whole segments become free, and their numbers are used again.
      const int64_t begin = static_cast<int64_t>(random() % n);
      const int64_t end = std::min(n, begin + n / 4);
      for (int64_t key = begin; key < end; ++key) EXPECT_TRUE(rows.Put(key));
    }
  }
}

TEST(RowsThatWereWidenedEndWithTheInitialValues) {
  const Folder folder;
  DiskError error;
  const auto log =
      DiskLog::Open({{folder.path()}}, 8, std::make_unique<DiskIo>(), &error);
  // The first rows come to the disk, the last ones stay in a buffer.
  const int64_t n = 6 * static_cast<int64_t>(kSegment / (4 * 8 + 12));
  std::vector<uint32_t> places(static_cast<size_t>(n));
  for (int64_t key = 0; key < n; ++key) {
    const std::vector<float> row(8, static_cast<float>(key));
    DiskLog::NewRow added = {key, row.data()};
    if (log->Append(&added, 1) == 0) {
      EXPECT_TRUE(log->WriteFullBuffers(&error));
      EXPECT_EQ(log->Append(&added, 1), size_t{1});
    }
    places[static_cast<size_t>(key)] = added.place;
  }
  EXPECT_TRUE(log->Widen({0.5f, 0.25f}));
  OrderedReader reader(log.get(), 10, size_t{1} << 20);
  for (const std::vector<int64_t>& keys : InOrder(n, 10000)) {
    std::vector<const float*> read(keys.size());
    std::vector<OrderedReader::Wanted> wanted;
    for (size_t i = 0; i < keys.size(); ++i) {
      wanted.push_back(
          {places[static_cast<size_t>(keys[i])], keys[i], &read[i]});
    }
    const auto batch = reader.Start(wanted.data(), wanted.size(), &error);
    EXPECT_TRUE(reader.Finish(batch.get(), &error));
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(read[i][7], static_cast<float>(keys[i]));
      EXPECT_EQ(read[i][8], 0.5f);
      EXPECT_EQ(read[i][9], 0.25f);
    }
  }
}

TEST(ARowOfAnotherKeyIsAnError) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 32);
  EXPECT_TRUE(rows.PutAll(60000));
  OrderedReader reader(rows.log(), 32, size_t{1} << 20);
  for (const int64_t key : {int64_t{0}, int64_t{59999}}) {
    DiskError error;
    const float* row;
    const OrderedReader::Wanted wanted = {rows.PlaceOf(key), -7, &row};
    const auto batch = reader.Start(&wanted, 1, &error);
    EXPECT_TRUE(batch == nullptr || !reader.Finish(batch.get(), &error));
    EXPECT_TRUE(error.text.find("must be that of key -7, got that of key " +
                                std::to_string(key)) != std::string::npos);
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
