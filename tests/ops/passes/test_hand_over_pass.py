# SPDX-License-Identifier: Apache-2.0
"""The graph pass that lets the reservation of a step wait for the lookups of its keys.

What they hand over: tests/ops/lookup/test_step_keys.py.
"""

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

LEVELS = tf.OptimizerOptions


def lookups_before_reservation(level):
    """The names of the lookups that TablesReserve waits for by a control edge, in one step."""
    with tf.Graph().as_default():
        table = rec.get_embedding_variable("t", 2)
        trained = rec.embedding_lookup(table, tf.constant([1, 2], tf.int64), name="trained")
        other = rec.embedding_lookup(table, tf.constant([3], tf.int64), name="other")
        train = rec.optimizers.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(trained))
        config = tf.ConfigProto()
        config.graph_options.optimizer_options.opt_level = level
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            metadata = tf.RunMetadata()
            session.run([train, other], None, tf.RunOptions(output_partition_graphs=True), metadata)
    nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
    (reserve,) = [node for node in nodes.values() if node.op == "RecEstimator>TablesReserve"]
    before = [nodes[name[1:]] for name in reserve.input if name.startswith("^")]
    lookups = [node for node in before if node.op == "RecEstimator>TableLookup"]
    return [node.name.split("/")[0] for node in lookups]


@pytest.mark.parametrize("level, expected", [(LEVELS.L1, ["trained"]), (LEVELS.L0, [])])
def test_a_reservation_waits_for_the_lookups_of_its_keys_and_no_others(level, expected):
    assert lookups_before_reservation(level) == expected
