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

void Partition::Sort(uint64_t block) {
  const uint64_t first = block * kPartitionBlock;
  const uint64_t end = std::min(n, first + kPartitionBlock);
  uint32_t next[kShards] = {};
  for (uint64_t i = first; i < end; ++i) {
    const uint64_t mixed = MixKey(Key(i));
    hash[i] = static_cast<uint32_t>(mixed);
    ++next[ShardOf(mixed)];
  }
  uint32_t* start = starts + block * (kShards + 1);
  uint32_t position = static_cast<uint32_t>(first);
  for (int s = 0; s < kShards; ++s) {
    start[s] = position;
    position += next[s];
    next[s] = start[s];
  }
  start[kShards] = position;
  for (uint64_t i = first; i < end; ++i) {
    sorted[next[ShardOf(hash[i])]++] = {Key(i), static_cast<uint32_t>(i),
                                        hash[i] >> kShardBits};
  }
}

void Partition::Run(const ParallelFor& parallel) {
  const int64_t units = static_cast<int64_t>(blocks());
  parallel(units, kPartitionBlock * 16, [this](int64_t b, int64_t e) {
    for (; b < e; ++b) Sort(static_cast<uint64_t>(b));
  });
  begin.fill(0);
  for (int64_t b = 0; b < units; ++b) {
    const uint32_t* start = starts + b * (kShards + 1);
    for (int s = 0; s < kShards; ++s) begin[s + 1] += start[s + 1] - start[s];
  }
  for (int s = 0; s < kShards; ++s) begin[s + 1] += begin[s];
}

}  // namespace rec_estimator
