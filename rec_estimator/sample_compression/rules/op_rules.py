# SPDX-License-Identifier: Apache-2.0
"""The rule of each op type: its effect on the rows of its inputs.

A rule takes an op and the Values of its inputs, and returns the shape of each output. The shape
says on which axis the rows are. The rule thereby promises, for any number of rows: row i of
each output depends on row i of the inputs that have rows, on the other inputs as a whole, and on
nothing else. A rule that cannot promise this raises CannotMove. An op type without a rule stays
with the candidates.

Rules treat user rows and candidate rows alike: for candidates, the pass uses only the shapes.
"""

from typing import Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis.sizes import Shape
from rec_estimator.sample_compression.analysis.values import Value
from rec_estimator.sample_compression.rules import arithmetic, shape

Rule = Callable[[tf.Operation, Sequence[Value]], List[Shape]]

# Left out on purpose:
# - ops that hold state or draw random numbers;
# - ops that count, sort or sum over rows;
# - ops that may fail on a value, because the row of a user without candidates must not fail a
#   request. An index out of range and an integer division by 0 still fail.
# Other rules: control flow in control_flow_v1.py and control_flow.py, lists of tensors in
# lists.py, entries of sparse and ragged tensors in entry.py and sparse.py.
RULES: Dict[str, Rule] = {}

for _rule, _types in (
    # One input, element by element; further inputs are parameters without rows.
    (
        arithmetic.each_element,
        """
        Abs Acos Acosh AsString Asin Asinh Atan Atanh BesselI0e BesselI1e Bucketize Cast Ceil
        ComplexAbs Conj Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Identity Imag
        Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri Neg OnesLike
        PreventGradient Real Reciprocal RegexFullMatch RegexReplace Relu
        Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square
        StaticRegexFullMatch StaticRegexReplace StopGradient StringLength StringLower StringStrip
        StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringUpper Tan
        Tanh ZerosLike
        """,
    ),
    (arithmetic.each_identity, "IdentityN"),
    # Several inputs, element by element, with broadcasting.
    (
        arithmetic.broadcast,
        """
        Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex Div DivNoNan Equal
        FloorDiv FloorMod Greater GreaterEqual Igamma Igammac Less LessEqual LogicalAnd LogicalOr
        Maximum Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow RealDiv SelectV2
        SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
        """,
    ),
    (arithmetic.same_shape, "AddN"),
    (arithmetic.select, "Select"),
    (arithmetic.strings, "StringJoin"),
    (arithmetic.bias, "BiasAdd"),
    # Along an axis that is not that of the rows.
    (arithmetic.reduction, "All Any EuclideanNorm Max Mean Min Prod Sum"),
    (arithmetic.arg, "ArgMax ArgMin"),
    (arithmetic.along, "Cumprod Cumsum CumulativeLogsumexp ReverseV2"),
    (arithmetic.reverse_sequence, "ReverseSequence"),
    (arithmetic.last_axis, "LogSoftmax Softmax"),
    (arithmetic.top, "TopKV2"),
    # Products.
    (arithmetic.matmul, "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul"),
    (arithmetic.einsum, "Einsum"),
    (
        arithmetic.images,
        "AvgPool AvgPool3D Conv2D Conv3D DepthwiseConv2dNative LRN MaxPool MaxPool3D",
    ),
    (arithmetic.batch_norm, "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"),
    (arithmetic.matrices, "MatrixBandPart"),
    # The same numbers in another shape.
    (shape.reshape, "Reshape"),
    (shape.expand, "ExpandDims"),
    (shape.squeeze, "Squeeze"),
    (shape.transpose, "ConjugateTranspose Transpose"),
    (shape.concat, "ConcatV2"),
    (shape.pack, "Pack"),
    (shape.unpack, "Unpack"),
    (shape.split, "Split SplitV"),
    (shape.strided_slice, "StridedSlice"),
    (shape.slice, "Slice"),
    (shape.tile, "Tile"),
    (shape.broadcast_to, "BroadcastTo"),
    (shape.fill, "Fill"),
    (shape.pad, "MirrorPad Pad PadV2"),
    (shape.one_hot, "OneHot"),
    (arithmetic.ensure_shape, "EnsureShape"),
    (shape.decode_raw, "DecodeRaw"),
    # Lookups: one result for each key.
    (shape.gather, "Gather GatherV2"),
    (shape.gather_nd, "GatherNd"),
    (shape.resource_gather, " ".join(("ResourceGather", *op_registry.ROW_WISE))),
    (shape.resource_gather_nd, "ResourceGatherNd"),
    (shape.admits, op_registry.TABLE_ADMITS),
    (shape.find, "LookupTableFindV2"),
):
    RULES.update(dict.fromkeys(_types.split(), _rule))

# Which input of an op is a shape. On the users' side it has the number of users.
SHAPE_OPERANDS = {"BroadcastTo": 1, "Fill": 0, "Reshape": 1, "Tile": 1}

# Ops that broadcast along the rows, so that the row of a single user is not repeated.
BROADCASTING = frozenset(
    op_type for op_type, rule in RULES.items() if rule is arithmetic.broadcast
) - {"ClipByValue"}
