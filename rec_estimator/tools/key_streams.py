# SPDX-License-Identifier: Apache-2.0
"""Reads ids from files as streams, for tools that count them."""

import collections
import csv
import hashlib
import itertools
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

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
    lost = [name for name in columns if name not in header]
    if lost:
        raise ValueError(f"--column must be one of {header}, the header of {path}, got {lost[0]!r}")
    return [header.index(name) for name in columns]


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
