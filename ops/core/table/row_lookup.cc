// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/row_lookup.h"

#include <algorithm>
#include <utility>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/float8.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/keys/deduplicator.h"
#include "ops/core/keys/grouped_keys.h"
#include "ops/core/tier/disk_tier.h"

namespace rec_estimator {
namespace {

// Keys that are deduplicated together.
constexpr size_t kBlock = 4096;
static_assert(kBlock <= Deduplicator<uint16_t>::kMostKeys, "16 bits suffice");
// A block is deduplicated unless so many of its first keys are distinct, in
// which case about half of all its keys are. Smaller blocks gain nothing.
constexpr size_t kSample = 256;
constexpr size_t kMostDistinct = kSample * 2 / 3;
constexpr size_t kLeastKeys = 512;

// Rows of a group that are prefetched before they are copied.
constexpr uint32_t kRowsOfGroup = 512;
// The distance at which rows of the output are prefetched.
constexpr uint32_t kRowsAhead = 16;

// Prefetches a value of so many bytes. One of less than a line begins anywhere
// and may reach into a second line: a branch on that would often be predicted
// wrong.
inline void PrefetchValue(const float* value, size_t bytes) {
  if (bytes >= kCacheLine) return PrefetchLines(value, bytes);
  PrefetchLine(value);
  PrefetchLine(reinterpret_cast<const char*>(value) + bytes - 1);
}

// out (n, dim): row i = the value of rows[i].
void CopyRows(const RowFormat& format, const float* const* rows, size_t n,
              float* out) {
  const size_t stride = static_cast<size_t>(format.dim());
  format.WithReader([=](auto read) __attribute__((always_inline)) {
    for (size_t i = 0; i < n; ++i) read(rows[i], out + i * stride);
  });
}

// The same of rows[position[i]].
void CopyRows(const RowFormat& format, const float* const* rows,
              const uint16_t* position, size_t n, float* out) {
  if (format.dim() == 1 && !format.is_narrow()) {
    for (size_t i = 0; i < n; ++i) out[i] = *rows[position[i]];
    return;
  }
  const size_t stride = static_cast<size_t>(format.dim());
  format.WithReader([=](auto read) __attribute__((always_inline)) {
    for (size_t i = 0; i < n; ++i) read(rows[position[i]], out + i * stride);
  });
}

// Whether all of these words (n) are numbers of rows in memory.
bool AllInMemory(const uint32_t* known, size_t n) {
  uint32_t bits = 0;
  for (size_t i = 0; i < n; ++i) bits |= known[i];
  return bits < HashIndex::kSpilled;
}

}  // namespace

void RowLookup::PinSpilled(float* out, PinnedRows* pinned) const {
  for (const Spilled& spilled : spilled_) {
    pinned->Add(spilled.place, spilled.key,
                out + spilled.i * static_cast<size_t>(dim_));
  }
}

void RowLookup::PrefetchHomes(const int64_t* keys, size_t n,
                              Bucket** homes) const {
  for (size_t i = 0; i < n; ++i) {
    homes[i] = stripes_.Home(keys[i]);
    PrefetchLine(homes[i]);
  }
}

__attribute__((noinline)) void RowLookup::NoteSpilled(const int64_t* key,
                                                      EntryRef entry) {
  spilled_.push_back(
      {static_cast<size_t>(key - first_key_), *key, entry.place()});
}

template <typename Match>
inline __attribute__((always_inline)) void RowLookup::FindChunkWith(
    const int64_t* keys, size_t n, Bucket* const* homes, const float** rows) {
  const size_t bytes = format_.value_bytes();
  const auto resolve = [&](size_t i, EntryRef entry) {
    if (entry.found() && entry.in_memory()) {
      rows[i] = view_.Row(entry.row());
    } else if (entry.found() && entry.has_row()) {
      NoteSpilled(&keys[i], entry);
      rows[i] = default_vector_;
    } else {
      rows[i] = WithoutRow(keys[i]);
    }
    PrefetchValue(rows[i], bytes);
  };
  // A tenth of the keys is not in its home bucket. The other keys are resolved
  // while the next lines of these are fetched.
  uint8_t beyond[kChunk];
  size_t n_beyond = 0;
  for (size_t i = 0; i < n; ++i) {
    EntryRef entry;
    if (HashIndex::FindAtHome<Match>(homes[i], keys[i], &entry)) {
      resolve(i, entry);
    } else {
      beyond[n_beyond++] = static_cast<uint8_t>(i);
    }
  }
  for (size_t b = 0; b < n_beyond; ++b) {
    const size_t i = beyond[b];
    resolve(i, stripes_.Of(keys[i]).index().FindBeyond(homes[i], keys[i]));
  }
}

void RowLookup::FindChunk(const int64_t* keys, size_t n, Bucket* const* homes,
                          const float** rows) {
  // By value: with references, lookups of small batches take up to 5 % longer.
  WithFastestMatch([=](auto match) __attribute__((always_inline)) {
    FindChunkWith<decltype(match)>(keys, n, homes, rows);
  });
}

void RowLookup::TakeRows(const uint32_t* known, size_t n,
                         const float** rows) const {
  const size_t bytes = format_.value_bytes();
  for (size_t i = 0; i < n; ++i) {
    rows[i] = view_.Row(known[i]);
    PrefetchValue(rows[i], bytes);
  }
}

void RowLookup::Find(const int64_t* keys, size_t n, const float** rows) {
  first_key_ = keys;
  spilled_.clear();
  FindAll(keys, n, rows);
}

void RowLookup::FindAll(const int64_t* keys, size_t n, const float** rows) {
  Bucket* homes[2][kChunk];
  size_t now = std::min(n, kChunk);
  PrefetchHomes(keys, now, homes[0]);
  for (int turn = 0; now > 0; turn ^= 1) {
    const size_t next = std::min(n - now, kChunk);
    PrefetchHomes(keys + now, next, homes[turn ^ 1]);
    FindChunk(keys, now, homes[turn], rows);
    keys += now;
    rows += now;
    n -= now;
    now = next;
  }
}

void RowLookup::Copy(const int64_t* keys, size_t n, float* out,
                     const uint32_t* known) {
  first_key_ = keys;
  spilled_.clear();
  if (known != nullptr) return CopyEach(keys, n, known, out);
  const size_t stride = static_cast<size_t>(dim_);
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t size = std::min(kBlock, n - at);
    if (size < kLeastKeys ||
        !CopyDistinct(keys + at, size, out + at * stride)) {
      CopyEach(keys + at, size, nullptr, out + at * stride);
    }
  }
}

