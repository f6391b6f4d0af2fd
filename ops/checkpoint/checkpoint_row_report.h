// SPDX-License-Identifier: Apache-2.0
// RowReport: what a save finds in the rows of a table, for TableSavedRows.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROW_REPORT_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROW_REPORT_H_

#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/core/index/entry_stream.h"
#include "ops/core/rows/row_survey.h"
#include "ops/table/table_resource.h"

namespace rec_estimator {

class RowReport {
 public:
  // The resource outlives the object.
  explicit RowReport(TableResource* resource) : resource_(*resource) {}

  // The rows that one thread copies while the table's slots do not change. The
  // report has them when this object is destroyed.
  class Part {
   public:
    explicit Part(RowReport* report)
        : report_(*report),
          survey_(report->resource_.table().dim(),
                  report->resource_.table().row_floats()) {}
    ~Part() {
      const std::lock_guard<std::mutex> lock(report_.mutex_);
      report_.survey_.Merge(survey_);
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    void Add(const ListedEntry& entry, const float* row) {
      survey_.Add(entry.key, entry.version, row);
    }

   private:
    RowReport& report_;
    RowSurvey survey_;
  };

  // Leaves what was found to TableSavedRows. slots: those that are saved.
  // DataLoss if a row has a float that is not finite and is refused.
  absl::Status Finish(const std::vector<SlotOffset>& slots, bool refuses) const;

 private:
  TableResource& resource_;
  std::mutex mutex_;
  RowSurvey survey_{0, 0};  // The sum of the parts. Guarded by mutex_.
};

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_ROW_REPORT_H_
