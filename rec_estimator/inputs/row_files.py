# SPDX-License-Identifier: Apache-2.0
"""Rows of files: found, numbered, told apart from damage, and named when they are bad.

What inputs.py builds its file input_fns on. A file is read in blocks of records; a record's place
(its file and number) stays with it through shuffling, so that a row that cannot be parsed is named.
Parsing is one TensorFlow op per batch. That op says no more of a bad row than an error, so a batch
is parsed in a dataset of its own, where an error can be caught; only a batch that fails is gone
through row by row.
"""

import csv
import dataclasses
import gzip
import io
import os
import zlib
from typing import (
    Any,
    BinaryIO,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.row_parsers import CsvRows, ExampleRows, as_names, check_count

_Dataset = tf.data.Dataset

# Records that are numbered and checked at once: enough to hide the cost of a function call per
# block.
_BLOCK = 1024

# A record's place is one int64: index of its file, then its number in the file in the low 40 bits.
_NUMBER_BITS = 40

_BAD_ROW_REMEDY = 'correct it, or pass on_bad_row="skip" to leave such rows out and count them'

# Place of the record that stands after the last one of a pass.
_END_OF_PASS = -1

# Stands after the last record of a file. The random part keeps it apart from anything in a file.
_END_OF_FILE = b"end of file " + os.urandom(16)

# Bytes around every record of a TFRecord file: length and its checksum, checksum of the data.
_FRAME_BYTES = 8 + 4 + 4

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadRows:
    """Counts the rows that an input_fn left out, and says so in the log.

    Attributes:
      count: Rows left out so far, in all passes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._count_before_pass = 0

    def add(self, messages: Sequence[str]) -> None:
        """Counts one row per message; the first of a pass is a warning at once."""
        if messages and self.count == self._count_before_pass:
            tf.compat.v1.logging.warning("Bad rows are left out. The first: %s", messages[0])
        self.count += len(messages)

    def end_pass(self, num_rows: int) -> int:
        """Warns of the rows left out beside `num_rows` good ones, and returns how many."""
        skipped = self.count - self._count_before_pass
        self._count_before_pass = self.count
        if skipped:
            tf.compat.v1.logging.warning(
                "%d bad rows of this pass were left out, %d rows were read.", skipped, num_rows
            )
        return skipped


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """Which files to read, and how.

    Attributes:
      patterns: Paths or glob patterns.
      compression_type: "GZIP", "ZLIB", "" or None to go by the name.
      num_parallel_reads: Files read at once.
      on_bad_row: "error" or "skip".
    """

    patterns: Any
    compression_type: Optional[str]
    num_parallel_reads: int
    on_bad_row: str

    def __post_init__(self) -> None:
        patterns = self.patterns
        if isinstance(patterns, (str, os.PathLike)):
            patterns = [patterns]
        try:
            patterns = tuple(os.fspath(pattern) for pattern in patterns)
        except TypeError:
            patterns = ()
        if not patterns or not all(isinstance(p, str) and p for p in patterns):
            raise ValueError(
                f"file_pattern must be a path or pattern, or several, got {self.patterns!r}"
            )
        object.__setattr__(self, "patterns", patterns)
        if self.compression_type not in (None, "", "GZIP", "ZLIB"):
            raise ValueError(
                'compression_type must be None, "", "GZIP" or "ZLIB", got '
                f"{self.compression_type!r}"
            )
        check_count("num_parallel_reads", self.num_parallel_reads)
        if self.on_bad_row not in ("error", "skip"):
            raise ValueError(f'on_bad_row must be "error" or "skip", got {self.on_bad_row!r}')

    def find(self) -> List[str]:
        """The paths, in the order of the patterns and of the names within a pattern.

        Raises:
          ValueError: A pattern without a file.
        """
        paths: Dict[str, None] = {}
        for pattern in self.patterns:
            # A path that is there is not a pattern, whatever brackets it has.
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
        """What a path is compressed with: "GZIP", "ZLIB" or "" for nothing."""
        if self.compression_type is not None:
            return self.compression_type
        return "GZIP" if path.endswith(".gz") else ""


class FilePass:
    """The files of one call of an input_fn, as datasets.

    Args:
      files: Which files.
      rows: How a record is parsed: CsvRows or ExampleRows.
      bad_rows: Where rows that are left out are counted.
      whole_files: (path, bytes, time of change) of compressed files seen to be whole; added to.
    """

    def __init__(
        self,
        files: RowFiles,
        rows: Union[CsvRows, ExampleRows],
        bad_rows: BadRows,
        whole_files: Set[Tuple[str, int, int]],
    ) -> None:
        self._files = files
        self._rows = rows
        self._bad_rows = bad_rows
        self._whole_files = whole_files
        self._paths = files.find()
        self._skips = files.on_bad_row == "skip"
        # Where rows are left out already, there is nothing to advise.
        self._remedy = "" if self._skips else f"; {_BAD_ROW_REMEDY}"

    def blocks(self, shuffle_seed: Optional[int], is_shuffled: bool, least_rows: int) -> Any:
        """One pass: (records string [n], places int64 [n]), n up to 1024.

        Args:
          shuffle_seed: Seed of the order of the files.
          is_shuffled: Whether the files come in a new order each time.
          least_rows: Rows that a pass must have: fewer are an error at its end.
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
        if self._skips:
            blocks = blocks.map(self._without_bad_rows)
        end = (tf.zeros([1], tf.string), tf.constant([_END_OF_PASS], tf.int64))
        blocks = blocks.concatenate(_Dataset.from_tensors(end))

        def count(total: tf.Tensor, block: Any) -> Any:
            records, places = block
            is_end = tf.reduce_any(tf.equal(places, _END_OF_PASS))
            size = tf.size(places, tf.int64) - tf.cast(is_end, tf.int64)
            tf.cond(
                is_end,
                lambda: tf.numpy_function(
                    lambda num_rows: self._end_pass(int(num_rows), least_rows), [total], tf.int64
                ),
                lambda: tf.constant(0, tf.int64),
            )
            return total + size, (records[:size], places[:size])

        return blocks.scan(tf.constant(0, tf.int64), count)

    def parse(self, records: tf.Tensor, places: tf.Tensor) -> Any:
        """A batch as features, or (features, labels); a bad row is an error that names it."""
        if self._skips:
            return self._rows.parse(records)  # blocks() gives good rows only
        parsed, is_good = self._try_parse(records)
        tf.cond(is_good, lambda: tf.constant(0, tf.int64), lambda: self._report(records, places))
        for tensor in tf.nest.flatten(parsed):
            if isinstance(tensor, tf.Tensor):
                # Known where drop_remainder is set; the dataset of a failure, with no rows, hid it.
                tensor.set_shape([records.shape[0], *tensor.shape[1:]])
        return parsed

    def _try_parse(self, records: tf.Tensor) -> Tuple[Any, tf.Tensor]:
        """(parsed, True), or (no rows, False) where a row is bad."""
        good = _Dataset.from_tensors(records).map(lambda r: (self._rows.parse(r), True))
        bad = _Dataset.from_tensors((self._rows.parse(records[:0]), False))
        return good.ignore_errors().concatenate(bad).take(1).get_single_element()

    def _good_rows(self, records: tf.Tensor) -> tf.Tensor:
        """int64 [m]: which records parse on their own."""

        def parse_one(index: tf.Tensor, record: tf.Tensor) -> Any:
            # The parsed row is returned, though not used: else it would not be computed.
            return index, self._rows.parse(tf.expand_dims(record, 0))

        indices = tf.range(tf.size(records, tf.int64))
        good = _Dataset.from_tensor_slices((indices, records)).map(parse_one).ignore_errors()
        return good.reduce(
            tf.zeros([0], tf.int64), lambda found, row: tf.concat([found, row[:1]], 0)
        )

    def _without_bad_rows(self, records: tf.Tensor, places: tf.Tensor) -> Any:
        _, is_good = self._try_parse(records)

        def skip() -> Any:
            good = self._good_rows(records)
            self._report(records, places, good)
            return tf.gather(records, good), tf.gather(places, good)

        return tf.cond(is_good, lambda: (records, places), skip)

    def _report(
        self, records: tf.Tensor, places: tf.Tensor, good: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        if good is None:
            good = self._good_rows(records)
        return tf.numpy_function(self._report_bad_rows, [records, places, good], tf.int64)

    def _report_bad_rows(self, records: Any, places: Any, good: Any) -> np.int64:
        bad = np.setdiff1d(np.arange(len(records)), good)
        messages = []
        for index in bad[: None if self._skips else 1]:
            path = self._paths[places[index] >> _NUMBER_BITS]
            number = places[index] & ((1 << _NUMBER_BITS) - 1)
            what = self._rows.explain(records[index])
            messages.append(f"{path}, {self._rows.number_name} {number}: {what}{self._remedy}")
        if not self._skips:
            raise ValueError(messages[0] if messages else "rows must parse together, got a failure")
        self._bad_rows.add(messages)
        return np.int64(len(messages))

    def _end_pass(self, num_rows: int, least_rows: int) -> np.int64:
        skipped = self._bad_rows.end_pass(num_rows)
        if num_rows < least_rows:
            raise ValueError(
                f"file_pattern must match files with at least {least_rows} good rows, got "
                f"{num_rows} good and {skipped} bad rows in {len(self._paths)} files, the first "
                f"{self._paths[0]}"
            )
        return np.int64(skipped)

    def _blocks_of_file(self, path: tf.Tensor, file: tf.Tensor, compression: tf.Tensor) -> Any:
        opened = tf.numpy_function(self._open, [path, compression], tf.int64)
        with tf.control_dependencies([opened]):
            path = tf.identity(path)
        is_text = isinstance(self._rows, CsvRows)
        split = self._blocks_of_text if is_text else self._blocks_of_tfrecords
        first_number = tf.bitwise.left_shift(file, _NUMBER_BITS) + (2 if self._rows.header else 1)

        def with_places(first: tf.Tensor, records: tf.Tensor) -> Any:
            places = first_number + first + tf.range(tf.size(records, tf.int64))
            if not is_text:
                return records, places
            if not self._rows.header:
                records = tf.cond(
                    tf.equal(first, 0), lambda: _without_mark(records), lambda: records
                )
            is_row = tf.strings.length(records) > 0  # blank lines are no rows
            return tf.boolean_mask(records, is_row), tf.boolean_mask(places, is_row)

        return split(path, compression).map(with_places)

    def _blocks_of_text(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """(index of its first line, lines) of each block."""
        lines = self._rows.records(path, compression)
        return _Dataset.zip((_Dataset.range(0, tf.int64.max, _BLOCK), lines.batch(_BLOCK)))

    def _blocks_of_tfrecords(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """(index of its first record, records) of each block.

        The reader ends a file at a damaged record, with an error that names neither. Here that
        error is dropped with the block it is in, which leaves a gap in the numbers of the blocks:
        the end of the file comes with the number after the next. The block is then read again for
        the records before the damage.
        """
        end = _Dataset.from_tensors(_END_OF_FILE)
        blocks = self._rows.records(path, compression).concatenate(end).batch(_BLOCK)

        def read_again(number: tf.Tensor) -> tf.Tensor:
            records = self._rows.records(path, compression).skip(number * _BLOCK).take(_BLOCK)
            some = records.ignore_errors().batch(_BLOCK)
            none = _Dataset.from_tensors(tf.zeros([0], tf.string))
            return some.concatenate(none).take(1).get_single_element()

        def check(state: Any, numbered: Any) -> Any:
            (expected, num_bytes), (number, block) = state, numbered
            is_end = tf.equal(block[-1], _END_OF_FILE)
            is_damaged = tf.not_equal(number, expected)
            records = tf.cond(is_end, lambda: block[:-1], lambda: block)
            records = tf.cond(is_damaged, lambda: read_again(expected), lambda: records)
            frames = tf.size(records, tf.int64) * _FRAME_BYTES
            lengths = tf.cast(tf.strings.length(records), tf.int64)
            num_bytes = num_bytes + tf.reduce_sum(lengths) + frames
            num_records = expected * _BLOCK + tf.size(records, tf.int64)
            tf.cond(
                is_end,
                lambda: tf.numpy_function(
                    self._close_tfrecords,
                    [path, compression, num_records, num_bytes, is_damaged],
                    tf.int64,
                ),
                lambda: tf.constant(0, tf.int64),
            )
            return (expected + 1, num_bytes), (expected * _BLOCK, records)

        start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
        return blocks.enumerate().ignore_errors().scan(start, check)

    def _open(self, path: bytes, compression: bytes) -> np.int64:
        name = path.decode()
        # A file that is gone would have the reader of TFRecords, which goes on after errors, try
        # for ever.
        if not tf.io.gfile.exists(name):
            raise ValueError(f"{name} must be there until training ends, got no such file")
        if isinstance(self._rows, CsvRows) and not self._is_whole(name, compression.decode()):
            raise ValueError(
                f"{name} must be a whole {compression.decode()} file, got one that is cut short or "
                "damaged; write the file anew"
            )
        return np.int64(0)

    def _close_tfrecords(
        self, path: bytes, compression: bytes, num_records: int, num_bytes: int, is_damaged: bool
    ) -> np.int64:
        name = path.decode()
        if not is_damaged:
            # The reader takes a file cut inside a record's length for one that ends before it.
            if compression:
                is_damaged = not self._is_whole(name, compression.decode())
            else:
                is_damaged = tf.io.gfile.stat(name).length != num_bytes
        if is_damaged:
            message = (
                f"{name}, record {num_records + 1}: file must be whole TFRecords, got a damaged or "
                f"cut record{self._remedy}"
            )
            if not self._skips:
                raise ValueError(message)
            self._bad_rows.add([message])
        return np.int64(0)

    def _is_whole(self, path: str, compression: str) -> bool:
        """Whether a compressed file is complete; others are taken to be."""
        if not compression:
            return True
        stat = tf.io.gfile.stat(path)
        key = (path, stat.length, stat.mtime_nsec)
        if key not in self._whole_files:
            try:
                with _open_uncompressed(path, compression) as stream:
                    while stream.read(1 << 20):
                        pass
            except (EOFError, OSError, zlib.error):
                return False
            self._whole_files.add(key)
        return True


def _without_mark(lines: tf.Tensor) -> tf.Tensor:
    first = tf.strings.regex_replace(lines[:1], f"^{_BYTE_ORDER_MARK.decode()}", "")
    return tf.concat([first, lines[1:]], 0)


def _header_names(path: str, compression: str, delimiter: str) -> Optional[Tuple[str, ...]]:
    """The names in the first line of a CSV file; None: the file is empty.

    Raises:
      ValueError: Not a header, or a name twice.
    """
    try:
        with _open_uncompressed(path, compression) as stream:
            line = stream.readline()
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} must be a readable file, got {error}") from error
    text = line[len(_BYTE_ORDER_MARK) :] if line.startswith(_BYTE_ORDER_MARK) else line
    text = text.rstrip(b"\r\n")
    if not text:
        if line:
            raise ValueError(
                f"{path}, line 1: header must name the columns, got a blank line; "
                "pass header=False and column_names= for files without one"
            )
        return None
    names = tuple(next(csv.reader([text.decode(errors="replace")], delimiter=delimiter)))
    if len(set(names)) != len(names):
        raise ValueError(f"{path}, line 1: header must name each column once, got {names}")
    return names


def _open_uncompressed(path: str, compression: str) -> BinaryIO:
    """A stream of what a file holds; raises EOFError, OSError or zlib.error where it is damaged."""
    file = tf.io.gfile.GFile(path, "rb")
    if compression == "GZIP":
        return gzip.GzipFile(fileobj=file)
    if compression == "ZLIB":
        return io.BufferedReader(_ZlibStream(file))
    return file


class _ZlibStream(io.RawIOBase):
    """What gzip.GzipFile is for gzip: the standard library has none for bare zlib."""

    def __init__(self, file: Any) -> None:
        self._chunks = self._decompress(file)
        self._rest = b""

    @staticmethod
    def _decompress(file: Any) -> Iterator[bytes]:
        stream = zlib.decompressobj()
        while chunk := file.read(1 << 16):
            yield stream.decompress(chunk)
        yield stream.flush()
        if not stream.eof:
            raise EOFError("the compressed stream is cut short")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def column_names(
    files: RowFiles, given: Optional[Sequence[str]], header: bool, delimiter: str
) -> Tuple[str, ...]:
    """The names of the columns of CSV files, which must be the same in all of them.

    Raises:
      ValueError: Headers that differ, or none at all.
    """
    names, source = given, "column_names"
    for path in files.find() if header else []:
        found = _header_names(path, files.compression(path), delimiter)
        if found is None:
            continue
        if names is not None and found != tuple(names):
            raise ValueError(
                f"{path}, line 1: header must name the columns of {source}, {list(names)}, got "
                f"{list(found)}"
            )
        names, source = found, path
    if names is None:
        raise ValueError(
            "file_pattern must match a file with a header, got empty files only for "
            f"{list(files.patterns)}"
        )
    return as_names("column_names", names)
