// SPDX-License-Identifier: Apache-2.0
// Counts of keys that own no row, in a fixed number of small cells instead of
// an entry for each key: never too low, and too high for few.
//
// DESIGN
//
//   key --MixKey--> hash --> shard of the table (lowest bits)
//                        --> block of the shard (highest bits)
//                        --MixKey--> seed --> cells of the block
//
//   block    64 * lines bytes
//            |number 0..5|used|changes|cell 0|cell 1|cell 2| ... |cell c-1|
//                                        ^             ^             ^
//                     estimate of a key: the least of its `hashes` cells
//
// A counting Bloom filter (L. Fan et al., "Summary Cache", 2000): each key has
// k cells, chosen by hashing, and its count is at most the least of them; other
// keys that share all k make it too high. All k are in one block (F. Putze et
// al., "Cache-, Hash- and Space-Efficient Bloom Filters", 2007), so that a key
// costs a line or two of memory instead of k. An update is conservative (C.
// Estan, G. Varghese, "New Directions in Traffic Measurement and Accounting",
// 2002): a count that grows from e to e + n raises the cells below e + n to it
// and leaves the others, so that a cell is never above the count of all keys
// that share it taken for one. Cells stop at the threshold, beyond which nobody
// asks, and are the least of 4, 8, 16 and 32 bits that hold it.
//
// Blocking has its price: keys spread over blocks by chance, and a block that
// got more than its share answers worse than one that got less answers better.
// BloomGeometry knows the rate exactly, as the mean over a Poisson number of
// keys in a block of the chance that k throws hit what they occupy, and makes
// the blocks as many and as long as 1.2 times the asked rate needs. Narrow
// blocks need more cells, wide ones more lines a key: it takes the narrowest
// that need at most a quarter more cells than a filter without blocks, n *
// |ln p| / ln(2)^2.
//
// A filter for a billion keys takes memory as keys come: each shard holds the
// blocks that were touched in an open-addressing table, in order of number
// (FastRange again), until that would be as large as all blocks, which it holds
// as an array from then on. Blocks of one shard have consecutive numbers, so
// they have one owner and one lock, and a walk by shard is a walk by number.
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
// at full load. The rate measured there is 1.1 to 1.27 p
// (tests/ops/core/table/test_counting_bloom_filter.cc). A block that a single
// key touched costs all its lines, and a table of blocks that grows is 0.47 to
// 0.7 full. An apply reads a block twice, first to judge all keys of the shard
// and then to raise, the second time from the nearest cache. To find the
// geometry takes under a millisecond for rates that anyone would ask for.
//
// Cells cannot be given back: an evicted key would take the counts of others
// with it. The table keeps an entry for it instead.
//
// WHAT WAS TRIED AND LOST (an Apply's time as a share of one without a filter;
// embedding_table.h says how it is measured)
//
// * As many cells as the formula without blocks gives, in one line or two: the
//   rate at p = .01 is 2.6 p and 1.7 p with cells of 8 bits.
// * A table of blocks that doubles instead of growing by half: 1.45 / 1.32
//   against 1.47 / 1.29 for 100M keys, which is noise, and 11 % more memory.
// * Prefetching a key's entry in the index where its cells are going to be
//   raised, needed or not: 1.07 / 1.12 against 1.05 / 1.11.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_COUNTING_BLOOM_FILTER_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_COUNTING_BLOOM_FILTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/hash_index.h"

namespace rec_estimator {

// How large a filter is and where a key's cells are. Immutable.
class BloomGeometry {
 public:
  // No filter at all.
  BloomGeometry() = default;
  // For `max_elements` >= 1 distinct keys in `shards` shards, of which counts
  // up to `threshold` matter, at a false positive rate in (0, 1).
  BloomGeometry(int shards, uint32_t threshold, int64_t max_elements,
                double false_positive_rate);

  int64_t shard_blocks() const { return shard_blocks_; }  // Of each shard.
  int lines() const { return lines_; }                    // Of a block.
  int cells() const { return cells_; }                    // Of a block.
  int cell_bits() const { return cell_bits_; }
  int hashes() const { return static_cast<int>(multipliers_.size()); }
  uint32_t most() const { return most_; }  // What a cell holds at most.

