// SPDX-License-Identifier: Apache-2.0
// A DiskLog with known rows, and a disk that fails on demand, for tests.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_DISK_ROWS_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_DISK_ROWS_H_

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/core/storage/disk_log.h"
#include "ops/core/storage/ordered_reader.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {

// A disk that fails: the call after `writes` writes, or `reads` reads, with
// this error. Negative: never.
class FaultyIo : public DiskIo {
 public:
  struct Faults {
    std::atomic<int> writes{-1};
    std::atomic<int> reads{-1};
    std::atomic<int> error{EIO};
  };
  explicit FaultyIo(Faults* faults) : faults_(*faults) {}

  std::unique_ptr<Reading> StartReading(ReadRequest* requests,
                                        size_t n) override {
    return std::make_unique<FaultyReading>(
        this, DiskIo::StartReading(requests, n), requests, n);
  }
  int Write(int file, const void* from, size_t bytes,
            uint64_t offset) override {
    if (Fails(&faults_.writes)) return faults_.error;
    return DiskIo::Write(file, from, bytes, offset);
  }

 private:
  struct FaultyReading : public Reading {
    FaultyReading(FaultyIo* of, std::unique_ptr<Reading> right,
                  ReadRequest* requests, size_t n)
        : io(*of), reading(std::move(right)), begin(requests), size(n) {}
    void Wait() override {
      reading->Wait();
      for (size_t i = 0; i < size; ++i) {
        if (Fails(&io.faults_.reads)) begin[i].result = -io.faults_.error;
      }
    }
    FaultyIo& io;
    const std::unique_ptr<Reading> reading;
    ReadRequest* const begin;
    const size_t size;
  };

  static bool Fails(std::atomic<int>* countdown) {
    if (*countdown < 0) return false;
    if (*countdown == 0) return true;
    --*countdown;
    return false;
  }
  Faults& faults_;
};

// False: there is no room.
inline bool AppendRow(DiskLog* log, int64_t key, const float* row,
                      uint32_t* place, bool for_room = false) {
  DiskLog::NewRow added = {key, row};
  if (log->Append(&added, 1, for_room) == 0) return false;
  *place = added.place;
  return true;
}

// A log, and what it should hold.
class DiskRows {
 public:
  DiskRows(const std::vector<DiskPath>& paths, size_t row_floats,
           std::unique_ptr<DiskIo> io = std::make_unique<DiskIo>())
      : row_floats_(row_floats) {
    DiskError error;
    log_ = DiskLog::Open(paths, row_floats, std::move(io), &error);
    EXPECT_EQ(error.text, "");
  }

  DiskLog* log() const { return log_.get(); }
  size_t size() const { return rows_.size(); }
  uint32_t PlaceOf(int64_t key) const { return rows_.at(key).place; }
  std::string error() const { return error_.text; }
  StorageFault fault() const { return error_.fault; }

  // The row of a key, in its n-th version.
  std::vector<float> RowOf(int64_t key, int version) const {
    std::vector<float> row(row_floats_);
    const float value =
        static_cast<float>(key) + 0.5f * static_cast<float>(version);
    row.front() = value;
    row[row_floats_ / 2] = value + 0.125f;
    row.back() = value + 0.25f;
    return row;
  }

  // Appends the next version of a key's row and frees the last one. False: a
  // buffer could not be written; the old row stays.
  bool Put(int64_t key) {
    const auto old = rows_.find(key);
    const int version = old == rows_.end() ? 0 : old->second.version + 1;
    const std::vector<float> row = RowOf(key, version);
    uint32_t place;
    if (!Append(key, row.data(), &place)) return false;
    if (version > 0) log_->Free(&old->second.place, 1);
    rows_[key] = {place, version};
    return true;
  }
  void Remove(int64_t key) {
    log_->Free(&rows_.at(key).place, 1);
    rows_.erase(key);
  }
  // Puts all keys below n.
  bool PutAll(int64_t n) {
    for (int64_t key = 0; key < n; ++key) {
      if (!Put(key)) return false;
    }
    return true;
  }

  bool Read(int64_t key, std::vector<float>* row) {
    row->assign(row_floats_, -1);
    const DiskLog::Item item = {PlaceOf(key), key, row->data()};
    return log_->Read(&item, 1, row_floats_, &error_);
  }

