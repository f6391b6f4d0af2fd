# SPDX-License-Identifier: Apache-2.0
"""Reads ids from files as streams, for tools that count them."""

import collections
import csv
import hashlib
import itertools
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from rec_estimator.inputs.parquet_columns import open_parquet

# The fewest and the most lines or elements in memory at once. Batches grow, so that a short stream
# has several, too.
_BATCHES = 1 << 10, 1 << 18


def hashes_of_array(path: str) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Reads an array of integers or strings, of any shape.

    Args:
      path: A file of np.save.

    Yields:
      (uint64 [n] hashes, int64 [n] counts) of the distinct elements of each part of the array.

    Raises:
      ValueError: The elements are neither integers nor strings.
    """
    array = np.load(path, mmap_mode="r")
    if array.dtype.kind not in "iuSU":
        raise ValueError(f"{path} must hold integers or strings, got {array.dtype}")
    flat = array.reshape(-1)
    begin = 0
    for size in _sizes():
        keys, counts = np.unique(flat[begin : begin + size], return_counts=True)
        if not len(keys):
            return
        begin += size
        if array.dtype.kind in "iu":
            yield _mixed(keys.astype(np.int64).view(np.uint64)), counts
        else:
            yield _hashes_of_text(keys.astype(str).tolist()), counts


def hashes_of_csv(
    path: str, columns: Optional[List[str]], delimiter: str
) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Reads columns of a CSV file. Empty values are none.

    Args:
      path: The file.
      columns: Names of its header, or numbers from 0 if it has none. None: the only column, without
        a header.
      delimiter: One character, or "tab".

    Yields:
      (uint64 [n] hashes, int64 [n] counts) of the distinct values of some lines.

    Raises:
      ValueError: The header or a line lacks a column, or there are several and ``columns`` is None;
        or the delimiter is longer.
    """
    delimiter = "\t" if delimiter == "tab" else delimiter
    if len(delimiter) != 1:
        raise ValueError(f"--delimiter must be one character or tab, got {delimiter!r}")
    with open(path, newline="", errors="surrogateescape") as file:
        lines = csv.reader(file, delimiter=delimiter)
        places = _places(lines, columns, path)
        for size in _sizes():
            found: collections.Counter = collections.Counter()
            first = lines.line_num
            for line in itertools.islice(lines, size):
                if line and len(line) <= max(places):
                    raise ValueError(
                        f"line {lines.line_num} of {path} must have {max(places) + 1} columns, got "
                        f"{len(line)}; pass its --delimiter, or mend the line"
                    )
                if len(line) > 1 and columns is None:
                    raise ValueError(
                        f"line {lines.line_num} of {path} must have one column, got {len(line)}; "
                        "pass --column"
                    )
                found.update(line[place] for place in places if line and line[place])
            if lines.line_num == first:
                return
            yield _hashes_of_text(list(found)), np.fromiter(found.values(), np.int64, len(found))


def hashes_of_parquet(
    path: str, columns: Optional[List[str]]
) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Reads columns of a Parquet file, each element of lists. Missing and empty values are none.

    Args:
      path: The file.
      columns: Names of its columns. None: the only column.

    Yields:
      (uint64 [n] hashes, int64 [n] counts) of the distinct values of a column in some rows.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
      ValueError: The file is not Parquet or lacks a column; there are several and ``columns`` is
        None; or a column holds neither integers nor strings.
    """
    file = open_parquet(path)
    names = file.schema_arrow.names
    if columns is None and len(names) > 1:
        raise ValueError(f"{path} must have one column, got {names}; pass --column")
    _check_names(columns or [], names, f"the columns of {path}")
    sizes = _sizes()
    for batch in file.iter_batches(_BATCHES[1], columns=columns):
        begin = 0
        while begin < len(batch):
            part = batch.slice(begin, next(sizes))
            begin += len(part)
            for name, array in zip(part.schema.names, part.columns):
                yield _hashes_of_arrow(array, f"{path}: column {name!r}")


def _hashes_of_arrow(array: Any, source: str) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the hashes and counts of a pyarrow.Array."""
    from pyarrow import types as of

    if of.is_list(array.type) or of.is_large_list(array.type) or of.is_fixed_size_list(array.type):
        array = array.flatten()  # Without the values of missing lists.
    if of.is_dictionary(array.type):
        array = array.dictionary_decode()
    counted = array.drop_null().value_counts()
    values, counts = counted.field("values"), counted.field("counts").to_numpy()
    if of.is_integer(values.type):
        return _mixed(values.to_numpy().astype(np.int64).view(np.uint64)), counts
    if of.is_string(values.type) or of.is_large_string(values.type):
        texts = values.to_pylist()
        is_id = np.array([text != "" for text in texts], bool)
        return _hashes_of_text(list(filter(None, texts))), counts[is_id]
    raise ValueError(f"{source} must hold integers or strings, got {values.type}; choose another")


def _sizes() -> Iterator[int]:
    """Yields the sizes of batches."""
    size, most = _BATCHES
    while True:
        yield size
        size = min(2 * size, most)


def _places(lines: Iterator[List[str]], columns: Optional[List[str]], path: str) -> List[int]:
    """The numbers of columns; reads the header if there is one."""
    if columns is None:
        return [0]
    if all(name.isdigit() for name in columns):
        return [int(name) for name in columns]
    header = next(lines, [])
    _check_names(columns, header, f"the header of {path}")
    return [header.index(name) for name in columns]


def _check_names(columns: List[str], found: List[str], source: str) -> None:
    lost = [name for name in columns if name not in found]
    if lost:
        raise ValueError(f"--column must be one of {found}, {source}, got {lost[0]!r}")


def _hashes_of_text(values: Sequence[str]) -> np.ndarray:
    joined = b"".join(
        hashlib.blake2b(value.encode(errors="surrogateescape"), digest_size=8).digest()
        for value in values
    )
    return np.frombuffer(joined, np.uint64)


def _mixed(keys: np.ndarray) -> np.ndarray:
    """A bijection of uint64 that spreads neighbours: the finalizer of SplitMix64 (Steele, 2014)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
