# SPDX-License-Identifier: Apache-2.0
"""What a restore must give: the tables of a checkpoint, read by a second reader, in Python.

It follows docs/checkpoints.md and not the code of the ops: the base comes first, then each delta
erases keys and replaces rows; a filtered key is judged anew; what the file lacks starts fresh.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from fuzz.mutant_checkpoints import read_array

from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.checkpoint.format.quantized_rows import dequantize, quantize

MOST_COUNT = 2**32 - 1  # A table counts no further.


class UnclearError(Exception):
    """The documentation does not say what a restore must give."""


class Contents:
    """The rows and filtered keys of a table.

    Attributes:
      rows: {key: [count, version, value, slot, …]}.
      filtered: {key: [count, version]}; None if a Bloom filter counts them.
      bank: The bytes of the bank of initial vectors.
    """

    def __init__(self, rows, filtered, bank):
        self.rows, self.filtered, self.bank = rows, filtered, bank

    def __eq__(self, other):
        if not isinstance(other, Contents):
            return False
        return (self.rows, self.filtered, self.bank) == (other.rows, other.filtered, other.bank)


def exported(shards, has_bloom):
    """The Contents of a table in a session.

    Args:
      shards: A fetched export of each shard.
      has_bloom: Whether a Bloom filter counts the keys without a row.
    """
    rows, filtered = {}, {}
    for shard in shards:
        columns = [shard.values, *shard.slot_values]
        for i, key in enumerate(shard.keys.tolist()):
            rest = [column[i].tobytes() for column in columns]
            rows[key] = [int(shard.freqs[i]), int(shard.versions[i]), *rest]
        for i, key in enumerate(shard.keys_filtered.tolist()):
            filtered[key] = [int(shard.freqs_filtered[i]), int(shard.versions_filtered[i])]
    return Contents(rows, None if has_bloom else filtered, shards[0].bank.tobytes())


def stored(prefix, table, threshold, slots, initial_bank, has_bloom, dtypes):
    """The Contents that a restore of a table must give.

    Args:
      prefix: Prefix of the checkpoint.
      table: Name of the table.
      threshold: Occurrences that admit a key; 0 admits all.
      slots: [(name, initial vector of the slot, float32 [width])].
      initial_bank: float32 [n, dim], where the checkpoint has no bank.
      has_bloom: As in exported().
      dtypes: The tf.DTypes of values and slots in the table. tf.uint8: rows of 8 bits.

    Raises:
      UnclearError: Any contents are as good as others.
    """
    reader = _Reader(table, threshold, slots, dtypes)
    indexes = [Index(prefix)]
    while reader.parent_of(indexes[-1]) is not None:
        parent = os.path.join(os.path.dirname(prefix), reader.parent_of(indexes[-1]))
        indexes.append(Index(parent))
    banks = (read_array(index, f"{table}/default_values") for index in indexes)
    reader.bank = reader.as_stored(next((b for b in banks if b is not None), initial_bank))
    for index in reversed(indexes):
        reader.read(index)
    return Contents(reader.rows, None if has_bloom else reader.filtered, reader.bank.tobytes())


class _Reader:
    """Applies a base and its deltas, one after the other."""

    def __init__(self, table, threshold, slots, dtypes):
        self._table, self._threshold, self._slots = table, threshold, slots
        self._value_dtype, self._slot_dtype = dtypes
        self.bank = None
        self.rows, self.filtered = {}, {}

    def parent_of(self, index):
        name = f"{self._shards(index)[0]}-delta_of"
        return (index.read_string(name) or None) if name in index.names else None

    def as_stored(self, rows):
        """Rows after they were stored in the table."""
        if self._value_dtype != tf.uint8:
            return _nearest(rows, self._value_dtype)
        _require_finite(rows)
        return dequantize(*quantize(rows))

    def read(self, index):
        for shard in self._shards(index):
            erased = read_array(index, f"{shard}-keys_erased")
            if self.parent_of(index) is not None and erased is not None:
                for key in erased.tolist():
                    self.rows.pop(key, None)
                    self.filtered.pop(key, None)
            self._read_rows(index, shard)
            self._read_filtered(index, shard)

    def _shards(self, index):
        if f"{self._table}-keys" in index.names:
            return [self._table]
        names = [f"{self._table}/part_{i}" for i in range(1000)]
        return [name for name in names if f"{name}-keys" in index.names]

    def _read_rows(self, index, shard):
        keys = read_array(index, f"{shard}-keys").tolist()
        values = self.as_stored(self._values(index, shard))
        counts = self._per_key(index, f"{shard}-freqs", len(keys), max(1, self._threshold))
        versions = self._per_key(index, f"{shard}-versions", len(keys), -1)
        fresh = [initial.tobytes() for _, initial in self._slots]
        for i, key in enumerate(keys):
            self.filtered.pop(key, None)
            self.rows[key] = [_clamp(counts[i]), versions[i], values[i].tobytes(), *fresh]
        for number, (name, _) in enumerate(self._slots):
            slot_keys = read_array(index, f"{shard}/{name}-keys")
            if slot_keys is None:
                continue
            if len(set(slot_keys.tolist())) < len(slot_keys):
                raise UnclearError
            slot_values = read_array(index, f"{shard}/{name}-values")
            is_row = slot_values.ndim > 1 and slot_values.shape[1] == 1
            slot_values = _nearest(slot_values, tf.float32 if is_row else self._slot_dtype)
            for i, key in enumerate(slot_keys.tolist()):
                if key in self.rows:
                    self.rows[key][3 + number] = slot_values[i].tobytes()

    def _values(self, index, shard):
        values = read_array(index, f"{shard}-values")
        if values.dtype != np.uint8:
            return values
        with np.errstate(all="ignore"):
            values = dequantize(values, read_array(index, f"{shard}-scale_offset"))
        _require_finite(values)
        return values

    def _read_filtered(self, index, shard):
        keys = read_array(index, f"{shard}-keys_filtered")
        if keys is None:
            return
        counts = self._per_key(index, f"{shard}-freqs_filtered", len(keys), 0)
        versions = self._per_key(index, f"{shard}-versions_filtered", len(keys), -1)
        fresh = [initial.tobytes() for _, initial in self._slots]
        for key, count, version in zip(keys.tolist(), map(_clamp, counts), versions):
            if key in self.rows:
                self.rows[key][:2] = [count, version]
            elif count >= self._threshold:
                self.filtered.pop(key, None)
                vector = self.bank[key % len(self.bank)].tobytes()
                self.rows[key] = [count, version, vector, *fresh]
            else:
                self.filtered[key] = [count, version]

    def _per_key(self, index, name, size, default):
        array = read_array(index, name)
        return [default] * size if array is None or not len(array) else array.tolist()


def _require_finite(rows):
    if not np.isfinite(rows).all():
        raise UnclearError  # NaNs have many bits.


def _nearest(numbers, dtype):
    """float32. Numbers of a file as a table of a type stores them."""
    if numbers.dtype.name not in ("float32", "float16", "bfloat16"):
        return numbers  # No table takes them.
    if numbers.dtype == dtype.as_numpy_dtype == np.float32:
        return numbers
    if np.isnan(numbers).any():
        raise UnclearError  # NaNs have many bits.
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(dtype.as_numpy_dtype).astype(np.float32)


def _clamp(count):
    return min(max(count, 0), MOST_COUNT)
