// SPDX-License-Identifier: Apache-2.0
#include "ops/core/index/entry_stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"

namespace rec_estimator {
namespace {

// Entries that are sorted in groups: fewer are faster without, and more would
// take too much memory.
constexpr uint64_t kLeastGrouped = 256;
constexpr uint64_t kMostGrouped = uint64_t{1} << 17;

// Sorts entries, which have keys of their own, by key. Keys are mostly spread
// evenly between the least and the greatest one. So a counting sort by where
// they are between these leaves a few in each group, which are then in order.
void SortEntries(std::vector<ListedEntry>* entries) {
  const auto is_before = [](const ListedEntry& a, const ListedEntry& b) {
    return a.key < b.key;
  };
  const uint64_t n = entries->size();
  if (n < kLeastGrouped || n > kMostGrouped) {
    return std::sort(entries->begin(), entries->end(), is_before);
  }
  const auto [least, greatest] =
      std::minmax_element(entries->begin(), entries->end(), is_before);
  const auto from = static_cast<uint64_t>(least->key);
  const uint64_t range = static_cast<uint64_t>(greatest->key) - from;
  int shift = 0;
  while (range >> shift >= n) ++shift;
  const auto group_of = [from, shift](const ListedEntry& entry) {
    return (static_cast<uint64_t>(entry.key) - from) >> shift;
  };
  std::vector<uint32_t> next(n + 1);
  for (const ListedEntry& entry : *entries) ++next[group_of(entry) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<ListedEntry> sorted(n);
  for (const ListedEntry& entry : *entries) {
    sorted[next[group_of(entry)]++] = entry;
  }
  uint32_t first = 0;
  for (uint64_t g = 0; g < n; first = next[g++]) {
    std::sort(sorted.begin() + first, sorted.begin() + next[g], is_before);
  }
  entries->swap(sorted);
}

}  // namespace

EntryStream::EntryStream(std::vector<const HashIndex*> indexes, Which which,
                         const std::vector<int64_t>& offsets, size_t max_bytes)
    : indexes_(std::move(indexes)), which_(which), offsets_(offsets) {
  size_t all = 0, largest = 0;
  for (int64_t b = 0; b < kKeyClasses; ++b) {
    all += BlocksOf(b);
    largest = std::max(largest, BlocksOf(b));
  }
  n_blocks_ = std::min(all, std::max(max_bytes / sizeof(Block), largest));
  blocks_ = std::unique_ptr<Block[]>(new Block[n_blocks_]);
  free_.resize(n_blocks_);
  std::iota(free_.rbegin(), free_.rend(), 0);
  DivideIntoRanges();
  ranges_.Start([this](Chains* chains) { return ListNext(chains); },
                /*on_thread=*/ends_.size() > 1);
}

EntryStream::~EntryStream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

size_t EntryStream::BlocksOf(int64_t key_class) const {
  return (static_cast<size_t>(offsets_[key_class + 1] - offsets_[key_class]) +
          kBlock - 1) /
         kBlock;
}

void EntryStream::DivideIntoRanges() {
  size_t blocks = 0;
  for (int64_t b = 0; b < kKeyClasses; ++b) {
    blocks += BlocksOf(b);
    if (blocks > n_blocks_) {
      ends_.push_back(b);
      blocks = BlocksOf(b);
    }
  }
  ends_.push_back(kKeyClasses);
}

bool EntryStream::ListNext(Chains* chains) {
  if (listed_ == ends_.size()) return false;
  const int64_t begin = listed_ == 0 ? 0 : ends_[listed_ - 1];
  const int64_t end = ends_[listed_++];
  chains->clear();
  chains->resize(static_cast<size_t>(end - begin));
  const auto add = [&](const Bucket& bucket, int e, int64_t at) {
    if ((bucket.row[e] != HashIndex::kNoRow) != which_.with_row) return;
    Chain& chain = (*chains)[static_cast<size_t>(at)];
    const size_t i = chain.n++ % kBlock;
    if (i == 0) chain.blocks.push_back(TakeBlock());
    blocks_[chain.blocks.back()][i] = {bucket.key[e], bucket.version[e],
                                       bucket.count[e], bucket.row[e]};
  };
  const KeyClassRange classes(begin, end);
  for (const HashIndex* index : indexes_) {
    index->ForEachInRange(classes, which_.only_changed, add);
  }
  return true;
}

uint32_t EntryStream::TakeBlock() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty() || stopped_; });
  if (stopped_) throw Stopped();
  const uint32_t block = free_.back();
  free_.pop_back();
  return block;
}

void EntryStream::Take(const Chain& chain, std::vector<ListedEntry>* entries) {
  entries->reserve(chain.n);
  for (const uint32_t b : chain.blocks) {
    const size_t n = std::min(kBlock, chain.n - entries->size());
    entries->insert(entries->end(), blocks_[b].begin(), blocks_[b].begin() + n);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.insert(free_.end(), chain.blocks.begin(), chain.blocks.end());
  changed_.notify_all();
}

void EntryStream::NextKeyClass(std::vector<ListedEntry>* entries) {
  entries->clear();
  while (entries->empty()) {
    if (at_ == chains_.size()) {
      at_ = 0;
      if (!ranges_.Next(&chains_)) return;
    }
    Take(chains_[at_++], entries);
  }
  SortEntries(entries);
}

}  // namespace rec_estimator
