// SPDX-License-Identifier: Apache-2.0
#include "ops/core/rows/row_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/spare_memory.h"
#include "ops/core/index/hash_index.h"

namespace rec_estimator {
namespace {

// The least size of a block, unless one row is more.
constexpr size_t kBlockBytes = size_t{2} << 20;
constexpr uint64_t kFirstDirectory = 64;  // Blocks; 512 bytes.

// Several blocks are mapped at a time: an eighth of those mapped, at most 32.
// Huge pages then cross block borders, and the mappings stay far below the
// 65,530 that a process may have. Untouched blocks occupy no memory.
constexpr uint64_t kExtentShare = 8;
constexpr uint64_t kMaxExtent = 32;

constexpr uintptr_t kPage = 4096;

// Gives the whole pages of [begin, end) back to the system. A hint: they stay
// mapped, and if it fails, they stay in memory.
void GiveBackPages(const float* begin, const float* end) {
  const auto first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) & -kPage;
  const auto last = reinterpret_cast<uintptr_t>(end) & -kPage;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

}  // namespace

// One allocation: blocks of rows, or a directory.
struct RowArena::Extent {
  ZeroedMemory memory;
  Pages pages;
  Extents next;
};

RowArena::RowArena(size_t row_floats) : row_floats_(row_floats), shift_(0) {
  while ((row_floats_ * sizeof(float) << shift_) < kBlockBytes) ++shift_;
}

RowArena::~RowArena() { Clear(); }

bool RowArena::ReserveQuota(uint64_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Grow(next_ + quota_ + rows)) return false;
  quota_ += rows;
  return true;
}

void RowArena::ReleaseQuota(uint64_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  quota_ -= rows;
}

bool RowArena::Take(uint64_t rows, uint64_t from_quota, uint32_t* first) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Grow(next_ + quota_ - from_quota + rows)) return false;
  quota_ -= from_quota;
  *first = static_cast<uint32_t>(next_);
  next_ += rows;
  in_memory_ = std::max(in_memory_, next_);
  return true;
}

void RowArena::Trim(uint64_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  next_ = std::min(next_, rows);
  // Rows that were never handed out are included: huge pages may hold them.
  float* const* const directory = directory_.load(std::memory_order_relaxed);
  const uint64_t block_rows = uint64_t{1} << shift_;
  for (uint64_t block = next_ >> shift_; block < blocks_; ++block) {
    const float* const begin = directory[block];
    const uint64_t kept =
        block == next_ >> shift_ ? next_ & (block_rows - 1) : 0;
    GiveBackPages(begin + kept * row_floats_, begin + block_rows * row_floats_);
  }
  in_memory_ = next_;
}

uint64_t RowArena::in_memory() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_memory_;
}

uint64_t RowArena::taken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return next_;
}

size_t RowArena::bytes() const { return taken() * row_floats_ * sizeof(float); }

RowArena::Extents RowArena::Allocate(size_t bytes, Pages pages) {
  Extents extent(new (std::nothrow) Extent);
  if (extent == nullptr) return nullptr;
  extent->pages = pages;
  if (pages == Pages::kHuge) {
    extent->memory = SpareMemory::OfProcess().Take(bytes);
  }
  if (extent->memory == nullptr) extent->memory = AllocateZeroed(bytes, pages);
  return extent->memory == nullptr ? nullptr : std::move(extent);
}

void RowArena::Keep(Extents extent) {
  extent->next = std::move(extents_);
  extents_ = std::move(extent);
}

bool RowArena::Grow(uint64_t rows) {
  if (rows > HashIndex::kMaxRows) return false;
  while ((blocks_ << shift_) < rows) {
    const uint64_t wanted =
        ((rows + (uint64_t{1} << shift_) - 1) >> shift_) - blocks_;
    uint64_t blocks =
        std::min(wanted, std::min(kMaxExtent, blocks_ / kExtentShare + 1));
    blocks = std::max(blocks, std::min(kMaxExtent, blocks_ / kExtentShare));
    // The first block of a table that stays small is touched in few places.
    Extents extent = Allocate((row_floats_ * sizeof(float) * blocks) << shift_,
                              blocks_ == 0 ? Pages::kSmall : Pages::kHuge);
    if (extent == nullptr || !Publish(std::move(extent), blocks)) return false;
  }
  return true;
}

bool RowArena::Publish(Extents extent, uint64_t blocks) {
  float** directory = directory_.load(std::memory_order_relaxed);
  if (blocks_ + blocks > directory_size_) {
    const uint64_t size = std::max(
        kFirstDirectory, std::max(blocks_ + blocks, 2 * directory_size_));
    Extents larger = Allocate(size * sizeof(float*), Pages::kSmall);
    if (larger == nullptr) return false;
    float** copy = static_cast<float**>(larger->memory.get());
    if (blocks_ > 0) std::copy(directory, directory + blocks_, copy);
    Keep(std::move(larger));
    directory = copy;
    directory_size_ = size;
  }
  float* memory = static_cast<float*>(extent->memory.get());
  for (uint64_t b = 0; b < blocks; ++b) {
    directory[blocks_ + b] = memory + ((row_floats_ * b) << shift_);
  }
  Keep(std::move(extent));
  blocks_ += blocks;
  in_memory_ = blocks_ << shift_;
  directory_.store(directory, std::memory_order_release);
  return true;
}

void RowArena::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  // One by one: the destructor of a long list would recurse.
  while (extents_ != nullptr) {
    if (extents_->pages == Pages::kHuge) {
      SpareMemory::OfProcess().Keep(std::move(extents_->memory));
    }
    extents_ = std::move(extents_->next);
  }
  directory_.store(nullptr, std::memory_order_relaxed);
  directory_size_ = 0;
  blocks_ = 0;
  next_ = 0;
  in_memory_ = 0;
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
  std::swap(in_memory_, other->in_memory_);
  std::swap(extents_, other->extents_);
}

}  // namespace rec_estimator
