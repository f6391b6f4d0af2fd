// SPDX-License-Identifier: Apache-2.0
// The types of the ops that passes look for and make. Passes spell them by
// these constants only.
#ifndef REC_ESTIMATOR_OPS_PASSES_OP_NAMES_H_
#define REC_ESTIMATOR_OPS_PASSES_OP_NAMES_H_

namespace rec_estimator::passes {

// Ours, by the file that registers them.

// ops/table/table_ops.cc
inline constexpr char kTableHandle[] = "RecEstimator>TableHandle";
// ops/lookup/lookup_ops.cc
inline constexpr char kTableLookup[] = "RecEstimator>TableLookup";
inline constexpr char kTableGroupLookup[] = "RecEstimator>TableGroupLookup";
inline constexpr char kTableGroupLookupGrad[] =
    "RecEstimator>TableGroupLookupGrad";
// ops/lookup/combine_ops.cc
inline constexpr char kCombineWeighted[] = "RecEstimator>CombineWeighted";
inline constexpr char kCombineWeightedGrad[] =
    "RecEstimator>CombineWeightedGrad";
// ops/train/apply_ops.cc
inline constexpr char kTablesReserve[] = "RecEstimator>TablesReserve";
inline constexpr char kTablesApply[] = "RecEstimator>TablesApply";
// ops/cluster/shard_rows_ops.cc
inline constexpr char kShardKeysSplit[] = "RecEstimator>ShardKeysSplit";
inline constexpr char kShardRowsMerge[] = "RecEstimator>ShardRowsMerge";
inline constexpr char kShardRowsSplit[] = "RecEstimator>ShardRowsSplit";
inline constexpr char kShardRowsSpread[] = "RecEstimator>ShardRowsSpread";
// ops/cluster/packed_ops.cc
inline constexpr char kKeysPack[] = "RecEstimator>KeysPack";
inline constexpr char kTablesRead[] = "RecEstimator>TablesRead";
inline constexpr char kRowsSpread[] = "RecEstimator>RowsSpread";
inline constexpr char kRowsUnpack[] = "RecEstimator>RowsUnpack";
inline constexpr char kGradientsPack[] = "RecEstimator>GradientsPack";
inline constexpr char kTablesReservePacked[] =
    "RecEstimator>TablesReservePacked";
inline constexpr char kTablesApplyPacked[] = "RecEstimator>TablesApplyPacked";

// TensorFlow's.
inline constexpr char kCast[] = "Cast";
inline constexpr char kConcat[] = "ConcatV2";
inline constexpr char kIdentityN[] = "IdentityN";
inline constexpr char kIteratorGetNext[] = "IteratorGetNext";
inline constexpr char kNoOp[] = "NoOp";
inline constexpr char kPack[] = "Pack";
inline constexpr char kReadVariable[] = "ReadVariableOp";
inline constexpr char kReshape[] = "Reshape";

// Parts of the types of TensorFlow's ops that wait for something that is not an
// input. It may be done by an op that depends on another stage, and the graph
// has no path that tells.
inline constexpr const char* kWaiting[] = {"Dequeue",    "Unstage",      "Recv",
                                           "TakeMany",   "TakeGradient", "Nccl",
                                           "Collective", "PyFunc"};

}  // namespace rec_estimator::passes

#endif  // REC_ESTIMATOR_OPS_PASSES_OP_NAMES_H_