  size_t block_bytes() const { return lines_ * kCacheLine; }
  // Cell i of a key.
  int Cell(uint64_t seed, int i) const {
    const uint64_t random = (seed * multipliers_[i]) >> 32;
    return static_cast<int>((random * static_cast<uint64_t>(cells_)) >> 32);
  }

 private:
  int64_t shard_blocks_ = 0;
  int lines_ = 0;
  int cells_ = 0;
  int cell_bits_ = 0;
  uint32_t most_ = 0;
  std::vector<uint64_t> multipliers_;  // (hashes), odd
};

// The blocks of one shard. Needs a lock around it as HashIndex does, but for
// Promise and Withdraw.
class BloomShard {
 public:
  struct Block {
    uint32_t number_low;  // Of the block in its shard.
    uint16_t number_high;
    uint8_t used;     // 0: an empty place.
    uint8_t changes;  // Bit 0: changed since the last save; bit 1: before, but
                      // that save is not committed yet.
    uint8_t cells[kCacheLine - 8];  // And on to the block's end.

    uint64_t number() const { return uint64_t{number_high} << 32 | number_low; }
  };
  static_assert(sizeof(Block) == kCacheLine, "cells begin at byte 8");

  // Where a key's cells are.
  struct Spot {
    uint64_t block;
    uint64_t seed;
  };

  BloomShard() = default;
  ~BloomShard() { Clear(); }
  BloomShard(const BloomShard&) = delete;
  BloomShard& operator=(const BloomShard&) = delete;

  // Before all else. `geometry` outlives this.
  void SetGeometry(const BloomGeometry* geometry) { geometry_ = geometry; }

  Spot SpotOf(uint64_t hash) const {  // hash: MixKey of the key.
    return {FastRange(hash, static_cast<uint64_t>(geometry_->shard_blocks())),
            MixKey(static_cast<int64_t>(hash))};
  }
  void Prefetch(const Spot& spot) const;

  Block* Find(uint64_t number) const;  // nullptr: no key of it was counted.
  // The same; adds it if it is not there. There must be room.
  Block* FindOrAdd(uint64_t number);

  // The least of a key's cells.
  uint32_t Estimate(const Block& block, uint64_t seed) const;
  // Raises the cells of a key that are below `count`, or the filter's most, to
  // it.
  void Raise(uint64_t seed, uint32_t count, bool tracking, Block* block) const;
  // All cells of a block, as numbers (cells).
  void Unpack(const Block& block, uint32_t* cells) const;
  // Raises all cells to at least those.
  void Merge(const uint32_t* cells, bool tracking, Block* block) const;

  // Makes room for so many blocks; blocks move. `stagger` as in HashIndex.
  // False, with nothing changed: no memory.
  bool Reserve(int64_t blocks, double stagger);

  // Room that a batch may use later. Promise tells whether it is there; if not,
  // Reserve(used() + promised()) under the lock makes it. Both without lock.
  bool Promise(int64_t blocks) {
    const int64_t promised =
        promised_.fetch_add(blocks, std::memory_order_acq_rel) + blocks;
    return used_.load(std::memory_order_acquire) + promised <=
           capacity_.load(std::memory_order_acquire);
  }
  void Withdraw(int64_t blocks) {
    promised_.fetch_sub(blocks, std::memory_order_acq_rel);
  }

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t promised() const { return promised_.load(std::memory_order_relaxed); }
  int64_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_; }

  // Takes all blocks away and gives the memory back; promises stay.
  void Clear();

  // Calls visit(&block) for every block.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t slot = 0; slot < n_slots_; ++slot) {
      Block* block = At(slot);
      if (block->used != 0) visit(block);
    }
  }

  // As HashIndex has it.
  void MarkPending();
  void ForgetPending();
  static bool Changed(const Block& block) { return block.changes != 0; }

 private:
  Block* At(uint64_t slot) const {
    return reinterpret_cast<Block*>(memory_ + slot * geometry_->block_bytes());
  }
  // Where a block is looked for first.
  uint64_t Home(uint64_t number) const {
    return is_array_ ? number : FastRange(number * scale_, n_slots_);
  }

  const BloomGeometry* geometry_ = nullptr;
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  uint64_t n_slots_ = 0;
  uint64_t scale_ = 0;     // 2^64 / blocks of the shard: a number's hash.
  bool is_array_ = false;  // Every block has its place.
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> capacity_{0};
  std::atomic<int64_t> promised_{0};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_COUNTING_BLOOM_FILTER_H_
