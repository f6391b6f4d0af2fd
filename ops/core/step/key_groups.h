// SPDX-License-Identifier: Apache-2.0
// KeyGroups: the keys of a training step, deduplicated in groups.
//
// A step of one table is cut into three classes by what they need:
//
//   KeyGroups    the keys alone; tables with the same keys share one
//   StepPlan     one table under shared locks: finds the keys, decides which
//                are admitted, holds room for them
//   RowUpdater   the same table under exclusive locks: inserts and updates
//
// TrainingStep drives them. A large batch has a group for each stripe, so that
// threads can work on groups at the same time. A small batch has only a few
// keys per stripe: the costs per stripe would exceed those of the keys, and
// cache misses would not overlap. So it is one group, which belongs to several
// stripes.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_KEY_GROUPS_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_KEY_GROUPS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "ops/core/base/key_hash.h"
#include "ops/core/base/scratch.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/step/batch.h"
#include "ops/core/stripes/held_keys.h"

namespace rec_estimator {

struct KeyGroup {
  uint32_t begin;           // Occurrences of the groups before it.
  uint32_t n;               // Its occurrences.
  uint32_t first;           // Distinct keys of the groups before it in a list.
  uint32_t size;            // Its distinct keys.
  uint64_t stripes;         // Bit s: a key may be in stripe s.
  const int64_t* keys;      // (size) in order of first occurrence
  const uint32_t* grouped;  // (n) occurrences by distinct key, in batch order
  const uint32_t* end;      // (size) end of each key's occurrences in grouped
  const uint32_t* counts;   // StepBatch::counts

  // How often distinct key u occurs.
  uint32_t occurrences(uint32_t u) const {
    return end[u] - (u == 0 ? 0 : end[u - 1]);
  }
  // What the occurrences of distinct key u stand for.
  uint64_t Count(uint32_t u) const {
    return Count(u == 0 ? 0 : end[u - 1], end[u]);
  }
  // The same for a range of `grouped`.
  uint64_t Count(uint32_t from, uint32_t to) const {
    return counts == nullptr ? to - from : SumCounts(from, to);
  }

 private:
  uint64_t SumCounts(uint32_t from, uint32_t to) const;
};

// Who sorts and deduplicates depends on what is known of the keys: nothing, or
// the distinct keys of a short list, or those of a long list in groups.
class KeyGroups : public KeyHolder {
 public:
  // The keys and counted keys of a batch. list: of the same keys; nullptr: it
  // is not known. Both outlive the object. Throws std::bad_alloc.
  static std::unique_ptr<KeyGroups> Of(const StepBatch& batch,
                                       const DeduplicatedList* list);
  virtual ~KeyGroups() = default;
  KeyGroups(const KeyGroups&) = delete;
  KeyGroups& operator=(const KeyGroups&) = delete;

  // Whether the occurrences of a batch can be numbered.
  static bool CanNumber(const StepBatch& batch);

  uint64_t n() const { return n_; }   // Occurrences.
  int size() const { return size_; }  // Groups.
  // Complete after Deduplicate.
  const KeyGroup& operator[](int g) const {
    return groups_[static_cast<size_t>(g)];
  }
  // (n()) the distinct key of each occurrence of a short list; nullptr: the
  // keys are not from a short list.
  virtual const uint16_t* positions() const { return nullptr; }
  // Called before AddTo by a table that needs KeyGroup::grouped although there
  // are positions().
  virtual void GroupOccurrences() {}

  // ----- Sorting and deduplicating, in this order.

  virtual void AddTo(Layout*) {}
  // Blocks can be sorted by several threads.
  virtual int64_t blocks() const { return 0; }
  virtual void SortBlock(int64_t) {}
  // Sets `begin` and `n` of the groups.
  virtual void EndSort() {}
  // Adds what only groups with many occurrences need.
  virtual void AddCellsTo(Layout*) {}
  // Finds the distinct keys of group g. scratch (n of the group): anything.
  void Deduplicate(int g, uint32_t* scratch) {
    ListKeys(g, scratch);
    is_listed_[static_cast<size_t>(g)].store(true, std::memory_order_release);
  }

  // The distinct keys of the stripe's group, from Deduplicate on.
  Keys KeysIn(int stripe) const override;

 protected:
  KeyGroups(uint64_t n, int size) : n_(n), size_(size) {}

  virtual void ListKeys(int g, uint32_t* scratch) = 0;

  const uint64_t n_;
  const int size_;
  // Those beyond size_ are not set.
  std::array<KeyGroup, kStripes> groups_;

 private:
  std::array<std::atomic<bool>, kStripes> is_listed_{};
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_KEY_GROUPS_H_
