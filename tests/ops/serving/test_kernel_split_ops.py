# SPDX-License-Identifier: Apache-2.0
"""KernelRows: agreement with the oracle, also if the kernel is written between two steps."""

from concurrent import futures

import numpy as np
import oracle
import pytest
import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.sample_compression.rewrite.expansion import KernelBlock

K, H = 12, 3
BLOCKS = [
    [KernelBlock(5, [(1, 2)])],
    [KernelBlock(2, [(-1, 3)])],
    [KernelBlock(3, [(1, 0), (1, 3)]), KernelBlock(1, [(1, 11)]), KernelBlock(0, [(1, 12)])],
    [KernelBlock(4, [(1, 8)]), KernelBlock(4, [(-1, 4), (1, 2), (-1, 8)])],
]


def attributes(blocks):
    terms = [term for block in blocks for term in block.terms]
    return {
        "counts": [block.rows for block in blocks],
        "terms": [len(block.terms) for block in blocks],
        "starts": [start for _, start in terms],
        "signs": [sign for sign, _ in terms],
    }


def kernel_rows(kernel, blocks=BLOCKS[2], **attrs):
    return _ops.gen.rec_estimator_kernel_rows(kernel, **{**attributes(blocks), **attrs})


def slices(kernel, blocks):
    """Computes the same with TensorFlow's ops."""
    return tf.concat(
        [
            tf.add_n([sign * kernel[start : start + block.rows] for sign, start in block.terms])
            for block in blocks
        ],
        axis=0,
    )


def random_kernel(dtype=np.float32):
    return np.random.uniform(-1, 1, (K, H)).astype(dtype)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_equal_the_oracle(blocks, dtype):
    kernel = random_kernel(dtype)
    fed = tf.placeholder(dtype)
    with tf.Session() as session:
        rows = kernel_rows(fed, blocks)
        got = session.run(rows, {fed: kernel})
    assert rows.shape.as_list() == [sum(block.rows for block in blocks), None]
    np.testing.assert_array_equal(got, oracle.kernel_rows(kernel, blocks))


@pytest.mark.parametrize("blocks", BLOCKS)
def test_the_gradient_equals_that_of_slices(blocks):
    kernel = tf.placeholder(tf.float64, [None, H])
    weights = np.random.uniform(-1, 1, (sum(block.rows for block in blocks), H))
    grads = [
        tf.gradients(tf.reduce_sum(tf.square(make(kernel, blocks)) * weights), kernel)[0]
        for make in (kernel_rows, slices)
    ]
    with tf.Session() as session:
        got, expected = session.run(grads, {kernel: random_kernel(np.float64)})
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)  # Sums of a few numbers below 4.


# Writes to a variable. Each function returns an op that takes the fed tensor.
WRITES = {
    "assign": lambda v, x: v.assign(x),
    "assign_add": lambda v, x: v.assign_add(x),
    "gradient_descent": lambda v, x: tf.train.GradientDescentOptimizer(0.5).apply_gradients(
        [(x, v)]
    ),
    "sparse_gradient_descent": lambda v, x: tf.train.GradientDescentOptimizer(0.5).apply_gradients(
        [(tf.IndexedSlices(x[:2], [1, 5], [K, H]), v)]
    ),
    "adagrad": lambda v, x: tf.train.AdagradOptimizer(0.5).apply_gradients([(x, v)]),
    "scatter_update": lambda v, x: v.scatter_update(tf.IndexedSlices(x[:2], [0, 7])),
    "scatter_nd_add": lambda v, x: v.scatter_nd_add([[3], [4]], x[:2]),
    "slice_assign": lambda v, x: v[2:4].assign(x[:2]),
    "initializer": lambda v, x: v.initializer,
}


