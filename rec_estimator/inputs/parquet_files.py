# SPDX-License-Identifier: Apache-2.0
"""Reads batches of Parquet files, with as many row groups in memory as the order of rows needs.

A row group is read as a whole, by a thread of its own, and its rows are taken by index. The order
of rows is decided before they are read: with shuffle, each pass has another order of row groups,
and mixes the rows of as many consecutive ones as hold the number of rows to shuffle.
"""

import collections
import concurrent.futures
import itertools
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.batching import Batching, numpy_seed
from rec_estimator.inputs.memory_columns import Column
from rec_estimator.inputs.parquet_columns import (
    ParquetColumn,
    open_parquet,
    row_group_sizes,
)
from rec_estimator.inputs.row_files import BAD_ROW_REMEDY, BadRows


class RowGroup(NamedTuple):
    """A row group of a file.

    Attributes:
      path: The file.
      number: Its number in the file, from 0.
      first_row: The number of its first row in the file, from 1.
      num_rows: Number of rows.
    """

    path: str
    number: int
    first_row: int
    num_rows: int


def row_groups_of(path: str) -> List[RowGroup]:
    """Returns the row groups of a file, in its order."""
    sizes = row_group_sizes(path)
    ends = itertools.accumulate(sizes)
    return [
        RowGroup(path, number, end - size + 1, size)
        for number, (size, end) in enumerate(zip(sizes, ends))
    ]


