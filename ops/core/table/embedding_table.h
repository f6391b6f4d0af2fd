// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: int64 keys to rows of floats, growing, shared by threads.
//
// LAYOUT
//
//            key --MixKey--> 64 bits: the lowest 6 choose one of 64 shards,
//                                     the highest choose a bucket in it
//
//   shard    one lock | its index: an array of buckets | free rows, counters
//
//   bucket   128 bytes, 5 entries, open addressing
//            |used|over|  |row 0..4 |key 0 |key 1 |key 2 |key 3 |key 4 | 64 B
//            |version 0..4                      |count 0..4       |    | 64 B
//
//   arena    row number --directory--> block of 2^k rows, 2 to 4 MiB
//            |value ........|slot 0 ......|slot 1 ......|  one row, contiguous
//
// A lookup reads a bucket's first line only; version and count are in the
// second, which applies, saves and evictions use. The last 4 bytes of the
// second hold two bits an entry for incremental saves (below), the 2 bytes left
// in the first are spare. A row word is a number in the arena or kNoRow
// (counted, not admitted); its top bit is kept for the row's tier. Every int64
// is a legal key: `used` says which entries are taken, no key does. A key whose
// home bucket is full goes to the next one that is not, and the counter `over`
// of each bucket passed goes up by one; so a search for an absent key stops
// where the counter is zero, and erasing needs no tombstones (the idea is
// F14's, Facebook 2019).
//
// The index grows to 1.3 times its buckets when 85 % of its entries are taken.
// Buckets are chosen by multiplication (FastRange), so that any number of them
// will do, and a growth streams through the old and the new array in order. The
// 64 shards grow at 64 different sizes, so that memory grows steadily and a
// growth never stops more than a 64th of the table. Rows do not move then: a
// pointer from a Reader stays good while other shards grow, and a row keeps its
// address for life, EnsureSlots excepted.
//
// OPERATIONS
//
// Lookup: 16 keys at a time, three stages in flight: hash and prefetch the
// bucket; compare the 5 keys at once and prefetch the row; copy. A key that is
// not in its home bucket, one in ten, is put off within its stage while its
// next line is fetched.
//
// Apply: a stable counting sort of the occurrences by shard; per shard,
// distinct keys and their occurrences in batch order (a hash table on the
// stack); room for all new keys is secured (below); then, holding the shard's
// lock once, find or insert all keys, and sum and update 64 rows at a time,
// buckets, rows and gradients prefetched 16 ahead. All of it is split by shard,
// and within a key the order is the batch's: bits do not depend on the number
// of threads.
//
// Insert, what a restore does: sorted and promised room the same way; per shard
// and lock, keys are found 16 at a time, and rows are taken from the arena in
// runs of as many. (One by one, two threads that restore spent a sixth of their
// time at the arena's lock.)
//
// Filters: FilterSpec says from which count on a key owns a row. Either a key
// that is counted has an entry without a row, and gets the row when its count
// is reached; or it has no entry, and its cells in a counting Bloom filter, one
// per shard under the shard's lock (counting_bloom_filter.h), say what it was
// counted. Then it enters the index together with its row. An apply first
// judges all keys of a shard that have no row, by the counts before the batch,
// and then changes; so Admits, which judges the same way, says what an Apply
// will do. The gradients of keys without a row are left where they are.
//
// Rules of rows: padding never gets past the list of a batch's keys without a
// row, and is told from other keys only where a lookup has missed, so tables
// without it pay nothing. A frozen key's value is put aside before a shard's
// rows are updated, and back afterwards. A table with a limit counts a batch's
// new keys before anything changes, unless even as many as it has occurrences
// would fit (batch_room.h).
//
// Eviction goes through a shard's buckets under its lock and erases in place. A
// key that was counted in cells leaves an entry without a row, of count 0: its
// cells are at the threshold for good, and it would come back at once.
//
// Incremental saves: while changes are tracked, each entry and each Bloom block
// has a bit "changed", set by whatever changes it, and a bit "pending", for
// what a save has written that may still fail; each shard lists the keys it has
// erased. Snapshot(kChanged) is all of these; MarkSaved makes changed pending,
// CommitSaved forgets pending. A delta is played back as: erase, insert rows,
// insert counted keys, merge blocks.
//
// Running out of memory: before anything changes, each shard is promised room
// for as many entries as the batch has distinct keys of it. Mostly there is
// room and the promise is one atomic addition. Where there is not, the keys
// that are really new are counted under the lock and the index grows; with a
// Bloom filter, of whose keys few enter the index, it grows for all of them.
// The arena and the Bloom blocks make promises the same way. Only then is the
// first row touched, so that Apply and Insert change nothing when they return
// false. The exception: another thread erases or clears what this batch counted
// on, and memory ends at that moment; then shards are skipped whole. SetBank,
// EnsureSlots, bank, slots and Snapshot throw std::bad_alloc as a std::vector
// does, with nothing changed.
//
// Where: embedding_table_impl.h has the shards, their locks and the steps of a
// lookup; batch_apply.cc Apply, with batch_room.h, batch_insert.cc Insert and
// InsertFiltered, both on batch_scratch.h; admits.cc Admits; evict.cc what
// takes keys away; snapshot.cc what a save reads; embedding_table.cc all other
// methods.
//
// THREAD RULE
//
// Every method may be called at any time from any thread. A shard's lock is
// held shared to read rows and entries, exclusively to change them. An apply,
// an insertion, an erasure, an eviction and CommitSaved hold one lock at a
// time; a Reader, a Snapshot, EnsureSlots, SetBank and Clear hold several,
// taken in ascending order. bank() and slots() need none of them, so a save may
// ask for them.
//
// What runs in `parallel` never waits for an exclusive lock: it tries, and the
// calling thread does afterwards what was refused. For a save holds all shared
// locks while it waits for threads of the same pool. For the same reason
// readers are never kept out by a writer that waits; they give way for 100 us
// at most, so that lookups do not starve an apply. (With glibc's lock that lets
// waiting writers go first, that save, an apply and those threads would wait
// for each other.) A lookup holds its locks for 4096 keys at a time: it reads
// each row of one instant, not the whole batch. Who needs that takes a Reader.
// A thread that holds a Reader or a Snapshot must not call what needs an
// exclusive lock. An apply to a table with a limit takes limit_mutex before any
// shard's lock, on the calling thread only. MarkSaved changes bits under shared
// locks, and a mutex keeps it and Snapshots of kChanged apart; that a save is
// committed before the next one begins is up to who saves.
//
// COSTS
//
// Memory, beyond a row's floats: 25.6 bytes an entry, 34.5 a key averaged over
// growth (0.74 load; 30.1 just before a shard grows, 39.2 just after). A bucket
// index costs nothing until the first key, a shard's first growth 128 to 256
// bytes; the empty table takes 12 KiB and two vectors. Rows are not padded:
// rows that are no multiple of 64 bytes share cache lines, and one read may
// take a line more than it would need. Growing a shard needs its old and new
// array at once, a 64th of the index. Erased rows are reused by their shard but
// never given back, nor does an index shrink; Clear gives all back. Each thread
// that applies keeps up to 32 MiB of scratch memory, about 45 bytes an
// occurrence. A key that is counted and owns no row costs its entry, or in a
// Bloom filter its share of cells: 6.1 bytes at full load for p = .01 and a
// threshold up to 15. Keys erased while changes are tracked cost 8 to 16 bytes
// until the next save. A Snapshot takes 16 KiB, 8 bytes a Bloom block of one
// shard and 16 bytes a key of the buckets it lists.
//
// Cache misses: a lookup takes 1.1 lines of index (an absent key 1.3) and the
// lines of its value; an apply one line of index more and the lines of the
// slots.
//
// Measured: dim 16, one slot, Adagrad-like rule, batches of 106,496 keys, on
// two virtual cores with 2 MiB of L2 each; M keys/s on one thread [on two]
// (tests/ops/core/table/bench_embedding_table.cc):
//
//                            1M rows      5M rows      50M rows
//   lookup, Zipf(1.1)        64 [104]     54 [94]      40 [64]
//   lookup, uniform          36 [63]      20 [37]      15 [26]
//   apply, Zipf(1.1)         31 [44]      26 [39]      21 [33]
//   apply, uniform           12 [23]      9.7 [18]     7.4 [15]
//   apply, all keys new      5.5          4.5          1.6
//
// An Apply with a filter or another rule, as a share of one without, Zipf, one
// thread (the same program; medians of ratios; a stream that still brings new
// keys / batches that come again, 1M keys, threshold 3):
//
//   counter                            0.94 / 0.99
//   Bloom for 1M keys, p = .01         0.92 / 1.06
//   Bloom for 1M keys, p = .001        0.96 / 1.09
//   Bloom for 100M keys, p = .01       1.22 / 1.18    (a new block a new key)
//   padding and two frozen keys        1.00 / 1.01
//   a limit that is far / near         1.00 / 1.00, 1.09 / 1.12
//
// Of the first figures the last line, and at 50M all, is bound by first touches
// of memory, which are dear in a virtual machine: 5M rows make 1.9 in memory
// not used before. A uniform lookup of 5M rows takes 45 ns a key; the machine's
// own floor is 24 ns (prefetched reads of one line of 640 MB of rows 14, of 170
// MB of index 10), and the output is written besides.
//
// What it is bad at: applying one key at a time, 0.5 us each, so every method
// takes a batch. A batch whose keys fall into one shard runs on one thread.
// Keys are spread by a fixed function: someone who chooses keys freely can
// crowd one bucket, and searches there grow linear.
//
// WHAT WAS TRIED AND LOST (lookup of 5M rows, one thread, M keys/s, Zipf /
// uniform)
//
// * Chunks of 8 keys 47 / 22, 32 keys 55 / 21.5, 64 keys 48 / 19, 128 keys
//   48 / 18.5, against 56 / 22.4 for 16: more prefetches than line fill buffers
//   stall the core at the prefetch.
// * A pipeline that rolls key by key instead of chunk by chunk: 52 / 22.5 with
//   the best distances.
// * Searching on beyond the home bucket at once, without putting the key off:
//   46 / 17 against 51 / 18.5 (chunks of 64).
// * All of it compiled with -march=native, which leaves the comparison as it
//   is written: 48 / 19 against 47 / 18.5, chunks of 64. What pays is comparing
//   the whole line by one AVX-512 instruction, chosen at run time where the
//   processor has it: 24.0 ns a key against 26.2 (both threads, Zipf, medians
//   of 12 alternating rounds). The scalar compare: 45 / 18.3 against 47 / 18.5.
// * Prefetching the output for writing: 50 / 19 against 50.4 / 19.6.
// * 4 KiB pages: 43 / 16.3 against 54 / 20; applies 20.5 against 24.6.
// * Prefetching rows 8 or 32 ahead, gradients 8 or 32 ahead in an apply: within
//   3 % of 16, which is noise.
// * Deduplicating a shard where it is updated, in one piece of work instead of
//   two, with room promised by occurrences: 4.37 ms a train step against 4.32
//   (benchmarks/bench_table.py, medians of 31 alternating rounds).
// * With a Bloom filter, counting the keys that are really new when there is no
//   room for all: 1.07 / 1.12 instead of 0.92 / 1.06 of the time without
//   filter, and 1.49 / 1.27 instead of 1.22 / 1.18 for 100M keys.
// * Letting a new index take its pages by itself: it is read before it is
//   written, so each huge page faults twice; 4.1 M new keys/s against 5.2.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ops/core/base/parallel.h"
#include "ops/core/math/row_update.h"

