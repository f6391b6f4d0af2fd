// SPDX-License-Identifier: Apache-2.0
// Reads many rows of a DiskLog in the order of a checkpoint.
//
// A save wants the rows of all segments at once, from each a few of the next
// ones: too few to fill a read that keeps an SSD busy. So the reader reads more
// of each segment and holds the pages for the rows that come later. The caller
// gets the rows where they are in these pages. While it uses those of one
// batch, the next ones are checked, and the disk reads those after them.
//
// If there is no memory for a page of each segment, rows are copied, so that a
// batch takes no more memory than its rows, and pages are read again.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_ORDERED_READER_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_ORDERED_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/storage/batch_reader.h"
#include "ops/core/storage/disk_error.h"
#include "ops/core/storage/disk_log.h"
#include "ops/core/storage/disk_memory.h"

namespace rec_estimator {

// Batches may be in any order, but pages are read once only if the rows of each
// segment are wanted in the order of a checkpoint. One thread uses the object
// and destroys batches that are not finished.
class OrderedReader {
 public:
  struct Wanted {
    uint32_t place;  // Valid until Finish.
    int64_t key;     // The key that Append got, which is checked.
    const float** row;
  };
  struct Batch;

  // Reads the first `floats` floats of rows, and holds max_bytes of pages for
  // later rows, in addition to those that batches use. The log outlives the
  // object.
  OrderedReader(DiskLog* log, size_t floats, size_t max_bytes);
  ~OrderedReader();
  OrderedReader(const OrderedReader&) = delete;
  OrderedReader& operator=(const OrderedReader&) = delete;

  // Begins to read rows (n), which stay where they are until Finish. nullptr:
  // *error says why. Throws std::bad_alloc.
  std::unique_ptr<Batch> Start(const Wanted* wanted, size_t n,
                               DiskError* error);
  // Waits for the rows of a batch, which must be the oldest that is not
  // finished, and sets their `row`. They are valid while the batch and this
  // object live. False: *error names the file and the position of the first
  // page that failed. Throws std::bad_alloc.
  bool Finish(Batch* batch, DiskError* error);

 private:
  using Segment = DiskLog::Segment;
  using Located = DiskLog::Located;
  struct Piece;

  // Whether pages are held.
  bool holds() const { return bytes_each_ > 0; }
  bool CopyRows(Batch* batch, DiskError* error);
  // Copies the rows that are in the log's buffers, and locates the others.
  bool Locate(Batch* batch, DiskError* error);
  // Lists the pieces with the rows of a batch, and what is to be read of them.
  void ListPieces(Batch* batch);
  // Pages from that of the row on: those that are wanted, and some ahead.
  std::shared_ptr<Piece> NewPiece(const std::vector<Located>& located,
                                  size_t row);
  bool SetRows(Batch* batch, Piece* piece, size_t begin, size_t end,
               const std::vector<float>& initials, DiskError* error);
  const float* Copy(Batch* batch, const float* row, size_t have,
                    const std::vector<float>& initials) const;

  DiskLog& log_;
  const size_t floats_;
  const size_t bytes_each_;  // The most bytes that are held of a segment.
  DiskBlocks memory_;
  std::vector<std::shared_ptr<Piece>> held_;  // By number of the segment.
};

// Neighbouring pages of a segment.
struct OrderedReader::Piece {
  Piece(const Segment& of, uint32_t first, uint32_t n, DiskBlocks* blocks)
      : segment(of),
        page(first),
        pages(n),
        memory(blocks, n * of.format->bytes),
        is_checked(n) {}
  bool Has(uint32_t other) const {
    return other >= page && other - page < pages;
  }

  const Segment segment;  // A copy: the vector of segments grows.
  const uint32_t page;    // The first one.
  const uint32_t pages;
  const DiskBlocks::Loan memory;
  int64_t result = 0;  // What the read returned.
  std::vector<bool> is_checked;
};

struct OrderedReader::Batch {
  struct Use {
    std::shared_ptr<Piece> piece;
    size_t begin, end;  // The located rows in the piece.
  };

  const Wanted* wanted;
  size_t n;
  std::vector<Located> located;
  std::vector<Use> uses;
  std::vector<std::unique_ptr<float[]>> copies;  // Rows that are not in pieces.
  std::vector<Piece*> unread;
  std::vector<ReadRequest> requests;  // To read these pieces.
  std::unique_ptr<Reading> reading;   // Destroyed first: it waits.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_ORDERED_READER_H_
