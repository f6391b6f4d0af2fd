// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/scratch.h"

#include <array>
#include <mutex>
#include <utility>

namespace rec_estimator {
namespace {

// The pieces that no Scratch uses. A batch of 800,000 occurrences takes the
// largest piece that is kept.
class Pool {
 public:
  // The smallest piece of at least `bytes`. If there is none, the largest one
  // of the others, for the caller to free: a larger one takes its place.
  ZeroedMemory Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ZeroedMemory* best = nullptr;
    for (ZeroedMemory& piece : pieces_) {
      if (piece == nullptr) continue;
      if (best == nullptr || IsBetter(BytesOf(piece), BytesOf(*best), bytes)) {
        best = &piece;
      }
    }
    return best == nullptr ? nullptr : std::move(*best);
  }
  void Put(ZeroedMemory piece) {
    if (piece == nullptr || BytesOf(piece) > kKeepBytes) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (ZeroedMemory& kept : pieces_) {
      if (kept != nullptr) continue;
      kept = std::move(piece);
      return;
    }
  }

 private:
  static constexpr size_t kKeepBytes = size_t{32} << 20;
  static constexpr size_t kPieces = 8;

  static bool IsBetter(size_t a, size_t b, size_t wanted) {
    if (a >= wanted && b >= wanted) return a < b;
    return a > b;
  }

  std::mutex mutex_;
  std::array<ZeroedMemory, kPieces> pieces_;
};

// Never destroyed: threads may still run when the process ends.
Pool& AllKept() {
  static Pool* const pool = new Pool;
  return *pool;
}

}  // namespace

Scratch::~Scratch() { AllKept().Put(std::move(memory_)); }

char* Scratch::Get(size_t bytes) {
  if (bytes > BytesOf(memory_)) {
    memory_.reset();
    memory_ = AllKept().Take(bytes);
  }
  if (bytes > BytesOf(memory_)) {
    memory_.reset();
    memory_ = AllocateZeroed(bytes + bytes / 4, Pages::kHuge);
  }
  return static_cast<char*>(memory_.get());
}

}  // namespace rec_estimator