namespace rec_estimator {

// One optimizer slot of every row, e.g. {"Adagrad", dim, 0.1f}.
struct SlotSpec {
  std::string name;
  int width;      // Floats: the table's dim, or 1 for row-wise rules.
  float initial;  // What a new row's slot starts from.
};

// What a key without a row reads.
enum class UnknownKey {
  kInitial,  // Its initial vector: row floormod(key, bank rows) of the bank.
  kDefault,  // The default vector: every element `default_value`.
};

// Which keys own rows.
struct FilterSpec {
  uint32_t threshold = 0;    // Count that admits a key; 0: every key at once.
  uint32_t coefficient = 1;  // What one occurrence adds to a key's count.
  // Above 0: a key without a row is counted in a counting Bloom filter, made
  // for so many distinct keys. A threshold of 0 or 1 needs no filter.
  int64_t max_elements = 0;
  double false_positive_rate = 0;  // At full load; in (0, 1) if the above is.
};

// What else is fixed about the rows of a table.
struct RowRules {
  int64_t max_rows = 0;  // 0: as many as there is memory for.
  // Whether key EmbeddingTable::kPadding owns nothing: it reads the default
  // vector, and applies neither store nor count it.
  bool has_padding = false;
  // Distinct keys whose values no apply changes; their slots it does.
  std::vector<int64_t> frozen_keys;
};

class EmbeddingTable {
 public:
  static constexpr int kShards = 64;  // Internal shards, each with one lock.
  static constexpr int64_t kPadding = -1;  // Of tables that have padding.

