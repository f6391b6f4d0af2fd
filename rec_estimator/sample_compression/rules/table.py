# SPDX-License-Identifier: Apache-2.0
"""The table of op rules: what each op does to the rows of its inputs.

A rule is called with the op and the Values of its inputs. It returns the shape of each output,
which says on which axis the rows are, and with it promises: row i of the outputs depends on row i
of those inputs that have rows, on the others as a whole, and on nothing else, whatever the number
of rows. It raises Stop where it cannot promise that. An op without a rule stops.

What a rule is told, it is told of rows in general: it holds for the rows of users and for those of
candidates, where it serves to know the sizes.
"""

from typing import Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes import op_registry
from rec_estimator.sample_compression.analysis.sizes import Sizes
from rec_estimator.sample_compression.analysis.values import Value
from rec_estimator.sample_compression.rules import shape as shapes
from rec_estimator.sample_compression.rules import value as values

Rule = Callable[[tf.Operation, Sequence[Value]], List[Sizes]]

# What the rules say of each op. Left out on purpose: ops that hold state or draw random
# numbers, ops that fail on a value (a row of a user without candidates must not fail a request;
# but one with a place or length out of range, or a whole number divided by 0, does),
# ops that count, sort or sum over rows. Control flow is in bodies.py, lists of tensors in lists.py,
# what sparse ids are looked up with in sparse_rules.py and entry_rules.py.
RULES: Dict[str, Rule] = {}

for _rule, _types in (
    # One input, element by element; further inputs are parameters without rows.
    (
        values.each_element,
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
    (values.each_identity, "IdentityN"),
    # Several inputs, element by element, with broadcasting.
    (
        values.broadcast,
        """
        Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex Div DivNoNan Equal
        FloorDiv FloorMod Greater GreaterEqual Igamma Igammac Less LessEqual LogicalAnd LogicalOr
        Maximum Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow RealDiv SelectV2
        SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
        """,
    ),
    (values.same_shape, "AddN"),
    (values.select, "Select"),
    (values.strings, "StringJoin"),
    (values.bias, "BiasAdd"),
    # Along axes that are not that of the rows.
    (values.reduction, "All Any EuclideanNorm Max Mean Min Prod Sum"),
    (values.arg, "ArgMax ArgMin"),
    (values.along, "Cumprod Cumsum CumulativeLogsumexp ReverseV2"),
    (values.reverse_sequence, "ReverseSequence"),
    (values.last_axis, "LogSoftmax Softmax"),
    (values.top, "TopKV2"),
    # Products.
    (values.matmul, "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul"),
    (values.einsum, "Einsum"),
    (values.images, "AvgPool AvgPool3D Conv2D Conv3D DepthwiseConv2dNative LRN MaxPool MaxPool3D"),
    (values.batch_norm, "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"),
    (values.matrices, "MatrixBandPart"),
    # The same numbers in another shape.
    (shapes.reshape, "Reshape"),
    (shapes.expand, "ExpandDims"),
    (shapes.squeeze, "Squeeze"),
    (shapes.transpose, "ConjugateTranspose Transpose"),
    (shapes.concat, "ConcatV2"),
    (shapes.pack, "Pack"),
    (shapes.unpack, "Unpack"),
    (shapes.split, "Split SplitV"),
    (shapes.strided_slice, "StridedSlice"),
    (shapes.slice, "Slice"),
    (shapes.tile, "Tile"),
    (shapes.broadcast_to, "BroadcastTo"),
    (shapes.fill, "Fill"),
    (shapes.pad, "MirrorPad Pad PadV2"),
    (shapes.one_hot, "OneHot"),
    (values.ensure_shape, "EnsureShape"),
    (shapes.decode_raw, "DecodeRaw"),
    # Lookups: a result for each key.
    (shapes.gather, "Gather GatherV2"),
    (shapes.gather_nd, "GatherNd"),
    (shapes.resource_gather, " ".join(("ResourceGather", *op_registry.ROW_WISE))),
    (shapes.admits, op_registry.TABLE_ADMITS),
    (shapes.find, "LookupTableFindV2"),
):
    RULES.update(dict.fromkeys(_types.split(), _rule))

# Which input of an op is a shape: on the side of users it says the number of users.
SHAPE_OPERANDS = {"BroadcastTo": 1, "Fill": 0, "Reshape": 1, "Tile": 1}

# Ops that broadcast their axis of rows: for one user they need not have the row repeated.
BROADCASTING = frozenset(op_type for op_type, rule in RULES.items() if rule is values.broadcast) - {
    "ClipByValue"
}
