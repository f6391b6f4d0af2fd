// SPDX-License-Identifier: Apache-2.0
// Memory that is aligned as O_DIRECT needs it.
#ifndef REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_MEMORY_H_
#define REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "ops/core/storage/page.h"

namespace rec_estimator {

class DiskMemory {
 public:
  // bytes: a multiple of kDiskBlock. Throws std::bad_alloc.
  explicit DiskMemory(size_t bytes)
      : bytes_(bytes),
        memory_(static_cast<char*>(std::aligned_alloc(kDiskBlock, bytes))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~DiskMemory() { std::free(memory_); }
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  char* get() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  char* const memory_;
};

// Keeps memory for the next read: fresh memory costs a page fault per page. Any
// thread may use it.
class DiskMemoryPool {
 public:
  // At least that much memory, for as long as the Loan lives.
  class Loan {
   public:
    // Throws std::bad_alloc.
    Loan(DiskMemoryPool* pool, size_t bytes)
        : pool_(*pool), memory_(pool_.Take(bytes)) {}
    ~Loan() { pool_.Return(std::move(memory_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    char* get() const { return memory_->get(); }

   private:
    DiskMemoryPool& pool_;
    std::unique_ptr<DiskMemory> memory_;
  };

  // What is in it and is not lent.
  size_t bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& memory : free_) bytes += memory->bytes();
    return bytes;
  }

 private:
  std::unique_ptr<DiskMemory> Take(size_t bytes) {
    std::unique_ptr<DiskMemory> memory;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // Then Return needs no memory.
      free_.reserve(++blocks_);
      if (!free_.empty()) {
        memory = std::move(free_.back());
        free_.pop_back();
        --blocks_;
      }
    }
    if (memory == nullptr || memory->bytes() < bytes) {
      memory = std::make_unique<DiskMemory>(bytes);
    }
    return memory;
  }
  void Return(std::unique_ptr<DiskMemory> memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(memory));
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<DiskMemory>> free_;
  size_t blocks_ = 0;  // Lent and free.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STORAGE_DISK_MEMORY_H_
