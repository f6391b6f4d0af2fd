// SPDX-License-Identifier: Apache-2.0
#include "ops/core/evict/capacity.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/rows/row_arena.h"
#include "ops/core/stripes/memory_limit.h"

namespace rec_estimator {
namespace {

// Rows of a window: far more than its eighth needs to be a fair sample, and few
// enough to be scanned in about 100 µs.
constexpr int64_t kWindowRows = int64_t{1} << 14;
// The part of a window that is evicted, at most and at least.
constexpr int64_t kMostPart = 8;
constexpr int64_t kLeastPart = 64;
// Rows that are fetched before they are written.
constexpr int64_t kRowsAhead = 12;

// The part of a window that is its sample.
constexpr int64_t kSampled = 16;
// Windows for a budget: how many rows they have for each row to be evicted, and
// how many at least.
constexpr int64_t kRowsPerEvicted = 32;
constexpr int64_t kLeastWindowRows = 512;
// Free rows that are not given back: a part of the rows, and a number.
constexpr int64_t kFreePart = 16;
constexpr int64_t kLeastFree = 1024;

// Windows that a step scans besides those that its own rows ask for.
constexpr int64_t kFewWindows = 4;

// How many stripes of a table have the rows of a window. A power of two.
int StripesPerWindow(int64_t rows, int64_t window_rows) {
  int stripes = 1;
  while (stripes < kStripes && rows / kStripes * stripes < window_rows / 2) {
    stripes *= 2;
  }
  return stripes;
}

}  // namespace

Capacity::Capacity(const CapacitySpec& spec, StripeSet* stripes,
                   RowStore* store, std::shared_ptr<MemoryBudget> budget)
    : spec_(spec),
      stripes_(*stripes),
      store_(*store),
      budget_(std::move(budget)) {
  if (budget_ != nullptr) budget_->Join(&stripes_);
}

Capacity::~Capacity() {
  if (budget_ != nullptr) budget_->Leave(&stripes_);
}

void Capacity::Hold(const KeyHolder* holder) {
  const std::lock_guard<std::mutex> lock(holders_mutex_);
  holders_.push_back(holder);
}

void Capacity::Release(const KeyHolder* holder) {
  const std::lock_guard<std::mutex> lock(holders_mutex_);
  const auto at = std::find(holders_.begin(), holders_.end(), holder);
  if (at != holders_.end()) holders_.erase(at);
}

Capacity::WindowSize Capacity::WindowOfLimit() const {
  return {StripesPerWindow(spec_.max_rows, kWindowRows), kWindowRows,
          kLeastPart};
}

Capacity::WindowSize Capacity::WindowOfBudget(int64_t excess) const {
  const int64_t rows = std::min(
      std::max(kLeastWindowRows, excess * kRowsPerEvicted), kWindowRows);
  return {StripesPerWindow(stripes_.n_rows(), rows), rows, INT64_MAX};
}

void Capacity::Trim(int64_t occurrences, int64_t shared, int64_t now) {
  const std::unique_lock<std::mutex> lock(trimming_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int64_t left = 2 * occurrences + kFewWindows * kWindowRows / kMostPart;
  int in_vain = 0;  // Windows in which all rows are held.
  try {
    while (left > 0 && in_vain < kStripes) {
      const int64_t beyond_limit =
          spec_.max_rows == 0 ? 0 : stripes_.n_rows() - spec_.max_rows;
      const int64_t excess = std::min(std::max(beyond_limit, shared), left);
      if (excess <= 0) break;
      const int64_t evicted = EvictFromWindow(
          beyond_limit > 0 ? WindowOfLimit() : WindowOfBudget(excess), excess,
          now);
      in_vain = evicted > 0 ? 0 : in_vain + 1;
      left -= evicted;
      shared -= evicted;
    }
  } catch (const std::bad_alloc&) {
    // The next step tries again.
  }
  if (budget_ != nullptr) GiveBack(occurrences);
}

void Capacity::GiveBack(int64_t occurrences) {
  const int64_t needed = stripes_.n_rows() + occurrences;
  const int64_t free = static_cast<int64_t>(store_.arena().taken()) - needed;
  if (free < std::max(needed / kFreePart, kLeastFree)) return;
  try {
    TrimRows(&stripes_, &store_, static_cast<uint64_t>(needed));
  } catch (const std::bad_alloc&) {
    // The next step tries again.
  }
}

int64_t Capacity::EvictFromWindow(const WindowSize& size, int64_t excess,
                                  int64_t now) {
  const uint64_t ones = size.stripes == kStripes
                            ? kAllStripes
                            : (uint64_t{1} << size.stripes) - 1;
  // Windows of a budget may be of other sizes each time.
  const int begin = next_ / size.stripes * size.stripes;
  const int end = begin + size.stripes;
  const uint64_t mask = ones << begin;
  next_ = end % kStripes;
  const ExclusiveLocks locks(stripes_, mask);
  window_.clear();
  for (int s = begin; s < end; ++s) {
    // A part of a stripe, or, of several, all rows.
    const size_t most =
        size.stripes == 1 ? static_cast<size_t>(size.rows) : SIZE_MAX;
    stripes_[s].index().ScanFrom(&hand_[s], [&](EntryRef entry) {
      if (entry.has_row()) {
        window_.push_back({WarmthOf(entry, now), entry});
      }
      return window_.size() < most;
    });
  }
  const HeldKeys held = HeldIn(mask);
  const auto scanned = static_cast<int64_t>(window_.size());
  int64_t n = std::max(excess, scanned / size.least_part);
  // All stripes are the whole table.
  if (size.stripes < kStripes) {
    n = std::min(n, std::max<int64_t>(1, scanned / kMostPart));
  }
  // Held rows may be among the coldest.
  KeepColdest(n + static_cast<int64_t>(held.size()));
  window_.erase(std::remove_if(window_.begin(), window_.end(),
                               [&](const Cold& cold) {
                                 return held.Contains(cold.entry.key());
                               }),
                window_.end());
  KeepColdest(n);
  n = static_cast<int64_t>(window_.size());
  Evict(window_.data(), n, now);
  return n;
}

void Capacity::KeepColdest(int64_t n) {
  const auto begin = window_.begin();
  if (window_.end() - begin <= n) return;
  sample_.clear();
  for (size_t i = 0; i < window_.size(); i += kSampled) {
    sample_.push_back(window_[i].warmth);
  }
  // Three standard deviations above the place of the n-th in the sample.
  const double place = static_cast<double>(n) / kSampled;
  const auto above = static_cast<size_t>(place + 3 * std::sqrt(place));
  if (above < sample_.size()) {
    std::nth_element(sample_.begin(), sample_.begin() + above, sample_.end());
    const uint64_t bound = sample_[above];
    const auto n_colder =
        std::count_if(begin, window_.end(),
                      [=](const Cold& cold) { return cold.warmth <= bound; });
    if (n_colder >= n) {
      // Without a branch, which the CPU would often predict wrong.
      auto end = begin;
      for (const Cold& cold : window_) {
        const bool is_colder = cold.warmth <= bound;
        *end = cold;
        end += is_colder;
      }
      window_.erase(end, window_.end());
    }
  }
  std::nth_element(begin, begin + n, window_.end());
  window_.erase(begin + n, window_.end());
}

void Capacity::Evict(const Cold* colds, int64_t n, int64_t now) {
  const RowArena::View view = store_.view();
  const auto fetch = [&](int64_t i) {
    if (i >= n || !colds[i].entry.in_memory()) return;
    PrefetchLineToWrite(view.Row(colds[i].entry.row()));
  };
  for (int64_t i = 0; i < kRowsAhead; ++i) fetch(i);
  for (int64_t i = 0; i < n; ++i) {
    fetch(i + kRowsAhead);
    stripes_.Of(colds[i].entry.key()).Evict(colds[i].entry, now);
  }
}

uint64_t Capacity::WarmthOf(EntryRef entry, int64_t now) const {
  const uint64_t count = entry.count();
  // A version may be of a run that had come further.
  const int64_t then = std::max<int64_t>(entry.version(), -1);
  const uint64_t steps =
      static_cast<uint64_t>(now) - static_cast<uint64_t>(then);
  const uint64_t age = now <= then ? 0 : std::min<uint64_t>(steps, UINT32_MAX);
  const uint64_t youth = UINT32_MAX - age;
  switch (spec_.policy) {
    case CapacitySpec::kLeastCounted:
      return count << 32 | youth;
    case CapacitySpec::kOldest:
      return youth << 32 | count;
    case CapacitySpec::kDecayed:
      break;
  }
  // The binary logarithm of the decayed count, in fixed point above 0.
  const double score =
      std::log2(static_cast<double>(count) + 1) -
      static_cast<double>(age) / static_cast<double>(spec_.half_life);
  return static_cast<uint64_t>((score + UINT32_MAX) * (1 << 20));
}

Capacity::HeldKeys::HeldKeys(std::vector<int64_t> keys)
    : keys_(std::move(keys)) {
  std::sort(keys_.begin(), keys_.end());
  for (const int64_t key : keys_) bits_.set(BitOf(key));
}

bool Capacity::HeldKeys::Contains(int64_t key) const {
  return bits_[BitOf(key)] &&
         std::binary_search(keys_.begin(), keys_.end(), key);
}

Capacity::HeldKeys Capacity::HeldIn(uint64_t stripes) const {
  std::vector<int64_t> held;
  const std::lock_guard<std::mutex> lock(holders_mutex_);
  for (const KeyHolder* holder : holders_) {
    const int64_t* last = nullptr;
    for (uint64_t rest = stripes; rest != 0; rest &= rest - 1) {
      const KeyHolder::Keys keys = holder->KeysIn(__builtin_ctzll(rest));
      // A small step has one list for all stripes.
      if (keys.keys == last || keys.n == 0) continue;
      held.insert(held.end(), keys.keys, keys.keys + keys.n);
      last = keys.keys;
    }
  }
  return HeldKeys(std::move(held));
}

}  // namespace rec_estimator
