// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/hash_index.h"

#include <cmath>

namespace rec_estimator {
namespace {

// At this load 15 % of the keys live beyond their home bucket, and half of all
// absent keys need a second look; at 0.74, the mean over growth, 10 % and 27 %
// (tests/ops/core/table/test_hash_index.cc).
constexpr double kMaxLoad = 0.85;
// Each growth moves all keys once, so a key moves 1 / (factor - 1) times in its
// life, and the load averages 0.85 * log(factor) / (factor - 1).
constexpr double kGrowth = 1.3;

constexpr uint64_t kMaxBuckets = uint64_t{1} << 40;

// The bits of Bucket::changes.
constexpr uint32_t kAllChanged = (1u << HashIndex::kEntries) - 1;

// What an index without keys reads. Never written: its capacity is 0.
const HashIndex::Bucket kEmpty = {};

}  // namespace

void HashIndex::Forget() {
  buckets_ = const_cast<Bucket*>(&kEmpty);
  n_buckets_ = 1;
  capacity_ = 0;
  bytes_ = 0;
}

void HashIndex::Clear() {
  if (capacity_ != 0) FreeZeroed(buckets_, bytes_);
  Forget();
}

HashIndex::Place HashIndex::Insert(Bucket* home, int64_t key) {
  constexpr uint32_t kFull = (1u << kEntries) - 1;
  Bucket* bucket = home;
  while (bucket->used == kFull) {
    if (bucket->overflow != UINT8_MAX) ++bucket->overflow;
    bucket = Next(bucket);
  }
  const int entry = __builtin_ctz(~static_cast<uint32_t>(bucket->used));
  bucket->used = static_cast<uint8_t>(bucket->used | (1u << entry));
  bucket->row[entry] = kNoRow;
  bucket->key[entry] = key;
  bucket->version[entry] = -1;
  bucket->count[entry] = 0;
  bucket->changes &= ~((1u | 1u << kEntries) << entry);
  return Place(bucket, entry);
}

void HashIndex::Erase(Bucket* home, Place place) {
  Bucket* last = place.bucket();
  last->used = static_cast<uint8_t>(last->used & ~(1u << place.entry()));
  for (Bucket* bucket = home; bucket != last; bucket = Next(bucket)) {
    if (bucket->overflow != UINT8_MAX) --bucket->overflow;
  }
}

bool HashIndex::Reserve(uint64_t keys, double stagger) {
  if (keys <= capacity_) return true;
  // The next size of this index's own series ceil(1.3 ^ (k + stagger)).
  const double wanted = static_cast<double>(keys) / (kMaxLoad * kEntries);
  double step = std::ceil(std::log(wanted) / std::log(kGrowth) - stagger);
  if (step < 0) step = 0;
  uint64_t n_buckets;
  uint64_t capacity;
  do {
    const double size = std::ceil(std::pow(kGrowth, step + stagger));
    if (!(size < static_cast<double>(kMaxBuckets))) return false;
    n_buckets = static_cast<uint64_t>(size);
    capacity = static_cast<uint64_t>(size * (kMaxLoad * kEntries));
    step += 1;
  } while (capacity < keys);

  const size_t bytes = n_buckets * sizeof(Bucket);
  void* memory = AllocateZeroed(bytes, Pages::kHuge);
  if (memory == nullptr) return false;
  Populate(memory, bytes);
  Bucket* old = buckets_;
  const uint64_t old_n = capacity_ == 0 ? 0 : n_buckets_;
  const size_t old_bytes = bytes_;
  buckets_ = static_cast<Bucket*>(memory);
  n_buckets_ = n_buckets;
  capacity_ = capacity;
  bytes_ = bytes;
  // Old order is hash order, which is new order: both arrays stream.
  for (uint64_t b = 0; b < old_n; ++b) {
    for (uint32_t used = old[b].used; used != 0; used &= used - 1) {
      const Place from(old + b, __builtin_ctz(used));
      from.MoveTo(Insert(Home(MixKey(from.key())), from.key()));
    }
  }
  if (old_n != 0) FreeZeroed(old, old_bytes);
  return true;
}

void HashIndex::MarkPending() {
  if (capacity_ == 0) return;
  for (uint64_t b = 0; b < n_buckets_; ++b) {
    uint32_t& changes = buckets_[b].changes;
    changes = (changes | changes << kEntries) & (kAllChanged << kEntries);
  }
}

void HashIndex::ForgetPending() {
  if (capacity_ == 0) return;
  for (uint64_t b = 0; b < n_buckets_; ++b) buckets_[b].changes &= kAllChanged;
}

}  // namespace rec_estimator
