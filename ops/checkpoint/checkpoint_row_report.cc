// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint/checkpoint_row_report.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/kernel/errors.h"
#include "ops/table/value_types.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;

// Says which float of which key is not finite, and since when.
std::string Describe(const RowSurvey::Broken& broken, TableResource& resource,
                     const std::vector<SlotOffset>& slots) {
  const bool in_value = broken.offset < resource.table().dim();
  std::string where = in_value ? "the value" : "a slot";
  for (const SlotOffset& each : slots) {
    if (each.offset >= 0 && broken.offset >= each.offset &&
        broken.offset < each.offset + each.slot.width) {
      where = StrCat("slot ", each.slot.name);
    }
  }
  std::string since;
  if (broken.version >= 0) {
    since = StrCat(", last trained at ", resource.unit_of_versions(), " ",
                   broken.version);
  }
  return StrCat(std::isnan(broken.value) ? "NaN" : "Inf", " in ", where,
                " of key ", broken.key, since);
}

}  // namespace

Status RowReport::Finish(const std::vector<SlotOffset>& slots,
                         bool refuses) const {
  SavedRows rows;
  for (int i = 0; i < survey_.n_largest(); ++i) {
    rows.largest.push_back(survey_.largest(i));
  }
  rows.n_broken = survey_.n_broken();
  if (rows.n_broken > 0) {
    rows.first = Describe(survey_.broken(), resource_, slots);
  }
  resource_.set_saved_rows(rows);
  if (rows.n_broken == 0 || !refuses) return Status();
  const std::string found =
      StrCat(rows.n_broken,
             rows.n_broken == 1 ? " row that is not: "
                                : " rows that are not, the first: ",
             rows.first);
  const ValueType type = resource_.table().rules().value.type;
  if (type == ValueType::kHalf || type == ValueType::kInt8) {
    return DataLoss("rows of table ", resource_.name(),
                    " must be finite to be saved in ", NameOf(type), ", got ",
                    found,
                    "; choose float32, or bfloat16 in place of float16 and "
                    "int8, for larger numbers, and clip gradients against NaN");
  }
  return DataLoss(
      "rows of table ", resource_.name(), " must be finite to be saved, got ",
      found,
      "; restore the last checkpoint, and lower the learning rate or clip "
      "gradients");
}

}  // namespace rec_estimator
