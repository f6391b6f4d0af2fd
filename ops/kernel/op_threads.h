// SPDX-License-Identifier: Apache-2.0
// The threads of a running op as the core's ParallelFor.
#ifndef REC_ESTIMATOR_OPS_KERNEL_OP_THREADS_H_
#define REC_ESTIMATOR_OPS_KERNEL_OP_THREADS_H_

#include <cstdint>

#include "ops/core/base/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace rec_estimator {

// Returns a ParallelFor over as many threads as the device has intra-op
// threads. It is valid during Compute. If the work throws on any thread, the
// other work is done and the calling thread gets the exception: the first one,
// if there are several.
//
// The threads are those that run the ops of the step (inter-op), if there are
// enough. They are awake, and a second pool would be more threads
// than cores (docs/decisions.md). Sessions with fewer of them use the intra-op
// threads.
//
// The calling thread never waits for a block of work that has not started.
// Therefore it may hold locks of a table that blocks of another op, running in
// the same pool, wait for.
ParallelFor OpThreads(tensorflow::OpKernelContext* context);

// The threads that run the ops of a session's steps (inter-op). 0: not known.
int64_t InterOpThreads(const tensorflow::ConfigProto& config);

// Less work, of about 50 µs, runs on the calling thread. If it is asleep, a
// second thread would take longer to wake up, and it looks for work for a while
// afterwards, at the cost of the next ops.
constexpr int64_t kSerialBelowCycles = 150000;

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_KERNEL_OP_THREADS_H_
