#include "embedding_table.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "cpu_memory.h"
#include "hash_index.h"
#include "row_arena.h"

namespace rec_estimator {
namespace {

using Bucket = HashIndex::Bucket;
using Place = HashIndex::Place;

constexpr int kShards = EmbeddingTable::kShards;
constexpr uint64_t kAllShards = ~uint64_t{0};
static_assert(kShards == 64, "sets of shards are 64-bit masks");

// Keys whose cache misses are in flight together in a lookup: as many as a core
// has line fill buffers. embedding_table.h has the measurements.
constexpr size_t kChunk = 16;
// Keys of a large lookup that one set of locks serves: 64 locks cost 0.7 us,
// 4096 keys 70 us or more, and an apply waits no longer than that.
constexpr size_t kLookupBlock = 4096;
// From here on a Reader locks every shard without hashing its keys first: fewer
// keys than this would leave shards free.
constexpr size_t kLockAllFrom = 512;
// Below, splitting a batch over threads costs more than it gains.
constexpr uint64_t kSerialBelow = 2048;
// Occurrences that one unit of the partition sorts.
constexpr uint64_t kPartitionBlock = 8192;
// Occurrences are numbered in 32 bits.
constexpr uint64_t kMaxBatch = uint64_t{1} << 31;
// Distance, in keys, at which an apply prefetches buckets.
constexpr uint32_t kBucketsAhead = 16;
// Rows that one call of RowUpdate::Update gets at most, and the floats of their
// summed gradients, which live on the stack.
constexpr size_t kTileRows = 64;
constexpr size_t kTileFloats = 4096;
// Distance, in rows and in gradients, at which an update prefetches.
constexpr uint32_t kRowsAhead = 16;
constexpr uint32_t kGradsAhead = 16;

int ShardOf(uint64_t hash) { return static_cast<int>(hash % kShards); }

// Where shard s is in its growth cycle: 0, 1/64, ..., in an order that spreads
// neighbours, so that memory grows steadily and not in steps of 30 %.
double Stagger(int s) {
  int reversed = 0;
  for (int bit = 0; bit < 6; ++bit) reversed |= ((s >> bit) & 1) << (5 - bit);
  return reversed / 64.0;
}

// A shard's lock. Readers never wait for writers that are waiting themselves:
// a save holds read locks while it waits for threads of the pool, which may be
// about to read. They only give way for a moment, so that a stream of
// overlapping lookups does not starve an apply.
class ReadWriteLock {
 public:
  ReadWriteLock() {
    // glibc's default kind: readers pass waiting writers.
    pthread_rwlock_init(&lock_, nullptr);
  }
  ~ReadWriteLock() { pthread_rwlock_destroy(&lock_); }
  ReadWriteLock(const ReadWriteLock&) = delete;
  ReadWriteLock& operator=(const ReadWriteLock&) = delete;

