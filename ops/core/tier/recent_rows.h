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
#ifndef REC_ESTIMATOR_OPS_CORE_TIER_RECENT_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_TIER_RECENT_ROWS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ops/core/storage/disk_log.h"

namespace rec_estimator {

class RecentRows {
 public:
  // Keeps at most max_bytes of rows; the oldest go first.
  explicit RecentRows(size_t max_bytes) : max_bytes_(max_bytes) {}
  RecentRows(const RecentRows&) = delete;
  RecentRows& operator=(const RecentRows&) = delete;

  // A stamp for Add. The place is used until this returns.
  uint32_t StampOf(uint32_t place) const { return stamps_[place % kStamps]; }

  // Keeps the rows of items (n, floats each), unless their place was freed
  // since its stamp was taken. Throws std::bad_alloc; then it keeps fewer.
  void Add(const DiskLog::Item* items, const uint32_t* stamps, size_t n,
           size_t floats);

  // Copies the first floats of rows to their items (n). Returns the numbers of
  // those that are not here, or have fewer. Throws std::bad_alloc.
  std::vector<size_t> Copy(const DiskLog::Item* items, size_t n,
                           size_t floats) const;

  // Called when places (n) are freed.
  void Forget(const uint32_t* places, size_t n);

  // Called when all places are freed.
  void Clear();

  // Memory of the rows that are kept, and for finding them.
  size_t bytes() const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};  // No place of a log.
  static constexpr size_t kStamps = 4096;

  // A cell of a hash table with linear probing: where the row of a place is in
  // rows_. Place kNone: the cell is free.
  struct Cell {
    uint32_t place, row;
  };

  // The lock is held when these are called.
  void AddOne(const DiskLog::Item& item, size_t floats);
  // Forgets all rows; those that come have another width.
  void Resize(size_t floats);
  // Makes the table large enough for another place.
  void MakeRoom();
  // The cell of a place, or the free cell that it would get.
  size_t Find(uint32_t place) const;
  size_t HomeOf(uint32_t place) const;
  void Erase(size_t at);
  void EraseAll();

  const size_t max_bytes_;
  // How often places with this remainder were freed.
  std::array<std::atomic<uint32_t>, kStamps> stamps_{};
  mutable std::mutex mutex_;      // Guards the members below.
  size_t floats_ = 0;             // Floats of a row.
  std::vector<float> rows_;       // (rows that were used, floats_)
  std::vector<uint32_t> places_;  // The place of each row; kNone: free.
  std::vector<Cell> cells_;       // Their number is a power of two, or 0.
  size_t n_used_ = 0;             // Cells that are not free, at most half.
  size_t next_ = 0;               // Where the next row goes in rows_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TIER_RECENT_ROWS_H_
