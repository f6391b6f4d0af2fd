// SPDX-License-Identifier: Apache-2.0
// The Bloom blocks of one shard in generations, so that a filter forgets keys
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
// their entries (see Shard::Evict) twice as long. docs/core_measurements.md
// lists both. A table that never rotates has one generation.
#ifndef REC_ESTIMATOR_OPS_CORE_TABLE_BLOOM_GENERATIONS_H_
#define REC_ESTIMATOR_OPS_CORE_TABLE_BLOOM_GENERATIONS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/core/table/counting_bloom_filter.h"

namespace rec_estimator {

inline constexpr int kBloomGenerations = 3;

// When the generations of a table began. All its shards rotate together.
class GenerationAges {
 public:
  int64_t number() const { return number_; }  // Of age 0: rotations so far.
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

// Thread rule: as BloomShard.
class BloomGenerations {
 public:
  using Block = BloomShard::Block;

  BloomGenerations() = default;
  BloomGenerations(const BloomGenerations&) = delete;
  BloomGenerations& operator=(const BloomGenerations&) = delete;

  // Must be called first. `geometry` outlives this object.
  void SetGeometry(const BloomGeometry* geometry) {
    young_.SetGeometry(geometry);
    if (!is_enabled()) return;
    older_ = std::make_unique<Older>();
    for (BloomShard& each : *older_) each.SetGeometry(geometry);
  }
  // Whether the table has a Bloom filter. Without one, only the methods that
  // say so may be called.
  bool is_enabled() const { return young_.is_enabled(); }

  // By age; 0 is the one that counts, which exists without a filter, too.
  BloomShard& operator[](int age) {
    return age == 0 ? young_ : (*older_)[age - 1];
  }
  const BloomShard& operator[](int age) const {
    return age == 0 ? young_ : (*older_)[age - 1];
  }
  BloomShard& young() { return young_; }
  const BloomShard& young() const { return young_; }

  void Prefetch(const BloomIndex& index) const {
    ForEach([&](const BloomShard& each) { each.Prefetch(index); });
  }
  // The count of a key.
  uint32_t Estimate(const BloomIndex& index) const {
    uint32_t estimate = 0;
    ForEach([&](const BloomShard& each) {
      const Block* block = each.Find(index.block);
      if (block == nullptr) return;
      estimate = std::max(estimate, each.Estimate(*block, index.seed));
    });
    return estimate;
  }
  // Raises a key's cells of age 0. The caller has reserved room.
  void Raise(const BloomIndex& index, uint32_t count, bool tracking) {
    young_.Raise(index.seed, count, tracking, young_.FindOrAdd(index.block));
  }

  // Makes each generation one older; age 0 is empty then.
  void Rotate() {
    for (int age = kBloomGenerations - 1; age > 0; --age) {
      (*this)[age].TakeFrom(&(*this)[age - 1]);
    }
  }
  // Forgets all but the youngest `count` generations, at least one.
  void Keep(int count) {
    for (int age = count; age < kBloomGenerations; ++age) (*this)[age].Clear();
  }

  // These do nothing without a filter.
  size_t bytes() const {
    size_t bytes = 0;
    ForEach([&](const BloomShard& each) { bytes += each.bytes(); });
    return bytes;
  }
  void Clear() {
    ForEach([](BloomShard& each) { each.Clear(); });
  }
  void MarkPending() {
    ForEach([](BloomShard& each) { each.MarkPending(); });
  }
  void ForgetPending() {
    ForEach([](BloomShard& each) { each.ForgetPending(); });
  }

 private:
  using Older = std::array<BloomShard, kBloomGenerations - 1>;

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    visit(young_);
    if (older_ == nullptr) return;
    for (const BloomShard& each : *older_) visit(each);
  }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    visit(young_);
    if (older_ == nullptr) return;
    for (BloomShard& each : *older_) visit(each);
  }

  BloomShard young_;
  // Apart, so that shards without a filter stay small: an apply of few keys
  // reads all of them.
  std::unique_ptr<Older> older_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_TABLE_BLOOM_GENERATIONS_H_
