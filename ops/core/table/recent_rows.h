// SPDX-License-Identifier: Apache-2.0
// RecentRows: rows that were read from disk lately.
//
// A training step needs a row twice: its lookups read the value, and then the
// step brings the row into memory. Between the two, the row is kept here, so
// the disk reads it once.
//
// A row is known by its place in the log. The place may be freed and used for
// another row while a thread still reads the first one, so a reader takes a
// stamp while it knows that the place is used; a row whose stamp is old is not
// kept.
//
// Thread rule: any thread may call any method at any time. Forget is called
// before the place can be used anew.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_RECENT_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_RECENT_ROWS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace rec_estimator {

class RecentRows {
 public:
  // Keeps at most max_bytes of rows; the oldest go first.
  explicit RecentRows(size_t max_bytes) : max_bytes_(max_bytes) {}
  RecentRows(const RecentRows&) = delete;
  RecentRows& operator=(const RecentRows&) = delete;

  // For Add. The place is used until this returns.
  uint32_t StampOf(uint32_t place) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stamps_[place % kStamps];
  }

  // Keeps a row (floats), unless its place was freed since the stamp was taken.
  // Throws std::bad_alloc; then nothing is kept.
  void Add(uint32_t place, uint32_t stamp, const float* row, size_t floats) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stamp != stamps_[place % kStamps]) return;
    if (floats != floats_) Resize(floats);
    if (places_.empty() || slots_.count(place) > 0) return;
    const size_t slot = next_;
    if (rows_.size() < (slot + 1) * floats) rows_.resize((slot + 1) * floats);
    slots_[place] = slot;
    // Nothing below throws.
    if (places_[slot] != kNone) slots_.erase(places_[slot]);
    places_[slot] = place;
    std::copy_n(row, floats, rows_.begin() + Offset(slot));
    next_ = (slot + 1) % places_.size();
  }

  // Copies the first floats of a row, if it is here and has as many.
  bool Copy(uint32_t place, size_t floats, float* to) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = slots_.find(place);
    if (found == slots_.end() || floats > floats_) return false;
    std::copy_n(rows_.begin() + Offset(found->second), floats, to);
    return true;
  }

  // Places (n) are freed.
  void Forget(const uint32_t* places, size_t n) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < n; ++i) {
      ++stamps_[places[i] % kStamps];
      const auto found = slots_.find(places[i]);
      if (found == slots_.end()) continue;
      places_[found->second] = kNone;
      slots_.erase(found);
    }
  }

  // All places are freed.
  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t& stamp : stamps_) ++stamp;
    slots_.clear();
    std::fill(places_.begin(), places_.end(), kNone);
  }

  // Memory of the rows that are kept, and for finding them.
  size_t bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_.capacity() * sizeof(float) +
           places_.capacity() * sizeof(uint32_t) + slots_.size() * kNodeBytes +
           slots_.bucket_count() * sizeof(void*);
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};  // No place of a log.
  static constexpr size_t kStamps = 4096;
  static constexpr size_t kNodeBytes = 32;  // Of slots_, as malloc gives it.

  std::ptrdiff_t Offset(size_t slot) const {
    return static_cast<std::ptrdiff_t>(slot * floats_);
  }

  // Forgets all rows; those that come have another width.
  void Resize(size_t floats) {
    slots_.clear();
    places_.assign(max_bytes_ / (floats * sizeof(float)), kNone);
    floats_ = floats;
    next_ = 0;
  }

  const size_t max_bytes_;
  mutable std::mutex mutex_;  // Guards the members below.
  // How often places with this remainder were freed.
  std::array<uint32_t, kStamps> stamps_{};
  size_t floats_ = 0;             // Of a row.
  std::vector<float> rows_;       // (slots that were used, floats_)
  std::vector<uint32_t> places_;  // Of the slots; kNone: free.
  std::unordered_map<uint32_t, size_t> slots_;
  size_t next_ = 0;  // The slot that the next row gets.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_RECENT_ROWS_H_
