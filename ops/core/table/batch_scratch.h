// SPDX-License-Identifier: Apache-2.0
// Internal to EmbeddingTable: what Apply and Insert need for the length of one
// batch, its memory and its occurrences sorted by shard.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_SCRATCH_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_SCRATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/parallel.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

// Occurrences that one unit of the partition sorts.
inline constexpr uint64_t kPartitionBlock = 8192;
// Occurrences are numbered in 32 bits.
inline constexpr uint64_t kMaxBatch = uint64_t{1} << 31;

// Memory a thread keeps from batch to batch, so that a step costs no page
// faults. Taken out of the thread for the length of a call.
class Scratch {
 public:
  // Each use of a call has memory of its own: of one size from step to step.
  enum Use { kBatch, kWide, kUses };

  explicit Scratch(Use use);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`, contents unspecified, cache line aligned; nullptr: no
  // memory.
  char* Get(size_t bytes);

 private:
  // A batch of 800,000 occurrences; what a larger one took is given back.
  static constexpr size_t kKeepBytes = size_t{32} << 20;

  struct Kept {
    ~Kept() { FreeZeroed(memory, bytes); }
    void* memory = nullptr;
    size_t bytes = 0;
  };
  static thread_local std::array<Kept, kUses> all_kept_;

  Kept* kept_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Lays arrays out one behind the other: once to learn the size, once for real.
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

// A key where it is in a batch.
struct Occurrence {
  int64_t key;
  uint32_t index;  // In the batch.
  // Bits that neither the shard nor the bucket depends on most: enough for a
  // hash table of the keys of a shard of the largest batch.
  uint32_t hash;
};

// Occurrences sorted by shard, stably: within a shard in batch order. Each
// block of the batch is sorted by itself, so that one pass is enough; a shard
// is one run of every block.
struct Partition {
  const int64_t* head;  // (n_head): the batch is head, then tail.
  uint64_t n_head;
  const int64_t* tail;  // (n - n_head)
  uint64_t n;

  uint32_t* hash;      // (n) lowest bits of each key's, in batch order
  uint32_t* starts;    // (blocks, kShards + 1) where a block's runs begin
  Occurrence* sorted;  // (n) block by block, within it by shard
  // Shard s has begin[s + 1] - begin[s] occurrences.
  std::array<uint32_t, kShards + 1> begin;

  uint64_t blocks() const {
    return (n + kPartitionBlock - 1) / kPartitionBlock;
  }
  uint32_t size_of(int s) const { return begin[s + 1] - begin[s]; }

  void AddTo(Layout* layout) {
    layout->Add(&hash, n);
    layout->Add(&starts, blocks() * (kShards + 1));
    layout->Add(&sorted, n);
  }

  int64_t Key(uint64_t i) const {
    return i < n_head ? head[i] : tail[i - n_head];
  }

  // Calls visit(run, n) for the runs of shard s, in batch order.
  template <typename Visit>
  void ForEachRun(int s, const Visit& visit) const {
    for (uint64_t b = 0; b < blocks(); ++b) {
      const uint32_t* start = starts + b * (kShards + 1) + s;
      visit(sorted + start[0], start[1] - start[0]);
    }
  }

  // The distinct keys of a shard, with their occurrences.
  struct Distinct {
    int64_t* keys;      // (unique), in order of first occurrence
    uint32_t* id;       // (n) which of them an occurrence is of
    uint32_t* grouped;  // (n) occurrences by distinct key, in batch order
    uint32_t* end;      // (unique) end of each one's occurrences in grouped
  };
  // Entries of the hash table that Deduplicate needs for n occurrences: a power
  // of two, at least 2 n.
  static uint32_t DedupSize(uint32_t n) {
    uint32_t size = 16;
    while (size / 2 < n) size *= 2;
    return size;
  }
  // After Run. Fills `out` for shard s and returns how many distinct keys there
  // are. table: (DedupSize(size_of(s))), for the length of the call.
  uint32_t Deduplicate(int s, const Distinct& out, uint32_t* table) const;

  void Sort(uint64_t block);
  void Run(const ParallelFor& parallel);
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_BATCH_SCRATCH_H_
