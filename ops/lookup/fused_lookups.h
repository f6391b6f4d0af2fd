// SPDX-License-Identifier: Apache-2.0
// What ops of several lookups share, which fuse_lookups_pass.cc makes.
#ifndef REC_ESTIMATOR_OPS_LOOKUP_FUSED_LOOKUPS_H_
#define REC_ESTIMATOR_OPS_LOOKUP_FUSED_LOOKUPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/core/base/parallel.h"
#include "ops/core/keys/deduplicated_list.h"
#include "ops/lookup/combined_rows.h"
#include "ops/lookup/sparse_row_index.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace rec_estimator {

// Attribute of a fused op: the name of each lookup, for error messages.
inline constexpr char kFusedLookupNames[] = "_rec_estimator_names";

// Keys of a list that one thread looks up as a whole.
inline constexpr int64_t kShortList = DeduplicatedList::kShort;

// The attribute "combiners": one for each of N lookups.
absl::Status ReadCombiners(tensorflow::OpKernelConstruction* context,
                           std::vector<Combiner>* combiners);

// How messages name the n lookups of an op: by the name of the op that was
// fused into this one, else by number.
std::vector<std::string> LookupNames(tensorflow::OpKernelConstruction* context,
                                     size_t n);

// The rows of a lookup's keys.
struct KeyRows {
  SparseRowIndex row_index;
  int64_t rows = 0;
  bool one_key_per_row = false;
};

// Checks the indices of the SparseTensor of a lookup of keys->rows rows, and
// stores them.
absl::Status CheckIndices(const std::string& name,
                          const tensorflow::Tensor& indices,
                          OneKeyPerRow* one_key_per_row, KeyRows* keys);

// Does the same for a lookup of n keys, whose number of rows is in dense_shape.
absl::Status CheckSparse(const std::string& name, int64_t n,
                         const tensorflow::Tensor& indices,
                         const tensorflow::Tensor& dense_shape,
                         OneKeyPerRow* one_key_per_row, KeyRows* keys);

// Runs work(i, begin, end) in parallel over ranges [begin, end) that partition
// [0, sizes[i]) for each i. All units together cost about `cycles`.
//
// A range is a whole lookup unless that is long: each range locks the shards of
// its keys. If two threads took turns on small parts of one lookup, they would
// wait for each other's locks longer than they read.
void ForAllUnits(
    const std::vector<int64_t>& sizes, double cycles,
    const ParallelFor& parallel,
    const std::function<void(size_t i, int64_t begin, int64_t end)>& work);

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_LOOKUP_FUSED_LOOKUPS_H_
