# SPDX-License-Identifier: Apache-2.0
"""Compressed against uncompressed outputs, over random graphs and requests."""

import numpy as np
import pytest
import random_graphs
import tensorflow.compat.v1 as tf
from tf_behavior import control_flow

from rec_estimator import sample_compression

# Graphs in all: in CI, in parts of 50, and before a release (some hours on two cores).
CI, PART, SLOW = 500, 50, 10_000

_NO_GRAPPLER = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
_NO_GRAPPLER.graph_options.rewrite_options.disable_meta_optimizer = True


def run_both(seed, exact, stock_ops=False):
    """Outputs of a graph before the pass, on repeated rows, and after it, on users' rows."""
    with tf.Graph().as_default():
        enable = sample_compression.enable_sample_awared_graph_compression
        users, items, item_size, kinds, tensors = random_graphs.build(
            seed, lambda *inputs: enable(*inputs, exact=exact)
        )
        if stock_ops:
            sample_compression.use_stock_ops()
        of_users, of_items, sizes = random_graphs.values(seed, users, items)
        feed = dict(zip(items, of_items))
        row = np.repeat(np.arange(len(sizes)), sizes)
        with tf.Session(config=_NO_GRAPPLER) as session:
            repeated = {tensor: value[row] for tensor, value in zip(users, of_users)}
            expected = session.run(tensors, {**feed, **repeated})
        compressed = sample_compression.compress(tensors)
        if stock_ops:
            ops = tf.get_default_graph().get_operations()
            assert not [op.name for op in ops if op.type.startswith("RecEstimator>")]
        feed[item_size] = sizes
        with tf.Session(config=_NO_GRAPPLER) as session:
            got = session.run(compressed, {**feed, **dict(zip(users, of_users))})
    return kinds, expected, got


def check(seed, exact, stock_ops=False):
    # Control flow v1 builds other graphs.
    with control_flow(1 if seed % 3 == 0 else 2):
        kinds, expected, got = run_both(seed, exact, stock_ops)
    names = ["input"] * (len(expected) - len(kinds)) + kinds
    for name, wanted, value in zip(names, expected, got):
        what = f"{name} of graph {seed} {kinds}"
        assert wanted.shape == value.shape, what
        largest = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-9 * largest, err_msg=what)
    return kinds


@pytest.mark.long
@pytest.mark.parametrize("first", range(10**4, 10**4 + CI, PART))
def test_outputs_of_random_graphs_stay_the_same(first):
    used = set()
    for seed in range(first, first + PART):
        used.update(check(seed, exact=bool(seed % 2)))
    assert len(used) >= 60


@pytest.mark.long
def test_random_graphs_stay_the_same_by_stock_ops_alone():
    for seed in range(5000, 5010):
        check(seed, exact=False, stock_ops=True)


@pytest.mark.slow
def test_outputs_of_ten_thousand_random_graphs_stay_the_same():
    for seed in range(10**5, 10**5 + SLOW):
        check(seed, exact=False)
