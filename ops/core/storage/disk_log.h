// SPDX-License-Identifier: Apache-2.0
// DiskLog: rows on disk, in places that are 31-bit numbers.
//
// LAYOUT
//
//   file      |header | segment | segment | ...      one file in each path
//   segment   1 MiB or more, written at once: | page | page | ...
//   page      4 KiB or a multiple that holds a row:
//             |checksum, 4 B|rows, 4 B| key 0, row 0 | key 1, row 1 | ...
//   place     segment * the most rows of a segment + number of the row in it
//
// Rows are appended to a buffer of the size of a segment. A full buffer gets a
// free extent of a file, in the first path that has room, and is written with
// one call, bypassing the page cache: an SSD writes 1 MiB at 40 times the speed
// of 4 KiB. Until then its rows are read from the buffer, so a failed write
// loses nothing, and a later call tries again.
//
// A segment is written in the order of a checkpoint: by key class, then key. So
// a save, which wants a range of keys from each segment, reads a few pages one
// behind the other (ordered_reader.h). Two bytes of memory a place say where
// its row is.
//
// A read takes one page, or neighbouring pages with rows that are wanted. While
// rows are copied, the next pages are read. A page's checksum also covers the
// random number of this run, the number of the write and the position of the
// page. So a read fails unless it finds exactly the page that was written there
// last.
//
// A row is not changed in place: Free makes its place free, and the row is
// appended again. A segment without rows is used anew. If rows fill less than
// two thirds of the segments, the caller moves those of the emptiest segment
// (PickSegment, ReadSegment), which keeps a file below twice the rows.
//
// Wider rows (Widen) begin in a new segment. Rows that were written before are
// read with the initial values of the floats that they lack.
//
// Nothing is synchronized with the disk: after a crash the files are worthless
// (log_file.h).
//
// THREAD RULE
//
// Any thread may call any method at any time. A place is valid from Append to
// Free; to read it, the caller either prevents Free or pins it first. A pinned
// place keeps its row after Free. Disk reads and writes hold no lock that
// Append, Pin or Free takes.
//
// A process that was forked may read but not write. No other thread may be in a
// method while it is forked.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_LOG_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_LOG_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/storage/disk_error.h"
#include "ops/core/storage/disk_io.h"
#include "ops/core/storage/disk_memory.h"
#include "ops/core/storage/extents.h"
#include "ops/core/storage/log_file.h"
#include "ops/core/storage/page.h"

namespace rec_estimator {

struct DiskPath {
  std::string directory;
  uint64_t max_bytes = 0;  // 0: all that is there.
};

class DiskLog {
 public:
  // One more than the greatest place.
  static constexpr uint32_t kMaxPlaces = (1u << 31) - 2;

  // Creates a file in each path. row_floats >= 1. nullptr: *error says why.
  // Throws std::bad_alloc.
  // segment_bytes: wanted; more rows at once are written and, in a save, read
  // faster, but a buffer takes as much memory.
  static std::unique_ptr<DiskLog> Open(const std::vector<DiskPath>& paths,
                                       size_t row_floats,
                                       std::unique_ptr<DiskIo> io,
                                       DiskError* error,
                                       size_t segment_bytes = size_t{1} << 20);
  ~DiskLog();
  DiskLog(const DiskLog&) = delete;
  DiskLog& operator=(const DiskLog&) = delete;

  size_t row_floats() const;
  size_t segment_bytes() const { return segment_bytes_; }
  uint32_t rows_per_segment() const {
    return places_per_segment_;
  }  // The most rows.

  // ----- Writing.

  struct NewRow {
    int64_t key;
    const float* row;    // (row_floats)
    uint32_t place = 0;  // Set by Append.
  };
  // Copies rows (n) into buffers. Returns how many: if not all, there is no
  // room for the next one; WriteFullBuffers makes some.
  // for_room: rows are moved because WriteFullBuffers reported kNoSpace; they
  // may use a buffer that is kept for that.
  size_t Append(NewRow* rows, size_t n, bool for_room = false);
  // Called when Append found no room. Returns false if there will not be any
  // because a buffer cannot be written or no place is left. Rows stay where
  // they are; some buffers may have been written. Throws std::bad_alloc.
  bool WriteFullBuffers(DiskError* error);
  // Frees the rows of places (n).
  void Free(const uint32_t* places, size_t n);
  // Frees all rows.
  void Clear();
  // Appends `added` to the rows, also to those that were appended. False: such
  // a row does not fit into a segment, or there is no memory for a buffer.
  bool Widen(const std::vector<float>& added);

