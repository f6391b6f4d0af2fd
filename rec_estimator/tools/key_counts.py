# SPDX-License-Identifier: Apache-2.0
"""How often keys occur: in a stream, counted in bounded memory, and in a checkpoint."""

import os
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.stored_tables import (
    SCALE_OFFSET,
    StoredTable,
    find_tables,
)

# Counts of a checkpoint in memory at once.
_ROWS = 1 << 15


class Frequencies(NamedTuple):
    """How many keys have each frequency.

    Attributes:
      frequencies: int64 [n], ascending and distinct.
      keys: int64 [n]. The number of keys that occurred so often.
    """

    frequencies: np.ndarray
    keys: np.ndarray

    @property
    def occurrences(self) -> int:
        """Occurrences of all keys."""
        return int(np.sum(self.frequencies * self.keys))

    def merged(self, frequencies: np.ndarray, keys: np.ndarray) -> "Frequencies":
        """Returns these with more keys; ``frequencies`` may be in any order."""
        return Frequencies(
            *_summed(
                np.concatenate([self.frequencies, frequencies]), np.concatenate([self.keys, keys])
            )
        )


NONE = Frequencies(np.zeros(0, np.int64), np.zeros(0, np.int64))


class KeyCounter:
    """Counts the keys of a stream, in memory for ``capacity`` keys.

    Up to ``capacity`` distinct keys, all numbers are exact. Beyond, the counter keeps the keys
    whose hash begins with some zero bits, with their exact counts, and multiplies their number
    (Flajolet, "On adaptive sampling", Computing 43, 1990). The standard error of a number of keys
    of which k are kept is about 1/√k of it.

    Args:
      capacity: The most distinct keys in memory, about 50 bytes each while a batch is added.

    Example:
      >>> counter = KeyCounter()
      >>> counter.add(np.array([7, 9], np.uint64), np.array([3, 1]))
      >>> counter.add(np.array([7], np.uint64), np.array([1]))
      >>> counter.frequencies().frequencies.tolist(), counter.occurrences
      ([1, 4], 5)
    """

    def __init__(self, capacity: int = 1 << 21) -> None:
        self.occurrences = 0
        self._capacity = capacity
        self._zeros = 0  # Leading zero bits of the hashes that are kept.
        self._hashes = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._growth: List[Tuple[int, int]] = []  # (occurrences, keys) after each batch.

    @property
    def keys(self) -> int:
        """The number of distinct keys."""
        return len(self._hashes) << self._zeros

    def add(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        """Adds a batch.

        Args:
          hashes: uint64 [n]. A uniform hash of each key.
          counts: int64 [n]. Its occurrences in the batch.
        """
        self.occurrences += int(np.sum(counts))
        kept = self._is_kept(hashes)
        self._hashes, self._counts = _summed(
            np.concatenate([self._hashes, hashes[kept]]),
            np.concatenate([self._counts, counts[kept]]),
        )
        while len(self._hashes) > self._capacity:
            self._zeros += 1
            kept = self._is_kept(self._hashes)
            self._hashes, self._counts = self._hashes[kept], self._counts[kept]
        self._growth.append((self.occurrences, self.keys))

    def frequencies(self) -> Frequencies:
        """Returns how many keys have each frequency."""
        frequencies, keys = np.unique(self._counts, return_counts=True)
        return Frequencies(frequencies, keys.astype(np.int64) << self._zeros)

    def keys_after(self, occurrences: int) -> int:
        """Extrapolates the number of distinct keys of a longer stream.

        It grows as a power of the length (Heaps' law). The exponent is that of the second half.

        Args:
          occurrences: The length of the longer stream.

        Returns:
          The number of keys; at most that of the stream so far and one for each further occurrence.
        """
        if not self.keys or occurrences <= self.occurrences:
            return self.keys
        half, keys = min(self._growth, key=lambda pair: abs(pair[0] - self.occurrences / 2))
        # With one batch there is no half: each occurrence then is taken for a new key.
        power = 1.0
        if half < self.occurrences and keys:
            power = np.log(self.keys / keys) / np.log(self.occurrences / half)
        grown = self.keys * (occurrences / self.occurrences) ** min(max(power, 0.0), 1.0)
        return min(round(grown), self.keys + occurrences - self.occurrences)

    def _is_kept(self, hashes: np.ndarray) -> np.ndarray:
        if not self._zeros:
            return np.ones(len(hashes), bool)
        return hashes >> np.uint64(64 - self._zeros) == 0


def stored_tables(prefix: str, name: Optional[str]) -> Tuple[Bundle, List[StoredTable]]:
    """Opens a checkpoint, or the latest one of a folder, and finds its tables.

    Args:
      prefix: The checkpoint or the folder.
      name: The table to find. None: all.

    Raises:
      ValueError: The checkpoint has no such table.
      OSError, tf.errors.OpError: The checkpoint cannot be read.
    """
    if os.path.isdir(prefix) and not os.path.exists(prefix + ".index"):
        prefix = tf.train.latest_checkpoint(prefix) or prefix
    bundle = Bundle(prefix)
    bundle.check_files()
    tables = find_tables(bundle)
    if name is not None and name not in tables:
        raise ValueError(f"--table must be one of {list(tables)}, got {name!r}")
    return bundle, [table for table in tables.values() if name in (None, table.name)]


def stored_frequencies(
    bundle: Bundle, table: StoredTable, suffixes: Sequence[str] = ("-freqs",)
) -> Frequencies:
    """Reads how often the keys of a table occurred.

    Args:
      bundle: The checkpoint.
      table: One of ``find_tables(bundle)``.
      suffixes: The tensors with counts, of which a shard may lack some.

    Returns:
      The frequencies of all shards.
    """
    found = NONE
    for shard in table.shards:
        for name in (shard + suffix for suffix in suffixes):
            if name in bundle.tensors:
                for some in bundle.read_rows(name, _ROWS):
                    found = found.merged(some, np.ones(len(some), np.int64))
    return found


def row_bytes(bundle: Bundle, table: StoredTable) -> int:
    """Returns the bytes of the value and the slots of a row."""
    names = [table.shards[0], *(shards[0] for shards in table.slots.values())]
    tensors = (bundle.tensors[f"{name}-values"] for name in names)
    sizes = (width * tensor.dtype.size for tensor in tensors for _, width in [tensor.shape])
    # Each part of a row fills whole words of 4 bytes.
    scales = 8 if f"{table.shards[0]}{SCALE_OFFSET}" in bundle.tensors else 0
    return scales + sum(-(-size // 4) * 4 for size in sizes)


def _summed(keys: np.ndarray, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns (the distinct keys, ascending; for each, the sum of its int64 numbers)."""
    distinct, place = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, place, numbers)
    return distinct, sums
