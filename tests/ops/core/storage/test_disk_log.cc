// SPDX-License-Identifier: Apache-2.0
// DiskLog: rows, space, pages and threads. test_disk_log_faults.cc has faults.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/storage/disk_log.h"
#include "tests/ops/core/storage/disk_rows.h"
#include "tests/ops/core/storage/folder.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr uint64_t kSegment = uint64_t{1} << 20;
// Floats of a row of which a segment holds 256, one a page.
constexpr size_t kPageRow = 1000;

// How often a churn overwrites rows.
#if defined(__SANITIZE_THREAD__)
constexpr int kOverwrites = 5;  // Forty seconds for fifty, of one thread.
#else
constexpr int kOverwrites = 50;
#endif

TEST(RowsOfEveryWidthComeBackFromBufferAndDisk) {
  for (const size_t floats : {1, 2, 33, 600, 1022, 1023, 5000, 70000}) {
    const Folder folder;
    DiskRows rows({{folder.path()}}, floats);
    int64_t key = 0;
    while (rows.log()->counters().bytes_written == 0) {
      EXPECT_TRUE(rows.Put(key++));
    }
    rows.Check();
    EXPECT_TRUE(rows.log()->counters().pages_read > 0);
  }
}

TEST(EveryKeyIsLegal) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 2);
  for (const int64_t key : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    EXPECT_TRUE(rows.Put(key));
  }
  rows.Check();
}

// Counts the requests of reads.
class CountingIo : public DiskIo {
 public:
  explicit CountingIo(size_t* requests) : requests_(*requests) {}
  std::unique_ptr<Reading> StartReading(ReadRequest* requests,
                                        size_t n) override {
    requests_ += n;
    return DiskIo::StartReading(requests, n);
  }

 private:
  size_t& requests_;
};

TEST(NeighboursInTheOrderOfACheckpointShareARead) {
  const Folder folder;
  size_t requests = 0;
  DiskRows rows({{folder.path()}}, 32, std::make_unique<CountingIo>(&requests));
  EXPECT_TRUE(rows.PutAll(60000));
  const uint64_t before = rows.log()->counters().pages_read;
  // Ten full pages of 30 rows. The first segment holds the keys below 7,680, of
  // which eight are in each of the first key classes.
  std::vector<DiskLog::Item> items;
  std::vector<float> read(300 * 32);
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t key = i / 8 + i % 8 * 1000;
    items.push_back({rows.PlaceOf(key), key, &read[i * 32]});
  }
  std::shuffle(items.begin(), items.end(), std::mt19937(1));
  DiskError error;
  EXPECT_TRUE(rows.log()->Read(items.data(), items.size(), 32, &error));
  EXPECT_EQ(rows.log()->counters().pages_read - before, uint64_t{10});
  EXPECT_EQ(requests, size_t{1});
  for (const DiskLog::Item& item : items) {
    EXPECT_EQ(item.row[0], rows.RowOf(item.key, 0)[0]);
  }
}

TEST(AReadOfTheBeginningLeavesTheRestAlone) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 8);
  EXPECT_TRUE(rows.PutAll(10));
  std::vector<float> row(8, -7);
  const DiskLog::Item item = {rows.PlaceOf(4), 4, row.data()};
  DiskError error;
  EXPECT_TRUE(rows.log()->Read(&item, 1, 3, &error));
  EXPECT_EQ(row[2], rows.RowOf(4, 0)[2]);
  EXPECT_EQ(row[3], -7.0f);
}

TEST(FullBuffersRefuseARowUntilTheyAreWritten) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  DiskLog* const log = rows.log();
  const std::vector<float> row(kPageRow);
  uint32_t place;
  uint64_t appended = 0;
  for (; appended < 5000 && AppendRow(log, 1, row.data(), &place);) ++appended;
  EXPECT_EQ(appended, uint64_t{4 * 256});
  EXPECT_EQ(log->counters().rows, appended);
  EXPECT_EQ(log->counters().bytes_written, uint64_t{0});
  DiskError error;
  EXPECT_TRUE(log->WriteFullBuffers(&error));
  EXPECT_EQ(log->counters().bytes_written, 4 * kSegment);
  EXPECT_TRUE(AppendRow(log, 1, row.data(), &place));
}

TEST(ASegmentWithoutRowsIsNeverWritten) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  // The last of four full buffers has the row.
  for (int i = 0; i < 4 * 256 * 5; ++i) EXPECT_TRUE(rows.Put(1));
  EXPECT_EQ(rows.log()->counters().bytes_written, 4 * kSegment);
  rows.Check();
}

