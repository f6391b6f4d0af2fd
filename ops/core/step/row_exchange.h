// SPDX-License-Identifier: Apache-2.0
// RowExchange: prepares new rows of some keys, and the end of others, outside
// of the table and puts them into it at one moment.
//
//   Add, AddErased   rows are written where no reader looks
//   Prepare          finds all entries and makes room; nothing fails from here
//   Commit           exchanges the row words of the entries
//   TakePast         keeps the old rows for readers that began before
//   the destructor   stamps counts and versions; frees the old rows or, without
//                    a commit, the new ones
//
// A lookup sees no change before Commit: an entry that Prepare adds has no row
// yet, so its key reads what an unknown key reads.
//
// Commit writes one word in a line of a bucket that was found before. Counts
// and versions are in another line, which lookups do not read; written in the
// same moment they would more than double it. bench_row_exchange.cc measures
// it.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch.h"
#include "ops/core/step/past_rows.h"
#include "ops/core/step/training_step.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Thread rule: threads may look up keys all the time. From the first Add on
// until the object is destroyed, no other thread changes the table or moves its
// entries.
class RowExchange {
 public:
  // The table has no tier and outlives this object.
  explicit RowExchange(const TableParts& table);
  ~RowExchange();
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  // Both methods throw std::bad_alloc; then the object is only good to be
  // destroyed.

  // Writes rows of keys that are distinct over all calls. Their slots begin
  // anew. Padding is left out. False: no memory.
  bool Add(const RestoredRows& rows);
  // Notes keys (n) whose rows and counts end, unless they are added, too.
  void AddErased(const int64_t* keys, size_t n);

  // Called once, after the last key. False: no memory.
  bool Prepare();

  // After Prepare.
  int64_t written() const { return written_; }  // Keys that were added.
  // Keys whose row ends.
  int64_t erased() const { return erased_; }
  // How many more rows the table will have. May be negative.
  int64_t growth() const { return inserted_ - erased_; }

  // Called once, after Prepare. Cannot fail.
  void Commit();
  // At most once, after Commit: what the changed keys read before it. It may
  // outlive this object. Cannot fail.
  std::shared_ptr<const PastRows> TakePast() { return std::move(past_); }

 private:
  // An entry and the row word that it gets. Commit exchanges it for the old
  // one.
  struct Swap {
    EntryRef entry;
    uint32_t row;
  };
  // What else a written key gets.
  struct Stamp {
    int64_t key;
    int64_t version;
    uint32_t count;
    bool is_new;  // Whether Prepare added its entry.
  };
  // The changes of one stripe.
  struct Changes {
    std::vector<Swap> swaps;    // (n) for the written keys
    std::vector<Stamp> stamps;  // (n)
    std::vector<int64_t> erased_keys;
    std::vector<Swap> erased;  // For those that have an entry.
    int64_t growth = 0;        // In rows.

    bool empty() const { return swaps.empty() && erased_keys.empty(); }
  };
  using Sizes = std::array<size_t, kStripes>;

  // Gives rows to the swaps of each stripe from `first` on, n in all. False: no
  // memory.
  bool TakeRows(const Sizes& first, uint64_t n);

  // The methods below need the exclusive lock of stripe s.
  bool Find(int s);  // False: no memory.
  void FindErased(int s);
  void NotePast(int s);
  static void Exchange(std::vector<Swap>* swaps);
  // Stamps what was written and erases entries or, without a commit, takes the
  // new rows back.
  void CleanUp(int s);
  static void Erase(Stripe* stripe, EntryRef entry);

  RowStore& store_;
  StripeSet& stripes_;
  std::shared_ptr<PastRows> past_;
  std::array<Changes, kStripes> changes_;
  int64_t written_ = 0, inserted_ = 0, erased_ = 0;
  bool is_committed_ = false;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_
