# SPDX-License-Identifier: Apache-2.0
"""Ops that read all tables of a loaded model in every way, before and after other work."""

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator.graph_passes import op_registry


class TableReads:
    """The reads of a session's graph, whose ``run`` returns what they read before and after.

    Each is {shard: {kind of read: array}}.

    Args:
      session: A session with a loaded model.
      keys: int64 [n].
      work: Called between the reads.
    """

    def __init__(self, session, keys, work):
        self._session, self._keys = session, keys
        with session.graph.as_default() as graph:
            handles = [op for op in graph.get_operations() if op.type == op_registry.TABLE_HANDLE]
            before = self._read(handles)
            with tf.control_dependencies(tf.nest.flatten(before)):
                done = tf.py_func(self._without_result(work), [], [])
            with tf.control_dependencies([done]):
                after = self._read(handles)
        self._fetches = before, after

    @staticmethod
    def _without_result(work):
        def run():
            work()
            return []

        return run

    def _read(self, handles):
        return {
            handle.get_attr("shared_name").decode(): {
                "initial": self._lookup(handle, "initial"),
                "default": self._lookup(handle, "default"),
                "owns_row": _ops.gen.rec_estimator_table_contains(handle.outputs[0], self._keys),
                "two to a row": self._combined(handle, "sum", 2),
                "one to a row": self._combined(handle, "mean", 1),
            }
            for handle in handles
        }

    def _lookup(self, handle, unknown):
        return _ops.gen.rec_estimator_table_lookup(
            handle.outputs[0], self._keys, dim=handle.get_attr("dim"), unknown=unknown
        )

    def _combined(self, handle, combiner, keys_per_row):
        n = len(self._keys)
        places = [[i // keys_per_row, i % keys_per_row] for i in range(n)]
        return _ops.gen.rec_estimator_table_group_lookup(
            [handle.outputs[0]],
            [self._keys],
            [tf.constant(places, tf.int64)],
            [tf.constant([n, keys_per_row], tf.int64)],
            dims=[handle.get_attr("dim")],
            combiners=[combiner],
            unknowns=["initial"],
        )

    def run(self):
        """Runs one step."""
        return self._session.run(self._fetches)