  explicit EmbeddingTable(int dim, float default_value = 0.0f,
                          const FilterSpec& filter = {},
                          const RowRules& rules = {});
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  int dim() const;
  const FilterSpec& filter() const;
  const RowRules& rules() const;
  std::vector<SlotSpec> slots() const;
  int row_floats() const;  // dim + the slots' widths.

  // Replaces the bank of initial vectors; keys without a row read the new
  // one, rows that exist are untouched. Copies. rows >= 1.
  void SetBank(const float* bank, int64_t rows);  // (rows, dim)
  int64_t bank_rows() const;                      // 0 before the first SetBank.
  std::vector<float> bank() const;                // (bank_rows, dim)

  // Makes the rows carry these slots too, if they do not. Rows that exist get
  // the slot's initial value. Returns false, changing nothing, if a slot of
  // that name exists with another width (another initial value replaces the
  // old one for rows to come), a width is below 1, or there is no memory. The
  // only call that moves rows: it takes every lock and needs all rows twice
  // meanwhile.
  bool EnsureSlots(const std::vector<SlotSpec>& slots);

  // Takes all keys away and empties the Bloom filter; bank and slots stay.
  // Changes are tracked no longer: nothing is known to be saved.
  void Clear();

  // Shared locks on the shards of some keys, so that several threads can read
  // rows while no apply changes them. Create on one thread, use on any.
  class Reader {
   public:
    // Locks the shards that keys (n) fall into.
    Reader(const EmbeddingTable& table, const int64_t* keys, size_t n);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // rows[i] = the dim floats that keys[i] reads; valid while the Reader
    // lives. Prefetches what it points to. keys must be among the
    // constructor's.
    void Rows(const int64_t* keys, size_t n, UnknownKey unknown,
              const float** rows) const;

