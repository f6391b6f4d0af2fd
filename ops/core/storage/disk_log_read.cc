// SPDX-License-Identifier: Apache-2.0
// DiskLog: how it reads.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/core/storage/disk_log.h"

namespace rec_estimator {
namespace {

// The most runs of pages, and bytes of them, that are read together. While the
// rows of some are copied, the disk reads the next ones.
constexpr size_t kRunsTogether = 256;
constexpr size_t kReadBytes = size_t{2} << 20;
// Items that are found while other threads wait for the lock.
constexpr size_t kLockedItems = 1024;
// Segments that compaction leaves alone: buffers, and those of a small table.
constexpr uint64_t kSpareSegments = 8;
// Fuller segments are not worth moving, even if there is no other room.
constexpr double kNotQuiteFull = 0.95;

}  // namespace

bool DiskLog::CheckPage(const Segment& segment, uint32_t first, uint32_t page,
                        const char* pages, int64_t result,
                        DiskError* error) const {
  const size_t bytes = segment.format->bytes;
  const uint32_t page_number = first + page;
  if (result >= 0) {  // Bytes that were read of this page.
    result = std::max<int64_t>(result - static_cast<int64_t>(page * bytes), 0);
  }
  const bool is_read = result >= static_cast<int64_t>(bytes);
  if (is_read &&
      IsSealed(IdentityOf(segment, page_number), bytes, pages + page * bytes)) {
    return true;
  }
  const Path& path = *paths_[segment.path];
  const auto must = [&](const char* rule) {
    return "storage file '" + path.file->path() + "' must " + rule +
           " at offset " +
           std::to_string(path.extents.OffsetOf(segment.extent) +
                          page_number * bytes) +
           " (" + std::to_string(bytes) + " bytes)";
  };
  constexpr char kRemedy[] =
      "; check the disk and start again from the last checkpoint";
  if (result < 0) {
    *error = DiskErrorOf(must("be readable"), static_cast<int>(-result));
  } else if (!is_read) {
    *error = {StorageFault::kDamaged,
              must("hold a page") + ", got " + std::to_string(result) +
                  " bytes because another program cut the file" + kRemedy};
  } else {
    *error = {StorageFault::kDamaged, must("hold the page that was written") +
                                          ", got another checksum" + kRemedy};
  }
  return false;
}

bool DiskLog::CheckKey(const char* record, int64_t key, DiskError* error) {
  const int64_t found = KeyOfRecord(record);
  if (found == key) return true;
  *error = {StorageFault::kDamaged,
            "the row on disk must be that of key " + std::to_string(key) +
                ", got that of key " + std::to_string(found) +
                "; report this, and start again from the last checkpoint"};
  return false;
}

void DiskLog::CopyFloats(const float* row, size_t have,
                         const std::vector<float>& initials, size_t floats,
                         float* to) {
  const size_t copied = std::min(have, floats);
  std::copy_n(row, copied, to);
  std::copy(initials.begin() + static_cast<std::ptrdiff_t>(copied),
            initials.begin() + static_cast<std::ptrdiff_t>(floats),
            to + copied);
}

std::chrono::nanoseconds DiskLog::WaitTimed(Reading* reading) {
  const auto before = std::chrono::steady_clock::now();
  reading->Wait();
  return std::chrono::steady_clock::now() - before;
}

void DiskLog::Pin(uint32_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++segments_[SegmentOf(place)].pins;
}

void DiskLog::Unpin(const Item* items, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < n; ++i) UnpinSegment(SegmentOf(items[i].place));
}

void DiskLog::UnpinSegment(uint32_t segment) {
  --segments_[segment].pins;
  ReleaseIfUnused(segment);
}

ReadRequest DiskLog::RequestFor(const Segment& segment, uint32_t page,
                                size_t bytes, char* to) const {
  const Path& path = *paths_[segment.path];
  return {path.file->descriptor(), static_cast<uint32_t>(bytes),
          path.extents.OffsetOf(segment.extent) + page * segment.format->bytes,
          to, 0};
}

bool DiskLog::Read(const Item* items, size_t n, size_t floats,
                   DiskError* error) {
  std::vector<Located> located;
  located.reserve(n);
  for (size_t at = 0; at < n; at += kLockedItems) {
    const size_t end = std::min(n, at + kLockedItems);
    if (!Locate(items, at, end, floats, &located, error)) return false;
  }
  SortByAddress(&located);
  std::unique_ptr<Pages> now = StartReading(located, 0);
  while (now != nullptr) {
    std::unique_ptr<Pages> next = StartReading(located, now->end());
    if (!CopyRows(items, located, now.get(), floats, error)) return false;
    now = std::move(next);
  }
  return true;
}

