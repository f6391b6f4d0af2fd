# SPDX-License-Identifier: Apache-2.0
"""The contract of op rules: each entry of each table of rules runs on one row per user.

EXAMPLES has a small model for each entry. The rule must accept it, the report must name no op that
stayed, and the outputs must be those of the original model, for random numbers.
"""

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import (
    F,
    arrays,
    enable,
    placeholder,
    ragged_placeholder,
    ragged_value,
    sparse_value,
)
from tf_behavior import control_flow

import rec_estimator as rec
from rec_estimator import _ops, sample_compression
from rec_estimator.sample_compression.rules.control_flow import CALL_RULES, STEP_RULES
from rec_estimator.sample_compression.rules.entry import ENTRY_RULES
from rec_estimator.sample_compression.rules.lists import ARRAY_RULES, LIST_RULES
from rec_estimator.sample_compression.rules.op_rules import RULES
from rec_estimator.sample_compression.rules.sparse import SPARSE_RULES

raw = tf.raw_ops
TABLES = {
    "op": RULES,
    "entry": ENTRY_RULES,
    "sparse": SPARSE_RULES,
    "list": LIST_RULES,
    "array": ARRAY_RULES,
    "step": STEP_RULES,
    "call": CALL_RULES,
}
V1 = ("array", "step")  # Tables of control flow v1.
TRAINING = ("RecEstimator>TableAdmits",)  # In training, each user has a candidate.
MAKERS = {tf.RaggedTensor: ragged_value, tf.SparseTensor: sparse_value}


class Users:
    """Placeholders of the features of users, and the numbers that go in."""

    def __init__(self, seed, rows_last):
        self.rng = np.random.RandomState(seed)
        self.values = {}
        self.x, self.y = self.feature([3]), self.feature([3])
        self.cube, self.image = self.feature([2, 3]), self.feature([4, 4, 2])
        self.volume = self.feature([2, 2, 2, 1])
        self.whole = self.feature([3], lambda shape: self.rng.randint(1, 4, shape))
        self.flag = self.feature([3], lambda shape: self.rng.rand(*shape) < 0.6)
        self.text = self.feature(
            [3], lambda shape: self.rng.choice(["abc", "xyz", " A "], shape).astype(object)
        )
        self.ragged, self.sparse = (
            ragged_placeholder(tf.int64),
            tf.sparse_placeholder(tf.int64, [None, None]),
        )
        for tensor in (self.ragged, self.sparse):
            self.values[tensor] = lambda rows: [
                self.rng.randint(0, 5, self.rng.randint(1, 4)) for _ in range(rows)
            ]
        if rows_last:
            for name in ("x", "y", "cube", "whole", "flag", "text"):
                setattr(self, name, tf.transpose(getattr(self, name)))

    def feature(self, shape, draw=None):
        draw = draw or (lambda shape: self.rng.uniform(-1, 1, shape))
        tensor = placeholder(draw([1, *shape]))
        self.values[tensor] = lambda rows: draw([rows, *shape])
        return tensor

    def constant(self, *shape):
        return tf.constant(self.rng.uniform(-1, 1, shape), F)

    def variable(self):
        return tf.Variable(self.rng.uniform(-1, 1, [3]), use_resource=True)

    def feeds(self, sizes):
        """What to feed for a request: (on a row per candidate, on a row per user)."""
        rows = np.repeat(np.arange(len(sizes)), sizes)
        flat, compressed = {}, {}
        for tensor, draw in self.values.items():
            value = draw(len(sizes))
            make = MAKERS.get(type(tensor), lambda value, _: value)
            flat[tensor] = make([value[row] for row in rows], np.int64)
            compressed[tensor] = make(value, np.int64)
        return flat, compressed


def call(op_type, *inputs, **attributes):
    """An op by its type, inputs in order."""
    function = getattr(raw, op_type)
    return function(**dict(zip(inspect.signature(function).parameters, inputs)), **attributes)


def of(field, **attributes):
    """An example: the op of one feature."""
    return lambda u, op_type: call(op_type, getattr(u, field), **attributes)


def of_two(first, second):
    return lambda u, op_type: call(op_type, getattr(u, first), getattr(u, second))


def of_complex(**attributes):
    return lambda u, op_type: call(
        op_type, raw.Complex(real=u.x, imag=u.y, Tout=tf.complex128), **attributes
    )


def pooling(field, axes, **attributes):
    size = [1, *[2] * axes, 1]
    return of(field, ksize=size, strides=size, padding="VALID", **attributes)


