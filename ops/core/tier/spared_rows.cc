// SPDX-License-Identifier: Apache-2.0
#include "ops/core/tier/spared_rows.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace rec_estimator {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void SparedRows::Begin(uint32_t batches, uint64_t rows) {
  batches = std::clamp(batches, uint32_t{1}, kMostBatches);
  const std::lock_guard<std::mutex> lock(mutex_);
  MakeMarks(rows);
  if (newest_ == std::numeric_limits<uint32_t>::max()) ClearMarks();
  const uint32_t next = newest_ + 1;
  if (next > batches) GiveUpBefore(next - batches + 1);
  newest_ = next;
  batches_ = batches;
  steps_ = 0;
}

void SparedRows::Spare(int stripe, uint32_t row) {
  const uint32_t newest = newest_.load(kRelaxed);
  const uint32_t oldest = oldest_.load(kRelaxed);
  if (newest < oldest) return;
  Mark* const mark = MarkOf(row);
  // Most keys of a batch occur again: a load is cheaper than an exchange.
  if (mark == nullptr || mark->load(kRelaxed) == newest) return;
  const uint32_t before = mark->exchange(newest, kRelaxed);
  if (before == newest) return;
  RowsOf(newest, stripe).fetch_add(1, kRelaxed);
  // If that batch is given up right now, its sum is wrong by one until its
  // place is used again; the sum of all stays right.
  if (before >= oldest) {
    RowsOf(before, stripe).fetch_sub(1, kRelaxed);
  } else {
    spared_[static_cast<size_t>(stripe)].fetch_add(1, kRelaxed);
  }
}

void SparedRows::EndStep() {
  if (newest_.load(kRelaxed) < oldest_.load(kRelaxed)) return;
  if (steps_.fetch_add(1, kRelaxed) >= batches_.load(kRelaxed)) GiveUp();
}

void SparedRows::GiveUp() {
  const std::lock_guard<std::mutex> lock(mutex_);
  GiveUpBefore(newest_ + 1);
}

void SparedRows::GiveUpBefore(uint32_t batch) {
  const uint32_t first = oldest_;
  if (batch <= first) return;
  oldest_ = batch;
  // Not more batches than have a place were spared.
  for (uint32_t b = first; b != batch; ++b) {
    for (int s = 0; s < kStripes; ++s) {
      spared_[static_cast<size_t>(s)] -= RowsOf(b, s).exchange(0, kRelaxed);
    }
  }
}

void SparedRows::MakeMarks(uint64_t rows) {
  rows = std::min(rows, uint64_t{kBlocks} * kBlockRows);
  if (rows <= rows_) return;
  while (memory_.size() * kBlockRows < rows) {
    memory_.reserve(memory_.size() + 1);
    ZeroedMemory block =
        AllocateZeroed(kBlockRows * sizeof(Mark), Pages::kSmall);
    if (block == nullptr) throw std::bad_alloc();
    blocks_[memory_.size()] = static_cast<Mark*>(block.get());
    memory_.push_back(std::move(block));
  }
  rows_.store(rows, std::memory_order_release);
}

void SparedRows::ClearMarks() {
  for (uint64_t row = 0; row < rows_; ++row) {
    MarkOf(static_cast<uint32_t>(row))->store(0, kRelaxed);
  }
  GiveUpBefore(newest_);  // Keeps the newest batch.
  for (int s = 0; s < kStripes; ++s) {
    spared_[static_cast<size_t>(s)] -= RowsOf(newest_, s).exchange(0, kRelaxed);
  }
  newest_ = 0;
  oldest_ = 1;
}

}  // namespace rec_estimator
