// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/row_arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/hash_index.h"

namespace rec_estimator {
namespace {

constexpr size_t kBlockBytes = size_t{2}
                               << 20;     // At least, unless one row is more.
constexpr uint64_t kFirstDirectory = 64;  // Blocks; 512 bytes.

// Several blocks are mapped at a time, an eighth of what there is and at most
// 32: huge pages then cross block borders, and a process may have only 65,530
// mappings. Untouched blocks take no memory.
constexpr uint64_t kExtentShare = 8;
constexpr uint64_t kMaxExtent = 32;

}  // namespace

// One allocation: blocks of rows, or a directory.
struct RowArena::Extent {
  void* memory;
  size_t bytes;
  Extent* next;
};

RowArena::RowArena(size_t row_floats) : row_floats_(row_floats), shift_(0) {
  while ((row_floats_ * sizeof(float) << shift_) < kBlockBytes) ++shift_;
}

bool RowArena::Promise(uint64_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Grow(next_ + promised_ + rows)) return false;
  promised_ += rows;
  return true;
}

void RowArena::Release(uint64_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  promised_ -= rows;
}

bool RowArena::Take(uint64_t rows, uint64_t promised, uint32_t* first) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Grow(next_ + promised_ - promised + rows)) return false;
  promised_ -= promised;
  *first = static_cast<uint32_t>(next_);
  next_ += rows;
  return true;
}

uint64_t RowArena::taken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return next_;
}

size_t RowArena::bytes() const { return taken() * row_floats_ * sizeof(float); }

bool RowArena::Grow(uint64_t rows) {
  if (rows > HashIndex::kMaxRows) return false;
  while ((blocks_ << shift_) < rows) {
    const uint64_t wanted =
        ((rows + (uint64_t{1} << shift_) - 1) >> shift_) - blocks_;
    uint64_t blocks =
        std::min(wanted, std::min(kMaxExtent, blocks_ / kExtentShare + 1));
    blocks = std::max(blocks, std::min(kMaxExtent, blocks_ / kExtentShare));
    const size_t bytes = (row_floats_ * sizeof(float) * blocks) << shift_;
    Extent* extent = new (std::nothrow) Extent;
    if (extent == nullptr) return false;
    // The first block of a table that stays small is touched in few places.
    extent->memory =
        AllocateZeroed(bytes, blocks_ == 0 ? Pages::kSmall : Pages::kHuge);
    extent->bytes = bytes;
    if (extent->memory == nullptr ||
        !Publish(static_cast<float*>(extent->memory), blocks)) {
      FreeZeroed(extent->memory, bytes);
      delete extent;
      return false;
    }
    extent->next = extents_;
    extents_ = extent;
  }
  return true;
}

bool RowArena::Publish(float* memory, uint64_t blocks) {
  float** directory = directory_.load(std::memory_order_relaxed);
  if (blocks_ + blocks > directory_size_) {
    const uint64_t size = std::max(
        kFirstDirectory, std::max(blocks_ + blocks, 2 * directory_size_));
    Extent* extent = new (std::nothrow) Extent;
    if (extent == nullptr) return false;
    extent->bytes = size * sizeof(float*);
    extent->memory = AllocateZeroed(extent->bytes, Pages::kSmall);
    if (extent->memory == nullptr) {
      delete extent;
      return false;
    }
    extent->next = extents_;
    extents_ = extent;
    float** copy = static_cast<float**>(extent->memory);
    if (blocks_ > 0) std::copy(directory, directory + blocks_, copy);
    directory = copy;
    directory_size_ = size;
  }
  for (uint64_t b = 0; b < blocks; ++b) {
    directory[blocks_ + b] = memory + ((row_floats_ * b) << shift_);
  }
  blocks_ += blocks;
  directory_.store(directory, std::memory_order_release);
  return true;
}

void RowArena::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (extents_ != nullptr) {
    Extent* extent = extents_;
    extents_ = extent->next;
    FreeZeroed(extent->memory, extent->bytes);
    delete extent;
  }
  directory_.store(nullptr, std::memory_order_relaxed);
  directory_size_ = 0;
  blocks_ = 0;
  next_ = 0;
}

void RowArena::Swap(RowArena* other) {
  std::scoped_lock lock(mutex_, other->mutex_);
  std::swap(row_floats_, other->row_floats_);
  std::swap(shift_, other->shift_);
  float** mine = directory_.load(std::memory_order_relaxed);
  directory_.store(other->directory_.load(std::memory_order_relaxed),
                   std::memory_order_relaxed);
  other->directory_.store(mine, std::memory_order_relaxed);
  std::swap(directory_size_, other->directory_size_);
  std::swap(blocks_, other->blocks_);
  std::swap(next_, other->next_);
  std::swap(extents_, other->extents_);
}

}  // namespace rec_estimator