   private:
    const EmbeddingTable& table_;
    uint64_t locked_;  // Bit s: shard s is locked.
  };

  // out[i] = what keys[i] reads. Changes nothing.
  void Lookup(const int64_t* keys,  // (n)
              size_t n, UnknownKey unknown,
              float* out,  // (n, dim)
              const ParallelFor& parallel) const;

  // One training step of this table.
  struct Batch {
    const int64_t* keys;  // (n) occurrences, repeats allowed.
    const float* grads;   // (n, dim)
    size_t n;
    const int64_t* counted_keys;  // (m) counted and inserted, no gradient.
    size_t m;
    int64_t version;  // Stamped on every key of the batch.
  };
  // Counts, admits, inserts from the bank and updates, once per key. A key's
  // count grows by filter().coefficient per occurrence; if it has no row, it
  // gets one once the count reaches the threshold, and this step's gradient is
  // applied to it; otherwise the gradient is dropped. Per key, gradients are
  // summed from +0 in order of occurrence, unless update.per_occurrence().
  // Precondition: slots() begins
  // with update's, in its widths (the kernel checks). Thread-safe;
  // bits do not depend on `parallel`. Returns false, with nothing changed,
  // when memory for the batch cannot be had or n + m reaches 2^31; or when the
  // table would have more rows than rules().max_rows: then *too_many, if given,
  // says how many more, and is 0 otherwise.
  bool Apply(const Batch& batch, const RowUpdate& update,
             const ParallelFor& parallel, int64_t* too_many = nullptr);

