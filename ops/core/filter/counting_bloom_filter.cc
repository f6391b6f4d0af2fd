// SPDX-License-Identifier: Apache-2.0
#include "ops/core/filter/counting_bloom_filter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace rec_estimator {
namespace {

constexpr int kHeaderBytes = offsetof(BloomStripe::Block, cells);

// A table of blocks is at most this full and grows by this factor. It becomes
// an array when it would have this share of all blocks.
constexpr double kMaxLoad = 0.7;
constexpr double kGrowth = 1.5;
constexpr double kArrayFrom = 0.6;
constexpr double kFirstBlocks = 8;

// A block number has 48 bits, and the bytes of a stripe fit in a size_t.
constexpr double kMaxStripeBlocks = 0x1p40;

// The possible numbers of lines in a block.
constexpr int kLines[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
// Allowed cells relative to a filter without blocks: more cells, fewer lines.
constexpr double kMoreCells = 1.25;
// Allowed rate relative to the requested one.
constexpr double kRate = 1.2;

// The false positive rate of a block by the number of keys in it. Element j is
// the probability that `hashes` throws hit only cells that the throws of j keys
// have hit. Computed exactly, by a Markov chain over the number of cells hit.
std::vector<double> RatesByKeys(int cells, int hashes, int max_keys) {
  std::vector<double> hit(cells + 1, 0.0);  // hit[x] = P(x cells hit)
  hit[0] = 1;
  int low = 0, high = 0;  // hit is 0 outside [low, high].
  std::vector<double> rates = {0.0};
  for (int j = 1; j <= max_keys; ++j) {
    for (int h = 0; h < hashes; ++h) {
      high = std::min(high + 1, cells);
      for (int x = high; x > low; --x) {
        hit[x] = hit[x] * x / cells + hit[x - 1] * (cells - x + 1) / cells;
      }
      hit[low] = hit[low] * low / cells;
      while (low < high && hit[low] < 1e-30) ++low;
      while (low < high && hit[high] < 1e-30) --high;
    }
    double rate = 0;
    for (int x = low; x <= high; ++x) {
      rate += hit[x] * std::pow(static_cast<double>(x) / cells, hashes);
    }
    rates.push_back(rate);
  }
  return rates;
}

// The rate of a filter whose blocks hold `mean` keys on average.
double Rate(const std::vector<double>& rates, double mean) {
  double rate = 0;
  for (size_t j = 1; j < rates.size(); ++j) {
    const double n = static_cast<double>(j);
    rate += std::exp(n * std::log(mean) - mean - std::lgamma(n + 1)) * rates[j];
  }
  return rate;
}

// The cells per key that `rate` needs in blocks of `cells` cells, at least
// `cells_per_key`.
double CellsPerKey(int cells, int hashes, double rate, double cells_per_key) {
  // With more keys in a block, hardly any cell would be free.
  double most = std::min(cells / cells_per_key, 4.0 * cells);
  const std::vector<double> rates = RatesByKeys(
      cells, hashes, static_cast<int>(most + 10 * std::sqrt(most) + 20));
  if (Rate(rates, most) <= rate) return cells / most;
  double least = 0;
  for (int step = 0; step < 50; ++step) {
    const double mean = (least + most) / 2;
    (Rate(rates, mean) <= rate ? least : most) = mean;
  }
  return cells / std::max(least, std::numeric_limits<double>::min());
}

}  // namespace

BloomGeometry::BloomGeometry(int stripes, uint32_t threshold,
                             int64_t max_elements, double false_positive_rate)
    : max_count_(threshold) {
  cell_bits_ = 4;
  while (cell_bits_ < 32 && threshold >> cell_bits_ != 0) cell_bits_ *= 2;
  const double p = false_positive_rate;
  const int hashes =
      std::max(1, static_cast<int>(std::ceil(std::abs(std::log2(p)))));
  const double ln2 = std::log(2.0);
  const double plain = std::abs(std::log(p)) / (ln2 * ln2);  // Cells a key.
  double cells_per_key = 0;
  for (const int lines : kLines) {
    const int bytes = lines * static_cast<int>(kCacheLine) - kHeaderBytes;
    lines_ = lines;
    cells_ = bytes * 8 / cell_bits_;
    cells_per_key = CellsPerKey(cells_, hashes, kRate * p, plain);
    if (cells_per_key <= kMoreCells * plain) break;
  }
  const double blocks =
      std::ceil(static_cast<double>(max_elements) * cells_per_key / cells_);
  stripe_blocks_ = static_cast<int64_t>(
      std::min(kMaxStripeBlocks, std::max(1.0, std::ceil(blocks / stripes))));
  for (int i = 0; i < hashes; ++i) {
    multipliers_.push_back(MixKey(i + 1) | 1);
  }
  // A block has a Poisson number of keys, each of which misses a cell with
  // probability (1 - 1 / cells)^hashes.
  const double all_blocks = static_cast<double>(stripe_blocks_) * stripes;
  const double keys = static_cast<double>(max_elements) / 2 / all_blocks;
  const double hit = -std::expm1(hashes * std::log1p(-1.0 / cells_));
  half_full_cells_ = static_cast<int64_t>(
      std::min(0x1p62, all_blocks * cells_ * -std::expm1(-keys * hit)));
}

namespace {

template <int kBits>
uint32_t Get(const uint8_t* cells, int cell) {
  if (kBits == 4) return cells[cell >> 1] >> (cell & 1) * 4 & 15;
  if (kBits == 8) return cells[cell];
  uint32_t value = 0;
  std::memcpy(&value, cells + cell * (kBits / 8), kBits / 8);
  return value;
}

template <int kBits>
void Set(uint8_t* cells, int cell, uint32_t value) {
  if (kBits == 4) {
    uint8_t& pair = cells[cell >> 1];
    const int shift = (cell & 1) * 4;
    pair = static_cast<uint8_t>((pair & ~(15 << shift)) |
                                static_cast<int>(value << shift));
  } else {
    std::memcpy(cells + cell * (kBits / 8), &value, kBits / 8);
  }
}

// Calls work with the width of a cell as a type.
template <int kBits>
struct CellBits {
  static constexpr int value = kBits;
};
template <typename Work>
inline __attribute__((always_inline)) void ByBits(int bits, const Work& work) {
  switch (bits) {
    case 4:
      return work(CellBits<4>());
    case 8:
      return work(CellBits<8>());
    case 16:
      return work(CellBits<16>());
    default:
      return work(CellBits<32>());
  }
}

}  // namespace

uint32_t BloomStripe::Estimate(const Block& block, uint64_t seed) const {
  uint32_t least = UINT32_MAX;
  const BloomGeometry& geometry = *geometry_;
  const int hashes = geometry.hashes();
  ByBits(geometry.cell_bits(), [&](auto bits) {
    for (int i = 0; i < hashes; ++i) {
      least = std::min(least, Get<decltype(bits)::value>(
                                  block.cells, geometry.Cell(seed, i)));
    }
  });
  return least;
}

void BloomStripe::Raise(uint64_t seed, uint32_t count, bool tracking,
                        Block* block) const {
  const BloomGeometry& geometry = *geometry_;
  const uint32_t least = std::min(count, geometry.max_count());
  const int hashes = geometry.hashes();
  ByBits(geometry.cell_bits(), [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    for (int i = 0; i < hashes; ++i) {
      const int cell = geometry.Cell(seed, i);
      if (Get<kBits>(block->cells, cell) < least) {
        Set<kBits>(block->cells, cell, least);
      }
    }
  });
  if (tracking) block->changes |= 1;
}

void BloomStripe::Unpack(const Block& block, uint32_t* cells) const {
  ByBits(geometry_->cell_bits(), [&](auto bits) {
    for (int c = 0; c < geometry_->cells(); ++c) {
      cells[c] = Get<decltype(bits)::value>(block.cells, c);
    }
  });
}

void BloomStripe::Merge(const uint32_t* cells, bool tracking,
                        Block* block) const {
  ByBits(geometry_->cell_bits(), [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    for (int c = 0; c < geometry_->cells(); ++c) {
      const uint32_t least = std::min(cells[c], geometry_->max_count());
      if (Get<kBits>(block->cells, c) < least) {
        Set<kBits>(block->cells, c, least);
      }
    }
  });
  if (tracking) block->changes |= 1;
}

void BloomStripe::Prefetch(const BloomIndex& index) const {
  if (allocated_ == 0) return;
  const char* block = begin() + Home(index.block) * geometry_->block_bytes();
  const int lines = geometry_->lines();
  // In a table the next block too: a search that goes on mostly ends there.
  if (!is_array_) PrefetchLine(block + geometry_->block_bytes());
  if (lines <= 4) return PrefetchLines(block, geometry_->block_bytes());
  PrefetchLine(block);
  const int hashes = geometry_->hashes();
  for (int i = 0; i < hashes; ++i) {
    const int bit = geometry_->Cell(index.seed, i) * geometry_->cell_bits();
    PrefetchLine(block + kHeaderBytes + bit / 8);
  }
}

BloomStripe::Block* BloomStripe::Find(uint64_t number) const {
  if (allocated_ == 0) return nullptr;
  // Ends: a table always has an unused block, an array has the block itself.
  for (uint64_t at = Home(number);;) {
    Block* block = At(at);
    if (block->used == 0) return nullptr;
    if (block->number() == number) return block;
    if (++at == allocated_) at = 0;
  }
}

BloomStripe::Block* BloomStripe::FindOrAdd(uint64_t number) {
  for (uint64_t at = Home(number);;) {
    Block* block = At(at);
    if (block->used == 0) {
      block->number_low = static_cast<uint32_t>(number);
      block->number_high = static_cast<uint16_t>(number >> 32);
      block->used = 1;
      used_.store(used() + 1, std::memory_order_release);
      return block;
    }
    if (block->number() == number) return block;
    if (++at == allocated_) at = 0;
  }
}

bool BloomStripe::Reserve(int64_t blocks, double stagger) {
  if (blocks <= capacity()) return true;
  const double all = static_cast<double>(geometry_->stripe_blocks());
  const double wanted =
      std::min(all, static_cast<double>(blocks)) / kMaxLoad + 1;
  double step =
      std::ceil(std::log(wanted / kFirstBlocks) / std::log(kGrowth) - stagger);
  const double size = std::ceil(
      kFirstBlocks * std::pow(kGrowth, std::max(step, 0.0) + stagger));
  const bool is_array = size >= kArrayFrom * all;
  const uint64_t allocated = static_cast<uint64_t>(is_array ? all : size);
  const size_t bytes = allocated * geometry_->block_bytes();
  ZeroedMemory memory = AllocateZeroed(bytes, Pages::kHuge);
  if (memory == nullptr) return false;
  Populate(memory.get(), bytes);

  BloomStripe old;
  old.geometry_ = geometry_;
  old.memory_ = std::move(memory_);
  old.allocated_ = allocated_;
  memory_ = std::move(memory);
  allocated_ = allocated;
  is_array_ = is_array;
  used_.store(0, std::memory_order_relaxed);
  old.ForEach([this](const Block* block) {
    std::memcpy(static_cast<void*>(FindOrAdd(block->number())), block,
                geometry_->block_bytes());
  });
  // An array has room for every block, also for those that are stored already.
  capacity_.store(is_array ? std::numeric_limits<int64_t>::max() / 2
                           : static_cast<int64_t>(size * kMaxLoad),
                  std::memory_order_release);
  return true;
}

void BloomStripe::Clear() {
  memory_.reset();
  allocated_ = 0;
  is_array_ = false;
  used_ = 0;
  capacity_ = 0;
}

void BloomStripe::TakeFrom(BloomStripe* other) {
  memory_ = std::move(other->memory_);
  allocated_ = other->allocated_;
  is_array_ = other->is_array_;
  used_.store(other->used(), std::memory_order_release);
  capacity_.store(other->capacity(), std::memory_order_release);
  other->Clear();
}

int64_t BloomStripe::CellsInUse() const {
  int64_t in_use = 0;
  ByBits(geometry_->cell_bits(), [&](auto bits) {
    ForEach([&](const Block* block) {
      for (int c = 0; c < geometry_->cells(); ++c) {
        in_use += Get<decltype(bits)::value>(block->cells, c) != 0;
      }
    });
  });
  return in_use;
}

void BloomStripe::MarkPending() {
  ForEach([](Block* block) { block->changes = block->changes != 0 ? 2 : 0; });
}

void BloomStripe::ForgetPending() {
  ForEach([](Block* block) { block->changes &= 1; });
}

}  // namespace rec_estimator