def convolution(field, *shape):
    strides = [1] * (len(shape))
    return lambda u, op_type: call(
        op_type, getattr(u, field), u.constant(*shape), strides=strides, padding="SAME"
    )


def batch_norm(u, op_type):
    parameters = [tf.constant([1.5, 0.5])] * 4
    image = tf.cast(u.image, tf.float32)
    return call(op_type, image, *parameters, is_training=False)[0]


def with_rows(shape):
    """The shape of the users' rows and more axes."""
    return lambda u: tf.stack([tf.shape(u.x)[0], *shape])


def table_op(name, **more):
    def example(u, op_type):
        (shard,) = rec.get_embedding_variable("table", embedding_dim=2)
        function = getattr(_ops.gen, "rec_estimator_" + name)
        return function(shard.handle, u.whole, **more)

    return example


def group_lookup(u, op_type):
    table = rec.get_embedding_variable("table", embedding_dim=2)
    return rec.embedding_lookup_sparse(table, u.sparse, combiner="mean")


def weighted_lookup(u, op_type):
    table = rec.get_embedding_variable("table", embedding_dim=2)
    weights = u.sparse.with_values(tf.cast(u.sparse.values, F) + 1.0)
    return rec.embedding_lookup_sparse(table, u.sparse, weights, combiner="mean")


def hash_table(u, op_type):
    keys = tf.constant([1, 2], tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, keys * 5)
    return tf.lookup.StaticHashTable(initializer, -1).lookup(u.whole)


def sparse_lookup(weighted=False, combiner="sum"):
    def example(u, op_type):
        ids, weights = u.sparse, None
        if weighted:
            values = tf.cast(ids.values, F) + 1.0
            weights = tf.SparseTensor(ids.indices, values, ids.dense_shape)
        params = u.constant(5, 2)
        return tf.nn.safe_embedding_lookup_sparse(params, ids, weights, combiner=combiner)

    return example


def recurrent(u, op_type):
    """A loop over the steps of a sequence, which reads and writes arrays."""
    inputs = tf.TensorArray(F, 2).unstack(tf.transpose(u.cube, [1, 0, 2]))
    outputs = tf.TensorArray(F, inputs.size())
    _, state, outputs = tf.while_loop(
        lambda step, *_: step < 2,
        lambda step, state, outputs: (
            step + 1,
            state + tf.identity(inputs.read(step)),
            outputs.write(step, state),
        ),
        [0, u.x, outputs],
    )
    return state, outputs.stack()


def array_size(u, op_type):
    """A loop that asks an array for its length."""
    array = tf.TensorArray(F, 2, dynamic_size=True).unstack(tf.transpose(u.cube, [1, 0, 2]))
    return tf.while_loop(
        lambda step, _: step < array.size(),
        lambda step, state: (step + 1, state + array.read(step)),
        [0, u.x],
    )[1]


def list_length(u, op_type):
    handle = raw.TensorListFromTensor(
        tensor=tf.transpose(u.cube, [1, 0, 2]), element_shape=tf.constant([-1, 3])
    )
    return raw.TensorListLength(input_handle=handle)


def branch(stateful, many):
    """tf.cond or tf.switch_case; a variable read inside makes the op stateful."""

    def example(u, op_type):
        scale = u.variable() if stateful else u.constant(3)
        branches = [lambda: u.x * scale, lambda: u.x - scale]
        if many:
            return tf.switch_case(tf.cast(u.constant() > 0, tf.int32), branches)
        return tf.cond(u.constant() > 0, *branches)

    return example


def loop(stateful):
    def example(u, op_type):
        scale = u.variable() if stateful else u.constant(3)
        return tf.while_loop(
            lambda step, _: step < 2,
            lambda step, state: (step + 1, state * scale + u.x),
            [0, u.x],
        )[1]

    return example


def function(stateful):
    def example(u, op_type):
        scale = u.variable() if stateful else u.constant(3)
        return tf.function(lambda x: x * scale)(u.x)

    return example


