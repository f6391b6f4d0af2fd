// SPDX-License-Identifier: Apache-2.0
// The table as a TensorFlow resource, and the checks that all kernels on tables
// share.
#ifndef REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_
#define REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/base/shared_mutex.h"
#include "ops/core/rows/row_survey.h"
#include "ops/core/rows/table_spec.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/hand_over_policy.h"
#include "ops/kernel/errors.h"
#include "ops/kernel/storage_status.h"
#include "ops/table/refresh_clock.h"
#include "ops/table/table_storage.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/refcount.h"

namespace rec_estimator {

class PastRows;

// The units of versions: what the difference of two versions counts.
inline constexpr char kSteps[] = "step";      // Global steps.
inline constexpr char kSeconds[] = "second";  // Timestamps of the data.

// What a save found in the rows that it wrote.
struct SavedRows {
  std::vector<RowSurvey::Norm> largest;
  int64_t n_broken = 0;
  std::string first;  // Describes a broken row; empty: none.
};

// The checkpoint to which a refresh has brought a table.
struct RefreshedTo {
  std::string checkpoint;  // Its name without the folder.
  std::string identity;    // Its index's (CheckpointFile::identity).
  int64_t step = 0;        // Its global step.
};

// What a refresh has replaced in a table, for the steps that read it as it was
// before `until` (refresh_clock.h).
struct KeptRows {
  int64_t until = 0;
  std::shared_ptr<const PastRows> rows;
};

// A table in a session's resource manager. As thread-safe as EmbeddingTable.
class TableResource : public tensorflow::ResourceBase {
 public:
  // version_unit: the unit of the versions that steps write. '': unknown,
  // because the graph does not train. clock: of its refreshes; nullptr: it has
  // none, or steps may see one table before a refresh and another one after it.
  TableResource(std::string name, int dim, float default_value,
                std::string version_unit, const FilterSpec& filter,
                const RowRules& rules, TableStorage storage,
                RefreshClock* clock)
      : name_(std::move(name)),
        default_value_(default_value),
        version_unit_(std::move(version_unit)),
        storage_(std::move(storage)),
        clock_(clock),
        table_(dim, default_value, filter, rules) {
    if (clock != nullptr) clock->Ref();
  }

  std::string DebugString() const override;
  int64_t MemoryUsed() const override { return table_.memory_bytes(); }

  const std::string& name() const { return name_; }
  float default_value() const { return default_value_; }
  // '' if unknown.
  const std::string& version_unit() const { return version_unit_; }
  // The unit of the versions in the table: version_unit() or, if that is
  // unknown, what the last restore has read. The caller holds replace_mutex.
  const std::string& unit_of_versions() const {
    return version_unit_.empty() ? restored_unit_ : version_unit_;
  }
  void set_restored_unit(std::string unit) { restored_unit_ = std::move(unit); }
  const TableStorage& storage() const { return storage_; }
  RefreshClock* clock() const { return clock_.get(); }
  EmbeddingTable& table() { return table_; }

  // Held exclusively while all rows are replaced, which takes several calls of
  // the table; held shared by training steps, evictions and saves. So a step
  // applies either to the old rows or to the new ones, and two concurrent
  // restores never mix their rows.
  std::shared_mutex& replace_mutex() { return replace_mutex_; }

  // Whether all rows are there. False in a new table, while its rows are
  // replaced, and if that failed.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  void set_ready() { ready_.store(true, std::memory_order_release); }
  // Makes the table not ready, waits until nobody reads it and ends what
  // refreshes have kept. The caller holds replace_mutex exclusively.
  void BeginReplacement();
  // How many replacements have begun.
  int64_t replacements() const { return replacements_.load(); }

  // Calls work() while nobody reads the table. Readers wait for it instead of
  // failing, so it must be short and must not wait for anything.
  template <typename Work>
  void WithoutReaders(const Work& work) {
    is_closing_.store(true, std::memory_order_relaxed);
    const std::lock_guard<SharedMutex> lock(read_mutex_);
    is_closing_.store(false, std::memory_order_relaxed);
    work();
  }
  // Calls exchange() without readers, and keeps the one element of *replaced,
  // which exchange() has set. Moves to *replaced what no step that reads at the
  // time `oldest` or later needs, and the oldest ones of too many rows. The
  // caller holds replace_mutex. Cannot fail.
  template <typename Exchange>
  void ExchangeRows(int64_t oldest, const Exchange& exchange,
                    std::list<KeptRows>* replaced) {
    const size_t most = MostKept();
    WithoutReaders([&] {
      exchange();
      kept_.splice(kept_.end(), *replaced);
      EndKept(oldest, most, replaced);
    });
  }

  // Empty before the first refresh after a replacement. The caller holds
  // replace_mutex.
  const std::optional<RefreshedTo>& refreshed_to() const {
    return refreshed_to_;
  }
  void set_refreshed_to(RefreshedTo to) { refreshed_to_ = std::move(to); }

  // What the last save found.
  SavedRows saved_rows() const;
  void set_saved_rows(SavedRows rows);

  const HandOverPolicy& hand_over() const { return hand_over_; }
  HandOverPolicy* mutable_hand_over() { return &hand_over_; }

