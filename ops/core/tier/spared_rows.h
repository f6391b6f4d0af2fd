// SPDX-License-Identifier: Apache-2.0
// SparedRows: which rows in memory are needed by batches that are on their way
// to a training step.
//
// Batches are numbered as they come. A row has the number of the last batch
// that needs it, and is spared, that is not spilled, until so many batches have
// come since that the step of its own must have run. A batch that never reaches
// a step needs no word: its rows are spared no longer than those of others. If
// steps run and no batch comes, all are given up.
//
// A mark on a row that was freed since, or that another key has got, spares
// that row for a while. That costs memory for some rows and nothing else.
//
// Thread rule: any thread may call any method at any time. If a batch comes
// while rows of the one before it are being spared, some of these rows have the
// number of the new one.
#ifndef REC_ESTIMATOR_OPS_CORE_TIER_SPARED_ROWS_H_
#define REC_ESTIMATOR_OPS_CORE_TIER_SPARED_ROWS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"

namespace rec_estimator {

class SparedRows {
 public:
  // Batches whose rows can be spared at once.
  static constexpr uint32_t kMostBatches = 63;

  // `last`: the number of the batch before the first one, for tests.
  explicit SparedRows(uint32_t last = 0) : newest_(last), oldest_(last + 1) {}
  SparedRows(const SparedRows&) = delete;
  SparedRows& operator=(const SparedRows&) = delete;

  // The next batch comes. Spares the rows of it and of the `batches` - 1 before
  // it, of at most kMostBatches, and no others. Rows below `rows` can be spared
  // from now on. Throws std::bad_alloc; then no batch has come.
  void Begin(uint32_t batches, uint64_t rows);

  // Spares a row in memory of this stripe for the batch that came last. Nothing
  // is done if none has come, or if all were given up since.
  void Spare(int stripe, uint32_t row);
  // Fetches what Spare and IsSpared read of a row.
  void Prefetch(uint32_t row) const {
    const Mark* const mark = MarkOf(row);
    if (mark != nullptr) PrefetchLine(mark);
  }
  bool IsSpared(uint32_t row) const {
    const std::atomic<uint32_t>* const mark = MarkOf(row);
    return mark != nullptr && mark->load(std::memory_order_relaxed) >=
                                  oldest_.load(std::memory_order_relaxed);
  }
  // The spared rows of a stripe. While other threads call Spare, about.
  int64_t spared(int stripe) const {
    return spared_[static_cast<size_t>(stripe)];
  }

  // A step has ended. Gives up all if as many have ended since the last Begin
  // as batches can be on their way.
  void EndStep();
  // No row is spared any more.
  void GiveUp();

  size_t bytes() const { return rows_ * sizeof(uint32_t); }

 private:
  using Mark = std::atomic<uint32_t>;
  // Marks are in blocks, which occupy memory only where they are touched.
  static constexpr uint32_t kBlockShift = 20;
  static constexpr uint32_t kBlockRows = uint32_t{1} << kBlockShift;
  static constexpr uint32_t kBlocks = (uint32_t{1} << 31) >> kBlockShift;

  Mark* MarkOf(uint32_t row) const {
    if (row >= rows_.load(std::memory_order_acquire)) return nullptr;
    return blocks_[row >> kBlockShift] + (row & (kBlockRows - 1));
  }
  std::atomic<int32_t>& RowsOf(uint32_t batch, int stripe) {
    return by_batch_[batch % by_batch_.size()][static_cast<size_t>(stripe)];
  }
  // mutex_ is held for all of these.
  void MakeMarks(uint64_t rows);
  void ClearMarks();
  void GiveUpBefore(uint32_t batch);

  std::mutex mutex_;                  // Guards changes of the next two.
  std::atomic<uint32_t> newest_;      // The batch that came last.
  std::atomic<uint32_t> oldest_;      // The first batch whose rows are spared.
  std::atomic<uint32_t> batches_{1};  // What the last Begin was given.
  std::atomic<uint32_t> steps_{0};    // Steps since then.

  // Spared rows of the stripes, by batch modulo the length, and their sums.
  std::array<std::array<std::atomic<int32_t>, kStripes>, kMostBatches + 1>
      by_batch_{};
  std::array<std::atomic<int64_t>, kStripes> spared_{};

  std::atomic<uint64_t> rows_{0};        // Rows that have marks.
  std::array<Mark*, kBlocks> blocks_{};  // Blocks of rows_ do not change.
  std::vector<ZeroedMemory> memory_;     // Owns blocks. Guarded by mutex_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TIER_SPARED_ROWS_H_
