# SPDX-License-Identifier: Apache-2.0
"""A clock for TimeEvict that a test sets."""

import tensorflow.compat.v1 as tf

from rec_estimator.table import table_time

NOW = 1_700_000_000
DAY = 86_400


class FakeClock:
    """A clock that each graph reads through a feed."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(table_time, "wall_clock", lambda: self.now)

    @property
    def now(self):
        graph = tf.get_default_graph()
        if "now" in {op.name for op in graph.get_operations()}:
            return graph.get_tensor_by_name("now:0")
        with tf.name_scope(None), tf.control_dependencies(None):
            return tf.placeholder_with_default(tf.constant(NOW, tf.int64), [], name="now")
