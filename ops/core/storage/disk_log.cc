// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/disk_log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "ops/core/base/key_hash.h"

namespace rec_estimator {
namespace {

constexpr size_t kMinSegment = size_t{1} << 20;
// Their positions are numbers of 16 bits.
constexpr uint32_t kMostRows = uint32_t{1} << 16;
// Wider rows than those of today still fit into a segment that holds this many.
constexpr size_t kMinRowsPerSegment = 16;
// Segments that are full and wait, or being written. Rows are copied to the
// next one meanwhile.
constexpr size_t kBuffers = 4;
// Buffers for rows that are moved while those wait for room on the disk.
constexpr size_t kSpareBuffers = 1;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The size of segments: about as wanted, but no larger than rows can fill.
size_t SegmentBytes(size_t row_floats, size_t wanted) {
  const size_t page = PageFormat::BytesFor(row_floats);
  const PageFormat format(row_floats, page, kMostRows);
  const size_t most = kMostRows / format.rows_per_page * page;
  const size_t least = std::max(kMinSegment, kMinRowsPerSegment * page);
  return RoundUp(std::max(least, std::min(wanted, most)), kMinSegment);
}

}  // namespace

// -------------------------------------------------------------------- opening

std::unique_ptr<DiskLog> DiskLog::Open(const std::vector<DiskPath>& paths,
                                       size_t row_floats,
                                       std::unique_ptr<DiskIo> io,
                                       DiskError* error, size_t segment_bytes) {
  std::unique_ptr<DiskLog> log(
      new DiskLog(std::move(io), row_floats, segment_bytes));
  if (paths.empty()) {
    error->text = "storage paths must be one or more, got none; give a folder";
    return nullptr;
  }
  const uint64_t least = LogFile::kHeaderBytes + log->segment_bytes_;
  for (const DiskPath& path : paths) {
    if (path.max_bytes != 0 && path.max_bytes < least) {
      error->text = "max_bytes of storage path '" + path.directory +
                    "' must be 0 or at least " + std::to_string(least) +
                    ", got " + std::to_string(path.max_bytes) + "; raise it";
      return nullptr;
    }
    std::unique_ptr<LogFile> file = LogFile::Create(path.directory, error);
    if (file == nullptr) return nullptr;
    log->paths_.push_back(std::unique_ptr<Path>(
        new Path{std::move(file), path.max_bytes,
                 Extents(log->segment_bytes_, path.max_bytes)}));
  }
  return log;
}

DiskLog::DiskLog(std::unique_ptr<DiskIo> io, size_t row_floats,
                 size_t segment_bytes)
    : io_(std::move(io)),
      segment_bytes_(SegmentBytes(row_floats, segment_bytes)),
      owner_(getpid()) {
  formats_.push_back(std::make_unique<const PageFormat>(
      row_floats, segment_bytes_, kMostRows));
  places_per_segment_ = formats_.back()->rows;
  initials_ = std::make_shared<const std::vector<float>>(row_floats, 0.0f);
}

DiskLog::~DiskLog() = default;

size_t DiskLog::row_floats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return formats_.back()->row_floats;
}

bool DiskLog::is_direct() const {
  return std::all_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return path->file->is_direct(); });
}

DiskLog::Counters DiskLog::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Counters counters = counters_;
  for (const auto& path : paths_) {
    counters.file_bytes += path->extents.file_bytes();
  }
  counters.memory_bytes = buffers_.size() * segment_bytes_ + memory_.bytes() +
                          ordered_ * sizeof(uint16_t) +
                          segments_.size() * sizeof(Segment);
  return counters;
}

// -------------------------------------------------------------------- writing

DiskLog::Opened DiskLog::OpenBuffer(bool for_room) {
  const auto free =
      std::find_if(buffers_.begin(), buffers_.end(),
                   [](const auto& buffer) { return !buffer->is_used; });
  const auto used =
      std::count_if(buffers_.begin(), buffers_.end(),
                    [](const auto& buffer) { return buffer->is_used; });
  const size_t most = for_room ? kBuffers + kSpareBuffers : kBuffers;
  if (static_cast<size_t>(used) >= most) return Opened::kBuffersFull;
  const uint64_t new_places =
      (segments_.size() + 1) * uint64_t{places_per_segment_};
  if (unused_.empty() && new_places > kMaxPlaces) return Opened::kNoPlace;
  Buffer* buffer = free == buffers_.end() ? nullptr : free->get();
  try {
    if (buffer == nullptr) {
      buffers_.push_back(std::make_unique<Buffer>(segment_bytes_));
      buffer = buffers_.back().get();
    }
    if (unused_.empty()) {
      // Then ReleaseIfUnused needs no memory.
      unused_.reserve(segments_.size() + 1);
      orders_.resize(segments_.size() + 1);
      segments_.emplace_back();
      unused_.push_back(static_cast<uint32_t>(segments_.size() - 1));
    }
  } catch (const std::bad_alloc&) {
    return Opened::kNoMemory;
  }
  buffer->is_used = true;
  buffer->is_full = false;
  buffer->segment = unused_.back();
  unused_.pop_back();
  Segment& segment = segments_[buffer->segment];
  segment = {};
  segment.state = State::kBuffered;
  segment.format = formats_.back().get();
  segment.buffer = buffer;
  places_ += segment.format->rows;
  open_ = buffer;
  return Opened::kYes;
}

