// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint/checkpoint_row_report.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/kernel/errors.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;

// Says which float of which key is not finite, and since when.
std::string Describe(const RowSurvey::Broken& broken, TableResource& resource,
                     const std::vector<SlotPlace>& slots) {
  const bool in_value = broken.place < resource.table().dim();
  std::string where = in_value ? "the value" : "a slot";
  for (const auto& [slot, offset] : slots) {
    if (offset >= 0 && broken.place >= offset &&
        broken.place < offset + slot.width) {
      where = StrCat("slot ", slot.name);
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

// What to do about rows that are not finite.
const char* RemedyOf(ValueType type) {
  switch (type) {
    case ValueType::kHalf:
      return "; float16 has no number beyond 65504, bfloat16 has";
    case ValueType::kInt8:
      return "; a row of 8 bits needs finite numbers within 1.7e38 of each "
             "other, bfloat16 has larger ones";
    default:
      return "; restore the last checkpoint, and lower the learning rate or "
             "clip gradients";
  }
}

}  // namespace

Status RowReport::Finish(const std::vector<SlotPlace>& slots,
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
  return DataLoss("rows of table ", resource_.name(),
                  " must be finite to be saved, got ", rows.n_broken,
                  rows.n_broken == 1 ? " row that is not: "
                                     : " rows that are not, the first: ",
                  rows.first, RemedyOf(resource_.table().rules().value.type));
}

}  // namespace rec_estimator
