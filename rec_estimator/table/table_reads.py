# SPDX-License-Identifier: Apache-2.0
"""Reads of a whole table besides lookups: its number of rows, its counts, all rows."""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, TypeVar

import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.table import saveable
from rec_estimator.table.disk_storage import TierCounts
from rec_estimator.table.shard import KEY_CLASSES, TableShard

_Read = TypeVar("_Read")


class TableExport(NamedTuple):
    """The rows of a table, ordered by floormod(key, 1000) and then by key."""

    keys: tf.Tensor  # int64 [n]
    values: tf.Tensor  # float32 [n, dim]
    versions: tf.Tensor  # int64 [n]
    freqs: tf.Tensor  # int64 [n]


class TableReads:
    """Builds the reads of a table, each once in a graph.

    Otherwise a script that calls size() in every step would add ops in every step, and could not
    call it in a finalized graph. EmbeddingTable documents what the methods return.

    Args:
      table_name: The name of the table, for messages.
      shards: Its shards.
    """

    def __init__(self, table_name: str, shards: Sequence[TableShard]) -> None:
        self._table_name = table_name
        self._shards = shards
        self._built: Dict[Tuple[str, Any], Any] = {}

    def sum_of_stat(self, output: str) -> tf.Tensor:
        """int64 []. The sum of an output of TableStats over all shards."""
        return self._once(
            output, lambda: tf.add_n([getattr(stats, output) for stats in self._stats()])
        )

    def dynamic_shape(self, parts: Sequence[int]) -> tf.Tensor:
        """int32 [2]. The number of keys in some shards, and dim."""

        def build() -> tf.Tensor:
            stats = self._stats()
            count = tf.add_n([stats[part].total_count for part in parts])
            dim = tf.constant(self._shards[0].dim, tf.int32)
            return tf.stack([tf.saturate_cast(count, tf.int32), dim])

        return self._once(f"dynamic shape of parts {list(parts)}", build)

    def tier_counts(self) -> TierCounts:
        """TierCounts of int64 [], summed over all shards."""

        def build() -> TierCounts:
            counts = self._of_shards(_ops.gen.rec_estimator_table_tier_counts)
            return TierCounts(*tf.unstack(tf.add_n(counts)))

        return self._once("tier counts", build)

    def export(self) -> TableExport:
        """All rows, one shard after the other."""

        def build() -> TableExport:
            parts = []
            for shard in self._shards:
                with graphs.colocate_with(shard.handle):
                    parts.append(saveable.export_shard(shard, slots=()))
            return TableExport(
                *(
                    tf.concat([getattr(part, field) for part in parts], axis=0)
                    for field in TableExport._fields
                )
            )

        return self._once("export", build)

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        """int64, the shape of keys, which are int64. How often each key was trained."""
        # After a restore into more shards, the filter of each shard may count keys of the others.
        owner = tf.math.floormod(tf.math.floormod(keys, KEY_CLASSES), len(self._shards))
        counts = []
        for part, shard in enumerate(self._shards):
            with graphs.colocate_with(shard.handle):
                found = _ops.gen.rec_estimator_table_frequencies(shard.handle, keys)
                counts.append(tf.where_v2(tf.equal(owner, part), found, tf.zeros_like(found)))
        return tf.add_n(counts)

    def versions(self, keys: tf.Tensor) -> tf.Tensor:
        """int64, the shape of keys, which are int64. The step at which each was last trained."""
        versions = self._of_shards(_ops.gen.rec_estimator_table_versions, keys)
        return tf.reduce_max(tf.stack(versions), axis=0)

    def _of_shards(self, op: Callable[..., Any], *inputs: tf.Tensor) -> List[Any]:
        """The outputs of an op for each shard."""
        outputs = []
        for shard in self._shards:
            with graphs.colocate_with(shard.handle):
                outputs.append(op(shard.handle, *inputs))
        return outputs

    def _stats(self) -> List[Any]:
        """The outputs of TableStats, for each shard."""
        return self._once("stats", lambda: self._of_shards(_ops.gen.rec_estimator_table_stats))

    def _once(self, what: str, build: Callable[[], _Read]) -> _Read:
        """Builds a read, or returns the one that the graph already has.

        A read that waits for other ops is not one that does not, so the read is the same only under
        the same control dependencies and in the same branch or loop. The body of a function is
        traced once and gets reads of its own.
        """
        graph, own_graph = tf.get_default_graph(), self._shards[0].graph
        if graphs.outermost_graph(graph) is not own_graph:
            with own_graph.as_default():
                return self._once(what, build)
        if graph is not own_graph:
            return build()
        key = (what, graphs.place_of_new_ops(graph))
        if key not in self._built:
            if graph.finalized:
                raise RuntimeError(
                    f"the graph is finalized without the {what} of table {self._table_name!r}; "
                    "call the method once before the session begins"
                )
            self._built[key] = build()
        return self._built[key]
