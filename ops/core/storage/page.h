// SPDX-License-Identifier: Apache-2.0
// How rows lie in the pages of a DiskLog.
//
//   |checksum, 4 B|rows, 4 B| key 0, row 0 | key 1, row 1 | ... | zeros |
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_PAGE_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rec_estimator {

// What O_DIRECT asks of offsets, sizes and addresses: the block of any disk.
inline constexpr size_t kDiskBlock = 4096;

// The pages of rows of one width.
struct PageFormat {
  static constexpr size_t kHeader = 8;
  static constexpr size_t kKey = 8;

  // The size of a page for such rows: as small as possible, but rows do not
  // cross pages, and little of a page is lost.
  static size_t BytesFor(size_t row_floats);

  // A segment gets no more than most_rows rows.
  PageFormat(size_t row_floats, size_t segment_bytes, uint32_t most_rows);

  const size_t row_floats;
  const size_t row_bytes;  // The key included.
  const size_t bytes;      // The size of a page; a multiple of kDiskBlock.
  const uint32_t rows_per_page;
  const uint32_t pages;  // Pages of a segment.
  const uint32_t rows;   // Rows of a segment.

  uint32_t PageOf(uint32_t position) const { return position / rows_per_page; }
  // Where the record of a row begins in the pages of its segment.
  size_t OffsetOf(uint32_t position) const {
    return PageOf(position) * bytes + kHeader +
           position % rows_per_page * row_bytes;
  }
  const char* RecordIn(const char* pages, uint32_t position) const {
    return pages + OffsetOf(position);
  }
};

inline int64_t KeyOfRecord(const char* record) {
  int64_t key;
  std::memcpy(&key, record, sizeof(key));
  return key;
}
inline const float* RowOfRecord(const char* record) {  // (row_floats)
  return reinterpret_cast<const float*>(record + PageFormat::kKey);
}
void WriteRecord(int64_t key, const float* row, const PageFormat& format,
                 char* record);

// What tells a page from all others that were ever written to its position.
struct PageIdentity {
  uint64_t run_id;  // Random.
  uint64_t write;   // Counts the writes of a run.
  uint64_t page;
};

// Writes the header of a page of this many rows.
void SealPage(const PageIdentity& identity, uint32_t rows, size_t bytes,
              char* page);
// Whether the page is what SealPage saw.
bool IsSealed(const PageIdentity& identity, size_t bytes, const char* page);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_PAGE_H_
