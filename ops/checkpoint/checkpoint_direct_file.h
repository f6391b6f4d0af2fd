// SPDX-License-Identifier: Apache-2.0
// Files of a checkpoint that are written without the page cache.
//
// A table with rows on disk may be larger than memory. Its checkpoint would
// push everything else out of the page cache, and the copy into it takes CPU
// time.
#ifndef REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_DIRECT_FILE_H_
#define REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_DIRECT_FILE_H_

#include "tensorflow/core/platform/env.h"

namespace rec_estimator {

// Env::Default(), except that files it creates on local disks are written with
// O_DIRECT where the file system can. Lives as long as the process.
tensorflow::Env* DirectEnv();

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CHECKPOINT_CHECKPOINT_DIRECT_FILE_H_