bool RowLookup::CopyDistinct(const int64_t* keys, size_t n, float* out) {
  int64_t distinct[kBlock];
  uint16_t position[kBlock];
  uint16_t cells[Deduplicator<uint16_t>::CellsFor(kBlock)];
  Deduplicator<uint16_t> found(n, cells, distinct);
  const auto add = [&](size_t i) {
    position[i] =
        static_cast<uint16_t>(found.Add(keys[i], CellHash(HashKey(keys[i]))));
  };
  for (size_t i = 0; i < kSample; ++i) add(i);
  if (found.size() > kMostDistinct) return false;
  for (size_t i = kSample; i < n; ++i) add(i);
  const float* rows[kBlock];
  const int64_t* const first_key = std::exchange(first_key_, distinct);
  const size_t spilled_before = spilled_.size();
  FindAll(distinct, found.size(), rows);
  first_key_ = first_key;
  if (spilled_.size() > spilled_before) {
    SpreadSpilled(spilled_before, found.size(), keys, position, n);
  }
  CopyRows(format_, rows, position, n, out);
  return true;
}

__attribute__((noinline)) void RowLookup::SpreadSpilled(
    size_t first, size_t distinct, const int64_t* keys,
    const uint16_t* position, size_t n) {
  std::vector<Spilled> found(distinct, {0, 0, HashIndex::kNoRow});
  for (size_t s = first; s < spilled_.size(); ++s) {
    found[spilled_[s].i] = spilled_[s];
  }
  spilled_.resize(first);
  const size_t at = static_cast<size_t>(keys - first_key_);
  for (size_t i = 0; i < n; ++i) {
    const Spilled& one = found[position[i]];
    if (one.place != HashIndex::kNoRow) {
      spilled_.push_back({at + i, one.key, one.place});
    }
  }
}

