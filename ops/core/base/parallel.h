// SPDX-License-Identifier: Apache-2.0
// The interface through which the core uses threads that it does not own.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_PARALLEL_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace rec_estimator {

// Runs work(begin, end) over a partition of [0, total), in any order and on any
// threads, and returns when all of it is done. What work throws, if only one
// thing of several, is thrown to the caller then. `cycles_per_unit` is the
// estimated cost of one unit; from it the owner of the threads decides into how
// many parts to split the loop. Kernels pass the threads of their op
// (op_threads.h), tests pass std::thread.
using ParallelFor = std::function<void(
    int64_t total, int64_t cycles_per_unit,
    const std::function<void(int64_t begin, int64_t end)>& work)>;

// Runs everything on the calling thread.
inline void SerialFor(int64_t total, int64_t /*cycles_per_unit*/,
                      const std::function<void(int64_t, int64_t)>& work) {
  if (total > 0) work(0, total);
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_PARALLEL_H_
