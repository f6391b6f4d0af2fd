# SPDX-License-Identifier: Apache-2.0
"""CheckpointTable: the rows of a table in a checkpoint as NumPy arrays, without a session."""

import importlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from rec_estimator.checkpoint import deltas
from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.checkpoint.format.stored_tables import StoredTable, find_tables, values_of

# Elements of a tensor that are read at once.
_ELEMENTS = 1 << 20
_ROWS = 1 << 15


class Neighbour(NamedTuple):
    """A key and how similar its vector is."""

    key: int
    cosine: float


class CheckpointTable:
    """The rows of a table in a checkpoint, in memory, in ascending order of keys.

    ``RecEstimator.table`` returns it. Of a delta it holds the rows that a restore of the delta
    gives.

    Args:
      prefix: Prefix of a checkpoint, full or not.
      name: Name of the table.

    Attributes:
      name: Name of the table.
      keys: int64 [n].
      values: float32 [n, dim].
      freqs: int64 [n]. How often each key was trained; None: the checkpoint did not record it.
      versions: int64 [n]. The global step of each key's last training, -1: none; None: as freqs.

    Raises:
      ValueError: The checkpoint has no table of this name.
      FileNotFoundError: There is no such checkpoint.
      tf.errors.NotFoundError: The checkpoint is a delta, and a parent is missing.
      tf.errors.DataLossError: The checkpoint is damaged.

    Example:
      >>> table = rec.get_embedding_variable("user", 2, initializer=tf.ones_initializer())
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> train_op = rec.optimizers.GradientDescentOptimizer(0.5).minimize(loss)
      >>> with tf.Session() as session:
      ...     session.run(tf.global_variables_initializer())
      ...     session.run(train_op)
      ...     prefix = rec.Saver([table]).save(session, "./model.ckpt")
      >>> stored = CheckpointTable(prefix, "user")
      >>> stored.keys, stored.rows([9]), 8 in stored
      (array([7, 9]), array([[0.5, 0.5]], dtype=float32), False)
    """

    def __init__(self, prefix: str, name: str) -> None:
        parts = [_read(bundle, name) for bundle in deltas.bundles_of(prefix)]
        rows = parts[0]
        for delta in parts[1:]:
            rows = rows.changed_by(delta)
        order = np.argsort(rows.keys, kind="stable")
        self.name = name
        self.keys = rows.keys[order]
        self.values = rows.values[order]
        self.freqs, self.versions = (
            None if column is None else column[order] for column in (rows.freqs, rows.versions)
        )

    @property
    def dim(self) -> int:
        """Number of floats in a vector."""
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: int) -> bool:
        return bool(self._places(np.asarray([key], np.int64))[1][0])

    def rows(self, keys: Sequence[int]) -> np.ndarray:
        """The vectors of keys.

        Args:
          keys: Integers [k].

        Returns:
          float32 [k, dim].

        Raises:
          KeyError: A key has no row.
        """
        return self.values[self._found(keys)]

    def norms(self) -> np.ndarray:
        """float32 [n]. The L2 norm of each vector."""
        return np.sqrt(np.einsum("nd,nd->n", self.values, self.values))

    def nearest(self, key: int, k: int = 10) -> List[Neighbour]:
        """The keys whose vectors have the greatest cosines with that of a key.

        Args:
          key: A key with a row. It is not among the result.
          k: How many keys, at least 1. A table with fewer rows gives all of them.

        Returns:
          The keys in descending order of their cosines, of equal ones the least key first. A vector
          of zeros has the cosine 0.

        Raises:
          KeyError: The key has no row.
          ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}; the default is 10")
        place = int(self._found([key])[0])
        norms = self.norms()
        scale = norms * norms[place]
        cosines = np.divide(
            self.values @ self.values[place], scale, out=np.zeros_like(norms), where=scale > 0
        )
        cosines[place] = -np.inf
        most = min(k, len(self) - 1)
        # The least of the greatest cosines decides, so that equal ones are cut by key.
        order = np.lexsort((self.keys, -cosines))[:most]
        return [Neighbour(int(self.keys[at]), float(cosines[at])) for at in order]

    def frame(self, keys: Optional[Sequence[int]] = None) -> Any:
        """The rows as a pandas frame, whose index is the key.

        Args:
          keys: Integers [k]. None: all rows.

        Returns:
          A pandas.DataFrame with the columns frequency and version, if the checkpoint has them,
          norm, and one column for each float of the vector, named by its number.

        Raises:
          ImportError: pandas is not installed.
          KeyError: A key has no row.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError(
                "frame() needs pandas, which is not installed; pip install pandas, or use the "
                "arrays keys, values, freqs and versions"
            ) from None
        at: Any = slice(None) if keys is None else self._found(keys)
        columns = {"frequency": self.freqs, "version": self.versions, "norm": self.norms()}
        frame = pandas.DataFrame(
            {name: column[at] for name, column in columns.items() if column is not None},
            index=pandas.Index(self.keys[at], name="key"),
        )
        return frame.join(pandas.DataFrame(self.values[at], index=frame.index))

    def _found(self, keys: Sequence[int]) -> np.ndarray:
        """The places of keys, which have rows."""
        asked = np.asarray(keys, np.int64)
        places, found = self._places(asked)
        if not found.all():
            raise KeyError(
                f"keys must have rows in table {self.name!r}, got {int(asked[~found][0])}, which "
                "has none; test a key with `key in table`"
            )
        return places

    def _places(self, keys: np.ndarray) -> Any:
        """The places of keys, and whether each key is there."""
        places = np.minimum(np.searchsorted(self.keys, keys), max(len(self) - 1, 0))
        if not len(self):
            return places, np.zeros(keys.shape, bool)
        return places, self.keys[places] == keys

    def __repr__(self) -> str:
        rows, dim = self.values.shape
        return f"<rec_estimator.CheckpointTable {self.name!r} rows={rows} dim={dim}>"