bool DiskLog::Locate(const Item* items, size_t begin, size_t end, size_t floats,
                     std::vector<Located>* located, DiskError* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = begin; i < end; ++i) {
    if (i + kPrefetched < end) PrefetchPosition(items[i + kPrefetched].place);
    const uint32_t number = SegmentOf(items[i].place);
    const uint32_t row = RowOf(items[i].place);
    const Segment& segment = segments_[number];
    if (segment.state == State::kOnDisk) {
      located->push_back({uint64_t{number} << 32 | segment.order[row], i});
      continue;
    }
    const PageFormat& format = *segment.format;
    const char* const record =
        format.RecordIn(segment.buffer->memory.get(), row);
    if (!CheckKey(record, items[i].key, error)) return false;
    CopyFloats(RowOfRecord(record), format.row_floats, *initials_, floats,
               items[i].row);
  }
  return true;
}

void DiskLog::SortByAddress(std::vector<Located>* located) {
  const auto is_before = [](const Located& a, const Located& b) {
    return a.address < b.address;
  };
  uint32_t segments = 0;
  for (const Located& each : *located) {
    segments = std::max(segments, each.segment() + 1);
  }
  if (located->size() < segments) {
    std::sort(located->begin(), located->end(), is_before);
    return;
  }
  // A counting sort by segment. The rows of a save are then in order, because
  // they come in the order of the segments.
  std::vector<size_t> next(segments + 1);
  for (const Located& each : *located) ++next[each.segment() + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Located> sorted(located->size());
  for (const Located& each : *located) sorted[next[each.segment()]++] = each;
  located->swap(sorted);
  auto begin = located->begin();
  for (uint32_t s = 0; s < segments; ++s) {
    const auto end = located->begin() + static_cast<std::ptrdiff_t>(next[s]);
    if (!std::is_sorted(begin, end, is_before))
      std::sort(begin, end, is_before);
    begin = end;
  }
}

void DiskLog::ListRuns(const std::vector<Located>& located, size_t begin,
                       std::vector<Run>* runs, size_t* bytes) {
  runs->clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = begin; i < located.size(); ++i) {
    const Located& each = located[i];
    const Segment& segment = segments_[each.segment()];
    const PageFormat& format = *segment.format;
    const uint32_t page = format.PageOf(each.position());
    const bool has_room = *bytes + format.bytes <= kReadBytes;
    if (i > begin && each.segment() == located[i - 1].segment()) {
      Run& last = runs->back();
      const bool is_next = page == last.page + last.pages && has_room &&
                           (last.pages + 1) * format.bytes <= kRunBytes;
      if (page < last.page + last.pages || is_next) {
        last.end = i + 1;
        last.pages += is_next;
        *bytes += is_next * format.bytes;
        counters_.pages_read += is_next;
        counters_.bytes_read += is_next * format.bytes;
        continue;
      }
    }
    if (i > begin && (!has_room || runs->size() == kRunsTogether)) return;
    runs->push_back({segment, page, 1, i, i + 1});
    *bytes += format.bytes;
    ++counters_.pages_read;
    counters_.bytes_read += format.bytes;
  }
}

std::unique_ptr<DiskLog::Pages> DiskLog::StartReading(
    const std::vector<Located>& located, size_t begin) {
  if (begin == located.size()) return nullptr;
  auto pages = std::make_unique<Pages>();
  size_t bytes = 0;
  ListRuns(located, begin, &pages->runs, &bytes);
  pages->memory.emplace(&memory_, std::max(bytes, kReadBytes));
  pages->requests.reserve(pages->runs.size());
  char* to = pages->memory->get();
  for (const Run& run : pages->runs) {
    const size_t run_bytes = run.pages * run.segment.format->bytes;
    pages->requests.push_back(RequestFor(run.segment, run.page, run_bytes, to));
    to += run_bytes;
  }
  pages->reading =
      io_->StartReading(pages->requests.data(), pages->requests.size());
  return pages;
}

