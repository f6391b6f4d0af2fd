// SPDX-License-Identifier: Apache-2.0
// The folder of a model's deltas. A request names a delta in it and must not
// make the process read another file.
#ifndef REC_ESTIMATOR_OPS_SERVING_REFRESH_FOLDER_H_
#define REC_ESTIMATOR_OPS_SERVING_REFRESH_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace rec_estimator {

// Finds the prefix of a delta's files. The folder is that of the environment
// variable REC_ESTIMATOR_REFRESH_FOLDER or, if it is not set, `folder`, which
// is '' if there is none.
//
// InvalidArgument if the name may lead out of the folder: it is absolute, has
// an empty part, a part "." or "..", a NUL or "://"; or a file of the delta is
// a link that leads out. FailedPrecondition if there is no folder.
absl::Status FindDelta(const std::string& folder, const std::string& name,
                       std::string* prefix);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_SERVING_REFRESH_FOLDER_H_