  // How many rows more than rules().max_rows an Apply of this batch would need,
  // whose grads and version are not read. Changes nothing. False: no memory.
  bool CountTooMany(const Batch& batch, const ParallelFor& parallel,
                    int64_t* too_many);

  // out[i] = whether keys[i] owns a row, or would after an Apply of all keys
  // (n), in which repeats count. Changes nothing. False: no memory.
  bool Admits(const int64_t* keys, size_t n, bool* out) const;

  // out[i] = whether keys[i] owns a row.
  void Contains(const int64_t* keys, size_t n, bool* out) const;

  // Rows to insert or overwrite, as a checkpoint holds them. Of a key that is
  // there twice all the same, the last row stays.
  struct Rows {
    const int64_t* keys;  // (n); distinct.
    size_t n;
    const float* values;  // (n, dim); nullptr: initial vectors
    std::vector<const float*>
        slots;                // one per slot: (n, width), or nullptr: initial
    const int64_t* freqs;     // (n); nullptr: 0. Saturates to 32 bits.
    const int64_t* versions;  // (n); nullptr: -1
  };
  // Makes room in the index for so many more keys, so that inserting them does
  // not grow it step by step. Only a hint: no memory is no error yet.
  void Reserve(int64_t keys);
  bool Insert(const Rows& rows);  // False, nothing changed: no memory.

  // Inserts keys that a checkpoint holds as counted only, or overwrites their
  // count and version. They are judged anew: those whose count reaches the
  // threshold start from an initial row. into_bloom: the others, unless they
  // have an entry, raise their cells in the Bloom filter (if there is one)
  // instead of getting an entry. A key that owns a row keeps it. False,
  // nothing changed: no memory.
  bool InsertFiltered(const int64_t* keys, size_t n,
                      const int64_t* freqs,     // (n); nullptr: 0
                      const int64_t* versions,  // (n); nullptr: -1
                      bool into_bloom);

  // Overwrites one slot, of slots()[slot].width floats, of the keys (n) that
  // own rows; others are left out. Returns how many there were.
  size_t SetSlot(size_t slot, const int64_t* keys, size_t n,
                 const float* values);  // (n, width)

  // The three that follow throw std::bad_alloc if changes are tracked and there
  // is no memory to note what goes; what went by then is noted.

  // Takes keys (n) away, rows and counts; returns how many were there. Their
  // rows are reused. Cells of a Bloom filter stay as they are.
  size_t Erase(const int64_t* keys, size_t n);
  // Evicts the keys, with and without a row, last applied at a version in
  // [0, version), and stamps those never applied (-1), or applied at a version
  // above `stamp`, with `stamp`: these come from a run that had come further
  // than this one, and live as if they were new. Returns how many were evicted.
  // Cells of a Bloom filter cannot be taken back: with one, an evicted key
  // leaves an entry without a row, of count 0 and version -1, which counts from
  // then on.
  int64_t EvictOlder(int64_t version, int64_t stamp);
  // Evicts the rows with 0.5 * sum(value^2), in float64 in order, < this.
  int64_t EvictSmaller(float half_squared_norm);

  // The Bloom filter's geometry: of the FilterSpec alone, so that filters of
  // one spec can be merged.
  struct BloomLayout {
    int64_t blocks;  // 0: there is no filter, and all else is 0.
    int cells_per_block;
    int hashes;
    int cell_bits;  // 4, 8, 16 or 32: the least that hold the threshold.
  };
  BloomLayout bloom_layout() const;
  // Raises the cells of these blocks (n), numbers in [0, blocks), to at least
  // `cells`. False, nothing changed: no memory.
  bool MergeBloom(const int64_t* blocks, size_t n,
                  const uint32_t* cells);  // (n, cells_per_block)