@pytest.mark.parametrize("seed", range(6))
def test_kept_rows_follow_every_write_to_the_kernel(seed):
    random = np.random.RandomState(seed)
    # Once used, the last kinds make every read copy the variable, so only some runs include them.
    names = list(WRITES)[: random.randint(1, len(WRITES) + 1)]
    value = tf.get_variable("kernel", initializer=random_kernel(), use_resource=True)
    fed = tf.placeholder(tf.float32, [K, H])
    writes = [WRITES[name](value, fed) for name in names]
    read = value.read_value()
    rows = [kernel_rows(read, blocks, keep=True) for blocks in BLOCKS]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(80):
            for _ in range(random.choice([0, 1, 1, 2])):
                session.run(writes[random.randint(len(writes))], {fed: random_kernel()})
            kernel, got = session.run([read, rows])
            for blocks, block_rows in zip(BLOCKS, got):
                np.testing.assert_array_equal(block_rows, oracle.kernel_rows(kernel, blocks))


def test_kept_rows_match_the_kernel_during_concurrent_writes():
    value = tf.get_variable("kernel", initializer=random_kernel(), use_resource=True)
    read = value.read_value()
    fetches = [read, kernel_rows(read, keep=True)]
    writes = [value.assign_add(tf.ones([K, H])), value.assign(-read)]
    with tf.Session() as session, futures.ThreadPoolExecutor(4) as threads:
        session.run(tf.global_variables_initializer())
        readers, writers = [], []
        for turn in range(100):
            writers.append(threads.submit(session.run, writes[turn % 2]))
            readers += [threads.submit(session.run, fetches) for _ in range(2)]
        for reader in readers:
            kernel, rows = reader.result()
            np.testing.assert_array_equal(rows, oracle.kernel_rows(kernel, BLOCKS[2]))
        for writer in writers:
            writer.result()


def allocations(session, fetch, op):
    """Returns the bytes that an op allocates in a step."""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    session.run(fetch.op, options=options, run_metadata=metadata)
    return sum(
        record.alloc_bytes
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name == op
        for memory in node.memory
        for record in memory.allocation_records
        if record.alloc_bytes > 0
    )


def test_rows_of_an_unchanged_kernel_are_computed_once():
    value = tf.get_variable("kernel", initializer=random_kernel(), use_resource=True)
    kept = kernel_rows(value, keep=True, name="kept")
    made = kernel_rows(value, keep=False, name="made")
    add = value.assign_add(tf.ones([K, H]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [allocations(session, kept, "kept") > 0 for _ in range(3)] == [True, False, False]
        assert all(allocations(session, made, "made") > 0 for _ in range(2))
        for _ in range(2):
            session.run(add)
            assert [allocations(session, kept, "kept") > 0 for _ in range(2)] == [True, False]


def test_a_kernel_that_changes_in_every_step_is_not_kept():
    """A kept kernel would force each training step to copy the variable."""
    value = tf.get_variable("kernel", initializer=random_kernel(), use_resource=True)
    kept = kernel_rows(value, keep=True, name="kept")
    add = value.assign_add(tf.fill([K, H], tf.reduce_sum(kept)))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        copied = [allocations(session, add, add.op.name) > 0 for _ in range(8)]
    assert copied[:2] == [True, True] and copied[-3:] == [False] * 3


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"counts": [3, 1]}, "terms must be of the length of counts, 2,"),
        ({"terms": [2, 1, 2]}, "starts and signs, got length 3 and sum 5 for 4 starts and 4 signs"),
        ({"terms": [4, 0, 0]}, "terms must be >= 1, got 0"),
        ({"signs": [1, 1, 1, 2]}, "signs must be 1 or -1, got 2"),
        (
            {"starts": [0, 10, 11, 12]},
            "blocks must be inside the kernel's 12 rows, got 3 rows from row 10",
        ),
        (
            {"starts": [0, -1, 11, 12]},
            "blocks must be inside the kernel's 12 rows, got 3 rows from row -1",
        ),
    ],
)
def test_invalid_blocks_are_refused(changed, match):
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=match):
        session.run(kernel_rows(tf.placeholder_with_default(random_kernel(), None), **changed))


def test_a_kernel_of_another_rank_is_refused():
    fed = tf.placeholder(tf.float32)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be .K, H., got shape"):
            session.run(kernel_rows(fed), {fed: np.ones([12], np.float32)})
