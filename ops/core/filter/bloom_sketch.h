// SPDX-License-Identifier: Apache-2.0
// The sketch of CBFFilter: a counting Bloom filter (counting_bloom_filter.h) in
// generations (bloom_generations.h).
#ifndef REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_SKETCH_H_
#define REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_SKETCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/filter/bloom_generations.h"
#include "ops/core/filter/counting_bloom_filter.h"
#include "ops/core/filter/sketch.h"

namespace rec_estimator {

// The format of a checkpoint. The layout is the number of blocks, cells per
// block, hashes and bits per cell. It depends on the filter alone, so filters
// of one specification can be merged. The generations, youngest first, are
// [g, 3]: number, the step at which they began, and how many of the rows are
// theirs. Numbers are consecutive and count rotations, so an incremental
// checkpoint says how old the blocks of its parents are. Rows are the number of
// a block and its cells, unpacked. Files of earlier releases have no
// generations: all blocks are of one, of number and step 0.
//
// A filter can take over cells of another layout. FastRange makes the block of
// a key of its hash, and each of its cells of a number that the hash seeds,
// whatever the numbers of blocks and cells are. So a cell here is raised to all
// cells there that may be those of the same key, and no count becomes too low.
// This needs as many hashes there as here, the first of which are the same. A
// filter with n times the blocks gets each block n times, so n is bounded.
class BloomSketch : public Sketch {
 public:
  // The arguments are BloomGeometry's.
  BloomSketch(uint32_t threshold, int64_t max_elements,
              double false_positive_rate);

  void Estimate(const int64_t* keys, const uint32_t* at, size_t n,
                uint32_t* counts) const override;
  void Raise(const int64_t* keys, const uint32_t* at, size_t n,
             const uint32_t* counts, bool tracking) override;

  // A key may need a block of its own.
  bool ReserveQuota(int s, int64_t keys) override {
    return stripes_[s].young().ReserveQuota(keys);
  }
  void ReleaseQuota(int s, int64_t keys) override {
    stripes_[s].young().ReleaseQuota(keys);
  }
  bool GrowToQuota(int s) override {
    return MakeRoom(s, stripes_[s].young().quota());
  }
  bool HasRoom(int s, int64_t keys) const override;
  bool MakeRoom(int s, int64_t keys) override;

  size_t bytes(int s) const override { return stripes_[s].bytes(); }
  void Clear() override;

  void AgeBySteps(int64_t version, int64_t stamp) override;
  bool IsAgeingDue() const override;
  void AgeByKeys(int64_t stamp) override;
  int64_t forgotten() const override { return ages_.forgotten(); }
  int64_t youngest() const override { return ages_.start(0); }

  Format format() const override;
  std::optional<Format> FormatOf(
      const std::vector<int64_t>& layout) const override;
  Heads SaveHeads(bool only_changed) const override;
  int64_t RowsToSave(bool only_changed) const override;
  void SaveRows(bool only_changed, const VisitRow& visit) const override;
  void MarkPending(int s) override { stripes_[s].MarkPending(); }
  void ForgetPending(int s) override { stripes_[s].ForgetPending(); }

  std::optional<Damage> CheckHeads(const Heads& heads,
                                   int64_t total) const override;
  std::optional<Damage> CheckRows(const StoredRows& rows) const override;
  bool MergeRows(const StoredRows& rows, bool tracking) override;
  void MergeHeads(const Heads& last, int64_t total) override;

 private:
  using Block = BloomStripe::Block;

  // Keys that are fetched ahead of the one that is read.
  static constexpr size_t kAhead = 16;

  // A filter may have this many times the blocks of one that it takes over.
  static constexpr int64_t kMostGrowth = 16;

  // A generation in a checkpoint.
  struct Generation {
    int64_t number;
    int64_t start;  // The step at which it began.
    int64_t rows;
  };
  static std::vector<Generation> GenerationsOf(const Heads& heads,
                                               int64_t total);

  // Calls visit(index, stripe, i) for keys[at[i]], i < n, whose cells were
  // prefetched.
  template <typename Visit>
  void ForEachKey(const int64_t* keys, const uint32_t* at, size_t n,
                  const Visit& visit) const;
  // Calls visit(age, i) for those of the rows, i < rows.n, whose generation is
  // still kept.
  template <typename Visit>
  static void ForEachKept(const StoredRows& rows, const Visit& visit);

  static Format FormatFor(const std::vector<int64_t>& layout);
  int64_t RowsOf(int age, bool only_changed) const;
  // Makes the generations of all stripes as old as ages_ says.
  void FollowAges(bool has_rotated);

  const BloomGeometry geometry_;
  GenerationAges ages_;
  std::array<BloomGenerations, kStripes> stripes_;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_FILTER_BLOOM_SKETCH_H_