  bool TryLock() { return pthread_rwlock_trywrlock(&lock_) == 0; }
  void Lock() {
    if (TryLock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    pthread_rwlock_wrlock(&lock_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void LockShared() {
    if (waiting_.load(std::memory_order_relaxed) > 0) GiveWay();
    pthread_rwlock_rdlock(&lock_);
  }
  void Unlock() { pthread_rwlock_unlock(&lock_); }

 private:
  // Long enough for a lookup that is reading to finish its block.
  static constexpr std::chrono::microseconds kGiveWay{100};

  void GiveWay() const {
    const auto until = std::chrono::steady_clock::now() + kGiveWay;
    while (waiting_.load(std::memory_order_relaxed) > 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }

  pthread_rwlock_t lock_;
  std::atomic<int> waiting_{0};  // Writers in Lock.
};

// Eight floats at any address.
typedef float Vector
    __attribute__((vector_size(32), aligned(alignof(float)), may_alias));

inline const Vector& VectorAt(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}
inline Vector& VectorAt(float* p) { return *reinterpret_cast<Vector*>(p); }

// Copies dim floats; for whole vectors and an overlapping last one, where
// memcpy would be a call per row.
inline void CopyRow(const float* from, int dim, float* to) {
  constexpr int kWide = 8;
  if (dim >= kWide) {
    for (int d = 0; d + kWide <= dim; d += kWide) {
      VectorAt(to + d) = VectorAt(from + d);
    }
    VectorAt(to + dim - kWide) = VectorAt(from + dim - kWide);
  } else {
    for (int d = 0; d < dim; ++d) to[d] = from[d];
  }
}

// sum = (((+0 + g0) + g1) + ...), with g_j = row occurrences[j] of grads,
// (dim). The leading +0 turns a lone -0 into +0, as TensorFlow's segment sum
// does.
void SumOccurrences(const float* grads, const uint32_t* occurrences, size_t n,
                    int dim, float* sum) {
  constexpr int kWide = 8;
  const size_t stride = static_cast<size_t>(dim);
  if (dim < kWide) {
    for (int d = 0; d < dim; ++d) sum[d] = 0.0f;
    for (size_t j = 0; j < n; ++j) {
      const float* grad = grads + occurrences[j] * stride;
      for (int d = 0; d < dim; ++d) sum[d] += grad[d];
    }
    return;
  }
  int d = 0;
  for (; d + 2 * kWide <= dim; d += 2 * kWide) {
    Vector sum0 = {}, sum1 = {};
    for (size_t j = 0; j < n; ++j) {
      if (j + kGradsAhead < n) {
        PrefetchLine(grads + occurrences[j + kGradsAhead] * stride + d);
      }
      const float* grad = grads + occurrences[j] * stride + d;
      sum0 += VectorAt(grad);
      sum1 += VectorAt(grad + kWide);
    }
    VectorAt(sum + d) = sum0;
    VectorAt(sum + d + kWide) = sum1;
  }
  // What is left, at most twice; the last one overlaps floats already summed.
  while (d < dim) {
    d = std::min(d, dim - kWide);
    Vector sum0 = {};
    for (size_t j = 0; j < n; ++j) {
      sum0 += VectorAt(grads + occurrences[j] * stride + d);
    }
    VectorAt(sum + d) = sum0;
    d += kWide;
  }
}

// Memory a thread keeps from batch to batch, so that a step costs no page
// faults. Taken out of the thread for the length of a call.
class Scratch {
 public:
  // Each use of a call has memory of its own: of one size from step to step.
  enum Use { kBatch, kWide, kUses };

  explicit Scratch(Use use) : kept_(&all_kept_[use]) {
    std::swap(memory_, kept_->memory);
    std::swap(bytes_, kept_->bytes);
  }
  ~Scratch() {
    // Something is kept only if the call was made from within another one.
    if (bytes_ > kKeepBytes || kept_->memory != nullptr) {
      FreeZeroed(memory_, bytes_);
    } else {
      kept_->memory = memory_;
      kept_->bytes = bytes_;
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`, contents unspecified, cache line aligned; nullptr: no
  // memory.
  char* Get(size_t bytes) {
    if (bytes > bytes_) {
      FreeZeroed(memory_, bytes_);
      bytes_ = bytes + bytes / 4;
      memory_ = AllocateZeroed(bytes_, Pages::kHuge);
      if (memory_ == nullptr) bytes_ = 0;
    }
    return static_cast<char*>(memory_);
  }

 private:
  // A batch of 800,000 occurrences; what a larger one took is given back.
  static constexpr size_t kKeepBytes = size_t{32} << 20;

  struct Kept {
    ~Kept() { FreeZeroed(memory, bytes); }
    void* memory = nullptr;
    size_t bytes = 0;
  };
  static thread_local std::array<Kept, kUses> all_kept_;

  Kept* kept_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

thread_local std::array<Scratch::Kept, Scratch::kUses> Scratch::all_kept_;

// Lays arrays out one behind the other: once to learn the size, once for real.
class Layout {
 public:
  explicit Layout(char* base) : base_(base), bytes_(0) {}
  template <typename T>
  void Add(T** array, size_t n) {
    if (base_ != nullptr) *array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (n * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_;
};

}  // namespace

struct EmbeddingTable::Shard {
  // Line 1. Shared: reading rows and entries; exclusive: anything else.
  alignas(kCacheLine) mutable ReadWriteLock lock;

  // Line 2, read by every lookup. Guarded by lock.
  alignas(kCacheLine) HashIndex index;

  // Line 3. Written under lock; the atomics are read without.
  alignas(kCacheLine) std::atomic<int64_t> keys{0};  // Entries of index.
  std::atomic<int64_t> rows{0};                      // Those that own a row.
  std::atomic<int64_t> capacity{0};                  // index.capacity().
  // Entries that applies under way may still add; added to without lock.
  std::atomic<int64_t> promised{0};
  uint32_t free_row = HashIndex::kNoRow;  // First of a list: a free row begins
  uint32_t free_rows = 0;                 // with the number of the next.
};

struct EmbeddingTable::Impl {
  Impl(int dim, float default_value)
      : dim(dim),
        zeros(dim, 0.0f),
        defaults(dim, default_value),
        arena(static_cast<size_t>(dim)) {
    for (int s = 0; s < kShards; ++s) stagger[s] = Stagger(s);
  }
  ~Impl() { FreeZeroed(bank, bank_bytes()); }

  const int dim;
  const std::vector<float> zeros;     // (dim); read before the first SetBank.
  const std::vector<float> defaults;  // (dim)
  std::array<double, kShards> stagger;
  std::array<Shard, kShards> shards;

  // Written under every shard's lock and metadata_mutex, so that one shard's
  // lock or metadata_mutex is enough to read.
  std::mutex metadata_mutex;
  std::vector<SlotSpec> slots;
  std::vector<float> slot_initials;  // (row_floats - dim): a new row's slots.
  float* bank = nullptr;             // (bank_rows, dim)
  int64_t bank_rows = 0;
  int64_t bank_mask = -1;  // bank_rows - 1 if that is a power of two, else -1.

  RowArena arena;  // Its rows are guarded by the lock of the shard they are in.

  size_t bank_bytes() const {
    return static_cast<size_t>(bank_rows) * dim * sizeof(float);
  }

  void LockAll() {
    for (Shard& shard : shards) shard.lock.Lock();
  }
  void UnlockAll() {
    for (Shard& shard : shards) shard.lock.Unlock();
  }
  void LockShared(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      shards[__builtin_ctzll(mask)].lock.LockShared();
    }
  }
  void UnlockShared(uint64_t mask) const {
    for (; mask != 0; mask &= mask - 1) {
      shards[__builtin_ctzll(mask)].lock.Unlock();
    }
  }
  static uint64_t ShardsOf(const int64_t* keys, size_t n) {
    if (n >= kLockAllFrom) return kAllShards;
    uint64_t mask = 0;
    for (size_t i = 0; i < n; ++i) {
      mask |= uint64_t{1} << ShardOf(MixKey(keys[i]));
    }
    return mask;
  }

  const HashIndex& IndexOf(int64_t key) const {
    return shards[ShardOf(MixKey(key))].index;
  }
  Bucket* Home(int64_t key) const {
    const uint64_t hash = MixKey(key);
    return shards[ShardOf(hash)].index.Home(hash);
  }

  // The vector that a new row of `key` starts from.
  const float* Initial(int64_t key) const {
    if (bank_rows == 0) return zeros.data();
    const int64_t row =
        bank_mask >= 0 ? key & bank_mask : FloorMod(key, bank_rows);
    return bank + row * dim;
  }

  void InitializeRow(int64_t key, float* row) const {
    CopyRow(Initial(key), dim, row);
    std::copy(slot_initials.begin(), slot_initials.end(), row + dim);
  }

  // The steps of a lookup, for n <= kChunk keys each; shards are locked.
  void PrefetchHomes(const int64_t* keys, size_t n, Bucket** homes) const {
    for (size_t i = 0; i < n; ++i) {
      homes[i] = Home(keys[i]);
      PrefetchLine(homes[i]);
    }
  }
  template <HashIndex::Matcher* kMatch>
  inline __attribute__((always_inline)) void FindRowsWith(
      const int64_t* keys, size_t n, Bucket* const* homes,
      const RowArena::View& view, UnknownKey unknown,
      const float** rows) const {
    const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
    const auto resolve = [&](size_t i, Place place) {
      if (place.found() && place.row() != HashIndex::kNoRow) {
        rows[i] = view.Row(place.row());
      } else if (unknown == UnknownKey::kInitial) {
        rows[i] = Initial(keys[i]);
      } else {
        rows[i] = defaults.data();
      }
      PrefetchLines(rows[i], bytes);
    };
    // A tenth of the keys lives beyond home; their next line comes meanwhile.
    uint8_t beyond[kChunk];
    size_t n_beyond = 0;
    for (size_t i = 0; i < n; ++i) {
      Place place;
      if (IndexOf(keys[i]).FindAtHome<kMatch>(homes[i], keys[i], &place)) {
        resolve(i, place);
      } else {
        beyond[n_beyond++] = static_cast<uint8_t>(i);
      }
    }
    for (size_t b = 0; b < n_beyond; ++b) {
      const size_t i = beyond[b];
      resolve(i, IndexOf(keys[i]).FindBeyond(homes[i], keys[i]));
    }
  }

  void FindRowsNarrow(const int64_t* keys, size_t n, Bucket* const* homes,
                      const RowArena::View& view, UnknownKey unknown,
                      const float** rows) const {
    FindRowsWith<HashIndex::Match>(keys, n, homes, view, unknown, rows);
  }
#if defined(__SSE4_1__)
  __attribute__((target("avx512f"))) void FindRowsWide(
      const int64_t* keys, size_t n, Bucket* const* homes,
      const RowArena::View& view, UnknownKey unknown,
      const float** rows) const {
    FindRowsWith<HashIndex::MatchWide>(keys, n, homes, view, unknown, rows);
  }
#endif
  void FindRows(const int64_t* keys, size_t n, Bucket* const* homes,
                const RowArena::View& view, UnknownKey unknown,
                const float** rows) const {
#if defined(__SSE4_1__)
    static const bool wide = HashIndex::HasWideMatch();
    if (wide) return FindRowsWide(keys, n, homes, view, unknown, rows);
#endif
    FindRowsNarrow(keys, n, homes, view, unknown, rows);
  }

  void Rows(const int64_t* keys, size_t n, UnknownKey unknown,
            const float** rows) const {
    const RowArena::View view = arena.view();
    Bucket* homes[2][kChunk];
    size_t now = std::min(n, kChunk);
    PrefetchHomes(keys, now, homes[0]);
    for (int turn = 0; now > 0; turn ^= 1) {
      const size_t next = std::min(n - now, kChunk);
      PrefetchHomes(keys + now, next, homes[turn ^ 1]);
      FindRows(keys, now, homes[turn], view, unknown, rows);
      keys += now;
      rows += now;
      n -= now;
      now = next;
    }
  }

  void Lookup(const int64_t* keys, size_t n, UnknownKey unknown,
              float* out) const {
    const RowArena::View view = arena.view();
    const size_t stride = static_cast<size_t>(dim);
    Bucket* homes[2][kChunk];
    const float* rows[2][kChunk];
    const size_t chunks = (n + kChunk - 1) / kChunk;
    const auto size = [&](size_t c) {
      return c + 1 == chunks ? n - c * kChunk : kChunk;
    };
    // Three steps in flight: chunk c has its buckets fetched, c - 1 its rows,
    // c - 2 is copied.
    for (size_t c = 0; c < chunks + 2; ++c) {
      if (c < chunks) PrefetchHomes(keys + c * kChunk, size(c), homes[c % 2]);
      if (c >= 1 && c - 1 < chunks) {
        FindRows(keys + (c - 1) * kChunk, size(c - 1), homes[(c - 1) % 2], view,
                 unknown, rows[(c - 1) % 2]);
      }
      if (c >= 2) {
        float* to = out + (c - 2) * kChunk * stride;
        const size_t m = size(c - 2);
        for (size_t i = 0; i < m; ++i, to += stride) {
          CopyRow(rows[c % 2][i], dim, to);
        }
      }
    }
  }

  // Finds the entries of keys (n), which are all in `index`, whose lock is
  // held. Calls visit(i, place) in order.
  template <typename Visit>
  static void FindEach(const HashIndex& index, const int64_t* keys, uint32_t n,
                       const Visit& visit) {
    Bucket* homes[2][kChunk];
    const auto fetch = [&](uint32_t at, Bucket** to) {
      const uint32_t end = std::min<uint32_t>(n, at + kChunk);
      for (; at < end; ++at, ++to) {
        *to = index.Home(MixKey(keys[at]));
        PrefetchLine(*to);
      }
    };
    Place places[kChunk];
    uint8_t beyond[kChunk];
    fetch(0, homes[0]);
    int turn = 0;
    for (uint32_t at = 0; at < n; at += kChunk, turn ^= 1) {
      if (n - at > kChunk) fetch(at + kChunk, homes[turn ^ 1]);
      const uint32_t size = std::min<uint32_t>(n - at, kChunk);
      size_t n_beyond = 0;
      for (uint32_t i = 0; i < size; ++i) {
        if (!index.FindAtHome<HashIndex::Match>(homes[turn][i], keys[at + i],
                                                &places[i])) {
          beyond[n_beyond++] = static_cast<uint8_t>(i);
        }
      }
      for (size_t b = 0; b < n_beyond; ++b) {
        const uint32_t i = beyond[b];
        places[i] = index.FindBeyond(homes[turn][i], keys[at + i]);
      }
      for (uint32_t i = 0; i < size; ++i) visit(at + i, places[i]);
    }
  }

  bool ReserveEntries(int s, int64_t keys) {
    Shard& shard = shards[s];
    if (keys <= shard.capacity.load(std::memory_order_relaxed)) return true;
    const bool reserved =
        shard.index.Reserve(static_cast<uint64_t>(keys), stagger[s]);
    shard.capacity.store(static_cast<int64_t>(shard.index.capacity()),
                         std::memory_order_release);
    return reserved;
  }

  // Hands out rows to one shard whose lock is held: freed ones first.
  class RowSource {
   public:
    RowSource(Shard* shard, const RowArena::View& view, uint32_t first)
        : shard_(shard), view_(view), next_(first) {}
    uint32_t Next() {
      if (shard_->free_rows == 0) return next_++;
      const uint32_t row = shard_->free_row;
      std::memcpy(&shard_->free_row, view_.Row(row), sizeof(uint32_t));
      --shard_->free_rows;
      return row;
    }

   private:
    Shard* shard_;
    RowArena::View view_;
    uint32_t next_;
  };

  size_t EraseSome(const int64_t* keys, size_t n);
  template <typename Visit>
  void Inspect(const int64_t* keys, size_t n, const Visit& visit) const;

  class BatchApply;
  class BatchInsert;
};

// ---------------------------------------------------------------------------
// Apply

namespace {

// Occurrences sorted by shard, stably: within a shard in batch order.
struct Partition {
  const int64_t* head;  // (n_head): the batch is head, then tail.
  uint64_t n_head;
  const int64_t* tail;  // (n - n_head)
  uint64_t n;

  uint8_t* shard;    // (n) of each occurrence, in batch order
  uint32_t* starts;  // (blocks, kShards) counts, then positions
  int64_t* keys;     // (n) by shard
  uint32_t* index;   // (n) by shard: number of the occurrence in the batch
  std::array<uint32_t, kShards + 1>
      begin;  // Shard s: [begin[s], begin[s + 1]).

  uint64_t blocks() const {
    return (n + kPartitionBlock - 1) / kPartitionBlock;
  }

  void AddTo(Layout* layout) {
    layout->Add(&shard, n);
    layout->Add(&starts, blocks() * kShards);
    layout->Add(&keys, n);
    layout->Add(&index, n);
  }

  int64_t Key(uint64_t i) const {
    return i < n_head ? head[i] : tail[i - n_head];
  }

  void Count(uint64_t block) {
    uint32_t* counts = starts + block * kShards;
    std::fill(counts, counts + kShards, 0);
    const uint64_t end = std::min(n, (block + 1) * kPartitionBlock);
    for (uint64_t i = block * kPartitionBlock; i < end; ++i) {
      const int s = ShardOf(MixKey(Key(i)));
      shard[i] = static_cast<uint8_t>(s);
      ++counts[s];
    }
  }

  void Place(uint64_t block) {
    uint32_t* next = starts + block * kShards;
    const uint64_t end = std::min(n, (block + 1) * kPartitionBlock);
    for (uint64_t i = block * kPartitionBlock; i < end; ++i) {
      const uint32_t to = next[shard[i]]++;
      keys[to] = Key(i);
      index[to] = static_cast<uint32_t>(i);
    }
  }

  void Run(const ParallelFor& parallel) {
    const int64_t units = static_cast<int64_t>(blocks());
    parallel(units, kPartitionBlock * 8, [this](int64_t b, int64_t e) {
      for (; b < e; ++b) Count(static_cast<uint64_t>(b));
    });
    uint32_t position = 0;
    for (int s = 0; s < kShards; ++s) {
      begin[s] = position;
      for (int64_t b = 0; b < units; ++b) {
        uint32_t& start = starts[b * kShards + s];
        const uint32_t count = start;
        start = position;
        position += count;
      }
    }
    begin[kShards] = position;
    parallel(units, kPartitionBlock * 8, [this](int64_t b, int64_t e) {
      for (; b < e; ++b) Place(static_cast<uint64_t>(b));
    });
  }
};

}  // namespace

// One Apply, step by step. Each step is split by shard; steps that need a lock
// only try for it in `parallel`, and what was refused the calling thread does
// afterwards: see "Thread rule" in embedding_table.h.
class EmbeddingTable::Impl::BatchApply {
 public:
  BatchApply(Impl* table, const Batch& batch, const RowUpdate& update)
      : table_(*table), batch_(batch), update_(update) {}

  bool Run(const ParallelFor& parallel) {
    part_.head = batch_.keys;
    part_.n_head = batch_.n;
    part_.tail = batch_.counted_keys;
    part_.n = batch_.n + batch_.m;
    if (part_.n >= kMaxBatch || !Allocate()) return false;
    part_.Run(parallel);
    if (!AllocateWide()) return false;

    const int64_t per_shard = static_cast<int64_t>(part_.n / kShards) + 1;
    parallel(kShards, per_shard * 30, [this](int64_t s, int64_t end) {
      for (; s < end; ++s) {
        Deduplicate(static_cast<int>(s));
        Promise(static_cast<int>(s));
      }
    });
    ForEach(&refused_, [this](int s) { PromiseLocked(s); });
    uint64_t rows = 0;
    for (int s = 0; s < kShards; ++s) rows += promised_rows_[s];
    if (failed_.load() || !table_.arena.Promise(rows)) {
      for (int s = 0; s < kShards; ++s) ReleaseEntries(s);
      return false;
    }

    const int64_t per_key = 100 + 8 * table_.dim;  // Cycles.
    parallel(kShards, per_shard * per_key, [this](int64_t s, int64_t end) {
      for (; s < end; ++s) TryUpdate(static_cast<int>(s));
    });
    ForEach(&refused_, [this](int s) {
      table_.shards[s].lock.Lock();
      Update(s);
      table_.shards[s].lock.Unlock();
    });
    uint64_t left = 0;
    for (int s = 0; s < kShards; ++s) left += promised_rows_[s];
    table_.arena.Release(left);
    return !failed_.load();
  }

 private:
  static constexpr uint32_t kSmallDedup = 4096;

  // Calls work(s) for the shards in *mask and empties it.
  template <typename Work>
  static void ForEach(std::atomic<uint64_t>* mask, const Work& work) {
    for (uint64_t left = mask->exchange(0); left != 0; left &= left - 1) {
      work(__builtin_ctzll(left));
    }
  }

  bool Allocate() {
    const auto lay = [this](Layout* layout) {
      part_.AddTo(layout);
      layout->Add(&id_, part_.n);
      layout->Add(&grouped_, part_.n);
      layout->Add(&end_, part_.n);
      layout->Add(&place_, part_.n);
      layout->Add(&row_, part_.n);
    };
    Layout size(nullptr);
    lay(&size);
    char* memory = scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    lay(&layout);
    return true;
  }

  // What only unusual batches need: hash tables for more occurrences of a shard
  // than the stack takes, sums of more floats.
  bool AllocateWide() {
    const auto lay = [this](Layout* layout) {
      for (int s = 0; s < kShards; ++s) {
        const uint32_t n = part_.begin[s + 1] - part_.begin[s];
        dedup_[s] = nullptr;
        if (n > kSmallDedup) layout->Add(&dedup_[s], DedupSize(n));
      }
      const size_t dim = static_cast<size_t>(table_.dim);
      if (dim > kTileFloats) layout->Add(&wide_sums_, kShards * dim);
    };
    Layout size(nullptr);
    lay(&size);
    if (size.bytes() == 0) return true;
    char* memory = wide_scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    lay(&layout);
    return true;
  }

  // A power of two at least twice n.
  static uint32_t DedupSize(uint32_t n) {
    uint32_t size = 16;
    while (size / 2 < n) size *= 2;
    return size;
  }

  // Replaces the occurrences of shard s by its distinct keys, in order of first
  // occurrence, and groups the occurrences by key, in batch order.
  void Deduplicate(int s) {
    const uint32_t begin = part_.begin[s];
    const uint32_t n = part_.begin[s + 1] - begin;
    int64_t* keys = part_.keys + begin;
    uint32_t* index = part_.index + begin;
    uint32_t* id = id_ + begin;
    uint32_t* end = end_ + begin;
    uint32_t small[2 * kSmallDedup];
    uint32_t* table = dedup_[s] != nullptr ? dedup_[s] : small;
    const uint32_t size = DedupSize(n);
    std::fill(table, table + size, 0);

    uint32_t unique = 0;
    for (uint32_t j = 0; j < n; ++j) {
      const int64_t key = keys[j];
      // Bits that neither the shard nor the bucket depends on most.
      uint32_t at = static_cast<uint32_t>(MixKey(key) >> 16) & (size - 1);
      for (;;) {
        const uint32_t entry = table[at];
        if (entry == 0) {
          keys[unique] = key;  // unique <= j: in place.
          end[unique] = 1;
          id[j] = unique++;
          table[at] = unique;
          break;
        }
        if (keys[entry - 1] == key) {
          ++end[entry - 1];
          id[j] = entry - 1;
          break;
        }
        at = (at + 1) & (size - 1);
      }
    }
    unique_[s] = unique;
    if (unique == n) {
      for (uint32_t u = 0; u < n; ++u) end[u] = u + 1;
      std::copy(index, index + n, grouped_ + begin);
      return;
    }
    uint32_t position = 0;
    for (uint32_t u = 0; u < unique; ++u) {
      const uint32_t count = end[u];
      end[u] = position;
      position += count;
    }
    // end[u] runs from the first to behind the last occurrence of u.
    uint32_t* grouped = grouped_ + begin;
    for (uint32_t j = 0; j < n; ++j) grouped[end[id[j]]++] = index[j];
  }

  // Secures room for the new entries of shard s before anything changes. Mostly
  // there is room for as many as the batch has keys, and no lock is needed.
  void Promise(int s) {
    promised_keys_[s] = promised_rows_[s] = unique_[s];
    if (unique_[s] == 0) return;
    Shard& shard = table_.shards[s];
    // Before reading keys: an apply that ends in between is counted twice
    // rather than never, for it adds to keys first and withdraws then.
    const int64_t promised =
        shard.promised.fetch_add(unique_[s], std::memory_order_acq_rel) +
        unique_[s];
    if (shard.keys.load(std::memory_order_acquire) + promised <=
        shard.capacity.load(std::memory_order_acquire)) {
      return;
    }
    if (!shard.lock.TryLock()) {
      refused_.fetch_or(uint64_t{1} << s);
      return;
    }
    CountAndReserve(s);
    shard.lock.Unlock();
  }

  void PromiseLocked(int s) {
    table_.shards[s].lock.Lock();
    CountAndReserve(s);
    table_.shards[s].lock.Unlock();
  }

  // Counts the keys of shard s that are new and grows the index if they do not
  // fit. The lock is held.
  void CountAndReserve(int s) {
    Shard& shard = table_.shards[s];
    uint32_t rows = 0;
    table_.FindEach(shard.index, part_.keys + part_.begin[s], unique_[s],
                    [&](uint32_t, Place place) {
                      rows +=
                          !place.found() || place.row() == HashIndex::kNoRow;
                    });
    const int64_t less = static_cast<int64_t>(unique_[s]) - rows;
    promised_keys_[s] = promised_rows_[s] = rows;
    const int64_t promised =
        shard.promised.fetch_sub(less, std::memory_order_acq_rel) - less;
    if (rows > 0 &&
        !table_.ReserveEntries(
            s, shard.keys.load(std::memory_order_relaxed) + promised)) {
      failed_.store(true);
    }
  }

  void ReleaseEntries(int s) {
    table_.shards[s].promised.fetch_sub(promised_keys_[s],
                                        std::memory_order_acq_rel);
    promised_keys_[s] = 0;
  }

  void TryUpdate(int s) {
    if (unique_[s] == 0) return;
    ReadWriteLock& lock = table_.shards[s].lock;
    if (!lock.TryLock()) {
      refused_.fetch_or(uint64_t{1} << s);
      return;
    }
    Update(s);
    lock.Unlock();
  }

  // Finds or inserts the keys of shard s, then updates their rows. The lock is
  // held.
  void Update(int s) {
    if (AdmitAll(s)) {
      UpdateRows(s);
    } else {
      failed_.store(true);
    }
    ReleaseEntries(s);
  }

  // False: no memory, although promised; only if another thread erased keys or
  // cleared the table since. The shard is then as it was.
  bool AdmitAll(int s) {
    Shard& shard = table_.shards[s];
    const uint32_t begin = part_.begin[s];
    const int64_t* keys = part_.keys + begin;
    const uint32_t unique = unique_[s];
    Place* places = place_ + begin;
    uint32_t* rows = row_ + begin;
    uint32_t* without_row = id_ + begin;  // Its content is used up.
    uint32_t new_keys;
    uint32_t new_rows;
    const auto find = [&] {
      new_keys = new_rows = 0;
      table_.FindEach(shard.index, keys, unique, [&](uint32_t u, Place place) {
        places[u] = place;
        rows[u] = place.found() ? place.row() : HashIndex::kNoRow;
        new_keys += !place.found();
        without_row[new_rows] = u;
        new_rows += rows[u] == HashIndex::kNoRow;
      });
    };
    find();
    if (new_rows == 0) return true;

    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (present + new_keys > shard.capacity.load(std::memory_order_relaxed)) {
      if (!table_.ReserveEntries(s, present + new_keys)) return false;
      find();  // Entries have moved.
    }
    uint32_t first = 0;
    const uint32_t freed = std::min(shard.free_rows, new_rows);
    if (new_rows > freed) {
      const uint32_t taken = new_rows - freed;
      const uint32_t promised = std::min(taken, promised_rows_[s]);
      if (!table_.arena.Take(taken, promised, &first)) return false;
      promised_rows_[s] -= promised;
    }

    const RowArena::View view = table_.arena.view();
    RowSource source(&shard, view, first);
    for (uint32_t i = 0; i < new_rows; ++i) {
      if (i + kBucketsAhead < new_rows) {
        const int64_t later = keys[without_row[i + kBucketsAhead]];
        PrefetchLines(shard.index.Home(MixKey(later)), sizeof(Bucket));
      }
      const uint32_t u = without_row[i];
      if (!places[u].found()) {
        places[u] =
            shard.index.Insert(shard.index.Home(MixKey(keys[u])), keys[u]);
      }
      rows[u] = source.Next();
      places[u].row() = rows[u];
      table_.InitializeRow(keys[u], view.Row(rows[u]));
    }
    shard.keys.store(present + new_keys, std::memory_order_release);
    shard.rows.store(shard.rows.load(std::memory_order_relaxed) + new_rows,
                     std::memory_order_relaxed);
    return true;
  }

  // Stamps, sums and updates, kTileRows rows at a time.
  void UpdateRows(int s) {
    const uint32_t begin = part_.begin[s];
    const uint32_t unique = unique_[s];
    const Place* places = place_ + begin;
    const uint32_t* rows = row_ + begin;
    const uint32_t* end = end_ + begin;
    const uint32_t* occurrences = grouped_ + begin;
    const uint32_t n = part_.begin[s + 1] - begin;
    const RowArena::View view = table_.arena.view();
    const int dim = table_.dim;
    const size_t stride = static_cast<size_t>(dim);
    const size_t row_bytes = table_.arena.row_floats() * sizeof(float);
    const bool each = update_.per_occurrence();

    alignas(kCacheLine) float small_sums[kTileFloats];
    float* sums = stride > kTileFloats ? wide_sums_ + s * stride : small_sums;
    const size_t tile_rows =
        each ? kTileRows
             : std::max<size_t>(1, std::min(kTileRows, kTileFloats / stride));
    float* tile[kTileRows];
    const float* tile_grads[kTileRows];
    size_t filled = 0;
    const auto flush = [&] {
      if (filled > 0) update_.Update(tile, tile_grads, filled, dim);
      filled = 0;
    };

    uint32_t fetched = 0;  // Occurrences whose gradients were prefetched.
    uint32_t at = 0;
    for (uint32_t u = 0; u < unique; ++u) {
      if (u + kRowsAhead < unique) {
        const Bucket* bucket = places[u + kRowsAhead].bucket();
        PrefetchLine(bucket->version);
        PrefetchLines(view.Row(rows[u + kRowsAhead]), row_bytes);
      }
      const uint32_t stop = end[u];
      // A long run of one key prefetches its own (SumOccurrences).
      fetched = std::max(fetched, at);
      const uint32_t fetch =
          std::min(n, std::min(stop, at + kGradsAhead) + kGradsAhead);
      for (; fetched < fetch; ++fetched) {
        if (occurrences[fetched] < batch_.n) {
          PrefetchLines(batch_.grads + occurrences[fetched] * stride,
                        stride * sizeof(float));
        }
      }

      const uint32_t count = places[u].count();
      const uint32_t more = stop - at;
      places[u].count() = count > UINT32_MAX - more ? UINT32_MAX : count + more;
      places[u].version() = batch_.version;

      // Counted keys come behind all others in the batch.
      uint32_t with_grad = stop;
      while (with_grad > at && occurrences[with_grad - 1] >= batch_.n) {
        --with_grad;
      }
      float* row = view.Row(rows[u]);
      if (each) {
        for (uint32_t j = at; j < with_grad; ++j) {
          tile[filled] = row;
          tile_grads[filled] = batch_.grads + occurrences[j] * stride;
          if (++filled == tile_rows) flush();
        }
      } else if (with_grad > at) {
        float* sum = sums + filled * stride;
        SumOccurrences(batch_.grads, occurrences + at, with_grad - at, dim,
                       sum);
        tile[filled] = row;
        tile_grads[filled] = sum;
        if (++filled == tile_rows) flush();
      }
      at = stop;
    }
    flush();
  }

  Impl& table_;
  const Batch& batch_;
  const RowUpdate& update_;
  Scratch scratch_{Scratch::kBatch};
  Scratch wide_scratch_{Scratch::kWide};
  Partition part_;

  // Per shard from part_.begin[s] on; distinct keys are part_.keys.
  uint32_t* id_;       // (n) which distinct key an occurrence is of
  uint32_t* grouped_;  // (n) occurrences, grouped by distinct key
  uint32_t* end_;      // (unique) end of each one's occurrences in grouped_
  Place* place_;       // (unique)
  uint32_t* row_;      // (unique)
  std::array<uint32_t*, kShards> dedup_;
  float* wide_sums_ = nullptr;  // (kShards, dim) if dim > kTileFloats

  std::array<uint32_t, kShards> unique_{};
  std::array<uint32_t, kShards> promised_keys_{};  // In Shard::promised.
  std::array<uint32_t, kShards> promised_rows_{};  // In the arena.
  std::atomic<uint64_t> refused_{0};  // Shards whose lock was not to be had.
  std::atomic<bool> failed_{false};
};

bool EmbeddingTable::Apply(const Batch& batch, const RowUpdate& update,
                           const ParallelFor& parallel) {
  if (batch.n >= kMaxBatch || batch.m >= kMaxBatch) return false;
  if (batch.n + batch.m == 0) return true;
  Impl::BatchApply apply(impl_, batch, update);
  if (batch.n + batch.m < kSerialBelow) return apply.Run(SerialFor);
  return apply.Run(parallel);
}

// ---------------------------------------------------------------------------
// Insert, Erase, Clear

class EmbeddingTable::Impl::BatchInsert {
 public:
  BatchInsert(Impl* table, const EmbeddingTable::Rows& rows)
      : table_(*table), batch_(rows) {}

  bool Run() {
    part_.head = batch_.keys;
    part_.n_head = part_.n = batch_.n;
    part_.tail = nullptr;
    if (part_.n >= kMaxBatch) return false;
    Layout size(nullptr);
    part_.AddTo(&size);
    char* memory = scratch_.Get(size.bytes());
    if (memory == nullptr) return false;
    Layout layout(memory);
    part_.AddTo(&layout);
    part_.Run(SerialFor);

    uint64_t rows = 0;
    bool reserved = true;
    for (int s = 0; s < kShards; ++s) {
      new_rows_[s] = 0;
      if (reserved && size_of(s) > 0) reserved = Reserve(s);
      rows += new_rows_[s];
    }
    reserved = reserved && table_.arena.Promise(rows);
    promised_ = reserved ? rows : 0;
    bool inserted = reserved;
    for (int s = 0; s < kShards; ++s) {
      Shard& shard = table_.shards[s];
      if (reserved && size_of(s) > 0) {
        shard.lock.Lock();
        inserted = InsertAll(s) && inserted;
        shard.lock.Unlock();
      }
      shard.promised.fetch_sub(new_rows_[s], std::memory_order_acq_rel);
    }
    table_.arena.Release(promised_);
    return inserted;
  }

 private:
  uint32_t size_of(int s) const { return part_.begin[s + 1] - part_.begin[s]; }

  bool Reserve(int s) {
    Shard& shard = table_.shards[s];
    shard.lock.Lock();
    uint32_t rows = 0;
    table_.FindEach(shard.index, part_.keys + part_.begin[s], size_of(s),
                    [&](uint32_t, Place place) {
                      rows +=
                          !place.found() || place.row() == HashIndex::kNoRow;
                    });
    new_rows_[s] = rows;
    const int64_t promised =
        shard.promised.fetch_add(rows, std::memory_order_acq_rel) + rows;
    const bool reserved = table_.ReserveEntries(
        s, shard.keys.load(std::memory_order_relaxed) + promised);
    shard.lock.Unlock();
    return reserved;
  }

  // One key after the other, so that a key given twice does no harm: the last
  // one wins. The lock is held.
  bool InsertAll(int s) {
    Shard& shard = table_.shards[s];
    const uint32_t begin = part_.begin[s];
    bool done = true;
    table_.FindEach(
        shard.index, part_.keys + begin, size_of(s), [&](uint32_t i, Place) {
          done = InsertOne(s, part_.keys[begin + i], part_.index[begin + i]) &&
                 done;
        });
    return done;
  }

  bool InsertOne(int s, int64_t key, uint32_t i) {
    Shard& shard = table_.shards[s];
    const auto home = [&] { return shard.index.Home(MixKey(key)); };
    Place place = shard.index.Find(home(), key);
    const bool is_new = !place.found();
    const bool needs_row = is_new || place.row() == HashIndex::kNoRow;
    uint32_t first = 0;
    const int64_t present = shard.keys.load(std::memory_order_relaxed);
    if (is_new && !table_.ReserveEntries(s, present + 1)) return false;
    if (needs_row && shard.free_rows == 0) {
      const uint64_t promised = promised_ > 0;
      if (!table_.arena.Take(1, promised, &first)) return false;
      promised_ -= promised;
    }
    const RowArena::View view = table_.arena.view();
    if (is_new) {
      place = shard.index.Insert(home(), key);
      shard.keys.store(present + 1, std::memory_order_release);
    }
    if (needs_row) {
      place.row() = RowSource(&shard, view, first).Next();
      shard.rows.store(shard.rows.load(std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
    }
    float* row = view.Row(place.row());
    table_.InitializeRow(key, row);
    if (batch_.values != nullptr) {
      const size_t stride = static_cast<size_t>(table_.dim);
      CopyRow(batch_.values + i * stride, table_.dim, row);
    }
    float* slot = row + table_.dim;
    for (size_t t = 0; t < table_.slots.size(); ++t) {
      const size_t width = static_cast<size_t>(table_.slots[t].width);
      if (t < batch_.slots.size() && batch_.slots[t] != nullptr) {
        std::copy_n(batch_.slots[t] + i * width, width, slot);
      }
      slot += width;
    }
    const int64_t freq = batch_.freqs != nullptr ? batch_.freqs[i] : 0;
    place.count() = static_cast<uint32_t>(
        std::min<int64_t>(std::max<int64_t>(freq, 0), UINT32_MAX));
    place.version() = batch_.versions != nullptr ? batch_.versions[i] : -1;
    return true;
  }

  Impl& table_;
  const EmbeddingTable::Rows& batch_;
  Scratch scratch_{Scratch::kBatch};
  Partition part_;
  std::array<uint32_t, kShards> new_rows_{};  // Promised to shard and arena.
  uint64_t promised_ = 0;  // What is left of the arena's promise.
};

bool EmbeddingTable::Insert(const Rows& rows) {
  if (rows.n == 0) return true;
  return Impl::BatchInsert(impl_, rows).Run();
}

size_t EmbeddingTable::Impl::EraseSome(const int64_t* keys, size_t n) {
  std::array<uint32_t, kShards + 1> start{};
  uint8_t shard_of[kLookupBlock];
  uint16_t order[kLookupBlock];
  for (size_t i = 0; i < n; ++i) {
    shard_of[i] = static_cast<uint8_t>(ShardOf(MixKey(keys[i])));
    ++start[shard_of[i] + 1];
  }
  for (int s = 0; s < kShards; ++s) start[s + 1] += start[s];
  std::array<uint32_t, kShards + 1> next = start;
  for (size_t i = 0; i < n; ++i) {
    order[next[shard_of[i]]++] = static_cast<uint16_t>(i);
  }
  size_t erased = 0;
  for (int s = 0; s < kShards; ++s) {
    if (start[s] == start[s + 1]) continue;
    Shard& shard = shards[s];
    shard.lock.Lock();
    const RowArena::View view = arena.view();
    int64_t gone = 0;
    int64_t rows_gone = 0;
    for (uint32_t o = start[s]; o < start[s + 1]; ++o) {
      const int64_t key = keys[order[o]];
      Bucket* home = shard.index.Home(MixKey(key));
      const Place place = shard.index.Find(home, key);
      if (!place.found()) continue;
      ++gone;
      if (place.row() != HashIndex::kNoRow) {
        std::memcpy(view.Row(place.row()), &shard.free_row, sizeof(uint32_t));
        shard.free_row = place.row();
        ++shard.free_rows;
        ++rows_gone;
      }
      shard.index.Erase(home, place);
    }
    shard.keys.fetch_sub(gone, std::memory_order_acq_rel);
    shard.rows.fetch_sub(rows_gone, std::memory_order_relaxed);
    shard.lock.Unlock();
    erased += static_cast<size_t>(gone);
  }
  return erased;
}

size_t EmbeddingTable::Erase(const int64_t* keys, size_t n) {
  size_t erased = 0;
  for (size_t at = 0; at < n; at += kLookupBlock) {
    erased += impl_->EraseSome(keys + at, std::min(kLookupBlock, n - at));
  }
  return erased;
}

void EmbeddingTable::Clear() {
  impl_->LockAll();
  for (Shard& shard : impl_->shards) {
    shard.index.Clear();
    shard.keys = 0;
    shard.rows = 0;
    shard.capacity = 0;
    shard.free_row = HashIndex::kNoRow;
    shard.free_rows = 0;
  }
  impl_->arena.Clear();
  impl_->UnlockAll();
}

// ---------------------------------------------------------------------------
// Lookup

EmbeddingTable::Reader::Reader(const EmbeddingTable& table, const int64_t* keys,
                               size_t n)
    : table_(table), locked_(Impl::ShardsOf(keys, n)) {
  table_.impl_->LockShared(locked_);
}

EmbeddingTable::Reader::~Reader() { table_.impl_->UnlockShared(locked_); }

void EmbeddingTable::Reader::Rows(const int64_t* keys, size_t n,
                                  UnknownKey unknown,
                                  const float** rows) const {
  table_.impl_->Rows(keys, n, unknown, rows);
}

void EmbeddingTable::Lookup(const int64_t* keys, size_t n, UnknownKey unknown,
                            float* out, const ParallelFor& parallel) const {
  const Impl& table = *impl_;
  if (n < kSerialBelow) {
    const uint64_t mask = Impl::ShardsOf(keys, n);
    table.LockShared(mask);
    table.Lookup(keys, n, unknown, out);
    table.UnlockShared(mask);
    return;
  }
  const int64_t blocks =
      static_cast<int64_t>((n + kLookupBlock - 1) / kLookupBlock);
  const int64_t per_key = 60 + table.dim;  // Cycles.
  const auto read = [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const size_t at = static_cast<size_t>(block) * kLookupBlock;
      table.LockShared(kAllShards);
      table.Lookup(keys + at, std::min(kLookupBlock, n - at), unknown,
                   out + at * static_cast<size_t>(table.dim));
      table.UnlockShared(kAllShards);
    }
  };
  // By reference: a function object of this size would be allocated.
  parallel(blocks, static_cast<int64_t>(kLookupBlock) * per_key,
           std::cref(read));
}

// ---------------------------------------------------------------------------
// The table as a whole

EmbeddingTable::EmbeddingTable(int dim, float default_value)
    : impl_(new Impl(dim, default_value)) {}

EmbeddingTable::~EmbeddingTable() { delete impl_; }

int EmbeddingTable::dim() const { return impl_->dim; }

std::vector<SlotSpec> EmbeddingTable::slots() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->slots;
}

int EmbeddingTable::row_floats() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->dim + static_cast<int>(impl_->slot_initials.size());
}

void EmbeddingTable::SetBank(const float* bank, int64_t rows) {
  Impl& table = *impl_;
  const size_t floats = static_cast<size_t>(rows) * table.dim;
  float* copy =
      static_cast<float*>(AllocateZeroed(floats * sizeof(float), Pages::kHuge));
  if (copy == nullptr) throw std::bad_alloc();
  std::copy_n(bank, floats, copy);
  table.LockAll();
  {
    std::lock_guard<std::mutex> lock(table.metadata_mutex);
    FreeZeroed(table.bank, table.bank_bytes());
    table.bank = copy;
    table.bank_rows = rows;
    table.bank_mask = (rows & (rows - 1)) == 0 ? rows - 1 : -1;
  }
  table.UnlockAll();
}

int64_t EmbeddingTable::bank_rows() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return impl_->bank_rows;
}

std::vector<float> EmbeddingTable::bank() const {
  std::lock_guard<std::mutex> lock(impl_->metadata_mutex);
  return std::vector<float>(impl_->bank,
                            impl_->bank + impl_->bank_bytes() / sizeof(float));
}

bool EmbeddingTable::EnsureSlots(const std::vector<SlotSpec>& wanted) {
  Impl& table = *impl_;
  {
    // Mostly they are there, and no lock of a shard is needed.
    std::lock_guard<std::mutex> lock(table.metadata_mutex);
    const bool present =
        std::all_of(wanted.begin(), wanted.end(), [&](const SlotSpec& spec) {
          return std::any_of(table.slots.begin(), table.slots.end(),
                             [&](const SlotSpec& slot) {
                               return slot.name == spec.name &&
                                      slot.width == spec.width &&
                                      slot.initial == spec.initial;
                             });
        });
    if (present) return true;
  }
  // What the slots would be; false: a width differs.
  std::vector<SlotSpec> slots;
  const auto merge = [&] {
    slots = table.slots;
    for (const SlotSpec& spec : wanted) {
      if (spec.width < 1) return false;
      const auto same = std::find_if(
          slots.begin(), slots.end(),
          [&](const SlotSpec& slot) { return slot.name == spec.name; });
      if (same == slots.end()) {
        slots.push_back(spec);
      } else if (same->width != spec.width) {
        return false;
      } else {
        same->initial = spec.initial;
      }
    }
    return true;
  };
  const auto initials = [&] {
    std::vector<float> floats;
    for (const SlotSpec& slot : slots) {
      floats.insert(floats.end(), static_cast<size_t>(slot.width),
                    slot.initial);
    }
    return floats;
  };

  struct AllLocks {
    explicit AllLocks(Impl* table) : table(table) { table->LockAll(); }
    ~AllLocks() { table->UnlockAll(); }
    Impl* table;
  } locks(&table);
  if (!merge()) return false;
  std::vector<float> floats = initials();
  const size_t old_floats = table.arena.row_floats();
  const size_t new_floats = static_cast<size_t>(table.dim) + floats.size();
  if (new_floats > old_floats) {
    const uint64_t rows = table.arena.taken();
    RowArena arena(new_floats);
    uint32_t first;
    if (!arena.Take(rows, 0, &first)) return false;
    // New slots go behind the old ones, so a row keeps its number and its
    // beginning; free rows keep their list with it.
    const RowArena::View from = table.arena.view();
    const RowArena::View to = arena.view();
    const std::vector<float> added(
        floats.begin() + static_cast<std::ptrdiff_t>(old_floats - table.dim),
        floats.end());
    for (uint64_t r = 0; r < rows; ++r) {
      const float* old_row = from.Row(static_cast<uint32_t>(r));
      float* row = to.Row(static_cast<uint32_t>(r));
      std::copy(old_row, old_row + old_floats, row);
      std::copy(added.begin(), added.end(), row + old_floats);
    }
    table.arena.Swap(&arena);
  }
  std::lock_guard<std::mutex> lock(table.metadata_mutex);
  table.slots.swap(slots);
  table.slot_initials.swap(floats);
  return true;
}

// ---------------------------------------------------------------------------
// Inspection

EmbeddingTable::Snapshot::Snapshot(const EmbeddingTable& table)
    : table_(table) {
  table_.impl_->LockShared(kAllShards);
  try {
    List();
  } catch (...) {
    // No memory; a destructor would not run.
    table_.impl_->UnlockShared(kAllShards);
    throw;
  }
}

void EmbeddingTable::Snapshot::List() {
  // Checkpoints are cut into this many buckets (DESIGN section 5).
  constexpr int64_t kBuckets = 1000;
  const Impl& impl = *table_.impl_;
  const RowArena::View view = impl.arena.view();

  // A counting sort by bucket of the checkpoint, then each by key.
  std::vector<size_t> admitted(kBuckets + 1, 0);
  std::vector<size_t> filtered(kBuckets + 1, 0);
  for (const Shard& shard : impl.shards) {
    shard.index.ForEach([&](const Bucket& bucket, int e) {
      const int64_t part = FloorMod(bucket.key[e], kBuckets);
      ++(bucket.row[e] == HashIndex::kNoRow ? filtered : admitted)[part + 1];
    });
  }
  for (int64_t b = 0; b < kBuckets; ++b) {
    admitted[b + 1] += admitted[b];
    filtered[b + 1] += filtered[b];
  }
  admitted_.resize(admitted[kBuckets]);
  filtered_.resize(filtered[kBuckets]);
  for (const Shard& shard : impl.shards) {
    shard.index.ForEach([&](const Bucket& bucket, int e) {
      const int64_t part = FloorMod(bucket.key[e], kBuckets);
      const bool has_row = bucket.row[e] != HashIndex::kNoRow;
      Entry& entry =
          has_row ? admitted_[admitted[part]++] : filtered_[filtered[part]++];
      entry.key = bucket.key[e];
      entry.version = bucket.version[e];
      entry.freq = bucket.count[e];
      entry.row = has_row ? view.Row(bucket.row[e]) : nullptr;
    });
  }
  // admitted[b] is now the end of bucket b.
  const auto by_key = [](const Entry& a, const Entry& b) {
    return a.key < b.key;
  };
  for (int64_t b = 0; b < kBuckets; ++b) {
    std::sort(admitted_.begin() + (b == 0 ? 0 : admitted[b - 1]),
              admitted_.begin() + admitted[b], by_key);
    std::sort(filtered_.begin() + (b == 0 ? 0 : filtered[b - 1]),
              filtered_.begin() + filtered[b], by_key);
  }
}

EmbeddingTable::Snapshot::~Snapshot() {
  table_.impl_->UnlockShared(kAllShards);
}

// Calls visit(i, place) for keys (n); place.found() or not.
template <typename Visit>
void EmbeddingTable::Impl::Inspect(const int64_t* keys, size_t n,
                                   const Visit& visit) const {
  for (size_t at = 0; at < n; at += kLookupBlock) {
    const size_t block_end = std::min(n, at + kLookupBlock);
    const uint64_t mask = ShardsOf(keys + at, block_end - at);
    LockShared(mask);
    for (size_t i = at; i < block_end; i += kChunk) {
      const size_t end = std::min(block_end, i + kChunk);
      Bucket* homes[kChunk];
      for (size_t j = i; j < end; ++j) {
        homes[j - i] = Home(keys[j]);
        PrefetchLines(homes[j - i], sizeof(Bucket));
      }
      for (size_t j = i; j < end; ++j) {
        visit(j, IndexOf(keys[j]).Find(homes[j - i], keys[j]));
      }
    }
    UnlockShared(mask);
  }
}

void EmbeddingTable::Frequencies(const int64_t* keys, size_t n,
                                 int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() ? place.count() : 0;
  });
}

void EmbeddingTable::Versions(const int64_t* keys, size_t n,
                              int64_t* out) const {
  impl_->Inspect(keys, n, [&](size_t i, Place place) {
    out[i] = place.found() ? place.version() : -1;
  });
}

int64_t EmbeddingTable::size() const {
  int64_t rows = 0;
  for (const Shard& shard : impl_->shards) rows += shard.rows;
  return rows;
}

int64_t EmbeddingTable::total_count() const {
  int64_t keys = 0;
  for (const Shard& shard : impl_->shards) keys += shard.keys;
  return keys;
}

int64_t EmbeddingTable::capacity() const {
  int64_t keys = 0;
  for (const Shard& shard : impl_->shards) keys += shard.capacity;
  return keys;
}

int64_t EmbeddingTable::memory_bytes() const {
  size_t bytes = impl_->arena.bytes();
  for (const Shard& shard : impl_->shards) {
    shard.lock.LockShared();
    bytes += shard.index.bytes();
    shard.lock.Unlock();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace rec_estimator
