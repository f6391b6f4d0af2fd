# SPDX-License-Identifier: Apache-2.0
"""Reads files of keys and vectors that other programs have made.

    vectors.npy      float [n, dim], beside vectors.keys.npy, integers or strings [n]
    vectors.parquet  the columns "key", integers or strings, and "vector", lists of numbers
    vectors.txt      word2vec's text format, also as .vec: a word and its numbers in each line

Strings are hashed to keys as EmbeddingFeature does. Source of the text format: word2vec's
``-binary 0`` (Mikolov et al., 2013); GloVe and fastText write it, too, without and with its header.
"""

import itertools
import os
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.inputs.parquet_columns import open_parquet

_REMEDY = "docs/exporting_embeddings.md describes the formats"

# word2vec's first line: the number of vectors and their length.
_HEADER = re.compile(rb"(\d+)\s+(\d+)")


class Vectors(NamedTuple):
    """Distinct keys and their finite vectors.

    Attributes:
      keys: int64 [n].
      rows: float32 [n, dim].
    """

    keys: np.ndarray
    rows: np.ndarray


def read_vectors(path: str, integer_keys: bool = False) -> Vectors:
    r"""Reads a file of keys and vectors into memory.

    Args:
      path: A file whose name ends in .npy, .parquet, .txt or .vec.
      integer_keys: Whether strings are decimal numbers, which are the keys. False: strings are
        hashed. Integers are keys in any case.

    Raises:
      OSError: A file cannot be read.
      ValueError: A file is not of its format or has no vectors, a key is given twice, or a value is
        not finite in float32.
      ModuleNotFoundError: pyarrow, which Parquet needs, is not installed.

    Example:
      >>> with open("words.txt", "w") as file:
      ...     _ = file.write("2 3\nred 1 0 0\nblue 0 0.5 1\n")
      >>> read_vectors("words.txt").rows.tolist()
      [[1.0, 0.0, 0.0], [0.0, 0.5, 1.0]]
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in _READERS:
        raise ValueError(f"path must end in {', '.join(_READERS)}, got {path!r}; {_REMEDY}")
    with np.errstate(over="ignore"):  # _check names what is beyond float32.
        names, rows = _READERS[ending](path)
        rows = rows.astype(np.float32, copy=False)
    if rows.ndim != 2 or names.shape != rows.shape[:1]:
        raise ValueError(
            f"{path} must have one vector for each key, all of one length, got keys of shape "
            f"{names.shape} and vectors of shape {rows.shape}; {_REMEDY}"
        )
    if not len(names):
        raise ValueError(f"{path} must have at least one vector, got none; {_REMEDY}")
    vectors = Vectors(_keys_of(path, names, integer_keys), rows)
    _check(path, vectors, names)
    return vectors


def hash_strings(strings: np.ndarray) -> np.ndarray:
    """The keys of strings, as EmbeddingFeature hashes them.

    Args:
      strings: Strings or bytes [n].

    Returns:
      int64 [n].
    """
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.placeholder(tf.string, [None])
        keys = tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
        return session.run(keys, {values: strings.astype(object)})


def _check(path: str, vectors: Vectors, names: np.ndarray) -> None:
    order = np.argsort(vectors.keys, kind="stable")
    repeated = np.flatnonzero(np.diff(vectors.keys[order]) == 0)
    if len(repeated):
        pair = names[order[repeated[0] : repeated[0] + 2]].tolist()
        raise ValueError(
            f"{path} must have each key once, got the same key for {pair[0]!r} and {pair[1]!r}; "
            "keep one of them"
        )
    broken = np.flatnonzero(~np.isfinite(vectors.rows).all(axis=1))
    if len(broken):
        raise ValueError(
            f"{path} must have vectors that are finite in float32, got "
            f"{vectors.rows[broken[0]].tolist()} for {names[broken[0]]!r}; mend or leave out the "
            "vector"
        )


def _keys_of(path: str, names: np.ndarray, integer_keys: bool) -> np.ndarray:
    if names.dtype.kind in "iu":
        return _as_int64(path, names)
    if names.dtype.kind not in "SUO":
        raise ValueError(
            f"keys of {path} must be integers or strings, got {names.dtype}; {_REMEDY}"
        )
    if not integer_keys:
        return hash_strings(names)
    try:
        return _as_int64(path, np.array([int(name) for name in names], object))
    except ValueError as error:
        raise ValueError(
            f"keys of {path} must be decimal numbers, got one with: {error}; strings need "
            "integer_keys=False, in EmbeddingFeature dtype=tf.string"
        ) from None


def _as_int64(path: str, keys: np.ndarray) -> np.ndarray:
    limits = np.iinfo(np.int64)
    if len(keys) and (keys.max() > limits.max or keys.min() < limits.min):
        raise ValueError(f"keys of {path} must be int64, got {keys.max()}; hash them")
    return keys.astype(np.int64)


def keys_path(path: str) -> str:
    """The file with the keys of the vectors in a .npy file."""
    return f"{os.path.splitext(path)[0]}.keys.npy"


def _read_npy(path: str) -> Tuple[np.ndarray, np.ndarray]:
    arrays = []
    for each in (keys_path(path), path):
        try:
            arrays.append(np.load(each, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise ValueError(f"{each} must be an array of NumPy, got: {error}") from None
    keys, rows = arrays
    if rows.dtype.kind != "f":
        raise ValueError(f"{path} must have floats, got {rows.dtype}; {_REMEDY}")
    return keys, rows


def _read_parquet(path: str) -> Tuple[np.ndarray, np.ndarray]:
    file = open_parquet(path)
    names = file.schema_arrow.names
    if not {"key", "vector"} <= set(names):
        raise ValueError(f"{path} must have the columns key and vector, got {names}; {_REMEDY}")
    table = file.read(columns=["key", "vector"])
    keys, vectors = table["key"].combine_chunks(), table["vector"].combine_chunks()
    if keys.null_count or vectors.null_count:
        raise ValueError(f"{path} must have no missing key or vector, got some; drop these rows")
    lists = [np.asarray(vector) for vector in vectors.to_numpy(zero_copy_only=False)]
    return keys.to_numpy(zero_copy_only=False), _stacked(path, lists)


def _stacked(path: str, lists: Any) -> np.ndarray:
    lengths = sorted({len(vector) for vector in lists})
    if len(lengths) > 1:
        raise ValueError(f"{path} must have vectors of one length, got {lengths[0]}, {lengths[-1]}")
    return np.stack(lists) if lists else np.zeros([0, 0], np.float32)


def _read_text(path: str) -> Tuple[np.ndarray, np.ndarray]:
    lines = _lines(path)
    first = list(itertools.islice(lines, 2))
    count, dim = _header_of([line for _, line in first])
    words, rows = [], []
    for number, line in itertools.chain(first if count is None else first[1:], lines):
        # A word may contain spaces; a vector has as many numbers as the first one.
        parts = line.rsplit(b" ", dim) if dim else line.split(b" ")
        dim = dim or len(parts) - 1
        try:
            rows.append(np.array(parts[1:], np.float32))
        except ValueError:
            rows.append(np.zeros([0], np.float32))
        if dim < 1 or len(rows[-1]) != dim:
            raise ValueError(
                f"line {number} of {path} must be a word and {max(dim, 1)} numbers, got "
                f"{line[:60].decode(errors='replace')!r}; {_REMEDY}"
            )
        words.append(parts[0])
    if count not in (None, len(words)):
        raise ValueError(
            f"{path} must have {count} vectors, as its first line says, got {len(words)}; get the "
            "whole file, or correct that line"
        )
    return np.array(words, object), _stacked(path, rows)


def _lines(path: str) -> Iterator[Tuple[int, bytes]]:
    """Yields the numbers and texts of the lines that are not empty."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            line = line.strip(b" \r\n")
            if line:
                yield number, line


def _header_of(lines: List[bytes]) -> Tuple[Optional[int], int]:
    """Reads the header of a text file.

    Args:
      lines: The first two lines, or fewer.

    Returns:
      The number of vectors and their length. (None, 0): the first line is a vector. That of one
      number looks like a header, unless a vector of one number follows that the header denies.
    """
    found = _HEADER.fullmatch(lines[0]) if lines else None
    if found is None:
        return None, 0
    count, dim = map(int, found.groups())
    is_vector = dim != 1 and len(lines) == 2 and len(lines[1].split()) == 2
    return (None, 0) if is_vector else (count, dim)


_READERS: Dict[str, Callable[[str], Tuple[np.ndarray, np.ndarray]]] = {
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".txt": _read_text,
    ".vec": _read_text,
}
