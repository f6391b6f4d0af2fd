// SPDX-License-Identifier: Apache-2.0
// The extents of a LogFile: pieces of one size that are in use or free.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_EXTENTS_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_EXTENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/storage/log_file.h"

namespace rec_estimator {

// Thread rule: a caller's lock guards all methods but OffsetOf.
class Extents {
 public:
  // max_bytes: of the file, 0: no limit.
  Extents(size_t bytes, uint64_t max_bytes)
      : bytes_(bytes),
        most_(max_bytes == 0 ? UINT64_MAX
                             : (max_bytes - LogFile::kHeaderBytes) / bytes) {}

  uint64_t OffsetOf(uint64_t extent) const {
    return LogFile::kHeaderBytes + extent * bytes_;
  }

  // The first extent that is free. False: the file has reached its limit.
  // Throws std::bad_alloc.
  bool Take(uint64_t* extent) {
    const auto free =
        std::find(is_used_.begin() + static_cast<std::ptrdiff_t>(maybe_free_),
                  is_used_.end(), false);
    maybe_free_ = static_cast<uint64_t>(free - is_used_.begin());
    if (free != is_used_.end()) {
      *free = true;
    } else if (is_used_.size() < most_) {
      is_used_.push_back(true);
    } else {
      return false;
    }
    *extent = maybe_free_++;
    file_bytes_ = std::max(file_bytes_, OffsetOf(is_used_.size()));
    return true;
  }

  void Return(uint64_t extent) {
    is_used_[extent] = false;
    maybe_free_ = std::min(maybe_free_, extent);
    while (!is_used_.empty() && !is_used_.back()) is_used_.pop_back();
    maybe_free_ = std::min<uint64_t>(maybe_free_, is_used_.size());
  }

  // The file's size, at most.
  uint64_t file_bytes() const { return file_bytes_; }
  // Whether many of its last extents are free, so that it should be cut.
  bool CanShrink() const {
    return file_bytes_ >= OffsetOf(is_used_.size() + kToCut);
  }
  uint64_t least_bytes() const { return OffsetOf(is_used_.size()); }
  // The caller has cut it.
  void NoteShrunk() { file_bytes_ = least_bytes(); }

 private:
  static constexpr uint64_t kToCut = 16;

  const size_t bytes_;
  const uint64_t most_;
  std::vector<bool> is_used_;  // The last one is, if there is any.
  uint64_t maybe_free_ = 0;    // All extents before this one are in use.
  uint64_t file_bytes_ = LogFile::kHeaderBytes;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_EXTENTS_H_
