// SPDX-License-Identifier: Apache-2.0
// What fuse_lookups_pass.cc writes into a fused op and lookup_kernels.cc reads.
#ifndef REC_ESTIMATOR_OPS_TABLE_FUSED_LOOKUPS_H_
#define REC_ESTIMATOR_OPS_TABLE_FUSED_LOOKUPS_H_

namespace rec_estimator {

// Attribute of a fused op: the name of each lookup, for error messages.
inline constexpr char kFusedLookupNames[] = "_rec_estimator_names";

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_TABLE_FUSED_LOOKUPS_H_
