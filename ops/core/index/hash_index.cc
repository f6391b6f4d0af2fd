// SPDX-License-Identifier: Apache-2.0
#include "ops/core/index/hash_index.h"

#include <cmath>

namespace rec_estimator {
namespace {

// At this load 15.5 % of the keys live beyond their home bucket, and the search
// for half of all absent keys reads a second bucket. At 0.74, the mean over
// growth, the shares are 10 % and 27.5 %
// (tests/ops/core/index/test_hash_index.cc).
constexpr double kMaxLoad = 0.85;
// Each growth moves all keys once, so a key moves 1 / (factor - 1) times on
// average, and the mean load is 0.85 * log(factor) / (factor - 1).
constexpr double kGrowth = 1.3;

constexpr uint64_t kMaxBuckets = uint64_t{1} << 40;

// The bits of Bucket::changes.
constexpr uint32_t kAllChanged = (1u << Bucket::kEntries) - 1;

// The bucket of every empty index. Never written: the capacity is 0.
const Bucket kEmpty = {};

}  // namespace

void HashIndex::SetEmpty() {
  buckets_ = const_cast<Bucket*>(&kEmpty);
  n_buckets_ = 1;
  capacity_ = 0;
}

void HashIndex::Clear() {
  SetEmpty();
  memory_.reset();
}

EntryRef HashIndex::Insert(Bucket* home, int64_t key) {
  constexpr uint32_t kFull = (1u << Bucket::kEntries) - 1;
  Bucket* bucket = home;
  while (bucket->used == kFull) {
    if (bucket->overflow != UINT8_MAX) ++bucket->overflow;
    bucket = Next(bucket);
  }
  const int free = __builtin_ctz(~static_cast<uint32_t>(bucket->used));
  bucket->used = static_cast<uint8_t>(bucket->used | (1u << free));
  bucket->row[free] = kNoRow;
  bucket->key[free] = key;
  bucket->version[free] = -1;
  bucket->count[free] = 0;
  bucket->changes &= ~((1u | 1u << Bucket::kEntries) << free);
  return EntryRef(bucket, free);
}

void HashIndex::Erase(Bucket* home, EntryRef entry) {
  Bucket* last = entry.bucket();
  last->used = static_cast<uint8_t>(last->used & ~(1u << entry.entry()));
  for (Bucket* bucket = home; bucket != last; bucket = Next(bucket)) {
    if (bucket->overflow != UINT8_MAX) --bucket->overflow;
  }
}

bool HashIndex::Reserve(uint64_t keys, double stagger) {
  if (keys <= capacity_) return true;
  // The next size of this index's own series ceil(1.3 ^ (k + stagger)).
  const double wanted =
      static_cast<double>(keys) / (kMaxLoad * Bucket::kEntries);
  double step = std::ceil(std::log(wanted) / std::log(kGrowth) - stagger);
  if (step < 0) step = 0;
  uint64_t n_buckets;
  uint64_t capacity;
  do {
    const double size = std::ceil(std::pow(kGrowth, step + stagger));
    if (!(size < static_cast<double>(kMaxBuckets))) return false;
    n_buckets = static_cast<uint64_t>(size);
    capacity = static_cast<uint64_t>(size * (kMaxLoad * Bucket::kEntries));
    step += 1;
  } while (capacity < keys);

  const size_t bytes = n_buckets * sizeof(Bucket);
  ZeroedMemory memory = AllocateZeroed(bytes, Pages::kHuge);
  if (memory == nullptr) return false;
  Populate(memory.get(), bytes);
  Bucket* old = buckets_;
  const uint64_t old_n = capacity_ == 0 ? 0 : n_buckets_;
  memory_.swap(memory);  // `memory` frees the old buckets.
  buckets_ = static_cast<Bucket*>(memory_.get());
  n_buckets_ = n_buckets;
  capacity_ = capacity;
  // Both arrays are in hash order, so both are read and written in sequence.
  for (uint64_t b = 0; b < old_n; ++b) {
    for (uint32_t used = old[b].used; used != 0; used &= used - 1) {
      const EntryRef from(old + b, __builtin_ctz(used));
      from.CopyTo(Insert(Home(HashKey(from.key())), from.key()));
    }
  }
  return true;
}

void HashIndex::MarkPending() {
  if (capacity_ == 0) return;
  for (uint64_t b = 0; b < n_buckets_; ++b) {
    uint32_t& changes = buckets_[b].changes;
    changes = (changes | changes << Bucket::kEntries) &
              (kAllChanged << Bucket::kEntries);
  }
}

void HashIndex::ForgetPending() {
  if (capacity_ == 0) return;
  for (uint64_t b = 0; b < n_buckets_; ++b) buckets_[b].changes &= kAllChanged;
}

}  // namespace rec_estimator