bool DiskLog::CopyRows(const Item* items, const std::vector<Located>& located,
                       Pages* pages, size_t floats, DiskError* error) {
  const std::chrono::nanoseconds took = WaitTimed(pages->reading.get());
  Initials initials;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    initials = initials_;
    counters_.read_ns += static_cast<uint64_t>(took.count());
  }
  for (size_t r = 0; r < pages->runs.size(); ++r) {
    if (!CopyRun(items, located, pages->runs[r], pages->requests[r], *initials,
                 floats, error)) {
      return false;
    }
  }
  return true;
}

bool DiskLog::CopyRun(const Item* items, const std::vector<Located>& located,
                      const Run& run, const ReadRequest& read,
                      const std::vector<float>& initials, size_t floats,
                      DiskError* error) const {
  const PageFormat& format = *run.segment.format;
  const char* const pages = static_cast<const char*>(read.to);
  uint32_t checked = 0;  // Pages of the run.
  for (size_t l = run.begin; l < run.end; ++l) {
    const uint32_t position = located[l].position();
    const uint32_t page = format.PageOf(position) - run.page;
    if (page >= checked &&
        !CheckPage(run.segment, run.page, page, pages, read.result, error)) {
      return false;
    }
    checked = page + 1;
    const char* const record =
        pages + (format.OffsetOf(position) - run.page * format.bytes);
    const Item& item = items[located[l].item];
    if (!CheckKey(record, item.key, error)) return false;
    CopyFloats(RowOfRecord(record), format.row_floats, initials, floats,
               item.row);
  }
  return true;
}

// ----------------------------------------------------------------- compaction

bool DiskLog::PickSegment(uint32_t* segment, bool for_room) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t spare = kSpareSegments * places_per_segment_;
  if (!for_room && 2 * places_ <= 3 * counters_.rows + 2 * spare) return false;
  const double most = for_room ? kNotQuiteFull : 1;
  double least = most;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    const Segment& other = segments_[s];
    if (other.state != State::kOnDisk || other.is_damaged || other.pins > 0) {
      continue;
    }
    const double filled = static_cast<double>(other.live) / other.format->rows;
    if (filled >= least) continue;
    least = filled;
    *segment = s;
  }
  return least < most;
}

uint32_t DiskLog::segments() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(segments_.size());
}

bool DiskLog::ReadSegment(uint32_t number, const VisitRow& visit,
                          DiskError* error) {
  const DiskMemoryPool::Loan memory(&memory_, segment_bytes_);
  std::vector<float> row;
  Segment segment;
  Initials initials;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    segment = segments_[number];
    if (segment.state == State::kUnused) return true;
    initials = initials_;
    row.resize(initials->size());
    if (segment.state == State::kBuffered) {
      std::memcpy(memory.get(), segment.buffer->memory.get(), segment_bytes_);
    }
    ++segments_[number].pins;
    counters_.bytes_read +=
        segment.state == State::kOnDisk ? segment_bytes_ : 0;
  }
  // Runs also when visit throws.
  struct AtEnd {
    ~AtEnd() {
      const std::lock_guard<std::mutex> lock(log->mutex_);
      log->segments_[number].is_damaged |= is_damaged;
      log->UnpinSegment(number);
    }
    DiskLog* log;
    uint32_t number;
    bool is_damaged;
  } at_end = {this, number, false};

  const bool from_disk = segment.state == State::kOnDisk;
  ReadRequest request = RequestFor(segment, 0, segment_bytes_, memory.get());
  if (from_disk) io_->Read(&request, 1);
  const PageFormat& format = *segment.format;
  std::vector<uint16_t> row_at(segment.rows);  // By position.
  for (uint32_t r = 0; r < segment.rows; ++r) {
    row_at[from_disk ? segment.order[r] : r] = static_cast<uint16_t>(r);
  }
  for (uint32_t page = 0, position = 0; position < segment.rows; ++page) {
    const uint32_t end =
        std::min(segment.rows, position + format.rows_per_page);
    DiskError wrong;
    if (from_disk &&
        !CheckPage(segment, 0, page, memory.get(), request.result, &wrong)) {
      if (!at_end.is_damaged) *error = wrong;
      at_end.is_damaged = true;
      position = end;
    }
    for (; position < end; ++position) {
      const char* const record = format.RecordIn(memory.get(), position);
      CopyFloats(RowOfRecord(record), format.row_floats, *initials, row.size(),
                 row.data());
      visit(number * places_per_segment_ + row_at[position],
            KeyOfRecord(record), row.data());
    }
  }
  return !at_end.is_damaged;
}

}  // namespace rec_estimator