TEST_WITHOUT_TSAN(FilesStayBelowTwiceTheRowsAfterManyOverwrites) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  constexpr int64_t kRows = 256 * 24;
  EXPECT_TRUE(rows.PutAll(kRows));
  std::mt19937_64 random(1);
  for (int64_t put = 0; put < kOverwrites * kRows; ++put) {
    EXPECT_TRUE(rows.Put(static_cast<int64_t>(random() % kRows)));
    // Two segments for each that was filled.
    if (put % 256 == 0) EXPECT_TRUE(rows.Compact(2));
  }
  rows.Check();
  EXPECT_TRUE(rows.log()->counters().file_bytes <= 2 * kRows * 4096);
  EXPECT_TRUE(std::filesystem::file_size(folder.Files()[0]) <=
              2 * kRows * 4096);
}

TEST(CompactionStopsWhereItDoesNotPay) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(256 * 40));
  uint32_t segment;
  EXPECT_FALSE(rows.log()->PickSegment(&segment));
  for (int64_t key = 0; key < 256 * 40; ++key) {
    if (key % 4 != 0) rows.Remove(key);
  }
  EXPECT_TRUE(rows.log()->PickSegment(&segment));
  EXPECT_TRUE(rows.Compact(1000));
  EXPECT_FALSE(rows.log()->PickSegment(&segment));
  rows.Check();
}

TEST(AFileShrinksWhenItsRowsAreFreed) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(256 * 64));
  EXPECT_TRUE(std::filesystem::file_size(folder.Files()[0]) > 50 * kSegment);
  rows.log()->Clear();
  EXPECT_TRUE(std::filesystem::file_size(folder.Files()[0]) < 20 * kSegment);
  EXPECT_EQ(rows.log()->counters().rows, uint64_t{0});
  const std::vector<float> row(kPageRow);
  uint32_t place;
  DiskError error;
  EXPECT_TRUE(rows.log()->WriteFullBuffers(&error));
  EXPECT_TRUE(AppendRow(rows.log(), 1, row.data(), &place));
}

TEST(RandomChangesKeepEveryRow) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 300);
  std::mt19937_64 random(7);
  std::vector<int64_t> keys;
  for (int step = 0; step < 60000; ++step) {
    if (keys.size() < 5000 || random() % 4 != 0) {
      const auto key = static_cast<int64_t>(random() % 20000);
      if (rows.size() == keys.size()) keys.push_back(key);
      EXPECT_TRUE(rows.Put(key));
      if (rows.size() < keys.size()) keys.pop_back();
    } else {
      std::swap(keys[random() % keys.size()], keys.back());
      rows.Remove(keys.back());
      keys.pop_back();
    }
    if (step % 1000 == 0) EXPECT_TRUE(rows.Compact(2));
    if (step % 20000 == 0) rows.Check();
  }
  rows.Check();
}

TEST(PathsAreFilledInOrderUpToTheirLimits) {
  const Folder first, second;
  DiskRows rows({{first.path(), 4096 + 3 * kSegment},
                 {second.path(), 2 * kSegment + 4096}},
                kPageRow);
  const auto size_of = [](const Folder& folder) {
    return std::filesystem::file_size(folder.Files()[0]);
  };
  EXPECT_TRUE(rows.PutAll(256 * 5));  // Four segments go to disk.
  DiskError error;
  EXPECT_TRUE(rows.log()->WriteFullBuffers(&error));
  EXPECT_EQ(size_of(first), 4096 + 3 * kSegment);
  EXPECT_EQ(size_of(second), 4096 + 2 * kSegment);
  // Then there are four buffers.
  int64_t key = 256 * 5;
  while (rows.Put(key)) ++key;
  EXPECT_EQ(key, int64_t{256 * 9});
  EXPECT_TRUE(Contains(rows.error(), first.path()));
  EXPECT_TRUE(Contains(rows.error(), second.path()));
  EXPECT_TRUE(Contains(rows.error(), "raise a limit or add a path"));
  rows.Check();
  // A segment that becomes free is used again.
  for (int64_t old = 0; old < 256; ++old) rows.Remove(old);
  EXPECT_TRUE(rows.Put(key));
  rows.Check();
}

TEST(APathAtItsLimitTakesRowsAgainAfterOthersWereFreed) {
  const Folder folder;
  DiskRows rows({{folder.path(), 4096 + 10 * kSegment}}, kPageRow);
  int64_t key = 0;
  while (rows.Put(key)) ++key;
  EXPECT_TRUE(rows.fault() == StorageFault::kNoSpace);
  EXPECT_EQ(key, (10 + 4) * 256);
  // No segment is free.
  for (int64_t k = 0; k < key; ++k) {
    if (k % 3 == 0) rows.Remove(k);
  }
  EXPECT_FALSE(rows.Put(key));
  for (int more = 0; more < 512; ++more, ++key) {
    if (rows.Put(key)) continue;
    EXPECT_TRUE(rows.CompactForRoom());
    EXPECT_TRUE(rows.Put(key));
  }
  rows.Check();
}

