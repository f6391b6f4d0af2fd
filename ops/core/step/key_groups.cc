// SPDX-License-Identifier: Apache-2.0
#include "ops/core/step/key_groups.h"

#include <algorithm>
#include <numeric>

#include "ops/core/keys/grouped_keys.h"
#include "ops/core/keys/key_partition.h"

namespace rec_estimator {
namespace {

// Occurrences of the largest batch that is one group without a list of its
// distinct keys (docs/core_measurements.md).
constexpr uint64_t kOneGroup = 4096;

// A short list, whose distinct keys are known.
class ShortListGroup final : public KeyGroups {
 public:
  explicit ShortListGroup(const DeduplicatedList& list)
      : KeyGroups(list.n(), 1), list_(list) {
    groups_[0] = {0,
                  static_cast<uint32_t>(n_),
                  0,
                  list.size(),
                  list.stripes(),
                  list.distinct(),
                  nullptr,
                  nullptr,
                  nullptr};
  }

  const uint16_t* positions() const override { return list_.position(); }
  void GroupOccurrences() override { groups_occurrences_ = true; }
  void AddTo(Layout* layout) override {
    layout->Add(&end_, list_.size());
    if (groups_occurrences_) layout->Add(&grouped_, n_);
  }

 private:
  void ListKeys(int, uint32_t*) override {
    const uint16_t* const positions = list_.position();
    uint32_t* const end = end_;
    const uint32_t size = list_.size();
    groups_[0].end = end;
    groups_[0].grouped = grouped_;
    std::fill_n(end, size, 0);
    for (uint64_t i = 0; i < n_; ++i) ++end[positions[i]];
    if (groups_occurrences_) {
      GroupByKey(positions);
    } else {
      std::partial_sum(end, end + size, end);
    }
  }
  // end_ (size): from the counts of the keys to the ends of their occurrences.
  void GroupByKey(const uint16_t* positions) {
    std::exclusive_scan(end_, end_ + list_.size(), end_, 0u);
    for (uint32_t i = 0; i < n_; ++i) grouped_[end_[positions[i]]++] = i;
  }

  const DeduplicatedList& list_;
  bool groups_occurrences_ = false;
  uint32_t* end_;
  uint32_t* grouped_ = nullptr;
};

// A long list, which has the groups.
class LongListGroups final : public KeyGroups {
 public:
  explicit LongListGroups(const DeduplicatedList& list)
      : KeyGroups(list.n(), kStripes) {
    const GroupedKeys& grouped = *list.groups();
    for (int g = 0; g < kStripes; ++g) {
      const uint32_t begin = grouped.partition().begin[g];
      const KeyPartition::Distinct distinct = grouped.distinct().From(begin);
      groups_[g] = {begin,
                    grouped.partition().size_of(g),
                    grouped.first(g),
                    grouped.size(g),
                    uint64_t{grouped.size(g) > 0} << g,
                    distinct.keys,
                    distinct.grouped,
                    distinct.end,
                    nullptr};
    }
  }

 private:
  void ListKeys(int, uint32_t*) override {}
};

// Keys of which nothing is known.
class SortedGroups final : public KeyGroups {
 public:
  explicit SortedGroups(const StepBatch& batch)
      : KeyGroups(batch.n + batch.n_counted,
                  batch.n + batch.n_counted <= kOneGroup ? 1 : kStripes),
        counts_(batch.counts) {
    part_.head = batch.keys;
    part_.n_head = batch.n;
    part_.tail = batch.counted_keys;
    part_.n = n_;
    part_.groups = size_;
  }

  void AddTo(Layout* layout) override {
    part_.AddTo(layout);
    layout->Add(&distinct_.keys, n_);
    layout->Add(&distinct_.grouped, n_);
    layout->Add(&distinct_.end, n_);
  }
  int64_t blocks() const override {
    return static_cast<int64_t>(part_.blocks());
  }
  void SortBlock(int64_t b) override {
    part_.SortBlock(static_cast<uint64_t>(b));
  }
  void EndSort() override {
    part_.EndSort();
    for (int g = 0; g < size_; ++g) {
      groups_[g].begin = part_.begin[g];
      groups_[g].n = part_.size_of(g);
    }
  }
  void AddCellsTo(Layout* layout) override { part_.AddCellsTo(layout); }

 private:
  void ListKeys(int g, uint32_t* scratch) override {
    KeyGroup& group = groups_[g];
    KeyPartition::Distinct distinct = distinct_;
    distinct.id = scratch;
    distinct.keys += group.begin;
    distinct.grouped += group.begin;
    distinct.end += group.begin;
    const uint32_t size = part_.Deduplicate(g, distinct);
    const uint64_t stripes =
        size_ == 1 ? StripesOf(distinct.keys, size) : uint64_t{size > 0} << g;
    group = {
        group.begin,      group.n,      0,      size, stripes, distinct.keys,
        distinct.grouped, distinct.end, counts_};
  }

  const uint32_t* const counts_;
  KeyPartition part_;
  KeyPartition::Distinct distinct_;  // All groups', except for `id`.
};

}  // namespace

uint64_t KeyGroup::SumCounts(uint32_t from, uint32_t to) const {
  uint64_t sum = 0;
  for (; from < to; ++from) sum += counts[grouped[from]];
  // So that the product with a filter's coefficient does not overflow.
  return std::min<uint64_t>(sum, UINT32_MAX);
}

bool KeyGroups::CanNumber(const StepBatch& batch) {
  return batch.n < kMaxBatch && batch.n_counted < kMaxBatch &&
         batch.n + batch.n_counted < kMaxBatch;
}

std::unique_ptr<KeyGroups> KeyGroups::Of(const StepBatch& batch,
                                         const DeduplicatedList* list) {
  if (list == nullptr) return std::make_unique<SortedGroups>(batch);
  if (list->groups() == nullptr) return std::make_unique<ShortListGroup>(*list);
  return std::make_unique<LongListGroups>(*list);
}

KeyHolder::Keys KeyGroups::KeysIn(int stripe) const {
  const size_t g = size_ == 1 ? 0 : static_cast<size_t>(stripe);
  if (!is_listed_[g].load(std::memory_order_acquire)) return {nullptr, 0};
  return {groups_[g].keys, groups_[g].size};
}

}  // namespace rec_estimator