def element_wise():
    """Examples of the ops that share a rule and need no more than their inputs."""
    special = {
        **dict.fromkeys(["AsString", "Invert"], of("whole")),
        **dict.fromkeys(["ComplexAbs", "Imag", "Real"], of_complex(Tout=F)),
        "Bucketize": of("x", boundaries=[-0.5, 0.5]),
        "Cast": of("x", DstT=tf.float32),
        "Conj": of_complex(),
        "LogicalNot": of("flag"),
        "RegexFullMatch": of("text", pattern="a.*"),
        "RegexReplace": of("text", pattern="b", rewrite="-"),
        "StaticRegexFullMatch": of("text", pattern="a.*"),
        "StaticRegexReplace": of("text", pattern="b", rewrite="-"),
        "StringToHashBucket": of("text", num_buckets=7),
        "StringToHashBucketFast": of("text", num_buckets=7),
        "StringToHashBucketStrong": of("text", num_buckets=7, key=[1, 2]),
        **dict.fromkeys(["StringLength", "StringLower", "StringStrip"], of("text")),
        "StringUpper": of("text"),
        **dict.fromkeys(["BitwiseAnd", "BitwiseOr", "BitwiseXor"], of_two("whole", "whole")),
        "TruncateDiv": of_two("whole", "whole"),
        **dict.fromkeys(["LogicalAnd", "LogicalOr"], of_two("flag", "flag")),
        "ClipByValue": lambda u, op_type: call(
            op_type, u.x, tf.constant(-0.5, F), tf.constant(0.5, F)
        ),
        "Complex": lambda u, op_type: raw.Complex(real=u.x, imag=u.y, Tout=tf.complex128),
        "SelectV2": lambda u, op_type: call(op_type, u.flag, u.x, u.y),
    }
    plain = {"each_element": of("x"), "broadcast": of_two("x", "y")}
    found = {t: plain[rule.__name__] for t, rule in RULES.items() if rule.__name__ in plain}
    return {**found, **special}


def padded_ids(users, _):
    ids = tf.where_v2(users.flag, users.whole, -1)
    indices, values = _ops.gen.rec_estimator_ids_without_padding(ids)
    return tf.SparseTensor(indices, values, tf.shape(ids, out_type=tf.int64))


