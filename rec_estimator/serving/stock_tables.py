# SPDX-License-Identifier: Apache-2.0
"""Read-only tables and their lookups made of TensorFlow's own ops, for portable SavedModels.

The keys of a read-only table are known, so it needs no growing rows, no counts and no filter. It
consists of a hash table from keys to positions and a variable of rows:

    keys     int64 [n]          rows     [n + bank + 1, dim], of the type of the table
    ┌─────┐                     ┌──────────────────────────────┐
    │  17 │ ── hash table ──▶ 0 │ row of key 17                │
    │ -3  │                   1 │ row of key -3                │
    └─────┘                     ├──────────────────────────────┤
    an unknown key reads      n │ its initial vector, at       │
                                │ n + floormod(key, bank), or  │
                                ├──────────────────────────────┤
                                │ the default of keys that are │
                                │ not admitted                 │
                                └──────────────────────────────┘

Rows of 8 bits have the scale and the offset of each row in a variable ``scales``, float32
[n + bank + 1, 2]. Lookups give float32.

Memory beyond the rows: 8 bytes per key for ``keys``, and 20 to 40 bytes per key for the hash table,
which is built when the model is loaded. It is a flat_hash_map of 17 bytes per slot (key, position,
control byte), and 7/16 to 7/8 of its slots are in use.
"""

import re
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import graphs
from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle
from rec_estimator.checkpoint.format.entries import StoredTensor
from rec_estimator.checkpoint.format.quantized_rows import quantize
from rec_estimator.checkpoint.format.stored_tables import SCALE_OFFSET
from rec_estimator.graph_passes import op_registry
from rec_estimator.serving.stock_ops import STOCK_FORMS

_SEGMENT_OPS = {
    "sum": tf.raw_ops.SparseSegmentSumWithNumSegments,
    "mean": tf.raw_ops.SparseSegmentMeanWithNumSegments,
    "sqrtn": tf.raw_ops.SparseSegmentSqrtNWithNumSegments,
}

# The padding key, in tables that have one. It owns no row and reads the default row.
_PADDING = -1

# The position of a key without a row.
_NOWHERE = -1

# Number of int32 keys that are converted to int64, and of initial vectors that are converted to the
# type of the rows, at once.
_KEYS_AT_ONCE = 1 << 18
_VECTORS_AT_ONCE = 1 << 12


