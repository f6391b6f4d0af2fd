# SPDX-License-Identifier: Apache-2.0
"""Reads of an optimizer slot of a table: what ``Optimizer.get_slot()`` returns for a table."""

from typing import Any, NamedTuple, NoReturn, Sequence

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import dispatch, graphs
from rec_estimator.table.interfaces import SlotSpec
from rec_estimator.table.saveable import export_shard
from rec_estimator.table.shard import TableShard, as_keys


class SlotExport(NamedTuple):
    """A slot of all rows, in the order of ``EmbeddingTable.export()``."""

    keys: tf.Tensor  # int64 [n]
    values: tf.Tensor  # float32 [n, width]


class SlotRows:
    """An optimizer slot of a table, in all of its rows.

    It is not a variable: a slot is stored with the row of its key. Both methods copy all rows, so
    they are for inspection and tests rather than for every step.

    Attributes:
      name: Name of the slot in a checkpoint, such as "user/Adam_1".
      width: Floats per row: the dim of the table, or 1 for a rule that has one number per row.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> optimizer = rec.optimizers.AdamOptimizer(0.001)
      >>> train_op = optimizer.minimize(tf.reduce_sum(rec.embedding_lookup(table, [7, 9])))
      >>> moments = optimizer.get_slot(table, "v")
      >>> moments.name, moments.lookup([7, 9]).shape.as_list()
      ('user/Adam_1', [2, 4])
    """

    def __init__(self, name: str, shards: Sequence[TableShard], spec: SlotSpec) -> None:
        self.name = f"{name}/{spec.name}"
        self.width = spec.width
        self._shards = shards
        self._spec = spec

    def export(self) -> SlotExport:
        """Reads the slot of all rows, one shard after the other."""
        parts = []
        for shard in self._shards:
            with graphs.colocate_with(shard.handle):
                parts.append(export_shard(shard, slots=[self._spec]))
        return SlotExport(
            tf.concat([part.keys for part in parts], axis=0),
            tf.concat([part.slot_values[0] for part in parts], axis=0),
        )

    def lookup(self, keys: Any) -> tf.Tensor:
        """Reads the slot of some keys.

        Args:
          keys: int64 or int32, any shape.

        Returns:
          float32 [keys.shape, width]. A key without a row reads the slot's initial value.
        """
        keys = as_keys(self._shards[0].table, keys, "keys")
        stored, values = self.export()
        count = tf.size(stored)
        order = tf.argsort(stored)
        sorted_keys = tf.gather(stored, order)
        # The place of each key among the sorted ones; `count` for a key beyond the last.
        place = tf.reshape(tf.searchsorted(sorted_keys, tf.reshape(keys, [-1])), tf.shape(keys))
        # Row `count` has the initial value. It stands at the end of both lists.
        found = tf.gather(tf.concat([sorted_keys, [0]], axis=0), place)
        row = tf.gather(tf.concat([order, [count]], axis=0), place)
        initial = tf.fill([1, self.width], self._spec.initial)
        rows = tf.concat([values, initial], axis=0)
        return tf.gather(rows, tf.where_v2(tf.equal(found, keys), row, count))

    def __repr__(self) -> str:
        return f"<rec_estimator.SlotRows {self.name!r} width={self.width}>"


def _conversion_error(slot: SlotRows) -> TypeError:
    return TypeError(
        f"slot {slot.name!r} of a table cannot be converted to a tensor; read it with lookup(keys) "
        "or export()"
    )


def _refuse_conversion(
    value: SlotRows, dtype: Any = None, name: Any = None, as_ref: bool = False
) -> NoReturn:
    del dtype, name, as_ref
    raise _conversion_error(value)


tf.register_tensor_conversion_function(SlotRows, _refuse_conversion)
dispatch.explain_failed_calls((SlotRows,), _conversion_error)
