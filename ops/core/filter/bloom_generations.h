// SPDX-License-Identifier: Apache-2.0
// The Bloom blocks of one stripe in generations, so that a filter forgets keys
// that no longer occur.
//
// DESIGN
//
//   age 0  counts occur here        start 0 <= step
//   age 1  read only                start 1 <= step < start 0
//   age 2  read only                start 2 <= step < start 1
//
// The count of a key is the greatest of its estimates in all generations. An
// occurrence raises the cells of age 0 to that count and more, so a key that
// occurs again moves to age 0 with its whole count. A rotation makes every
// generation one older, and forgets the oldest. So a key is forgotten only if
// it did not occur since the oldest generation began. (Two-buffer aging: F.
// Chang, W. Feng, K. Li, "Approximate Caches for Packet Classification", 2004;
// here with counts, and three buffers.)
//
// Eviction decides when to rotate (eviction.cc). By steps, with L steps to
// live: when age 0 has lasted L / 2 steps, and a generation that ended L steps
// ago is dropped. So a count is kept for L steps after the key's last
// occurrence and forgotten after at most L + L / 2, at the next eviction. By
// values there is no such time: when age 0 holds half the keys that the filter
// is made for, so a count is kept until as many other keys were counted. A
// table without eviction never rotates.
//
// COSTS
//
// Each generation has the geometry of a filter for all keys, but holds those of
// half a lifetime. Three of them have a smaller error rate than one full
// filter, because it falls fast with the load: less than p in all measurements.
// Two generations would need two thirds of the memory, but each would hold a
// whole lifetime. The rate would be 1.2 to 3.3 p, and evicted keys would keep
// their entries (see Stripe::Evict) twice as long. docs/decisions.md
// has both. A table that never rotates has one generation.
#ifndef REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_GENERATIONS_H_
#define REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_GENERATIONS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/cpu_memory.h"
#include "ops/core/filter/counting_bloom_filter.h"

namespace rec_estimator {

inline constexpr int kBloomGenerations = 3;

// When the generations of a table began. All its stripes rotate together.
class GenerationAges {
 public:
  int64_t number() const { return number_; }  // Rotations so far.
  int count() const { return count_; }        // Generations that are kept.
  int64_t start(int age) const { return start_[age]; }

  // Ages the generations for an eviction, at step `stamp`, of keys that did not
  // occur since step `version`. Returns whether they rotate.
  bool AgeBySteps(int64_t version, int64_t stamp);
  // A rotation at step `stamp`, or one step after the previous one if that was
  // not before.
  void Rotate(int64_t stamp);

  // The step before which no count is kept, or INT64_MIN.
  int64_t forgotten() const {
    return count_ < kBloomGenerations ? INT64_MIN : start_[count_ - 1];
  }

  // Takes over what a checkpoint holds: the later of both starts by age.
  void Merge(int64_t number, const std::vector<int64_t>& starts);

 private:
  int64_t number_ = 0;
  int count_ = 1;
  std::array<int64_t, kBloomGenerations> start_{};  // By age.
};

// Thread rule: as BloomStripe.
class alignas(kCacheLine) BloomGenerations {
 public:
  using Block = BloomStripe::Block;

  BloomGenerations() = default;
  BloomGenerations(const BloomGenerations&) = delete;
  BloomGenerations& operator=(const BloomGenerations&) = delete;

  // Must be called first. `geometry` outlives this object.
  void SetGeometry(const BloomGeometry* geometry) {
    for (BloomStripe& each : by_age_) each.SetGeometry(geometry);
  }

  // By age; 0 is the one that counts.
  BloomStripe& operator[](int age) { return by_age_[age]; }
  const BloomStripe& operator[](int age) const { return by_age_[age]; }
  BloomStripe& young() { return by_age_[0]; }
  const BloomStripe& young() const { return by_age_[0]; }

  void Prefetch(const BloomIndex& index) const {
    for (const BloomStripe& each : by_age_) each.Prefetch(index);
  }
  // The count of a key.
  uint32_t Estimate(const BloomIndex& index) const {
    uint32_t estimate = 0;
    for (const BloomStripe& each : by_age_) {
      const Block* block = each.Find(index.block);
      if (block == nullptr) continue;
      estimate = std::max(estimate, each.Estimate(*block, index.seed));
    }
    return estimate;
  }
  // Raises a key's cells of age 0. The caller has reserved room.
  void Raise(const BloomIndex& index, uint32_t count, bool tracking) {
    young().Raise(index.seed, count, tracking, young().FindOrAdd(index.block));
  }

  // Makes each generation one older; age 0 is empty then.
  void Rotate() {
    for (int age = kBloomGenerations - 1; age > 0; --age) {
      (*this)[age].TakeFrom(&(*this)[age - 1]);
    }
  }
  // Forgets all but the youngest `count` generations.
  void Keep(int count) {
    for (int age = count; age < kBloomGenerations; ++age) (*this)[age].Clear();
  }

  size_t bytes() const {
    size_t bytes = 0;
    for (const BloomStripe& each : by_age_) bytes += each.bytes();
    return bytes;
  }
  void Clear() { Keep(0); }
  void MarkPending() {
    for (BloomStripe& each : by_age_) each.MarkPending();
  }
  void ForgetPending() {
    for (BloomStripe& each : by_age_) each.ForgetPending();
  }

 private:
  std::array<BloomStripe, kBloomGenerations> by_age_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_GENERATIONS_H_
