#include "batch_scratch.h"

#include <algorithm>
#include <utility>

#include "hash_index.h"

namespace rec_estimator {

thread_local std::array<Scratch::Kept, Scratch::kUses> Scratch::all_kept_;

Scratch::Scratch(Use use) : kept_(&all_kept_[use]) {
  std::swap(memory_, kept_->memory);
  std::swap(bytes_, kept_->bytes);
}

Scratch::~Scratch() {
  // Something is kept only if the call was made from within another one.
  if (bytes_ > kKeepBytes || kept_->memory != nullptr) {
    FreeZeroed(memory_, bytes_);
  } else {
    kept_->memory = memory_;
    kept_->bytes = bytes_;
  }
}

char* Scratch::Get(size_t bytes) {
  if (bytes > bytes_) {
    FreeZeroed(memory_, bytes_);
    bytes_ = bytes + bytes / 4;
    memory_ = AllocateZeroed(bytes_, Pages::kHuge);
    if (memory_ == nullptr) bytes_ = 0;
  }
  return static_cast<char*>(memory_);
}

void Partition::Count(uint64_t block) {
  uint32_t* counts = starts + block * kShards;
  std::fill(counts, counts + kShards, 0);
  const uint64_t end = std::min(n, (block + 1) * kPartitionBlock);
  for (uint64_t i = block * kPartitionBlock; i < end; ++i) {
    const int s = ShardOf(MixKey(Key(i)));
    shard[i] = static_cast<uint8_t>(s);
    ++counts[s];
  }
}

void Partition::Place(uint64_t block) {
  uint32_t* next = starts + block * kShards;
  const uint64_t end = std::min(n, (block + 1) * kPartitionBlock);
  for (uint64_t i = block * kPartitionBlock; i < end; ++i) {
    const uint32_t to = next[shard[i]]++;
    keys[to] = Key(i);
    index[to] = static_cast<uint32_t>(i);
  }
}

void Partition::Run(const ParallelFor& parallel) {
  const int64_t units = static_cast<int64_t>(blocks());
  parallel(units, kPartitionBlock * 8, [this](int64_t b, int64_t e) {
    for (; b < e; ++b) Count(static_cast<uint64_t>(b));
  });
  uint32_t position = 0;
  for (int s = 0; s < kShards; ++s) {
    begin[s] = position;
    for (int64_t b = 0; b < units; ++b) {
      uint32_t& start = starts[b * kShards + s];
      const uint32_t count = start;
      start = position;
      position += count;
    }
  }
  begin[kShards] = position;
  parallel(units, kPartitionBlock * 8, [this](int64_t b, int64_t e) {
    for (; b < e; ++b) Place(static_cast<uint64_t>(b));
  });
}

}  // namespace rec_estimator
