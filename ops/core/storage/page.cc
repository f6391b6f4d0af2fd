// SPDX-License-Identifier: Apache-2.0
#include "ops/core/storage/page.h"

#include <algorithm>
#include <cstring>

#include "ops/core/base/crc32c.h"

namespace rec_estimator {
namespace {

// The part of a page that may be lost to rows that do not cross pages.
constexpr double kMostLost = 0.125;
// Pages up to this many times the least size are tried to keep to that.
constexpr size_t kMostOfLeast = 4;

struct PageHeader {
  uint32_t checksum;  // Covers the page's identity and what follows.
  uint32_t rows;
};
static_assert(sizeof(PageHeader) == PageFormat::kHeader, "as documented");

uint32_t ChecksumOf(const PageIdentity& identity, size_t bytes,
                    const char* page) {
  constexpr size_t kCovered = offsetof(PageHeader, rows);
  return ExtendCrc32c(ExtendCrc32c(0, &identity, sizeof(identity)),
                      page + kCovered, bytes - kCovered);
}

}  // namespace

size_t PageFormat::BytesFor(size_t row_floats) {
  const size_t row_bytes = kKey + row_floats * sizeof(float);
  const size_t least =
      (kHeader + row_bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
  size_t best = least;
  double best_lost = 1;
  for (size_t bytes = least; bytes <= kMostOfLeast * least;
       bytes += kDiskBlock) {
    const double lost =
        static_cast<double>((bytes - kHeader) % row_bytes + kHeader) /
        static_cast<double>(bytes);
    if (lost < best_lost) {
      best = bytes;
      best_lost = lost;
    }
    if (lost <= kMostLost) break;
  }
  return best;
}

PageFormat::PageFormat(size_t row_floats, size_t segment_bytes,
                       uint32_t most_rows)
    : row_floats(row_floats),
      row_bytes(kKey + row_floats * sizeof(float)),
      bytes(BytesFor(row_floats)),
      rows_per_page(static_cast<uint32_t>((bytes - kHeader) / row_bytes)),
      pages(static_cast<uint32_t>(segment_bytes / bytes)),
      rows(std::min(most_rows, pages * rows_per_page)) {}

void WriteRecord(int64_t key, const float* row, const PageFormat& format,
                 char* record) {
  std::memcpy(record, &key, sizeof(key));
  std::memcpy(record + PageFormat::kKey, row,
              format.row_floats * sizeof(float));
}

void SealPage(const PageIdentity& identity, uint32_t rows, size_t bytes,
              char* page) {
  PageHeader header = {0, rows};
  std::memcpy(page, &header, sizeof(header));
  header.checksum = ChecksumOf(identity, bytes, page);
  std::memcpy(page, &header, sizeof(header));
}

bool IsSealed(const PageIdentity& identity, size_t bytes, const char* page) {
  PageHeader header;
  std::memcpy(&header, page, sizeof(header));
  return header.checksum == ChecksumOf(identity, bytes, page);
}

}  // namespace rec_estimator
