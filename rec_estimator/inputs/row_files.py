# SPDX-License-Identifier: Apache-2.0
"""Finds files, reads their records, and reports bad rows with their file and number.

The file input_fns of this package are built on it. Each record that file_readers.py reads has a
location (its file and number) that stays with it through shuffling, so that an error message can
name a row that cannot be parsed.

Parsing is one TensorFlow op per batch, and this op does not say which row is bad. So each batch is
parsed in a dataset of its own, in which errors can be caught. Only a batch that fails is parsed row
by row.
"""

import dataclasses
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.checked_files import CheckedFiles
from rec_estimator.inputs.file_readers import RecordReader, TextReader
from rec_estimator.inputs.row_parsers import RecordFormat, RowParser, check_count

_Dataset = tf.data.Dataset
_Path = Union[str, "os.PathLike[str]"]

# The location of a record is one int64: its number in the file in the low 40 bits, the index of the
# file in the bits above.
_NUMBER_BITS = 40

BAD_ROW_REMEDY = 'correct it, or pass on_bad_row="skip" to skip and count such rows'

# Location of the record that marks the end of a pass.
_END_OF_PASS = -1


class BadRows:
    """Counts the rows that an input_fn has skipped, and logs them.

    Attributes:
      count: Number of rows skipped so far, over all passes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._count_before_pass = 0

    def add(self, messages: Sequence[str]) -> None:
        """Counts one row per message; logs the first message of a pass as a warning."""
        if messages and self.count == self._count_before_pass:
            tf.compat.v1.logging.warning("Bad rows are skipped. The first: %s", messages[0])
        self.count += len(messages)

    def end_pass(self, num_rows: int) -> int:
        """Logs and returns the number of rows skipped in a pass with `num_rows` good rows."""
        skipped = self.count - self._count_before_pass
        self._count_before_pass = self.count
        if skipped:
            tf.compat.v1.logging.warning(
                "%d bad rows of this pass were skipped, %d rows were read.", skipped, num_rows
            )
        return skipped


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """The files of an input_fn, and how to read them.

    Args:
      file_pattern: Path or glob pattern, or several.

    Attributes:
      patterns: Paths and glob patterns.
      compression_type: "GZIP", "ZLIB", "" for none, or None to decide by the name of each file.
      num_parallel_reads: Number of files read at the same time.
      on_bad_row: "error" or "skip".

    Raises:
      ValueError: A value is out of range.
    """

    file_pattern: dataclasses.InitVar[Union[_Path, Sequence[_Path]]]
    compression_type: Optional[str]
    num_parallel_reads: int
    on_bad_row: str
    patterns: Tuple[str, ...] = dataclasses.field(init=False)

    def __post_init__(self, file_pattern: Union[_Path, Sequence[_Path]]) -> None:
        given = [file_pattern] if isinstance(file_pattern, (str, os.PathLike)) else file_pattern
        try:
            patterns = tuple(os.fspath(pattern) for pattern in given)
        except TypeError:
            patterns = ()
        if not patterns or not all(isinstance(p, str) and p for p in patterns):
            raise ValueError(
                "file_pattern must be a path or pattern, or several, got "
                f'{file_pattern!r}; for example "data/*.csv"'
            )
        object.__setattr__(self, "patterns", patterns)
        if self.compression_type not in (None, "", "GZIP", "ZLIB"):
            raise ValueError(
                'compression_type must be None, "", "GZIP" or "ZLIB", got '
                f"{self.compression_type!r}; None decides by the name of each file"
            )
        check_count("num_parallel_reads", self.num_parallel_reads)
        if self.on_bad_row not in ("error", "skip"):
            raise ValueError(
                f'on_bad_row must be "error" or "skip", got {self.on_bad_row!r}; the default is '
                '"error"'
            )

    def find(self) -> List[str]:
        """Returns the paths, ordered by pattern, and by name within a pattern.

        Raises:
          ValueError: A pattern matches no file.
        """
        paths: Dict[str, None] = {}
        for pattern in self.patterns:
            # An existing path is not a pattern, even if it contains brackets.
            found = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
            found = [path for path in sorted(found) if not tf.io.gfile.isdir(path)]
            if not found:
                raise ValueError(
                    f"file_pattern must match a file, got {pattern!r}; the working folder is "
                    f"{os.getcwd()}"
                )
            paths.update(dict.fromkeys(found))
        return list(paths)

    def compression(self, path: str) -> str:
        """Returns the compression of a file: "GZIP", "ZLIB" or "" for none."""
        if self.compression_type is not None:
            return self.compression_type
        return "GZIP" if path.endswith(".gz") else ""


class FileBlocks:
    """Makes datasets of blocks of records.

    Args:
      files: The files.
      rows: How a file is split into records.
      bad_rows: The counter of skipped rows.
      checked_files: The compressed files that were checked. The pass adds those that it checks.
    """

    def __init__(
        self,
        files: RowFiles,
        rows: RecordFormat,
        bad_rows: BadRows,
        checked_files: CheckedFiles,
    ) -> None:
        self._files = files
        self._rows = rows
        self._bad_rows = bad_rows
        self._paths = files.find()
        self._skips = files.on_bad_row == "skip"
        # With on_bad_row="skip" there is nothing to advise.
        self._remedy = "" if self._skips else f"; {BAD_ROW_REMEDY}"
        self._reader: Union[TextReader, RecordReader]
        if rows.is_text:
            self._reader = TextReader(rows, checked_files)
        else:
            self._reader = RecordReader(rows, checked_files, self._report_bad_file)

    def blocks(
        self, shuffle_seed: Optional[int], is_shuffled: bool, least_rows: int
    ) -> tf.data.Dataset:
        """Makes a dataset of one pass over the files.

        Args:
          shuffle_seed: Seed of the order of the files.
          is_shuffled: Whether each pass reads the files in a new order.
          least_rows: Least number of rows of a pass. A pass with fewer rows ends with an error.

        Returns:
          A dataset of (records string [n], locations int64 [n]), with n up to 1024.
        """
        compressions = [self._files.compression(path) for path in self._paths]
        files = _Dataset.from_tensor_slices(
            (self._paths, np.arange(len(self._paths), dtype=np.int64), compressions)
        )
        if is_shuffled:
            files = files.shuffle(len(self._paths), shuffle_seed, reshuffle_each_iteration=True)
        reads = min(self._files.num_parallel_reads, len(self._paths))
        blocks = files.interleave(
            self._blocks_of_file,
            cycle_length=reads,
            block_length=1,
            num_parallel_calls=reads if reads > 1 else None,
            deterministic=True if reads > 1 else None,
        )
        return self._counted(blocks, least_rows)

    def blocks_of(self, file: tf.Tensor) -> tf.data.Dataset:
        """Makes a dataset of one file, as ``blocks`` does of all.

        Args:
          file: int64 []. The index of the file.
        """
        compressions = [self._files.compression(path) for path in self._paths]
        path, compression = tf.constant(self._paths)[file], tf.constant(compressions)[file]
        return self._counted(self._blocks_of_file(path, file, compression), 0)

    def _counted(self, blocks: tf.data.Dataset, least_rows: int) -> tf.data.Dataset:
        """Checks blocks of a pass, and counts their rows."""
        blocks = self._checked(blocks)
        end = (tf.zeros([1], tf.string), tf.constant([_END_OF_PASS], tf.int64))
        blocks = blocks.concatenate(_Dataset.from_tensors(end))

        def count(total: tf.Tensor, block: Any) -> Any:
            records, locations = block
            is_end = tf.reduce_any(tf.equal(locations, _END_OF_PASS))
            size = tf.size(locations, tf.int64) - tf.cast(is_end, tf.int64)
            tf.cond(
                is_end,
                lambda: tf.numpy_function(
                    lambda num_rows: self._end_pass(int(num_rows), least_rows), [total], tf.int64
                ),
                lambda: tf.constant(0, tf.int64),
            )
            return total + size, (records[:size], locations[:size])

        return blocks.scan(tf.constant(0, tf.int64), count)

    def place(self, location: int) -> str:
        """Returns the file and the number of a record, for errors."""
        path = self._paths[int(location) >> _NUMBER_BITS]
        return f"{path}, {self._rows.number_name} {int(location) & ((1 << _NUMBER_BITS) - 1)}"

    def _checked(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
        """Hook for parsers that skip bad rows."""
        return blocks

    def _report_bad_file(self, message: str) -> None:
        if not self._skips:
            raise ValueError(f"{message}{self._remedy}")
        self._bad_rows.add([message])

    def _end_pass(self, num_rows: int, least_rows: int) -> np.int64:
        skipped = self._bad_rows.end_pass(num_rows)
        if num_rows < least_rows:
            raise ValueError(
                f"file_pattern must match files with at least {least_rows} good rows, got "
                f"{num_rows} good and {skipped} bad rows in {len(self._paths)} files; the first is "
                f"{self._paths[0]}"
            )
        return np.int64(skipped)

    def _blocks_of_file(
        self, path: tf.Tensor, file: tf.Tensor, compression: tf.Tensor
    ) -> tf.data.Dataset:
        first_number = tf.bitwise.left_shift(file, _NUMBER_BITS) + (2 if self._rows.header else 1)

        def with_locations(first: tf.Tensor, records: tf.Tensor) -> Any:
            locations = first_number + first + tf.range(tf.size(records, tf.int64))
            return self._reader.rows_of(first, records, locations)

        return self._reader.blocks(path, compression).map(with_locations)


class FilePass(FileBlocks):
    """Makes the datasets of one call of an input_fn: blocks of records, and a parser of batches.

    Args:
      files: The files.
      rows: The parser of records.
      bad_rows: As in FileBlocks.
      checked_files: As in FileBlocks.
    """

    def __init__(
        self, files: RowFiles, rows: RowParser, bad_rows: BadRows, checked_files: CheckedFiles
    ) -> None:
        super().__init__(files, rows, bad_rows, checked_files)
        self._parser = rows

    def parse(self, records: tf.Tensor, locations: tf.Tensor) -> Any:
        """Parses a batch to features or (features, labels); an error names a bad row."""
        if self._skips:
            return self._parser.parse(records)  # blocks() has skipped the bad rows.
        parsed, is_good = self._try_parse(records)
        tf.cond(is_good, lambda: tf.constant(0, tf.int64), lambda: self._report(records, locations))
        for tensor in tf.nest.flatten(parsed):
            if isinstance(tensor, tf.Tensor):
                # The batch size is known with drop_remainder; _try_parse loses it.
                tensor.set_shape(records.shape[:1].concatenate(tensor.shape[1:]))
        return parsed

    def _try_parse(self, records: tf.Tensor) -> Tuple[Any, tf.Tensor]:
        """Returns (parsed, True), or (no rows, False) if a row is bad."""
        good = _Dataset.from_tensors(records).map(lambda r: (self._parser.parse(r), True))
        bad = _Dataset.from_tensors((self._parser.parse(records[:0]), False))
        return good.ignore_errors().concatenate(bad).take(1).get_single_element()

    def _good_rows(self, records: tf.Tensor) -> tf.Tensor:
        """Returns the indices of the records that can be parsed, int64 [m]."""

        def parse_one(index: tf.Tensor, record: tf.Tensor) -> Any:
            # The parsed row is not used, but TensorFlow would not compute it otherwise.
            return index, self._parser.parse(tf.expand_dims(record, 0))

        indices = tf.range(tf.size(records, tf.int64))
        good = _Dataset.from_tensor_slices((indices, records)).map(parse_one).ignore_errors()
        return good.reduce(
            tf.zeros([0], tf.int64), lambda found, row: tf.concat([found, row[:1]], 0)
        )

    def _checked(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
        return blocks.map(self._without_bad_rows) if self._skips else blocks

    def _without_bad_rows(self, records: tf.Tensor, locations: tf.Tensor) -> Any:
        _, is_good = self._try_parse(records)

        def skip() -> Any:
            good = self._good_rows(records)
            self._report(records, locations, good)
            return tf.gather(records, good), tf.gather(locations, good)

        return tf.cond(is_good, lambda: (records, locations), skip)

    def _report(
        self, records: tf.Tensor, locations: tf.Tensor, good: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        if good is None:
            good = self._good_rows(records)
        return tf.numpy_function(self._report_bad_rows, [records, locations, good], tf.int64)

    def _report_bad_rows(
        self, records: np.ndarray, locations: np.ndarray, good: np.ndarray
    ) -> np.int64:
        bad = np.setdiff1d(np.arange(len(records)), good)
        messages = []
        for index in bad[: None if self._skips else 1]:
            what = self._parser.explain(records[index])
            messages.append(f"{self.place(locations[index])}: {what}{self._remedy}")
        if not self._skips:
            raise ValueError(
                messages[0]
                if messages
                else "a batch cannot be parsed, although each of its rows can"
            )
        self._bad_rows.add(messages)
        return np.int64(len(messages))