size_t DiskLog::Append(NewRow* rows, size_t n, bool for_room) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (getpid() != owner_) return 0;
  for (size_t i = 0; i < n; ++i) {
    if (open_ == nullptr && OpenBuffer(for_room) != Opened::kYes) return i;
    Segment& segment = segments_[open_->segment];
    const PageFormat& format = *segment.format;
    const uint32_t number = segment.rows++;
    ++segment.live;
    ++counters_.rows;
    WriteRecord(rows[i].key, rows[i].row, format,
                open_->memory.get() + format.OffsetOf(number));
    rows[i].place = open_->segment * places_per_segment_ + number;
    if (segment.rows == format.rows) {
      open_->is_full = true;
      open_ = nullptr;
    }
  }
  return n;
}

bool DiskLog::WriteFullBuffers(DiskError* error) {
  if (getpid() != owner_) {
    *error = {
        StorageFault::kFailed,
        "rows on disk must be written by the process that made the table, got "
        "a process that was forked from it; train in the first one"};
    return false;
  }
  const std::lock_guard<std::mutex> writing(write_mutex_);
  bool has_written = false;
  while (Buffer* buffer = NextFullBuffer()) {
    // A buffer that was written is room.
    if (!WriteBuffer(buffer, error)) return has_written;
    has_written = true;
  }
  return has_written || HasRoom(error);
}

bool DiskLog::HasRoom(DiskError* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_ != nullptr) return true;
  switch (OpenBuffer(false)) {
    case Opened::kYes:
    case Opened::kBuffersFull:
      return true;
    case Opened::kNoMemory:
      throw std::bad_alloc();
    case Opened::kNoPlace:
      break;
  }
  *error = {StorageFault::kNoSpace,
            "rows on disk must be at most " + std::to_string(kMaxPlaces) +
                " in a shard of a table, got more; spread the table over more "
                "shards"};
  return false;
}

DiskLog::Buffer* DiskLog::NextFullBuffer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& buffer : buffers_) {
    if (!buffer->is_used || !buffer->is_full) continue;
    const Segment& segment = segments_[buffer->segment];
    if (segment.live > 0 || segment.pins > 0) return buffer.get();
    buffer->is_used = false;
    Release(buffer->segment);
  }
  return nullptr;
}

bool DiskLog::WriteBuffer(Buffer* buffer, DiskError* error) {
  Segment written;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    written = segments_[buffer->segment];
    written.write = ++writes_;
  }
  const DiskMemoryPool::Loan pages(&memory_, segment_bytes_);
  auto order = std::make_unique<uint16_t[]>(written.rows);
  Sort(written, order.get(), pages.get());
  Seal(written, pages.get());
  if (!WriteToPaths(pages.get(), &written, error)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  Segment& segment = segments_[buffer->segment];
  segment.state = State::kOnDisk;
  segment.order = order.get();
  orders_[buffer->segment] = std::move(order);
  ordered_ += segment.rows;
  segment.path = written.path;
  segment.extent = written.extent;
  segment.write = written.write;
  segment.buffer = nullptr;
  buffer->is_used = false;
  counters_.bytes_written += segment_bytes_;
  ReleaseIfUnused(buffer->segment);
  return true;
}

