// SPDX-License-Identifier: Apache-2.0
// A counting Bloom filter for keys that own no row: a fixed number of small
// cells instead of an entry per key. A count is never too low, and it is too
// high for few keys.
//
// DESIGN
//
//   key --MixKey--> hash --> stripe of the table (lowest bits)
//                        --> block of the stripe (highest bits)
//                        --MixKey--> seed --> cells of the block
//
//   block    64 * lines bytes
//            |number 0..5|used|changes|cell 0|cell 1|cell 2| ... |cell c-1|
//                                        ^             ^             ^
//                     estimate of a key: the least of its `hashes` cells
//
// Each key has k cells, chosen by hashing, and its count is at most the least
// of them. The least is too high only if other keys share all k (L. Fan et al.,
// "Summary Cache", 2000). All k cells are in one block, so a key costs a line
// or two of memory instead of k (F. Putze et al., "Cache-, Hash- and
// Space-Efficient Bloom Filters", 2007). An update is conservative: when a
// count grows from e to e + n, only the cells below e + n are raised, to e + n
// (C. Estan, G. Varghese, "New Directions in Traffic Measurement and
// Accounting", 2002). So a cell never exceeds the sum of the counts of the keys
// that share it. Cells saturate at the threshold, beyond which no count is
// needed. They have the smallest of 4, 8, 16 and 32 bits that holds it.
//
// Blocks raise the error rate. Keys spread over blocks at random, and a block
// with more keys than its share loses more accuracy than a block with fewer
// keys gains. BloomGeometry computes the rate exactly: the mean, over a Poisson
// number of keys in a block, of the probability that k throws hit only occupied
// cells. It sizes the blocks for 1.2 times the requested rate. Narrow blocks
// need more cells; wide blocks touch more lines per key. It takes the narrowest
// blocks that need at most a quarter more cells than a filter without blocks,
// n * |ln p| / ln(2)^2.
//
// A filter for a billion keys occupies memory only as keys arrive. Each stripe
// holds the touched blocks in an open-addressing table, by a secret hash of
// their numbers. Once that table would be as large as all blocks together, the
// stripe holds them in an array. The blocks of a stripe have consecutive
// numbers, so they have one owner and one lock, and a save sorts those of one
// stripe.
//
// Stripe, block and cells are those of MixKey, because checkpoints have them.
// So keys can be chosen that share cells: they cost no more time than others,
// but their counts are too high.
//
// COSTS
//
//   threshold   p      hashes  cells, bits  lines  cells a key  bytes a key
//      <= 15    .1        4      112, 4        1        4.8         2.7
//      <= 15    .01       7      112, 4        1       10.7         6.1
//      <= 15    .001     10      240, 4        2       16.4         8.8
//      <= 255   .01       7      120, 8        2       10.6        11.3
//      <= 65535 .01       7       60, 16       2       12.0        25.5
//
// The figures are for full load, where the measured rate is 1.1 to 1.27 p
// (tests/ops/core/filter/test_counting_bloom_filter.cc). A block that a single
// key touched occupies all its lines, and a growing table of blocks is 0.47 to
// 0.7 full. An apply reads a block twice: once to decide on all keys of the
// stripe and once to raise cells, the second time from the first-level cache.
// Finding the geometry takes less than a millisecond for common rates.
//
// Cells cannot be lowered: lowering those of an evicted key would change the
// counts of other keys. A filter ages as a whole (bloom_generations.h).
//
// docs/decisions.md lists the alternatives that were slower.
#ifndef REC_ESTIMATOR_OPS_CORE_FILTER_COUNTING_BLOOM_FILTER_H_
#define REC_ESTIMATOR_OPS_CORE_FILTER_COUNTING_BLOOM_FILTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"

namespace rec_estimator {

// The size of a filter and the cells of each key. Immutable.
class BloomGeometry {
 public:
  // A filter for `max_elements` >= 1 distinct keys in `stripes` stripes. It
  // counts up to `threshold` and has a false positive rate in (0, 1).
  BloomGeometry(int stripes, uint32_t threshold, int64_t max_elements,
                double false_positive_rate);

  int64_t stripe_blocks() const { return stripe_blocks_; }  // In each stripe.
  int lines() const { return lines_; }                      // In a block.
  int cells() const { return cells_; }                      // In a block.
  int cell_bits() const { return cell_bits_; }
  int hashes() const { return static_cast<int>(multipliers_.size()); }
  uint32_t max_count() const { return max_count_; }  // A cell's maximum.
  // The expected number of cells above 0, in all stripes, when the filter has
  // counted half of max_elements.
  int64_t half_full_cells() const { return half_full_cells_; }

  size_t block_bytes() const { return lines_ * kCacheLine; }
  // Cell i of a key.
  int Cell(uint64_t seed, int i) const {
    const uint64_t random = (seed * multipliers_[i]) >> 32;
    return static_cast<int>((random * static_cast<uint64_t>(cells_)) >> 32);
  }