void RowLookup::FindListed(const int64_t* keys, uint32_t n, uint32_t first,
                           RowHints* hints, const float** rows) {
  first_key_ = keys;
  spilled_.clear();
  const size_t bytes = format_.value_bytes();
  stripes_.FindEach(keys, n, [&](uint32_t u, EntryRef entry) {
    const uint32_t row = HashIndex::RowWordOf(entry);
    hints->Set(first + u, entry, row);
    if (row < HashIndex::kSpilled) {
      rows[u] = view_.Row(row);
    } else if (row == HashIndex::kNoRow) {
      rows[u] = WithoutRow(keys[u]);
    } else {
      NoteSpilled(&keys[u], entry);
      rows[u] = default_vector_;
    }
    PrefetchValue(rows[u], bytes);
  });
}

void RowLookup::CopyListed(RowHints* hints, float* out) {
  const DeduplicatedList& list = *hints->list();
  const float* rows[DeduplicatedList::kShort];
  FindListed(list.distinct(), list.size(), 0, hints, rows);
  hints->NoteTime(stripes_, list.stripes());
  CopyRows(format_, rows, list.position(), list.n(), out);
  if (spilled_.empty()) return;
  first_key_ = list.keys();
  SpreadSpilled(0, list.size(), list.keys(), list.position(), list.n());
}

void RowLookup::CopyGroup(RowHints* hints, int g, float* out) {
  const GroupedKeys& groups = *hints->list()->groups();
  const uint32_t begin = groups.partition().begin[g];
  const KeyPartition::Distinct distinct = groups.distinct().From(begin);
  const uint32_t occurrences = groups.partition().size_of(g);
  const uint32_t size = groups.size(g);
  const size_t stride = static_cast<size_t>(dim_);
  std::vector<Spilled> spilled;
  for (uint32_t at = 0; at < size; at += kRowsOfGroup) {
    const float* rows[kRowsOfGroup];
    const uint32_t n = std::min(kRowsOfGroup, size - at);
    FindListed(distinct.keys + at, n, groups.first(g) + at, hints, rows);
    for (const Spilled& one : spilled_) {
      const size_t u = at + one.i;
      for (uint32_t o = u == 0 ? 0 : distinct.end[u - 1]; o < distinct.end[u];
           ++o) {
        spilled.push_back({distinct.grouped[o], one.key, one.place});
      }
    }
    const float* const* const found = rows;
    format_.WithReader([=](auto read) __attribute__((always_inline)) {
      uint32_t j = at == 0 ? 0 : distinct.end[at - 1];
      for (uint32_t u = 0; u < n; ++u) {
        for (; j < distinct.end[at + u]; ++j) {
          if (j + kRowsAhead < occurrences) {
            PrefetchLines(out + distinct.grouped[j + kRowsAhead] * stride,
                          stride * sizeof(float));
          }
          read(found[u], out + distinct.grouped[j] * stride);
        }
      }
    });
  }
  spilled_.swap(spilled);
  hints->NoteTime(stripes_, uint64_t{1} << g);
}

void RowLookup::CopyEach(const int64_t* keys, size_t n, const uint32_t* known,
                         float* out) {
  const size_t stride = static_cast<size_t>(dim_);
  Bucket* homes[2][kChunk];
  bool all_known[2];
  const float* rows[2][kChunk];
  const size_t chunks = (n + kChunk - 1) / kChunk;
  const auto size = [&](size_t c) {
    return c + 1 == chunks ? n - c * kChunk : kChunk;
  };
  // Three steps are in flight: the buckets of chunk c and the rows of c - 1 are
  // fetched while c - 2 is copied.
  for (size_t c = 0; c < chunks + 2; ++c) {
    if (c < chunks) {
      all_known[c % 2] =
          known != nullptr && AllInMemory(known + c * kChunk, size(c));
      if (!all_known[c % 2]) {
        PrefetchHomes(keys + c * kChunk, size(c), homes[c % 2]);
      }
    }
    if (c >= 1 && c - 1 < chunks) {
      const size_t at = (c - 1) * kChunk;
      const int turn = (c - 1) % 2;
      if (all_known[turn]) {
        TakeRows(known + at, size(c - 1), rows[turn]);
      } else {
        FindChunk(keys + at, size(c - 1), homes[turn], rows[turn]);
      }
    }
    if (c >= 2) {
      CopyRows(format_, rows[c % 2], size(c - 2),
               out + (c - 2) * kChunk * stride);
    }
  }
}

}  // namespace rec_estimator