void DiskLog::Sort(const Segment& segment, uint16_t* order, char* pages) const {
  const PageFormat& format = *segment.format;
  const char* const buffer = segment.buffer->memory.get();
  struct NumberedKey {
    int64_t key;
    uint32_t number;
  };
  // A counting sort by key class; then each class is sorted by key.
  std::vector<NumberedKey> rows(segment.rows);
  std::vector<uint32_t> next(kKeyClasses + 1);
  for (uint32_t r = 0; r < segment.rows; ++r) {
    ++next[KeyClassOf(KeyOfRecord(format.RecordIn(buffer, r))) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const int64_t key = KeyOfRecord(format.RecordIn(buffer, r));
    rows[next[KeyClassOf(key)]++] = {key, r};
  }
  uint32_t begin = 0;
  for (int64_t b = 0; b < kKeyClasses; begin = next[b++]) {
    std::sort(rows.begin() + begin, rows.begin() + next[b],
              [](const NumberedKey& x, const NumberedKey& y) {
                return x.key != y.key ? x.key < y.key : x.number < y.number;
              });
  }
  // What no row covers is written too.
  std::memset(pages, 0, segment_bytes_);
  for (uint32_t position = 0; position < segment.rows; ++position) {
    const uint32_t row = rows[position].number;
    order[row] = static_cast<uint16_t>(position);
    std::memcpy(pages + format.OffsetOf(position), format.RecordIn(buffer, row),
                format.row_bytes);
  }
}

void DiskLog::Seal(const Segment& segment, char* pages) const {
  const PageFormat& format = *segment.format;
  for (uint32_t page = 0; page < format.pages; ++page) {
    const uint32_t before = std::min(segment.rows, page * format.rows_per_page);
    SealPage(IdentityOf(segment, page),
             std::min(segment.rows - before, format.rows_per_page),
             format.bytes, pages + page * format.bytes);
  }
}

bool DiskLog::WriteToPaths(const char* memory, Segment* segment,
                           DiskError* error) {
  error->text.clear();
  for (segment->path = 0; segment->path < paths_.size(); ++segment->path) {
    Path& path = *paths_[segment->path];
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!path.extents.Take(&segment->extent)) continue;
    }
    const uint64_t offset = path.extents.OffsetOf(segment->extent);
    const int result =
        io_->Write(path.file->descriptor(), memory, segment_bytes_, offset);
    if (result == 0) return true;
    *error = DiskErrorOf("storage file '" + path.file->path() +
                             "' must be writable at offset " +
                             std::to_string(offset) + " (" +
                             std::to_string(segment_bytes_) + " bytes)",
                         result);
    const std::lock_guard<std::mutex> lock(mutex_);
    ReturnExtent(&path, segment->extent);
    if (error->fault != StorageFault::kNoSpace) return false;
  }
  if (error->text.empty()) {
    *error = {StorageFault::kNoSpace, DescribeLimits()};
  }
  return false;
}

std::string DiskLog::DescribeLimits() const {
  std::string text = "storage paths must have room for " +
                     std::to_string(segment_bytes_) + " more bytes, got";
  for (const auto& path : paths_) {
    text += " '" + path->file->path() + "' at its limit of " +
            std::to_string(path->max_bytes) + " bytes,";
  }
  text.back() = ';';
  return text + " raise a limit or add a path";
}

void DiskLog::Free(const uint32_t* places, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.rows -= n;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t segment = SegmentOf(places[i]);
    --segments_[segment].live;
    ReleaseIfUnused(segment);
  }
}

void DiskLog::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_ != nullptr) open_->is_full = true;
  open_ = nullptr;
  counters_.rows = 0;
  for (uint32_t s = 0; s < segments_.size(); ++s) {
    segments_[s].live = 0;
    ReleaseIfUnused(s);
  }
}

void DiskLog::ReleaseIfUnused(uint32_t number) {
  Segment& segment = segments_[number];
  // NextFullBuffer releases the others: one of them may be being written.
  if (segment.state != State::kOnDisk) return;
  if (segment.live > 0 || segment.pins > 0) return;
  ReturnExtent(paths_[segment.path].get(), segment.extent);
  Release(number);
}

void DiskLog::Release(uint32_t number) {
  Segment& segment = segments_[number];
  places_ -= segment.format->rows;
  segment.state = State::kUnused;
  if (orders_[number] != nullptr) ordered_ -= segment.rows;
  orders_[number].reset();
  unused_.push_back(number);
}

void DiskLog::ReturnExtent(Path* path, uint64_t extent) {
  path->extents.Return(extent);
  if (path->extents.CanShrink() &&
      io_->Truncate(path->file->descriptor(), path->extents.least_bytes()) ==
          0) {
    path->extents.NoteShrunk();
  }
}

bool DiskLog::Widen(const std::vector<float>& added) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    auto format = std::make_unique<const PageFormat>(
        formats_.back()->row_floats + added.size(), segment_bytes_,
        places_per_segment_);
    if (format->rows == 0) return false;
    auto initials = std::make_shared<std::vector<float>>(*initials_);
    initials->insert(initials->end(), added.begin(), added.end());
    formats_.push_back(std::move(format));
    initials_ = std::move(initials);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (open_ != nullptr) open_->is_full = true;
  open_ = nullptr;
  return true;
}

}  // namespace rec_estimator