class ParquetBatches:
    """Makes datasets of some row groups.

    Args:
      columns: The columns to read.
      batching: How rows are shuffled, repeated and batched.
      num_parallel_reads: Number of row groups read at the same time.
      bad_rows: The counter of skipped rows.
      skips: Whether bad rows are skipped. False: they are errors.
    """

    def __init__(
        self,
        columns: Sequence[ParquetColumn],
        batching: Batching,
        num_parallel_reads: int,
        bad_rows: BadRows,
        skips: bool,
    ) -> None:
        self._columns, self._batching = columns, batching
        self._num_parallel_reads = num_parallel_reads
        self._bad_rows, self._skips = bad_rows, skips

    def dataset(
        self, groups: Sequence[Sequence[RowGroup]], index: Any, least_rows: int
    ) -> tf.data.Dataset:
        """Makes a dataset of lists of tensors, one for each column.

        Args:
          groups: Row groups that are read together.
          index: int64 []. Which of them to read.
          least_rows: Least number of rows of a pass. A pass with fewer rows ends with an error.
        """
        seed = numpy_seed(self._batching.seed)
        empty = [column.empty for column in self._columns]
        dtypes = tuple(dtype for column in empty for dtype in column.part_dtypes)

        def batches(index: np.int64) -> Iterator[Tuple[np.ndarray, ...]]:
            yield from self._batches(groups[int(index)], [seed, int(index)], least_rows)

        def tensors(*parts: tf.Tensor) -> Tuple[Any, ...]:
            remaining = iter(parts)
            size = self._batching.batch_size if self._batching.drop_remainder else None
            return tuple(column.tensor(remaining, size) for column in empty)

        signature = tuple(tf.TensorSpec([None], dtype) for dtype in dtypes)
        return tf.data.Dataset.from_generator(
            batches, output_signature=signature, args=(index,)
        ).map(tensors)

    def _batches(
        self, groups: Sequence[RowGroup], seed: List[int], least_rows: int
    ) -> Iterator[Tuple[np.ndarray, ...]]:
        """Yields the arrays of Column.take() of all columns, one batch after the other."""
        parts: List[List[Column]] = []
        missing = self._batching.batch_size
        for rows, order in self._passes(groups, seed, least_rows):
            begin = 0
            while begin < len(order):
                taken = order[begin : begin + missing]
                parts.append([_rows_of(column, taken) for column in rows])
                begin, missing = begin + len(taken), missing - len(taken)
                if not missing:
                    yield _arrays(parts)
                    parts, missing = [], self._batching.batch_size
        if parts and not self._batching.drop_remainder:
            yield _arrays(parts)

    def _passes(
        self, groups: Sequence[RowGroup], seed: List[int], least_rows: int
    ) -> Iterator[Tuple[List[Column], np.ndarray]]:
        """Yields columns and the order of their rows, over all passes."""
        num_epochs = self._batching.num_epochs
        with concurrent.futures.ThreadPoolExecutor(self._num_parallel_reads) as threads:
            for epoch in itertools.count() if num_epochs is None else range(num_epochs):
                random = np.random.default_rng([*seed, epoch])
                order = random.permutation(len(groups)) if self._batching.shuffle else None
                ordered = [groups[i] for i in order] if order is not None else list(groups)
                num_rows = 0
                for read in self._mixed(self._read_ahead(threads, ordered)):
                    rows = [_concatenated(parts) for parts in zip(*read)]
                    count = len(rows[0])
                    num_rows += count
                    yield (
                        rows,
                        random.permutation(count) if self._batching.shuffle else np.arange(count),
                    )
                skipped = self._bad_rows.end_pass(num_rows)
                if num_rows < least_rows:
                    raise ValueError(
                        f"file_pattern must match files with at least {least_rows} good rows, got "
                        f"{num_rows} good and {skipped} bad rows"
                    )

    def _mixed(self, groups: Iterator[List[Column]]) -> Iterator[List[List[Column]]]:
        """Yields groups of rows whose order is mixed."""
        mixed: List[List[Column]] = []
        for group in groups:
            mixed.append(group)
            if sum(len(columns[0]) for columns in mixed) >= self._batching.shuffle_rows:
                yield mixed
                mixed = []
        if mixed:
            yield mixed

    def _read_ahead(
        self, threads: concurrent.futures.ThreadPoolExecutor, groups: Sequence[RowGroup]
    ) -> Iterator[List[Column]]:
        """Yields the columns of row groups in order, and reads the next ones meanwhile."""
        reads: Deque[Any] = collections.deque()
        for group in groups:
            reads.append(threads.submit(self._read, group))
            if len(reads) >= self._num_parallel_reads:
                yield self._good_rows(*reads.popleft().result())
        while reads:
            yield self._good_rows(*reads.popleft().result())

    def _read(self, group: RowGroup) -> Tuple[List[Column], List[Tuple[int, str]]]:
        """Returns the columns of a row group, and (number, message) of its bad rows."""
        import pyarrow

        names = [column.name for column in self._columns]
        try:
            table = open_parquet(group.path).read_row_group(group.number, columns=names)
            arrays = [_one_array(table.column(name)) for name in names]
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            raise ValueError(
                f"{group.path}, row group {group.number}: file must be complete Parquet with the "
                f"columns {names}, got: {error}; write the file again"
            ) from None
        rows: List[Column] = []
        messages: Dict[int, str] = {}
        for column, array in zip(self._columns, arrays):
            read, bad = column.read(array)
            rows.append(read)
            for row in bad.tolist():
                place = f"{group.path}, row {group.first_row + row}"
                messages.setdefault(row, f"{place}: {column.explain(array[row].as_py())}")
        return rows, sorted(messages.items())

    def _good_rows(self, rows: List[Column], bad: List[Tuple[int, str]]) -> List[Column]:
        if not bad:
            return rows
        if not self._skips:
            raise ValueError(f"{bad[0][1]}; {BAD_ROW_REMEDY}")
        self._bad_rows.add([message for _, message in bad])
        good = np.setdiff1d(np.arange(len(rows[0])), [row for row, _ in bad])
        return [_rows_of(column, good) for column in rows]


def _one_array(column: Any) -> Any:
    """The pyarrow.Array of a pyarrow.ChunkedArray."""
    array = column.combine_chunks()
    return array.chunk(0) if hasattr(array, "chunk") else array


def _rows_of(column: Column, rows: np.ndarray) -> Column:
    taken = column.take(rows)
    return Column(taken[0], taken[1] if len(taken) > 1 else None)


def _concatenated(parts: Sequence[Column]) -> Column:
    """One column after the other."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    lists = [part.splits for part in parts if part.splits is not None]
    if not lists:
        return Column(values, None)
    lengths = np.concatenate([np.diff(splits) for splits in lists])
    return Column(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def _arrays(parts: Sequence[Sequence[Column]]) -> Tuple[np.ndarray, ...]:
    columns = [_concatenated(column) for column in zip(*parts)]
    return tuple(
        part
        for column in columns
        for part in ([column.values] if column.splits is None else [column.values, column.splits])
    )