  // Notes what changes from now on, for incremental saves. Off until then, and
  // after Clear. Called while a Snapshot lives, nothing is missed after it.
  void TrackChanges();
  bool tracks_changes() const;
  // What the last Snapshot::MarkSaved marked is safe: forgets those changes.
  void CommitSaved();

  // A consistent picture of the whole table: holds the shared locks of all
  // shards while it lives, so applies wait. Needs 16 KiB; lists what it is
  // asked for. Of kChanged, and of MarkSaved, one at a time: others wait.
  class Snapshot {
   public:
    // kChanged: what changed since the last save that was committed; all of it
    // if changes are not tracked.
    enum class Keys { kAll, kChanged };

    explicit Snapshot(const EmbeddingTable& table, Keys keys = Keys::kAll);
    ~Snapshot();
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    // Checkpoints sort keys into this many buckets, by floormod(key, kBuckets).
    static constexpr int64_t kBuckets = 1000;

    // (kBuckets + 1) each: bucket b of the keys with a row, and of those that
    // are counted only, is [offsets[b], offsets[b + 1]).
    const std::vector<int64_t>& admitted_offsets() const {
      return admitted_offsets_;
    }
    const std::vector<int64_t>& filtered_offsets() const {
      return filtered_offsets_;
    }

    struct Entry {
      int64_t key;
      const void* place;  // Of this table, while the Snapshot lives.
    };
    // Replaces the contents of both by the keys of buckets [begin, end), in
    // order of bucket, then key. One pass over the whole index a call, 16 bytes
    // a key.
    void List(int64_t begin_bucket, int64_t end_bucket,
              const ParallelFor& parallel, std::vector<Entry>* admitted,
              std::vector<Entry>* filtered) const;
    // Prefetches what the next three read of entries (n), n <= 64.
    void Prefetch(const Entry* entries, size_t n) const;
    const float* Row(const Entry& entry) const;  // (row_floats); admitted only.
    int64_t Freq(const Entry& entry) const;
    int64_t Version(const Entry& entry) const;  // -1: never applied.

    // Of kChanged: keys erased or evicted since, in ascending order. One that
    // came back is listed above as well: erase these first.
    const std::vector<int64_t>& erased() const { return erased_; }

    // Blocks of the Bloom filter that were ever touched (of kChanged: changed).
    int64_t bloom_blocks() const { return bloom_blocks_; }
    // Calls visit(number, cells (cells_per_block)) for each, numbers ascending.
    void ForEachBloomBlock(
        const std::function<void(int64_t number, const uint32_t* cells)>& visit)
        const;

    // Changes up to now become pending: part of the next kChanged Snapshot as
    // well, until CommitSaved.
    void MarkSaved();

   private:
    template <typename Visit>
    void Walk(int s, const Visit& visit) const;
    void Count();  // Fills the members below; shards are locked.

    const EmbeddingTable& table_;
    bool only_changed_;
    std::unique_lock<std::mutex> save_lock_;  // Held if only_changed_.
    std::vector<int64_t> admitted_offsets_;
    std::vector<int64_t> filtered_offsets_;
    std::vector<int64_t> erased_;
    int64_t bloom_blocks_ = 0;
  };

  // What was counted for each key; 0 if unknown. Of a key that is in the Bloom
  // filter only: its estimate, at least the count or the threshold. Never
  // inserts.
  void Frequencies(const int64_t* keys, size_t n, int64_t* out) const;
  // global_step of the last apply of each key; -1 if unknown or never
  // applied.
  void Versions(const int64_t* keys, size_t n, int64_t* out) const;

  int64_t size() const;          // Keys that own a row.
  int64_t total_count() const;   // Those and entries without a row.
  int64_t capacity() const;      // Keys that fit if no shard grows.
  int64_t memory_bytes() const;  // Of buckets, rows and Bloom blocks.

 private:
  struct Shard;
  struct Impl;
  Impl* impl_;  // Owned.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_EMBEDDING_TABLE_H_