  // ----- Reading.

  struct Item {
    uint32_t place;
    int64_t key;  // The key that Append got, which is checked.
    float* row;   // (floats) Read copies the beginning of the row there.
  };
  // Keeps a row from being overwritten until it is unpinned.
  void Pin(uint32_t place);
  void Unpin(const Item* items, size_t n);
  // Reads the first `floats` floats of rows (n) in any order, many pages at a
  // time and each page once. floats <= row_floats(). False: *error names the
  // file and the position of the first page that failed; what the items' `row`
  // points to is then undefined. Throws std::bad_alloc.
  bool Read(const Item* items, size_t n, size_t floats, DiskError* error);

  // ----- Compaction, and reading in sequence.

  // Whether rows fill less than two thirds of the segments; for_room: whether
  // one segment is not quite full. If so, *segment is the one with the fewest
  // rows.
  bool PickSegment(uint32_t* segment, bool for_room = false);
  // One more than the greatest number of a segment.
  uint32_t segments() const;
  using VisitRow =
      std::function<void(uint32_t place, int64_t key, const float* row)>;
  // Calls visit for all rows of a segment, including those that were freed,
  // with one read. False: *error names a page that cannot be read; the rows of
  // all others were visited. PickSegment does not return that segment again.
  // Throws std::bad_alloc.
  bool ReadSegment(uint32_t segment, const VisitRow& visit, DiskError* error);

  struct Counters {
    uint64_t rows = 0;          // Rows that were not freed.
    uint64_t file_bytes = 0;    // The size of all files.
    uint64_t memory_bytes = 0;  // For buffers, and to find rows.
    uint64_t pages_read = 0;    // Pages that Read has read.
    uint64_t bytes_read = 0;
    uint64_t bytes_written = 0;
    uint64_t read_ns = 0;  // The time that threads waited for pages.
  };
  Counters counters() const;
  const char* reader_name() const { return io_->reader_name(); }
  // Whether all files bypass the page cache.
  bool is_direct() const;

 private:
  friend class OrderedReader;

  // The most bytes of one read of neighbouring pages. Larger reads are no
  // faster.
  static constexpr size_t kRunBytes = size_t{64} << 10;
  // Items ahead of the one that is found, whose memory is fetched meanwhile.
  static constexpr size_t kPrefetched = 16;

  enum class State : uint8_t { kUnused, kBuffered, kOnDisk };
  struct Buffer {
    explicit Buffer(size_t bytes) : memory(bytes) {}
    DiskMemory memory;
    bool is_used = false;
    bool is_full = false;
    uint32_t segment = 0;
  };
  struct Path {
    std::unique_ptr<LogFile> file;
    uint64_t max_bytes;
    Extents extents;  // Guarded by mutex_.
  };
  struct Segment {
    State state = State::kUnused;
    bool is_damaged = false;
    uint32_t path = 0;  // kOnDisk
    uint32_t live = 0;  // Rows that were not freed.
    uint32_t pins = 0;
    uint32_t rows = 0;  // Rows that were appended.
    const PageFormat* format = nullptr;
    const uint16_t* order = nullptr;  // kOnDisk: the position of each row.
    Buffer* buffer = nullptr;         // kBuffered
    uint64_t extent = 0;              // kOnDisk
    uint64_t write = 0;               // kOnDisk
  };
  // Where the row of an item is on disk.
  struct Located {
    uint64_t address = 0;  // One word, which sorts faster.
    size_t item = 0;

    uint32_t segment() const { return static_cast<uint32_t>(address >> 32); }
    uint32_t position() const { return static_cast<uint32_t>(address); }
  };
  // Neighbouring pages, and which rows are in them.
  struct Run {
    Segment segment;  // A copy: the vector of segments grows.
    uint32_t page;    // The first one.
    uint32_t pages;
    size_t begin, end;  // The located items in these pages.
  };
  // Pages that are being read.
  struct Pages {
    size_t end() const { return runs.back().end; }

    std::vector<Run> runs;
    std::vector<ReadRequest> requests;  // To read the runs.
    std::optional<DiskMemoryPool::Loan> memory;
    std::unique_ptr<Reading> reading;  // Destroyed first: it waits.
  };
  using Initials = std::shared_ptr<const std::vector<float>>;

  DiskLog(std::unique_ptr<DiskIo> io, size_t row_floats, size_t segment_bytes);