EXAMPLES = {
    "op": {
        **element_wise(),
        "IdentityN": lambda u, t: raw.IdentityN(input=[u.x, u.whole]),
        "AddN": lambda u, t: raw.AddN(inputs=[u.x, u.y]),
        "Select": lambda u, t: call(t, u.flag, u.x, u.y),
        "StringJoin": lambda u, t: raw.StringJoin(inputs=[u.text, tf.constant("-"), u.text]),
        "BiasAdd": lambda u, t: call(t, u.x, u.constant(3)),
        **dict.fromkeys(["All", "Any"], of("flag", axis=[1])),
        **dict.fromkeys(
            ["EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"], of("cube", axis=[1])
        ),
        **dict.fromkeys(["ArgMax", "ArgMin"], of("x", dimension=1)),
        **dict.fromkeys(["Cumprod", "Cumsum", "CumulativeLogsumexp"], of("x", axis=1)),
        "ReverseV2": of("x", axis=[1]),
        "ReverseSequence": lambda u, t: call(t, u.x, u.whole[:, 0], seq_dim=1, batch_dim=0),
        **dict.fromkeys(["LogSoftmax", "Softmax"], of("x")),
        "TopKV2": of("x", k=2),
        **dict.fromkeys(
            ["BatchMatMul", "BatchMatMulV2"], lambda u, t: call(t, u.cube, u.cube, adj_y=True)
        ),
        "BatchMatMulV3": lambda u, t: call(t, u.cube, u.constant(3, 4), Tout=F),
        "MatMul": lambda u, t: call(t, u.x, u.constant(3, 4)),
        "Einsum": lambda u, t: tf.einsum("btd,dh->bth", u.cube, u.constant(3, 4)),
        **dict.fromkeys(["AvgPool", "MaxPool"], pooling("image", 2)),
        **dict.fromkeys(
            ["AvgPool3D", "MaxPool3D"],
            lambda u, t: call(
                t,
                tf.cast(u.volume, tf.float32),
                ksize=[1, 2, 2, 2, 1],
                strides=[1] * 5,
                padding="SAME",
            ),
        ),
        "Conv2D": convolution("image", 2, 2, 2, 3),
        "Conv3D": convolution("volume", 2, 2, 2, 1, 3),
        "DepthwiseConv2dNative": convolution("image", 2, 2, 2, 1),
        "LRN": lambda u, t: call(t, tf.cast(u.image, tf.float32)),
        **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"], batch_norm),
        "MatrixBandPart": lambda u, t: tf.linalg.band_part(u.cube, 0, -1),
        "Reshape": of("cube", shape=[-1, 6]),
        "ExpandDims": of("x", axis=1),
        "Squeeze": lambda u, t: tf.squeeze(u.x[:, tf.newaxis], [1]),
        **dict.fromkeys(["ConjugateTranspose", "Transpose"], of("cube", perm=[2, 0, 1])),
        "ConcatV2": lambda u, t: tf.concat([u.x, u.y], axis=1),
        "Pack": lambda u, t: tf.stack([u.x, u.y], axis=1),
        "Unpack": lambda u, t: tf.unstack(u.x, axis=1),
        "Split": lambda u, t: tf.split(u.x, 3, axis=1),
        "SplitV": lambda u, t: tf.split(u.x, [1, 2], axis=1),
        "StridedSlice": lambda u, t: (u.x[:, 1:], u.cube[..., 0], u.x[:, tf.newaxis]),
        "Slice": lambda u, t: tf.slice(u.x, [0, 1], [-1, 2]),
        "Tile": lambda u, t: tf.tile(u.x, [1, 2]),
        "BroadcastTo": lambda u, t: tf.broadcast_to(u.x[:, tf.newaxis], with_rows([2, 3])(u)),
        "Fill": lambda u, t: u.x + tf.fill(with_rows([3])(u), tf.constant(2, F)),
        "MirrorPad": of("x", paddings=[[0, 0], [1, 1]], mode="REFLECT"),
        "Pad": of("x", paddings=[[0, 0], [1, 0]]),
        "PadV2": lambda u, t: tf.pad(u.x, [[0, 0], [1, 0]], constant_values=3.0),
        "OneHot": lambda u, t: tf.one_hot(u.whole, 5),
        "EnsureShape": of("x", shape=[None, 3]),
        "DecodeRaw": of("text", out_type=tf.uint8),
        "Gather": lambda u, t: call(t, u.constant(4, 2), u.whole),
        "GatherV2": lambda u, t: (
            tf.gather(u.constant(4, 2), u.whole),
            tf.gather(u.x, [2, 0], axis=1),
            tf.gather(u.x, u.whole - 1, batch_dims=1),
        ),
        "GatherNd": lambda u, t: tf.gather_nd(u.constant(4, 2), u.whole[..., tf.newaxis]),
        "ResourceGather": lambda u, t: tf.gather(u.variable(), u.whole - 1),
        "ResourceGatherNd": lambda u, t: tf.gather_nd(u.variable(), (u.whole - 1)[..., tf.newaxis]),
        "LookupTableFindV2": hash_table,
        "RecEstimator>TableContains": table_op("table_contains"),
        "RecEstimator>TableLookup": table_op("table_lookup", dim=2),
        "RecEstimator>TableAdmits": table_op("table_admits", counted_keys=np.zeros(0, np.int64)),
    },
    "entry": {
        "GatherNd": lambda u, t: tf.gather_nd(u.x, tf.where(u.flag)),
        "RaggedTensorToSparse": lambda u, t: u.ragged.to_sparse(),
        "Where": lambda u, t: tf.where(u.flag),
        "RecEstimator>IdsWithoutPadding": padded_ids,
        "RecEstimator>TableGroupLookup": group_lookup,
        "RecEstimator>CombineWeighted": weighted_lookup,
    },
    "sparse": {
        **dict.fromkeys(
            [
                *("Cast", "GatherV2", "Identity", "Reshape", "SparseFillEmptyRows"),
                *("SparseReshape", "SparseSegmentSum", "StridedSlice", "Unique", "Where"),
            ],
            sparse_lookup(),
        ),
        "SparseSegmentMean": sparse_lookup(combiner="mean"),
        "SparseSegmentSqrtN": sparse_lookup(combiner="sqrtn"),
        **dict.fromkeys(["ConcatV2", "SegmentSum", "Shape"], sparse_lookup(weighted=True)),
        "Fill": lambda u, t: tf.ones_like(u.sparse.values),
        "SparseToDense": lambda u, t: tf.sparse.to_dense(u.sparse),
    },
    "list": {**dict.fromkeys(LIST_RULES, recurrent), "TensorListLength": list_length},
    "array": {**dict.fromkeys(ARRAY_RULES, recurrent), "TensorArraySizeV3": array_size},
    "step": dict.fromkeys(STEP_RULES, recurrent),
    "call": {
        "Case": branch(stateful=True, many=True),
        "If": branch(stateful=True, many=False),
        "PartitionedCall": function(stateful=False),
        "StatefulPartitionedCall": function(stateful=True),
        "StatelessCase": branch(stateful=False, many=True),
        "StatelessIf": branch(stateful=False, many=False),
        "StatelessWhile": loop(stateful=False),
        "While": loop(stateful=True),
    },
}


