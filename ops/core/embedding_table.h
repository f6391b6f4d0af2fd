// EmbeddingTable: int64 keys to rows of floats, growing, shared by threads.
// (essay: written by the owner of this file)
#ifndef REC_ESTIMATOR_OPS_CORE_EMBEDDING_TABLE_H_
#define REC_ESTIMATOR_OPS_CORE_EMBEDDING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel.h"
#include "row_update.h"

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

class EmbeddingTable {
 public:
  static constexpr int kShards = 64;  // Internal shards, each with one lock.

  explicit EmbeddingTable(int dim, float default_value = 0.0f);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  int dim() const;
  std::vector<SlotSpec> slots() const;
  int row_floats() const;  // dim + the slots' widths.

  // Replaces the bank of initial vectors; keys without a row read the new one,
  // rows that exist are untouched. Copies. rows >= 1.
  void SetBank(const float* bank, int64_t rows);  // (rows, dim)
  int64_t bank_rows() const;                      // 0 before the first SetBank.
  std::vector<float> bank() const;                // (bank_rows, dim)

  // Makes the rows carry these slots too, if they do not. Rows that exist get
  // the slot's initial value. Returns false, changing nothing, if a slot of that
  // name exists with another width (another initial value replaces the old one
  // for rows to come). The only call that moves rows: it takes every lock.
  bool EnsureSlots(const std::vector<SlotSpec>& slots);

  // Takes all keys away; bank and slots stay.
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

    // rows[i] = the dim floats that keys[i] reads; valid while the Reader lives.
    // Prefetches what it points to. keys must be among the constructor's.
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
    const int64_t* keys;          // (n) occurrences, repeats allowed.
    const float* grads;           // (n, dim)
    size_t n;
    const int64_t* counted_keys;  // (m) counted and inserted, no gradient.
    size_t m;
    int64_t version;              // Stamped on every key of the batch.
  };
  // Counts, admits (every key, until filters come), inserts from the bank and
  // updates, once per key. Per key, gradients are summed from +0 in order of
  // occurrence, unless update.per_occurrence(). Precondition: slots() begins with
  // update.slots() slots of width dim (the kernel checks). Thread-safe; bits do
  // not depend on `parallel`. Returns false, with nothing changed, when memory for
  // the batch cannot be had.
  bool Apply(const Batch& batch, const RowUpdate& update,
             const ParallelFor& parallel);

  // Rows to insert or overwrite, as a checkpoint holds them.
  struct Rows {
    const int64_t* keys;                // (n); distinct
    size_t n;
    const float* values;                // (n, dim); nullptr: initial vectors
    std::vector<const float*> slots;    // one per slot: (n, width), or nullptr: initial
    const int64_t* freqs;               // (n); nullptr: 0. Saturates to 32 bits.
    const int64_t* versions;            // (n); nullptr: -1
  };
  bool Insert(const Rows& rows);  // False, nothing changed: no memory.

  // Takes keys (n) away, rows and counts; returns how many were there. Their rows
  // are reused.
  size_t Erase(const int64_t* keys, size_t n);

  // A consistent picture of the whole table: holds the shared locks of all shards
  // while it lives, so applies wait. Ordered by floormod(key, 1000), then key.
  class Snapshot {
   public:
    explicit Snapshot(const EmbeddingTable& table);
    ~Snapshot();
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    struct Entry {
      int64_t key;
      int64_t version;    // -1: never applied.
      uint32_t freq;
      const float* row;   // (row_floats); nullptr: counted, not admitted.
    };
    const std::vector<Entry>& admitted() const { return admitted_; }
    const std::vector<Entry>& filtered() const { return filtered_; }

   private:
    const EmbeddingTable& table_;
    std::vector<Entry> admitted_;
    std::vector<Entry> filtered_;
  };

  // Occurrences counted for each key; 0 if unknown. Never inserts.
  void Frequencies(const int64_t* keys, size_t n, int64_t* out) const;
  // global_step of the last apply of each key; -1 if unknown or never applied.
  void Versions(const int64_t* keys, size_t n, int64_t* out) const;

  int64_t size() const;         // Keys that own a row.
  int64_t total_count() const;  // Those and the keys counted only.
  int64_t capacity() const;     // Keys that fit before the next growth of a shard.
  int64_t memory_bytes() const; // Allocated for buckets and rows.

 private:
  friend class Reader;
  friend class Snapshot;
  struct Shard;
  struct Impl;
  Impl* impl_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_EMBEDDING_TABLE_H_
