// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/ordered_reader.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "ops/core/storage/page.h"

namespace rec_estimator {
namespace {

// Rows that are located while other threads wait for the log's lock.
constexpr size_t kLockedRows = 1024;

// Bytes of pages to hold of each segment; 0: there is no memory for a page.
size_t BytesEach(size_t max_bytes, size_t segments, size_t page_bytes,
                 size_t most) {
  const size_t bytes =
      std::min(max_bytes / std::max<size_t>(segments, 1), most);
  if (bytes < std::min(page_bytes, most)) return 0;
  return bytes / kDiskBlock * kDiskBlock;
}

}  // namespace

OrderedReader::OrderedReader(DiskLog* log, size_t floats, size_t max_bytes)
    : log_(*log),
      floats_(floats),
      bytes_each_(BytesEach(max_bytes, log->segments(),
                            PageFormat::BytesFor(log->row_floats()),
                            DiskLog::kRunBytes)),
      memory_(bytes_each_),
      held_(log->segments()) {}

OrderedReader::~OrderedReader() = default;

std::unique_ptr<OrderedReader::Batch> OrderedReader::Start(const Wanted* wanted,
                                                           size_t n,
                                                           DiskError* error) {
  auto batch = std::make_unique<Batch>();
  batch->wanted = wanted;
  batch->n = n;
  if (!holds()) return batch;
  if (!Locate(batch.get(), error)) return nullptr;
  DiskLog::SortByAddress(&batch->located);
  ListPieces(batch.get());
  for (Piece* piece : batch->unread) {
    batch->requests.push_back(log_.RequestFor(
        piece->segment, piece->page,
        piece->pages * piece->segment.format->bytes, piece->memory.get()));
  }
  batch->reading =
      log_.io_->StartReading(batch->requests.data(), batch->requests.size());
  return batch;
}

bool OrderedReader::Locate(Batch* batch, DiskError* error) {
  batch->located.reserve(batch->n);
  for (size_t at = 0; at < batch->n; at += kLockedRows) {
    const size_t end = std::min(batch->n, at + kLockedRows);
    const std::lock_guard<std::mutex> lock(log_.mutex_);
    for (size_t i = at; i < end; ++i) {
      const Wanted& wanted = batch->wanted[i];
      if (i + DiskLog::kPrefetched < end) {
        log_.PrefetchPosition(batch->wanted[i + DiskLog::kPrefetched].place);
      }
      const uint32_t number = log_.SegmentOf(wanted.place);
      const uint32_t row = log_.RowOf(wanted.place);
      const Segment& segment = log_.segments_[number];
      if (segment.state == DiskLog::State::kOnDisk) {
        batch->located.push_back(
            {uint64_t{number} << 32 | segment.order[row], i});
        continue;
      }
      const PageFormat& format = *segment.format;
      const char* const record =
          format.RecordIn(segment.buffer->memory.get(), row);
      if (!DiskLog::CheckKey(record, wanted.key, error)) return false;
      *wanted.row =
          Copy(batch, RowOfRecord(record), format.row_floats, *log_.initials_);
    }
  }
  return true;
}

void OrderedReader::ListPieces(Batch* batch) {
  const std::vector<Located>& located = batch->located;
  const std::lock_guard<std::mutex> lock(log_.mutex_);
  for (size_t begin = 0, end; begin < located.size(); begin = end) {
    const uint32_t number = located[begin].segment();
    const Segment& segment = log_.segments_[number];
    const PageFormat& format = *segment.format;
    if (number >= held_.size()) held_.resize(number + 1);
    std::shared_ptr<Piece> piece = held_[number];
    if (piece == nullptr || piece->segment.write != segment.write ||
        !piece->Has(format.PageOf(located[begin].position()))) {
      piece = NewPiece(located, begin);
      batch->unread.push_back(piece.get());
      const size_t bytes = piece->pages * format.bytes;
      held_[number] = bytes <= bytes_each_ ? piece : nullptr;
      log_.counters_.pages_read += piece->pages;
      log_.counters_.bytes_read += bytes;
    }
    end = begin + 1;
    while (end < located.size() && located[end].segment() == number &&
           piece->Has(format.PageOf(located[end].position()))) {
      ++end;
    }
    batch->uses.push_back({std::move(piece), begin, end});
  }
}

std::shared_ptr<OrderedReader::Piece> OrderedReader::NewPiece(
    const std::vector<Located>& located, size_t row) {
  const uint32_t number = located[row].segment();
  const Segment& segment = log_.segments_[number];
  const PageFormat& format = *segment.format;
  const uint32_t first = format.PageOf(located[row].position());
  const uint32_t last = format.PageOf(segment.rows - 1);
  auto pages = static_cast<uint32_t>(bytes_each_ / format.bytes);
  // Otherwise, all segments would be read again at the same time, and would
  // take twice the memory then.
  if (held_[number] == nullptr && pages > 1) pages = 1 + number % pages;
  pages = std::min(std::max(pages, 1u), last - first + 1);
  for (; row < located.size() && located[row].segment() == number; ++row) {
    const uint32_t page = format.PageOf(located[row].position()) - first;
    if (page < pages) continue;
    if (page > pages || (pages + 1) * format.bytes > DiskLog::kRunBytes) break;
    ++pages;
  }
  return std::make_shared<Piece>(segment, first, pages, &memory_);
}

bool OrderedReader::CopyRows(Batch* batch, DiskError* error) {
  batch->copies.push_back(std::make_unique<float[]>(batch->n * floats_));
  float* row = batch->copies.back().get();
  std::vector<DiskLog::Item> items;
  items.reserve(batch->n);
  for (size_t i = 0; i < batch->n; ++i, row += floats_) {
    items.push_back({batch->wanted[i].place, batch->wanted[i].key, row});
    *batch->wanted[i].row = row;
  }
  return log_.Read(items.data(), items.size(), floats_, error);
}

bool OrderedReader::Finish(Batch* batch, DiskError* error) {
  if (!holds()) return CopyRows(batch, error);
  const auto took = DiskLog::WaitTimed(batch->reading.get());
  batch->reading.reset();
  for (size_t i = 0; i < batch->unread.size(); ++i) {
    batch->unread[i]->result = batch->requests[i].result;
  }
  DiskLog::Initials initials;
  {
    const std::lock_guard<std::mutex> lock(log_.mutex_);
    initials = log_.initials_;
    log_.counters_.read_ns += static_cast<uint64_t>(took.count());
  }
  for (const Batch::Use& use : batch->uses) {
    if (!SetRows(batch, use.piece.get(), use.begin, use.end, *initials,
                 error)) {
      return false;
    }
  }
  return true;
}

bool OrderedReader::SetRows(Batch* batch, Piece* piece, size_t begin,
                            size_t end, const std::vector<float>& initials,
                            DiskError* error) {
  const PageFormat& format = *piece->segment.format;
  const char* const pages = piece->memory.get();
  const size_t offset = piece->page * format.bytes;
  for (size_t l = begin; l < end; ++l) {
    const Wanted& wanted = batch->wanted[batch->located[l].item];
    const uint32_t position = batch->located[l].position();
    const uint32_t page = format.PageOf(position) - piece->page;
    if (!piece->is_checked[page] &&
        !log_.CheckPage(piece->segment, piece->page, page, pages, piece->result,
                        error)) {
      return false;
    }
    piece->is_checked[page] = true;
    const char* const record = pages + (format.OffsetOf(position) - offset);
    if (!DiskLog::CheckKey(record, wanted.key, error)) return false;
    const float* const row = RowOfRecord(record);
    *wanted.row = format.row_floats >= floats_
                      ? row
                      : Copy(batch, row, format.row_floats, initials);
  }
  return true;
}

const float* OrderedReader::Copy(Batch* batch, const float* row, size_t have,
                                 const std::vector<float>& initials) const {
  batch->copies.push_back(std::make_unique<float[]>(floats_));
  float* const copy = batch->copies.back().get();
  DiskLog::CopyFloats(row, have, initials, floats_, copy);
  return copy;
}

}  // namespace rec_estimator