 private:
  int64_t stripe_blocks_ = 0;
  int lines_ = 0;
  int cells_ = 0;
  int cell_bits_ = 0;
  uint32_t max_count_ = 0;
  int64_t half_full_cells_ = 0;
  std::vector<uint64_t> multipliers_;  // (hashes), odd
};

// Where the cells of a key are.
struct BloomIndex {
  uint64_t block;  // Number in the stripe.
  uint64_t seed;
};

// The blocks of one stripe.
//
// Thread rule: as HashIndex, except that ReserveQuota and ReleaseQuota need no
// lock.
class BloomStripe {
 public:
  struct Block {
    uint32_t number_low;  // The number of the block in its stripe.
    uint16_t number_high;
    uint8_t used;     // 0: no block is stored here.
    uint8_t changes;  // Bit 0: changed since the last save. Bit 1: changed
                      // before that save, which is not committed yet.
    uint8_t cells[kCacheLine - 8];  // Continues to the end of the block.

    uint64_t number() const { return uint64_t{number_high} << 32 | number_low; }
  };
  static_assert(sizeof(Block) == kCacheLine, "cells begin at byte 8");

  BloomStripe() = default;
  BloomStripe(const BloomStripe&) = delete;
  BloomStripe& operator=(const BloomStripe&) = delete;

  // Must be called first. `geometry` outlives this object.
  void SetGeometry(const BloomGeometry* geometry) { geometry_ = geometry; }

  BloomIndex IndexOf(uint64_t hash) const {  // hash: MixKey of the key.
    return {FastRange(hash, static_cast<uint64_t>(geometry_->stripe_blocks())),
            MixKey(static_cast<int64_t>(hash))};
  }
  void Prefetch(const BloomIndex& index) const;

  // nullptr: no key of this block was counted.
  Block* Find(uint64_t number) const;
  // Adds the block if it is absent. The caller has reserved room.
  Block* FindOrAdd(uint64_t number);

  // The least of a key's cells.
  uint32_t Estimate(const Block& block, uint64_t seed) const;
  // Raises the cells of a key to min(count, max_count) where they are lower.
  void Raise(uint64_t seed, uint32_t count, bool tracking, Block* block) const;
  // Writes all cells of a block to cells (geometry.cells()).
  void Unpack(const Block& block, uint32_t* cells) const;
  // Raises all cells of a block to at least `cells`.
  void Merge(const uint32_t* cells, bool tracking, Block* block) const;

  // Makes room for this many blocks. Blocks move. `stagger` as in HashIndex.
  // Returns false and changes nothing if there is no memory.
  bool Reserve(int64_t blocks, double stagger);

  // Reserves room that a batch may use later. Returns whether there is room
  // now; if not, the caller makes it by Reserve(used() + quota()) under the
  // lock, or releases the quota.
  bool ReserveQuota(int64_t blocks) {
    const int64_t quota =
        quota_.fetch_add(blocks, std::memory_order_acq_rel) + blocks;
    return used_.load(std::memory_order_acquire) + quota <=
           capacity_.load(std::memory_order_acquire);
  }
  void ReleaseQuota(int64_t blocks) {
    quota_.fetch_sub(blocks, std::memory_order_acq_rel);
  }

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t quota() const { return quota_.load(std::memory_order_relaxed); }
  int64_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  size_t bytes() const { return BytesOf(memory_); }

  // Removes all blocks and frees the memory. Quotas stay.
  void Clear();
  // Replaces all blocks by those of `other`, which is empty then. Quotas stay.
  void TakeFrom(BloomStripe* other);

  // The number of cells above 0.
  int64_t CellsInUse() const;

  // Calls visit(&block) for every block.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t at = 0; at < allocated_; ++at) {
      Block* block = At(at);
      if (block->used != 0) visit(block);
    }
  }

  // These do what HashIndex's methods do.
  void MarkPending();
  void ForgetPending();
  static bool Changed(const Block& block) { return block.changes != 0; }

 private:
  Block* At(uint64_t at) const {
    return reinterpret_cast<Block*>(begin() + at * geometry_->block_bytes());
  }
  char* begin() const { return static_cast<char*>(memory_.get()); }
  // The position at which the search for a block begins.
  uint64_t Home(uint64_t number) const {
    return is_array_ ? number : FastRange(HashNumber(number), allocated_);
  }

  const BloomGeometry* geometry_ = nullptr;
  ZeroedMemory memory_;
  uint64_t allocated_ = 0;  // Blocks that memory_ has room for.
  bool is_array_ = false;   // Block i is at position i.
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> capacity_{0};
  std::atomic<int64_t> quota_{0};  // Blocks that batches may still add.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_FILTER_COUNTING_BLOOM_FILTER_H_
