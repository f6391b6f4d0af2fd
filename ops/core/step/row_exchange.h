// SPDX-License-Identifier: Apache-2.0
// RowExchange: new rows of some keys, and the end of others, prepared beside
// the table and put into it at one moment.
//
//   Add, AddErased   rows are written where no reader looks
//   Prepare          finds all entries and makes room; nothing fails from here
//   Commit           exchanges the row words of the entries, in both directions
//   the destructor   frees what is left over: the old rows, or the new ones
//
// A lookup sees no change before Commit: an entry that Prepare adds has no row
// yet, so its key reads what an unknown key reads.
//
// Commit writes one word of a bucket that was found before, and count and
// version of the same bucket. bench_row_exchange.cc measures it.
#ifndef REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_
#define REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"
#include "ops/core/rows/row_store.h"
#include "ops/core/step/batch.h"
#include "ops/core/step/training_step.h"
#include "ops/core/stripes/stripe_set.h"

namespace rec_estimator {

// Thread rule: threads may look up keys all the time. From the first Add on
// until the object is destroyed, no other thread changes the table or moves its
// entries.
class RowExchange {
 public:
  // Of a table without a tier, which outlives this object.
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

 private:
  // What an entry gets. Commit exchanges it for what the entry had.
  struct Content {
    int64_t version;
    uint32_t row;
    uint32_t count;
  };
  struct Change {
    int64_t key;
    EntryRef entry;
    Content content;
    bool is_new;  // Whether Prepare added the entry.
  };
  // Of one stripe.
  struct Changes {
    std::vector<Change> written;
    std::vector<int64_t> erased_keys;
    std::vector<Change> erased;  // Those that have an entry.
    int64_t growth = 0;          // In rows.
  };

  static void Exchange(Change* change, bool is_tracked);
  // The first of the changes (n) that Add will append for the rows.
  bool TakeRows(const std::array<size_t, kStripes>& first, uint64_t n);
  // Both need the exclusive lock of stripe s.
  bool Find(int s);
  void FindErased(int s);
  // Frees rows and entries that nobody needs any more.
  void CleanUp(int s);

  RowStore& store_;
  StripeSet& stripes_;
  std::array<Changes, kStripes> changes_;
  int64_t written_ = 0, inserted_ = 0, erased_ = 0;
  bool is_committed_ = false;
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_STEP_ROW_EXCHANGE_H_