TEST(ALimitBelowOneSegmentIsAnError) {
  const Folder folder;
  DiskError error;
  EXPECT_TRUE(DiskLog::Open({{folder.path(), kSegment}}, 4,
                            std::make_unique<DiskIo>(), &error) == nullptr);
  EXPECT_TRUE(
      Contains(error.text, "must be 0 or at least 1052672, got 1048576"));
  EXPECT_TRUE(DiskLog::Open({}, 4, std::make_unique<DiskIo>(), &error) ==
              nullptr);
  EXPECT_TRUE(Contains(error.text, "must be one or more"));
}

TEST(TwoLogsInOneFolderDoNotMeet) {
  const Folder folder;
  DiskRows a({{folder.path()}}, kPageRow), b({{folder.path()}}, 10);
  EXPECT_TRUE(a.PutAll(3000));
  EXPECT_TRUE(b.PutAll(200000));
  a.Check();
  b.Check();
}

TEST(RowsThatWereWidenedEndWithTheInitialValuesOfThatTime) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, 100);
  DiskLog* const log = rows.log();
  EXPECT_TRUE(rows.PutAll(20000));  // On disk and in buffers.
  EXPECT_TRUE(log->Widen({0.25f, 0.5f}));
  EXPECT_EQ(log->row_floats(), size_t{102});
  std::vector<float> wide = rows.RowOf(-5, 0);
  wide.insert(wide.end(), {8, 9});
  uint32_t place;
  DiskError error;
  while (!AppendRow(log, -5, wide.data(), &place)) {
    EXPECT_TRUE(log->WriteFullBuffers(&error));
  }
  EXPECT_TRUE(log->Widen({0.75f}));
  for (const int64_t key : {int64_t{0}, int64_t{9999}, int64_t{19999}}) {
    std::vector<float> read(103), expected = rows.RowOf(key, 0);
    expected.insert(expected.end(), {0.25f, 0.5f, 0.75f});
    const DiskLog::Item item = {rows.PlaceOf(key), key, read.data()};
    EXPECT_TRUE(log->Read(&item, 1, 103, &error));
    EXPECT_TRUE(read == expected);
  }
  std::vector<float> read(103);
  wide.push_back(0.75f);
  const DiskLog::Item item = {place, -5, read.data()};
  EXPECT_TRUE(log->Read(&item, 1, 103, &error));
  EXPECT_TRUE(read == wide);
  // Wider than a segment.
  EXPECT_FALSE(log->Widen(std::vector<float>(kSegment)));
  EXPECT_EQ(log->row_floats(), size_t{103});
}

TEST_WITHOUT_TSAN(RowsOfAnyTwoWidthsKeepTheirPlaces) {
  // Pages of different sizes: a segment of the wider rows could hold more.
  for (const size_t floats : {900, 1020, 1050, 1120, 1500, 2250}) {
    const Folder folder;
    DiskRows rows({{folder.path()}}, floats);
    EXPECT_TRUE(rows.PutAll(3000));
    const std::vector<float> added(130, 0.5f);
    EXPECT_TRUE(rows.log()->Widen(added));
    std::vector<float> wide = rows.RowOf(-9, 0);
    wide.insert(wide.end(), added.begin(), added.end());
    std::vector<uint32_t> places(3000);
    DiskError error;
    for (uint32_t& place : places) {
      while (!AppendRow(rows.log(), -9, wide.data(), &place)) {
        EXPECT_TRUE(rows.log()->WriteFullBuffers(&error));
      }
    }
    std::sort(places.begin(), places.end());
    EXPECT_TRUE(std::adjacent_find(places.begin(), places.end()) ==
                places.end());
    std::vector<float> read(wide.size());
    for (const uint32_t place : places) {
      const DiskLog::Item item = {place, -9, read.data()};
      EXPECT_TRUE(rows.log()->Read(&item, 1, read.size(), &error));
      EXPECT_TRUE(read == wide);
    }
    for (int64_t key = 0; key < 3000; ++key) {
      const DiskLog::Item item = {rows.PlaceOf(key), key, read.data()};
      EXPECT_TRUE(rows.log()->Read(&item, 1, floats, &error));
      EXPECT_EQ(read[0], rows.RowOf(key, 0)[0]);
    }
  }
}

