// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/spare_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <new>
#include <utility>

namespace rec_estimator {
namespace {

constexpr size_t kShareOfMachine = 4;

// Tells the system that it may take the pages. False: it cannot do that.
bool OfferToSystem(const ZeroedMemory& block) {
#if defined(MADV_FREE) && !defined(__SANITIZE_ADDRESS__)
  return madvise(block.get(), BytesOf(block), MADV_FREE) == 0;
#else
  // AddressSanitizer finds a use of freed memory only if it is unmapped.
  static_cast<void>(block);
  return false;
#endif
}

size_t MemoryOfMachine() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages < 0 || page_bytes < 0
             ? 0
             : static_cast<size_t>(pages) * static_cast<size_t>(page_bytes);
}

}  // namespace

SpareMemory& SpareMemory::OfProcess() {
  // Never destroyed: tables may be freed when the process ends.
  static SpareMemory& spare =
      *new SpareMemory(MemoryOfMachine() / kShareOfMachine);
  return spare;
}

ZeroedMemory SpareMemory::Take(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The newest first: the system is least likely to have taken its pages.
  const auto it = std::find_if(
      blocks_.rbegin(), blocks_.rend(),
      [bytes](const ZeroedMemory& block) { return BytesOf(block) == bytes; });
  if (it == blocks_.rend()) return nullptr;
  ZeroedMemory block = std::move(*it);
  blocks_.erase(std::next(it).base());
  bytes_ -= bytes;
  return block;
}

void SpareMemory::Keep(ZeroedMemory block) {
  const size_t bytes = BytesOf(block);
  if (bytes == 0 || bytes > limit_ || !OfferToSystem(block)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    blocks_.push_back(std::move(block));
  } catch (const std::bad_alloc&) {
    return;  // `block` was not moved and is freed.
  }
  bytes_ += bytes;
  auto kept = blocks_.begin();
  for (; bytes_ > limit_; ++kept) bytes_ -= BytesOf(*kept);
  blocks_.erase(blocks_.begin(), kept);
}

bool SpareMemory::FreeAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool any = !blocks_.empty();
  blocks_.clear();
  bytes_ = 0;
  return any;
}

size_t SpareMemory::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace rec_estimator