class StockTable:
    """One shard of a table, built of TensorFlow's ops in the default graph.

    Args:
      handle: The op that makes the shard's handle.
      bundle: The checkpoint with the shard's rows.

    Attributes:
      name: Name of the shard.
      initializer: The op that fills the hash table. Run it after the variables are restored.
      variables: The variables that hold the keys and the rows.

    Raises:
      ValueError: The checkpoint does not contain the table.
    """

    def __init__(self, handle: tf.Operation, bundle: Bundle) -> None:
        self.name = tf.compat.as_str(handle.get_attr("shared_name"))
        self._bundle = bundle
        self._keys, self._values, self._bank = _stored(bundle, self.name)
        default = handle.get_attr("default_value")
        self._default_row = np.full([1, handle.get_attr("dim")], default, np.float32)
        self._has_padding = handle.get_attr("has_padding_key")
        (count,) = self._keys.shape
        self._num_initial, dim = self._bank.shape
        # The positions that follow the rows of keys.
        self._first_initial = count
        self._default = count + self._num_initial
        with tf.device("/device:CPU:0"), tf.name_scope(f"{self.name}/stock/"):
            keys = _variable("keys", [count], tf.int64)
            self._rows = _variable("rows", [self._default + 1, dim], self._values.dtype)
            self._scales: Optional[tf.Variable] = None
            if self._values.dtype == tf.uint8:
                self._scales = _variable("scales", [self._default + 1, 2], tf.float32)
            self._index = tf.raw_ops.HashTableV2(
                key_dtype=tf.int64, value_dtype=tf.int64, shared_name=f"{self.name}/stock/index"
            )
            positions = tf.range(count, dtype=tf.int64)
            known = keys.read_value()
            if not count:  # TensorFlow refuses to initialize a hash table without keys.
                known, positions = tf.zeros([1], tf.int64), tf.constant([_NOWHERE], tf.int64)
            self.initializer: tf.Operation = tf.raw_ops.InitializeTableV2(
                table_handle=self._index, keys=known, values=positions
            )
        scales = () if self._scales is None else (self._scales,)
        self.variables = (keys, self._rows, *scales)

    def lookup(self, keys: tf.Tensor, unknown: str) -> tf.Tensor:
        """Reads one row per key. Keys are int64 of any shape; returns float32 [keys.shape, dim]."""
        positions = self._positions(keys, unknown)
        rows = tf.cast(tf.gather(self._rows, positions), tf.float32)
        if self._scales is None:
            return rows
        scale_offset = tf.gather(self._scales, positions)
        return scale_offset[..., 1:] + scale_offset[..., :1] * rows

    def combine(
        self,
        keys: tf.Tensor,
        indices: tf.Tensor,
        dense_shape: tf.Tensor,
        unknown: str,
        combiner: str,
    ) -> tf.Tensor:
        """Combines the rows of the keys of each example; returns float32 [dense_shape[0], dim]."""
        if self._rows.dtype == tf.float32:
            data, positions = self._rows.read_value(), self._positions(keys, unknown)
        else:  # TensorFlow would add numbers of 16 bits.
            data, positions = self.lookup(keys, unknown), tf.range(tf.size(keys))
        return _SEGMENT_OPS[combiner](
            data=data,
            indices=positions,
            segment_ids=indices[:, 0],
            num_segments=dense_shape[0],
        )

    def contains(self, keys: tf.Tensor) -> tf.Tensor:
        """Whether each key owns a row. Keys are int64 of any shape."""
        return tf.not_equal(self._find(keys), _NOWHERE)

    def _find(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.LookupTableFindV2(
            table_handle=self._index, keys=keys, default_value=tf.constant(_NOWHERE, tf.int64)
        )

    def _positions(self, keys: tf.Tensor, unknown: str) -> tf.Tensor:
        positions = self._find(keys)
        other = tf.constant(self._default, tf.int64)
        if unknown == "initial":
            initial = self._first_initial + tf.math.floormod(keys, self._num_initial)
            if self._has_padding:
                initial = tf.where_v2(tf.equal(keys, _PADDING), other, initial)
            other = initial
        return tf.where_v2(tf.equal(positions, _NOWHERE), other, positions)

    def write(self, copy: NewBundle) -> None:
        """Writes the variables into a checkpoint, in parts of bounded size."""
        streams = (self._key_bytes(), self._row_bytes(), self._scale_bytes())
        for variable, chunks in zip(self.variables, streams):
            copy.add_stream(variable.op.name, variable.dtype, variable.shape, chunks)

    def _key_bytes(self) -> Iterator[np.ndarray]:
        for keys in self._bundle.read_rows(self._keys.name, _KEYS_AT_ONCE):
            yield keys.astype(np.int64).view(np.uint8)

    def _row_bytes(self) -> Iterator[np.ndarray]:
        yield from self._stored_bytes(self._values)
        for vectors in self._vectors_without_key():
            if self._scales is None:
                stored = vectors.astype(self._values.dtype.as_numpy_dtype)
            else:
                stored, _ = quantize(vectors)
            yield stored.view(np.uint8).reshape(-1)

    def _scale_bytes(self) -> Iterator[np.ndarray]:
        name = self._values.name[: -len("-values")] + SCALE_OFFSET
        yield from self._stored_bytes(self._bundle.tensors[name])
        for vectors in self._vectors_without_key():
            _, scale_offset = quantize(vectors)
            yield scale_offset.view(np.uint8).reshape(-1)

    def _stored_bytes(self, tensor: StoredTensor) -> Iterator[np.ndarray]:
        for piece in tensor.ranges:
            yield from self._bundle.read(piece)

    def _vectors_without_key(self) -> Iterator[np.ndarray]:
        """float32 [n, dim]. The initial vectors, then what keys read that are not admitted."""
        _, dim = self._bank.shape
        for part in self._bundle.read_rows(self._bank.name, _VECTORS_AT_ONCE * dim):
            yield part.astype(np.float32).reshape(-1, dim)
        yield self._default_row


def replace_ops(
    ops: Sequence[tf.Operation], bundle: Bundle
) -> Tuple[List[StockTable], Dict[str, List[tf.Tensor]]]:
    """Adds TensorFlow's own ops that do the same as some ops of this package.

    Args:
      ops: Ops of the default graph that have a stock form. Those inside control flow are ignored.
      bundle: The checkpoint with the rows.

    Returns:
      The tables, and {name of an op: the tensors that replace its outputs}.

    Raises:
      ValueError: The checkpoint does not have a table.
    """
    outside = [op for op in ops if not graphs.in_control_flow(op)]
    others = [op for op in outside if op.type in STOCK_FORMS]
    reads = [op for op in outside if _handle(op).type == op_registry.TABLE_HANDLE]
    handles = dict.fromkeys(_handle(op) for op in reads)
    tables = {handle: StockTable(handle, bundle) for handle in handles}
    outputs = {}
    for op in others + reads:
        with tf.device(op.device), tf.name_scope(f"{op.name}/stock/"):
            if op.type in STOCK_FORMS:
                outputs[op.name] = STOCK_FORMS[op.type](op)
            else:
                outputs[op.name] = [_looked_up(op, tables[_handle(op)])]
    return list(tables.values()), outputs


def _handle(op: tf.Operation) -> tf.Operation:
    return op.inputs[0].op


def _looked_up(op: tf.Operation, table: StockTable) -> tf.Tensor:
    if op.type == op_registry.TABLE_CONTAINS:
        return table.contains(op.inputs[1])
    if op.type == op_registry.TABLE_LOOKUP:
        return table.lookup(op.inputs[1], tf.compat.as_str(op.get_attr("unknown")))
    _, keys, indices, dense_shape = op.inputs
    unknown, combiner = (tf.compat.as_str(op.get_attr(n)[0]) for n in ("unknowns", "combiners"))
    return table.combine(keys, indices, dense_shape, unknown, combiner)


def _stored(bundle: Bundle, shard: str) -> Tuple[StoredTensor, StoredTensor, StoredTensor]:
    """The keys, values and bank of a shard."""
    # A partitioned table has one bank, which is not stored under the name of a shard.
    for table in (shard, re.sub(r"/part_\d+$", "", shard)):
        keys, values, bank = f"{shard}-keys", f"{shard}-values", f"{table}/default_values"
        if all(name in bundle.tensors for name in (keys, values, bank)):
            return bundle.tensors[keys], bundle.tensors[values], bundle.tensors[bank]
    raise ValueError(
        f"the Saver of a portable SavedModel must save table {shard!r}, got one that leaves it "
        "out; do not set a Saver in the model_fn, and make the table with is_save=True"
    )


def _variable(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """A variable whose value is restored from a checkpoint."""
    return tf.Variable(
        lambda: tf.zeros(shape, dtype), name=name, trainable=False, use_resource=True
    )