  // Reads all rows at once and compares them.
  void Check() {
    std::vector<int64_t> keys;
    for (const auto& [key, row] : rows_) keys.push_back(key);
    std::vector<float> read(keys.size() * row_floats_);
    std::vector<DiskLog::Item> items;
    for (const int64_t key : keys) {
      items.push_back(
          {PlaceOf(key), key, read.data() + items.size() * row_floats_});
    }
    error_ = {};
    log_->Read(items.data(), items.size(), row_floats_, &error_);
    EXPECT_EQ(error_.text, "");
    for (const DiskLog::Item& item : items) CheckRow(item.key, item.row);
    EXPECT_EQ(log_->counters().rows, rows_.size());
  }
  void CheckRow(int64_t key, const float* row) const {
    const std::vector<float> wanted = RowOf(key, rows_.at(key).version);
    EXPECT_TRUE(std::memcmp(row, wanted.data(), row_floats_ * sizeof(float)) ==
                0);
  }

  // Reads rows in order, each list of keys while the next one is started, and
  // compares them.
  void CheckInOrder(const std::vector<std::vector<int64_t>>& lists,
                    OrderedReader* reader) {
    Reading last;
    for (size_t i = 0; i <= lists.size(); ++i) {
      Reading next = i < lists.size() ? Start(lists[i], reader) : Reading();
      if (last.batch != nullptr) Finish(last, reader);
      last = std::move(next);
    }
  }
  // Whether a row can be read so; if not, *error says why.
  bool ReadInOrder(int64_t key, OrderedReader* reader, DiskError* error) {
    const float* row = nullptr;
    const OrderedReader::Wanted wanted = {PlaceOf(key), key, &row};
    const auto batch = reader->Start(&wanted, 1, error);
    if (batch == nullptr || !reader->Finish(batch.get(), error)) return false;
    CheckRow(key, row);
    return true;
  }

  // Moves the rows of the emptiest segments, at most n of them, as a table
  // does. False: a page cannot be read or a buffer cannot be written.
  bool Compact(int n) { return MoveSegments(n, false); }
  // The same when paths are full. Returns whether there is room now.
  bool CompactForRoom() {
    MoveSegments(2, true);
    return log_->WriteFullBuffers(&error_);
  }

 private:
  struct Reading {
    std::vector<const float*> rows;
    std::vector<OrderedReader::Wanted> wanted;
    std::unique_ptr<OrderedReader::Batch> batch;
  };
  Reading Start(const std::vector<int64_t>& keys, OrderedReader* reader) {
    Reading reading;
    reading.rows.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      reading.wanted.push_back({PlaceOf(keys[i]), keys[i], &reading.rows[i]});
    }
    reading.batch = reader->Start(reading.wanted.data(), keys.size(), &error_);
    EXPECT_TRUE(reading.batch != nullptr);
    return reading;
  }
  void Finish(const Reading& reading, OrderedReader* reader) {
    EXPECT_TRUE(reader->Finish(reading.batch.get(), &error_));
    for (size_t i = 0; i < reading.rows.size(); ++i) {
      CheckRow(reading.wanted[i].key, reading.rows[i]);
    }
  }

  struct Row {
    uint32_t place;
    int version;
  };
  bool MoveSegments(int n, bool for_room) {
    uint32_t segment;
    for (; n > 0 && log_->PickSegment(&segment, for_room); --n) {
      bool is_moved = true;
      const bool is_read = log_->ReadSegment(
          segment,
          [&](uint32_t place, int64_t key, const float* row) {
            const auto found = rows_.find(key);
            if (found == rows_.end() || found->second.place != place) return;
            uint32_t moved = 0;
            is_moved = is_moved && Append(key, row, &moved, for_room);
            if (!is_moved) return;
            log_->Free(&place, 1);
            found->second.place = moved;
          },
          &error_);
      if (!is_read || !is_moved) return false;
    }
    return true;
  }
  bool Append(int64_t key, const float* row, uint32_t* place,
              bool for_room = false) {
    if (AppendRow(log_.get(), key, row, place, for_room)) return true;
    // Some buffers may have been written even if others were not.
    log_->WriteFullBuffers(&error_);
    return AppendRow(log_.get(), key, row, place, for_room);
  }

  const size_t row_floats_;
  std::unique_ptr<DiskLog> log_;
  std::unordered_map<int64_t, Row> rows_;
  DiskError error_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_DISK_ROWS_H_
