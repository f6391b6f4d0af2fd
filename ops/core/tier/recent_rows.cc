// SPDX-License-Identifier: Apache-2.0
#include "ops/core/tier/recent_rows.h"

#include <algorithm>
#include <utility>

namespace rec_estimator {
namespace {

constexpr size_t kLeastCells = 64;  // A power of two.

}  // namespace

void RecentRows::Add(const DiskLog::Item* items, const uint32_t* stamps,
                     size_t n, size_t floats) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (floats != floats_) Resize(floats);
  if (places_.empty()) return;
  for (size_t i = 0; i < n; ++i) {
    if (stamps[i] == StampOf(items[i].place)) AddOne(items[i], floats);
  }
}

void RecentRows::AddOne(const DiskLog::Item& item, size_t floats) {
  const size_t begin = next_ * floats;
  if (rows_.size() < begin + floats) rows_.resize(begin + floats);
  MakeRoom();
  // Nothing below throws.
  if (cells_[Find(item.place)].place != kNone) return;
  if (places_[next_] != kNone) Erase(Find(places_[next_]));
  cells_[Find(item.place)] = {item.place, static_cast<uint32_t>(next_)};
  ++n_used_;
  places_[next_] = item.place;
  std::copy_n(item.row, floats, rows_.data() + begin);
  next_ = (next_ + 1) % places_.size();
}

std::vector<size_t> RecentRows::Copy(const DiskLog::Item* items, size_t n,
                                     size_t floats) const {
  std::vector<size_t> missing;
  missing.reserve(n);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_any = n_used_ > 0 && floats <= floats_;
  for (size_t i = 0; i < n; ++i) {
    const Cell cell = has_any ? cells_[Find(items[i].place)] : Cell{kNone, 0};
    if (cell.place == kNone) {
      missing.push_back(i);
    } else {
      std::copy_n(rows_.data() + cell.row * floats_, floats, items[i].row);
    }
  }
  return missing;
}

void RecentRows::Forget(const uint32_t* places, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < n; ++i) {
    ++stamps_[places[i] % kStamps];
    if (n_used_ == 0) continue;
    const size_t at = Find(places[i]);
    if (cells_[at].place == kNone) continue;
    places_[cells_[at].row] = kNone;
    Erase(at);
  }
}

void RecentRows::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& stamp : stamps_) ++stamp;
  EraseAll();
  std::fill(places_.begin(), places_.end(), kNone);
}

size_t RecentRows::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_.capacity() * sizeof(float) +
         places_.capacity() * sizeof(uint32_t) +
         cells_.capacity() * sizeof(Cell);
}

void RecentRows::Resize(size_t floats) {
  EraseAll();
  places_.assign(max_bytes_ / (floats * sizeof(float)), kNone);
  floats_ = floats;
  next_ = 0;
}

void RecentRows::MakeRoom() {
  if (2 * (n_used_ + 1) <= cells_.size()) return;
  const size_t size = std::max(2 * cells_.size(), kLeastCells);
  const std::vector<Cell> before =
      std::exchange(cells_, std::vector<Cell>(size, Cell{kNone, 0}));
  for (const Cell& cell : before) {
    if (cell.place != kNone) cells_[Find(cell.place)] = cell;
  }
}

size_t RecentRows::HomeOf(uint32_t place) const {
  // Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4).
  return place * uint64_t{0x9E3779B97F4A7C15} >> 32 & (cells_.size() - 1);
}

size_t RecentRows::Find(uint32_t place) const {
  const size_t mask = cells_.size() - 1;
  size_t at = HomeOf(place);
  while (cells_[at].place != place && cells_[at].place != kNone) {
    at = (at + 1) & mask;
  }
  return at;
}

void RecentRows::Erase(size_t at) {
  // Those behind it move up, unless they are where they belong (Knuth, 6.4,
  // Algorithm R).
  const size_t mask = cells_.size() - 1;
  for (size_t next = (at + 1) & mask; cells_[next].place != kNone;
       next = (next + 1) & mask) {
    const size_t moved = (next - HomeOf(cells_[next].place)) & mask;
    if (moved < ((next - at) & mask)) continue;
    cells_[at] = cells_[next];
    at = next;
  }
  cells_[at].place = kNone;
  --n_used_;
}

void RecentRows::EraseAll() {
  for (Cell& cell : cells_) cell.place = kNone;
  n_used_ = 0;
}

}  // namespace rec_estimator
