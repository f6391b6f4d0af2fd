// SPDX-License-Identifier: Apache-2.0
// Memory for the time of one batch.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_SCRATCH_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_SCRATCH_H_

#include <cstddef>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {

// Places arrays one behind another, each on its own cache lines. The first
// pass, over a null base, computes the size; the second one sets the pointers.
class Layout {
 public:
  explicit Layout(char* base) : base_(base), bytes_(0) {}
  template <typename T>
  void Add(T** array, size_t n) {
    if (base_ != nullptr) *array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (n * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_;
};

// Memory for the time of one batch. It is kept for the next one, so that a step
// has no page faults: returned to a pool when the Scratch is destroyed, by
// whichever thread.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Calls lay(&layout), which adds arrays, and gives them memory with
  // unspecified contents. False: no memory.
  template <typename Lay>
  bool Allocate(const Lay& lay) {
    Layout size(nullptr);
    lay(&size);
    if (size.bytes() == 0) return true;
    char* memory = Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    lay(&layout);
    return true;
  }

 private:
  // At least `bytes`, aligned to a cache line. nullptr: no memory.
  char* Get(size_t bytes);

  ZeroedMemory memory_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_SCRATCH_H_
