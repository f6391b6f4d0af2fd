// SPDX-License-Identifier: Apache-2.0
// Taking keys away, and what else is done to single rows under their locks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hash_index.h"
#include "ops/core/table/row_arena.h"
#include "ops/core/table/shard.h"

namespace rec_estimator {

template <typename Visit>
void EmbeddingTable::Impl::VisitLocked(const int64_t* keys, size_t n,
                                       const Visit& visit) {
  std::array<uint32_t, kShards + 1> start{};
  uint8_t shard_of[kLockBlock];
  uint16_t order[kLockBlock];
  for (size_t i = 0; i < n; ++i) {
    shard_of[i] = static_cast<uint8_t>(ShardOf(MixKey(keys[i])));
    ++start[shard_of[i] + 1];
  }
  for (int s = 0; s < kShards; ++s) start[s + 1] += start[s];
  std::array<uint32_t, kShards + 1> next = start;
  for (size_t i = 0; i < n; ++i) {
    order[next[shard_of[i]]++] = static_cast<uint16_t>(i);
  }
  for (int s = 0; s < kShards; ++s) {
    if (start[s] == start[s + 1]) continue;
    const ExclusiveLock lock(&shards[s].lock);
    for (uint32_t o = start[s]; o < start[s + 1]; ++o) {
      visit(&shards[s], order[o]);
    }
  }
}

void EmbeddingTable::Impl::NoteErased(Shard* shard, int64_t key) {
  if (!tracking.load(std::memory_order_relaxed)) return;
  std::vector<int64_t>& erased = shard->erased;
  if (erased.size() == erased.capacity()) {
    // A key that goes and comes again and again is listed once.
    const auto begin =
        erased.begin() + static_cast<std::ptrdiff_t>(shard->n_erased_pending);
    std::sort(begin, erased.end());
    erased.erase(std::unique(begin, erased.end()), erased.end());
    if (erased.size() > erased.capacity() / 2) {
      erased.reserve(2 * erased.capacity());
    }
  }
  erased.push_back(key);
}

void EmbeddingTable::Impl::TakeAway(Shard* shard, Place place,
                                    bool keep_entry) {
  const bool has_row = place.row() != HashIndex::kNoRow;
  const int64_t key = place.key();
  if (has_row || !keep_entry) NoteErased(shard, key);
  if (has_row) {
    FreeRow(shard, place.row());
    shard->rows.fetch_sub(1, std::memory_order_relaxed);
  }
  if (keep_entry) {
    place.row() = HashIndex::kNoRow;
    place.count() = 0;
    place.version() = -1;
    if (tracking.load(std::memory_order_relaxed)) place.MarkChanged();
  } else {
    shard->index.Erase(shard->index.Home(MixKey(key)), place);
    shard->keys.fetch_sub(1, std::memory_order_acq_rel);
  }
}

size_t EmbeddingTable::Erase(const int64_t* keys, size_t n) {
  size_t erased = 0;
  for (size_t at = 0; at < n; at += kLockBlock) {
    const int64_t* block = keys + at;
    impl_->VisitLocked(block, std::min(kLockBlock, n - at),
                       [&](Shard* shard, size_t i) {
                         Bucket* home = shard->index.Home(MixKey(block[i]));
                         const Place place = shard->index.Find(home, block[i]);
                         if (!place.found()) return;
                         impl_->TakeAway(shard, place, /*keep_entry=*/false);
                         ++erased;
                       });
  }
  return erased;
}

int64_t EmbeddingTable::EvictOlder(int64_t version, int64_t stamp) {
  Impl& table = *impl_;
  int64_t evicted = 0;
  for (Shard& shard : table.shards) {
    const ExclusiveLock lock(&shard.lock);
    const bool tracking = table.tracking.load(std::memory_order_relaxed);
    shard.index.ForEach([&](Place place) {
      if (place.version() >= 0 && place.version() < version) {
        table.TakeAway(&shard, place, table.has_bloom());
        ++evicted;
      } else if (place.version() > stamp ||
                 (place.version() == -1 && !table.IsTrace(place))) {
        place.version() = stamp;
        if (tracking) place.MarkChanged();
      }
    });
  }
  return evicted;
}

int64_t EmbeddingTable::EvictSmaller(float half_squared_norm) {
  Impl& table = *impl_;
  const double limit = 2 * static_cast<double>(half_squared_norm);
  int64_t evicted = 0;
  for (Shard& shard : table.shards) {
    const ExclusiveLock lock(&shard.lock);
    const RowArena::View view = table.arena.view();
    const size_t bytes = static_cast<size_t>(table.dim) * sizeof(float);
    // A row waits here while its memory comes.
    constexpr size_t kAhead = 16;
    std::array<Place, kAhead> waiting;
    size_t n = 0;
    const auto judge = [&](Place place) {
      const float* row = view.Row(place.row());
      double sum = 0;
      for (int d = 0; d < table.dim; ++d) {
        sum += static_cast<double>(row[d]) * static_cast<double>(row[d]);
      }
      if (!(sum < limit)) return;
      table.TakeAway(&shard, place, table.has_bloom());
      ++evicted;
    };
    shard.index.ForEach([&](Place place) {
      if (place.row() == HashIndex::kNoRow) return;
      PrefetchLines(view.Row(place.row()), bytes);
      Place& slot = waiting[n++ % kAhead];
      if (slot.found()) judge(slot);
      slot = place;
    });
    for (Place place : waiting) {
      if (place.found()) judge(place);
    }
  }
  return evicted;
}

size_t EmbeddingTable::SetSlot(size_t slot, const int64_t* keys, size_t n,
                               const float* values) {
  Impl& table = *impl_;
  size_t set = 0;
  for (size_t at = 0; at < n; at += kLockBlock) {
    const int64_t* block = keys + at;
    table.VisitLocked(
        block, std::min(kLockBlock, n - at), [&](Shard* shard, size_t i) {
          const Place place =
              shard->index.Find(shard->index.Home(MixKey(block[i])), block[i]);
          if (!place.found() || place.row() == HashIndex::kNoRow) return;
          float* to = table.arena.view().Row(place.row()) + table.dim;
          for (size_t t = 0; t < slot; ++t) to += table.slots[t].width;
          const size_t width = static_cast<size_t>(table.slots[slot].width);
          std::copy_n(values + (at + i) * width, width, to);
          if (table.tracking.load(std::memory_order_relaxed)) {
            place.MarkChanged();
          }
          ++set;
        });
  }
  return set;
}

}  // namespace rec_estimator