 private:
  friend class TableReader;

  // Waits a moment for a thread that waits for readers in WithoutReaders.
  // SharedMutex alone lets new readers pass it, so that a stream of long
  // lookups would hold it up.
  void LetWriterIn() const;

  // How many rows steps may make the table keep.
  size_t MostKept() const;
  void EndKept(int64_t oldest, size_t most, std::list<KeptRows>* ended);

  const std::string name_;  // The handle's shared_name, for messages.
  const float default_value_;
  const std::string version_unit_;
  std::string restored_unit_ = kSteps;  // Guarded by replace_mutex_.
  const TableStorage storage_;
  const RefreshClock::Ptr clock_;
  EmbeddingTable table_;
  std::shared_mutex replace_mutex_;
  // Held shared by readers. They do not take replace_mutex, because they refuse
  // a table that is being replaced instead of waiting for it.
  SharedMutex read_mutex_;
  // What steps may still read, by time. Guarded by read_mutex_.
  std::list<KeptRows> kept_;
  // Steps of an earlier time cannot read the table. Guarded by read_mutex_.
  int64_t readable_from_ = 0;
  std::atomic<bool> ready_{false};
  // Whether WithoutReaders waits for readers.
  std::atomic<bool> is_closing_{false};
  std::atomic<int64_t> replacements_{0};
  std::optional<RefreshedTo> refreshed_to_;  // Guarded by replace_mutex_.
  HandOverPolicy hand_over_;
  mutable std::mutex saved_rows_mutex_;
  SavedRows saved_rows_;  // Guarded by saved_rows_mutex_.
};

using TablePtr = tensorflow::core::RefCountPtr<TableResource>;

// Finds the table of a handle. `table` keeps it alive.
absl::Status FindTable(tensorflow::OpKernelContext* context,
                       const tensorflow::Tensor& handle, TablePtr* table);

// Finds the table of the input named "table".
absl::Status FindTable(tensorflow::OpKernelContext* context, TablePtr* table);

// OK if the table is ready. `use` completes the message, for example "it is
// trained". FailedPrecondition if the table is new. Aborted if its rows are
// being replaced or that failed: then a task of a cluster does not fail while
// the chief restores, because TensorFlow's MonitoredSession waits and tries
// again after this error.
absl::Status CheckInitialized(TableResource& table, const char* use);

// Reads of a table: while a TableReader lives, the rows are not replaced.
class TableReader {
 public:
  // Fails as CheckInitialized does, and with Aborted if the rows that the step
  // must read are gone. time: of the step; its results must be given to Correct
  // if reads_past(). nullptr: the table is read as it is.
  absl::Status Open(TableResource* table, const StepTime* time = nullptr);

  // Whether the table was refreshed since the time.
  bool reads_past() const { return !past_.empty(); }
  // Change results of reads to those of the time, as PastRows::Correct.
  void Correct(const int64_t* keys, size_t n, UnknownKey unknown,
               float* out) const;
  void Correct(const int64_t* keys, size_t n, bool* owns_row) const;

 private:
  std::shared_lock<SharedMutex> lock_;
  std::vector<const PastRows*> past_;  // The newest first.
};

// InvalidArgument unless attribute dim is the table's.
absl::Status CheckDim(TableResource& table, int64_t dim);

// InvalidArgument unless attribute value_dtype, in which values are given, is
// the type in which the table stores them, or float.
absl::Status CheckValueDtype(TableResource& table,
                             tensorflow::DataType value_dtype);

// InvalidArgument unless the bank is [b, dim] with b >= 1, and the table can
// hold its vectors.
absl::Status CheckBank(TableResource& table, const tensorflow::Tensor& bank);

// InvalidArgument if a bank (rows, dim) has finite numbers that the table
// cannot hold.
absl::Status CheckInitialVectors(TableResource& table, const float* bank,
                                 int64_t rows);

// Returns work(), or the status of an exception, which would otherwise end the
// process: ResourceExhausted for std::bad_alloc, StorageStatus for a
// StorageError. For the calls of the core that report a failed allocation or
// disk in no other way: a new table, bank, slots or snapshot, rows on disk.
template <typename Work>
absl::Status OrStatus(const std::string& table, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        "table ", table,
        " must fit into memory, got a failed allocation; give the process more "
        "memory or cut the table into more shards");
  } catch (...) {
    return CaughtStorageStatus();
  }
}

// ResourceExhausted: the table would exceed its row limit by `excess` rows.
// `suffix` completes the message after the number of rows.
absl::Status TooManyRows(TableResource& table, int64_t excess,
                         const char* suffix);

// ResourceExhausted: a table with this limit would have this many rows.
absl::Status TooManyRows(const std::string& table, int64_t limit, int64_t rows,
                         const char* suffix);

// ResourceExhausted: there is no memory to count the occurrences of n keys.
absl::Status NoMemoryToCount(TableResource& table, int64_t n);

// ResourceExhausted: there is no memory for n rows of a checkpoint.
absl::Status NoMemoryForRows(TableResource& table, int64_t n);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_TABLE_RESOURCE_H_