TEST(APinnedRowOutlivesFree) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(2000));
  const uint32_t on_disk = rows.PlaceOf(1), in_buffer = rows.PlaceOf(1999);
  for (const uint32_t place : {on_disk, in_buffer}) rows.log()->Pin(place);
  for (int round = 0; round < 10; ++round) EXPECT_TRUE(rows.PutAll(2000));
  std::vector<float> first(kPageRow), last(kPageRow);
  const DiskLog::Item items[] = {{on_disk, 1, first.data()},
                                 {in_buffer, 1999, last.data()}};
  DiskError error;
  EXPECT_TRUE(rows.log()->Read(items, 2, kPageRow, &error));
  EXPECT_TRUE(first == rows.RowOf(1, 0));
  EXPECT_TRUE(last == rows.RowOf(1999, 0));
  const DiskLog::Item pinned[] = {{on_disk, 1, nullptr},
                                  {in_buffer, 1999, nullptr}};
  rows.log()->Unpin(pinned, 2);
  for (int round = 0; round < 10; ++round) EXPECT_TRUE(rows.PutAll(2000));
  rows.Check();
}

TEST(AProcessThatWasForkedReadsButDoesNotWrite) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, kPageRow);
  EXPECT_TRUE(rows.PutAll(3000));
  EXPECT_EQ(InChild([&] {
              rows.Check();
              EXPECT_FALSE(rows.Put(1));
              EXPECT_TRUE(Contains(rows.error(), "forked"));
              return testing::Failures() == 0 ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(rows.PutAll(3000));
  rows.Check();
}

// The index of a table whose rows are on disk: each key belongs to one thread,
// and compaction and all others take its lock.
class SharedIndex {
 public:
  static constexpr size_t kFloats = 250;
  static constexpr int kThreads = 3;
  static constexpr int64_t kKeys = 3000;  // Of a thread.

  explicit SharedIndex(DiskLog* log) : log_(*log) {}

  // Appends, frees and reads rows as thread t.
  void Use(int t) {
    std::mt19937_64 random(static_cast<uint64_t>(t));
    std::vector<float> row(kFloats);
    for (int step = 0; step < 12000; ++step) {
      const auto key = static_cast<int64_t>(random() % kKeys) + t * kKeys;
      if (random() % 2 == 0) {
        std::fill(row.begin(), row.end(), static_cast<float>(step));
        uint32_t place = Append(key, row.data());
        const std::lock_guard<std::mutex> lock(mutex_);
        std::swap(place_of_[key], place);
        value_of_[key] = static_cast<float>(step);
        if (place != UINT32_MAX) log_.Free(&place, 1);
      } else {
        Read(key, row.data());
      }
    }
  }

  // Moves the rows of a segment that is worth it, if there is one.
  void Compact() {
    uint32_t segment;
    DiskError error;
    if (!log_.PickSegment(&segment)) return std::this_thread::yield();
    const auto move = [this](uint32_t place, int64_t key, const float* row) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (place_of_[key] != place) return;
      place_of_[key] = Append(key, row);
      log_.Free(&place, 1);
    };
    EXPECT_TRUE(log_.ReadSegment(segment, move, &error));
  }

  uint64_t rows() const {
    const auto free =
        std::count(place_of_.begin(), place_of_.end(), UINT32_MAX);
    return place_of_.size() - static_cast<uint64_t>(free);
  }

 private:
  uint32_t Append(int64_t key, const float* row) {
    uint32_t place;
    DiskError error;
    while (!AppendRow(&log_, key, row, &place)) {
      EXPECT_TRUE(log_.WriteFullBuffers(&error));
    }
    return place;
  }

  void Read(int64_t key, float* row) {
    uint32_t place;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      place = place_of_[key];
      if (place == UINT32_MAX) return;
      log_.Pin(place);
    }
    const DiskLog::Item item = {place, key, row};
    DiskError error;
    EXPECT_TRUE(log_.Read(&item, 1, kFloats, &error));
    EXPECT_EQ(row[0], value_of_[key]);
    EXPECT_EQ(row[kFloats - 1], value_of_[key]);
    log_.Unpin(&item, 1);
  }

  DiskLog& log_;
  std::mutex mutex_;
  std::vector<uint32_t> place_of_ =
      std::vector<uint32_t>(kThreads * kKeys, UINT32_MAX);  // None.
  std::vector<float> value_of_ = std::vector<float>(kThreads * kKeys);
};

TEST(ThreadsAppendReadFreeAndCompactAtOnce) {
  const Folder folder;
  DiskRows rows({{folder.path()}}, SharedIndex::kFloats);
  SharedIndex index(rows.log());
  std::atomic<int> running{SharedIndex::kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < SharedIndex::kThreads; ++t) {
    threads.emplace_back([&, t] {
      index.Use(t);
      --running;
    });
  }
  while (running > 0) index.Compact();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rows.log()->counters().rows, index.rows());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
