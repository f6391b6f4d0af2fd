// SPDX-License-Identifier: Apache-2.0
// Pages that were read before their rows are wanted.
//
// A save wants the rows of all segments of a DiskLog at once, from each a few
// of the next ones: too few to fill a read that keeps an SSD busy. So it reads
// more of each segment, and keeps what it does not want yet.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_PAGES_AHEAD_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_PAGES_AHEAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/core/storage/page.h"

namespace rec_estimator {

// Of one reader, which wants the rows of each segment in ascending order.
class PagesAhead {
 public:
  // Holds at most max_bytes of pages of so many segments.
  PagesAhead(size_t segments, size_t max_bytes)
      : bytes_each_(
            std::min(max_bytes / std::max<size_t>(segments, 1), kMostBytes)),
        held_(segments) {}

  // Pages to read at once of a segment.
  uint32_t PagesOf(const PageFormat& format) const {
    return std::max(1u, static_cast<uint32_t>(bytes_each_ / format.bytes));
  }

  // Finds a page of a segment and the next ones, if they are held. `write`
  // tells a segment from others that had its number before.
  void Find(uint32_t segment, uint64_t write, uint32_t page,
            const PageFormat& format, const char** memory,
            uint32_t* pages) const {
    if (segment >= held_.size()) return;
    const Held& held = held_[segment];
    if (held.write != write || page < held.page) return;
    const uint32_t skipped = page - held.page;
    if (skipped >= held.pages) return;
    *memory = held.memory.get() + skipped * format.bytes;
    *pages = held.pages - skipped;
  }

  // Holds pages in place of those that were held of the segment, if there is
  // room. Throws std::bad_alloc.
  void Hold(uint32_t segment, uint64_t write, uint32_t page, uint32_t pages,
            const PageFormat& format, const char* from) {
    if (segment >= held_.size() || pages * format.bytes > bytes_each_) return;
    Held& held = held_[segment];
    if (held.memory == nullptr) {
      held.memory = std::make_unique<char[]>(bytes_each_);
    }
    held.write = write;
    held.page = page;
    held.pages = pages;
    std::memcpy(held.memory.get(), from, pages * format.bytes);
  }

 private:
  // Larger reads are no faster.
  static constexpr size_t kMostBytes = size_t{64} << 10;
  struct Held {
    uint64_t write = 0;  // 0: of no segment.
    uint32_t page = 0;   // The first one.
    uint32_t pages = 0;
    std::unique_ptr<char[]> memory;
  };

  const size_t bytes_each_;
  std::vector<Held> held_;  // By number of the segment.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_PAGES_AHEAD_H_
