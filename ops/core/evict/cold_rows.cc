// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/cold_rows.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "ops/core/base/key_hash.h"

namespace rec_estimator {
namespace {

// The part of the rows that is their sample.
constexpr size_t kSampled = 16;

}  // namespace

ColdRows::ColdRows(size_t most) : most_(most) {
  const bool has_memory = scratch_.Allocate([this](Layout* layout) {
    layout->Add(&rows_, most_);
    layout->Add(&sample_, most_ / kSampled + 1);
  });
  if (!has_memory) throw std::bad_alloc();
}

void ColdRows::KeepColdest(size_t n) {
  if (size_ <= n) return;
  RemoveMost(n);
  if (size_ > n) ChooseAmongEquals(n);
  size_ = n;
}

void ColdRows::ChooseAmongEquals(size_t n) {
  Row* const last = rows_ + n;
  std::nth_element(rows_, last, rows_ + size_);
  const uint64_t warmth = last->warmth;
  Row* const equals = std::partition(
      rows_, last, [=](const Row& row) { return row.warmth < warmth; });
  if (equals == last) return;
  Row* const warmer = std::partition(last, rows_ + size_, [=](const Row& row) {
    return row.warmth == warmth;
  });
  std::nth_element(equals, last, warmer, [](const Row& a, const Row& b) {
    return MixKey(a.entry.key()) < MixKey(b.entry.key());
  });
}

void ColdRows::Remove(const HeldKeys& held) {
  Row* const end = std::remove_if(rows_, rows_ + size_, [&](const Row& row) {
    return held.Contains(row.entry.key());
  });
  size_ = static_cast<size_t>(end - rows_);
}

void ColdRows::RemoveMost(size_t n) {
  size_t sampled = 0;
  for (size_t i = 0; i < size_; i += kSampled) {
    sample_[sampled++] = rows_[i].warmth;
  }
  // Three standard deviations above the rank of the n-th in the sample.
  const double rank = static_cast<double>(n) / kSampled;
  const auto above = static_cast<size_t>(rank + 3 * std::sqrt(rank));
  if (above >= sampled) return;
  std::nth_element(sample_, sample_ + above, sample_ + sampled);
  const uint64_t bound = sample_[above];
  const auto n_colder = std::count_if(
      begin(), end(), [=](const Row& row) { return row.warmth <= bound; });
  if (static_cast<size_t>(n_colder) < n) return;
  // Without a branch, which the CPU would often predict wrong.
  Row* to = rows_;
  for (const Row& row : *this) {
    const bool is_colder = row.warmth <= bound;
    *to = row;
    to += is_colder;
  }
  size_ = static_cast<size_t>(to - rows_);
}

}  // namespace rec_estimator