  uint32_t SegmentOf(uint32_t place) const {
    return place / places_per_segment_;
  }
  uint32_t RowOf(uint32_t place) const { return place % places_per_segment_; }
  PageIdentity IdentityOf(const Segment& segment, uint32_t page) const {
    return {paths_[0]->file->run_id(), segment.write, page};
  }
  ReadRequest RequestFor(const Segment& segment, uint32_t page, size_t bytes,
                         char* to) const;
  // The result is the time that it took.
  static std::chrono::nanoseconds WaitTimed(Reading* reading);
  // Whether a page is what was written, of `pages` that were read from page
  // `first` on with this result.
  bool CheckPage(const Segment& segment, uint32_t first, uint32_t page,
                 const char* pages, int64_t result, DiskError* error) const;
  // Whether the record is that of the key.
  static bool CheckKey(const char* record, int64_t key, DiskError* error);
  // Copies the first `floats` floats of a row of `have` floats. What it lacks
  // comes from `initials`.
  static void CopyFloats(const float* row, size_t have,
                         const std::vector<float>& initials, size_t floats,
                         float* to);
  // Fetches what says where the row of a place is. mutex_ is held.
  void PrefetchPosition(uint32_t place) const {
    const Segment& segment = segments_[SegmentOf(place)];
    if (segment.order != nullptr) PrefetchLine(segment.order + RowOf(place));
  }
  // Copies the items [begin, end) that are in buffers and finds the others.
  // False: *error says what is wrong with one.
  bool Locate(const Item* items, size_t begin, size_t end, size_t floats,
              std::vector<Located>* located, DiskError* error);
  static void SortByAddress(std::vector<Located>* located);
  // Lists the pages of items from `begin` on, in ascending order: as many as
  // are read together.
  void ListRuns(const std::vector<Located>& located, size_t begin,
                std::vector<Run>* runs, size_t* bytes);
  // Begins to read the pages of items from `begin` on. nullptr: there are no
  // such items.
  std::unique_ptr<Pages> StartReading(const std::vector<Located>& located,
                                      size_t begin);
  // Waits for the pages, checks them, and copies what the items want of them.
  bool CopyRows(const Item* items, const std::vector<Located>& located,
                Pages* pages, size_t floats, DiskError* error);
  bool CopyRun(const Item* items, const std::vector<Located>& located,
               const Run& run, const ReadRequest& read,
               const std::vector<float>& initials, size_t floats,
               DiskError* error) const;

  // mutex_ is held for the methods below.
  enum class Opened { kYes, kBuffersFull, kNoPlace, kNoMemory };
  Opened OpenBuffer(bool for_room);
  void UnpinSegment(uint32_t number);
  void ReleaseIfUnused(uint32_t number);
  void Release(uint32_t number);
  void ReturnExtent(Path* path, uint64_t extent);

  // write_mutex_ is held.
  // Whether a row can be appended, or could if no other thread appended rows.
  bool HasRoom(DiskError* error);
  // A buffer that is full and whose rows are needed; nullptr: none.
  Buffer* NextFullBuffer();
  bool WriteBuffer(Buffer* buffer, DiskError* error);
  // Copies the rows of a buffer to pages, in order. order: (rows)
  void Sort(const Segment& segment, uint16_t* order, char* pages) const;
  void Seal(const Segment& segment, char* pages) const;
  // Writes a sealed segment to the first path that takes it.
  bool WriteToPaths(const char* memory, Segment* segment, DiskError* error);
  std::string DescribeLimits() const;

  const std::unique_ptr<DiskIo> io_;
  const size_t segment_bytes_;
  const pid_t owner_;
  uint32_t places_per_segment_;               // Set by the constructor.
  std::vector<std::unique_ptr<Path>> paths_;  // Set by Open.
  DiskMemoryPool memory_;

  std::mutex write_mutex_;  // One thread writes. Taken before mutex_.

  mutable std::mutex mutex_;  // Guards what follows.
  std::vector<std::unique_ptr<const PageFormat>> formats_;  // The last is new.
  Initials initials_;  // (row_floats) of rows that were written without them.
  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<uint16_t[]>> orders_;  // One for each segment.
  std::vector<uint32_t> unused_;                     // Segments.
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Buffer* open_ = nullptr;  // Takes the next row.
  uint64_t writes_ = 0;
  uint64_t places_ = 0;   // Rows that the segments in use can hold.
  uint64_t ordered_ = 0;  // Rows in orders_.
  Counters counters_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_LOG_H_