class _Rows(NamedTuple):
    """What one checkpoint has of a table."""

    keys: np.ndarray  # int64 [n]
    values: np.ndarray  # float32 [n, dim]
    freqs: Optional[np.ndarray]  # int64 [n]
    versions: Optional[np.ndarray]  # int64 [n]
    erased: np.ndarray  # int64 [e]

    def changed_by(self, delta: "_Rows") -> "_Rows":
        """The rows after a delta."""
        kept = ~np.isin(self.keys, np.concatenate([delta.erased, delta.keys]))

        def joined(
            before: Optional[np.ndarray], after: Optional[np.ndarray]
        ) -> Optional[np.ndarray]:
            if before is None or after is None:
                return None
            return np.concatenate([before[kept], after])

        return _Rows(
            np.concatenate([self.keys[kept], delta.keys]),
            np.concatenate([self.values[kept], delta.values]),
            joined(self.freqs, delta.freqs),
            joined(self.versions, delta.versions),
            delta.erased,
        )


def _read(bundle: Bundle, name: str) -> _Rows:
    bundle.check_files()
    tables = find_tables(bundle)
    if name not in tables:
        raise ValueError(
            f"name must be a table of {bundle.prefix}, got {name!r}; it has "
            f"{', '.join(map(repr, tables)) or 'no tables'}"
        )
    table = tables[name]
    keys = _column(bundle, table, "-keys", np.int64)
    values = [part for name in table.shards for part in values_of(bundle, name, _ROWS)]
    freqs, versions = (
        _column(bundle, table, suffix, np.int64) for suffix in ("-freqs", "-versions")
    )
    return _Rows(
        keys,
        np.concatenate(values) if values else np.zeros([0, table.dim], np.float32),
        freqs if len(freqs) == len(keys) else None,
        versions if len(versions) == len(keys) else None,
        _column(bundle, table, "-keys_erased", np.int64),
    )


def _column(bundle: Bundle, table: StoredTable, suffix: str, dtype: Any) -> np.ndarray:
    """The elements of a tensor of all shards, one shard after the other."""
    names: Dict[str, None] = dict.fromkeys(f"{shard}{suffix}" for shard in table.shards)
    parts = [
        part.astype(dtype)
        for name in names
        if name in bundle.tensors
        for part in bundle.read_rows(name, _ELEMENTS)
    ]
    return np.concatenate(parts) if parts else np.zeros([0], dtype)