def test_every_rule_has_an_example():
    missing = [
        f"{table}: {op_type}"
        for table, rules in TABLES.items()
        for op_type in sorted(set(rules) ^ set(EXAMPLES[table]))
    ]
    assert not missing, f"EXAMPLES must have one example for each rule, and no other: {missing}"


def run(examples, seed, *all_sizes, rows_last=False):
    """What examples give uncompressed and compressed for some requests, and what stayed."""
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        users = Users(seed, rows_last)
        item = tf.placeholder(F, [None], name="item")
        item_size = enable(list(users.values), [item], exact=True)
        fetches = {t: example(users, t) for t, example in examples.items()}
        initializers = [tf.global_variables_initializer(), tf.tables_initializer()]
        requests = [(sizes, *users.feeds(sizes)) for sizes in map(np.array, all_sizes)]
        with tf.Session() as session:
            session.run(initializers)
            expected = [
                session.run(fetches, {**flat, item: np.zeros(sizes.sum())})
                for sizes, flat, _ in requests
            ]
        compressed = sample_compression.compress(fetches)
        with tf.Session() as session:
            session.run(initializers)
            got = [
                session.run(compressed, {**feed, item: np.zeros(sizes.sum()), item_size: sizes})
                for sizes, _, feed in requests
            ]
        # A scalar has no rows; TensorFlow takes the width out of a dense_shape.
        graph = tf.get_default_graph()
        left = [
            (name, kind, reason)
            for name, kind, reason in sample_compression.compression_report().left
            if graph.get_operation_by_name(name).outputs[0].shape.rank != 0
        ]
        return expected, got, left


def differs(wanted, value):
    """Whether outputs are not equal, up to the order of additions in vectorized code."""
    for a, b in zip(arrays(wanted), arrays(value)):
        tolerance = {"f4": 1e-5, "f8": 1e-9, "c16": 1e-9}.get(a.dtype.str[1:], 0)
        is_equal = np.array_equal(a, b)
        if tolerance and a.shape == b.shape:
            is_equal = np.allclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not is_equal:
            return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES)
def test_each_rule_accepts_its_example_and_outputs_stay_the_same(table, monkeypatch):
    accepted = set()

    def observed(op_type, rule):
        def observe(*arguments):
            outputs = rule(*arguments)
            if outputs is not None:
                accepted.add(op_type)
            return outputs

        return observe

    for op_type, rule in TABLES[table].items():
        monkeypatch.setitem(TABLES[table], op_type, observed(op_type, rule))
    with control_flow(1 if table in V1 else 2):
        examples = dict(EXAMPLES[table])
        last = {t: examples.pop(t) for t in TRAINING if t in examples}
        runs = [run(examples, 1, [2, 0, 3, 1], [4])] + ([run(last, 2, [2, 3])] if last else [])
    assert sorted(set(TABLES[table]) - accepted) == [], "the rule must accept its example"
    assert [op for _, _, left in runs for op in left] == []
    pairs = [pair for expected, got, _ in runs for pair in zip(expected, got)]
    wrong = [t for wanted, got in pairs for t in wanted if differs(wanted[t], got[t])]
    assert wrong == [], "with a row per user the op must give what it gives with repeated rows"


# Examples of these rules also run if the rows are on the last axis.
ANY_AXIS = {
    *("each_element", "each_identity", "broadcast", "same_shape", "select", "strings", "reduction"),
    *("arg", "along", "last_axis", "top", "matrices", "reshape", "expand", "transpose", "concat"),
    *("pack", "strided_slice", "slice", "tile", "pad", "one_hot"),
}


def test_rows_on_the_last_axis_are_followed_or_left():
    """The rows are where many examples reduce, slice or reshape: such ops must stay."""
    examples = {t: EXAMPLES["op"][t] for t, rule in RULES.items() if rule.__name__ in ANY_AXIS}
    expected, got, left = run(examples, 3, [2, 0, 3, 1], [4], rows_last=True)
    wrong = [t for a, b in zip(expected, got) for t in a if differs(a[t], b[t])]
    assert wrong == [], "a rule must refuse an op that mixes rows"
    assert {"ArgMax", "Cumsum", "Reshape", "Slice", "Softmax"} <= {kind for _, kind, _ in left}
