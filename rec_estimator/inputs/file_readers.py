# SPDX-License-Identifier: Apache-2.0
"""Reads files in blocks of records, and checks that nothing of a file is lost.

A file is checked when it is opened and at its end: TensorFlow's readers skip, without an error,
what they cannot read.
"""

import os
from typing import Any, Callable, Tuple

import numpy as np
import tensorflow as tf

from rec_estimator.inputs.checked_files import CheckedFiles
from rec_estimator.inputs.row_parsers import RecordFormat
from rec_estimator.inputs.text_files import BYTE_ORDER_MARK, check_beginning

_Dataset = tf.data.Dataset

# Records per block: enough to hide the cost of the function calls per block.
_BLOCK = 1024

# The record that marks the end of a file. Its random part makes it different from all records.
_END_OF_FILE = b"end of file " + os.urandom(16)

# Bytes around each record of a TFRecord file: its length, a checksum of the length, and a checksum
# of the data.
_FRAME_BYTES = 8 + 4 + 4

# (the path and compression to read, the path to name in errors)
_Opened = Tuple[bytes, bytes, bytes]


class TextReader:
    """Reads the lines of CSV files.

    Args:
      rows: How a file is split into lines.
      checked_files: The files that were checked. The reader adds those that it checks.
    """

    def __init__(self, rows: RecordFormat, checked_files: CheckedFiles) -> None:
        self._rows = rows
        self._checked_files = checked_files

    def blocks(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """A dataset of blocks, each (index of its first line, lines)."""
        path, compression, source = _open(self._open, path, compression)
        end = _Dataset.from_tensors(_END_OF_FILE)
        blocks = self._rows.records(path, compression).concatenate(end).batch(_BLOCK)

        def check(state: Any, block: tf.Tensor) -> Any:
            num_lines, num_bytes = state
            is_end = tf.equal(block[-1], _END_OF_FILE)
            lines = tf.cond(is_end, lambda: block[:-1], lambda: block)
            num_bytes = num_bytes + tf.reduce_sum(tf.cast(tf.strings.length(lines), tf.int64))
            first, num_lines = num_lines, num_lines + tf.size(lines, tf.int64)
            close = [path, compression, source, num_lines, num_bytes]
            _if(is_end, lambda: tf.numpy_function(self._close, close, tf.int64))
            return (num_lines, num_bytes), (first, lines)

        return blocks.scan((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), check)

    def rows_of(self, first: tf.Tensor, lines: tf.Tensor, locations: tf.Tensor) -> Any:
        """The lines of a block that are rows, and their locations.

        Args:
          first: The index of the first line in the file.
          lines: string [n].
          locations: int64 [n].
        """
        if not self._rows.header:
            lines = tf.cond(tf.equal(first, 0), lambda: _without_mark(lines), lambda: lines)
        is_row = tf.strings.length(lines) > 0  # Blank lines are not rows.
        return tf.boolean_mask(lines, is_row), tf.boolean_mask(locations, is_row)

    def _open(self, path: bytes, compression: bytes) -> _Opened:
        name, kind = path.decode(), compression.decode()
        check_exists(name)
        readable = self._checked_files.readable(name, kind)
        if readable is None:
            raise ValueError(
                f"{name} must be a complete {kind} file, got one that is cut short or damaged; "
                "write the file again"
            )
        check_beginning(name, kind)
        return readable[0].encode(), readable[1].encode(), path

    def _close(
        self, path: bytes, compression: bytes, source: bytes, num_lines: int, num_bytes: int
    ) -> np.int64:
        """Checks that the reader has dropped nothing but line ends."""
        name = path.decode()
        if not compression:
            if self._rows.header:
                with tf.io.gfile.GFile(name, "rb") as file:
                    num_bytes += len(file.readline().rstrip(b"\n"))
                    num_lines += 1
            # One byte for each line end, except that of the last line, which may be missing. More
            # bytes are carriage returns.
            if tf.io.gfile.stat(name).length - num_bytes <= num_lines:
                return np.int64(0)
        self._checked_files.check_lines(name, compression.decode(), source.decode())
        return np.int64(0)


class RecordReader:
    """Reads the records of TFRecord files.

    Args:
      rows: How a file is split into records.
      checked_files: The files that were checked. The reader adds those that it checks.
      report: Called with a message for a file with a damaged record, after the records before it.
    """

    def __init__(
        self, rows: RecordFormat, checked_files: CheckedFiles, report: Callable[[str], None]
    ) -> None:
        self._rows = rows
        self._checked_files = checked_files
        self._report = report

    def blocks(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """A dataset of blocks, each (index of its first record, records).

        At a damaged record, TensorFlow's reader ends the file with an error that names neither the
        file nor the record. Here the error and the block in which it occurs are dropped. The block
        with the end marker then has an unexpected number, which reveals the damage, and the dropped
        block is read again up to the damage.
        """
        path, compression, source = _open(self._open, path, compression)
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
            close = [path, compression, source, num_records, num_bytes, is_damaged]
            _if(is_end, lambda: tf.numpy_function(self._close, close, tf.int64))
            return (expected + 1, num_bytes), (expected * _BLOCK, records)

        start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
        return blocks.enumerate().ignore_errors().scan(start, check)

    def rows_of(self, first: tf.Tensor, records: tf.Tensor, locations: tf.Tensor) -> Any:
        """The records of a block, all of which are rows, and their locations."""
        del first
        return records, locations

    def _open(self, path: bytes, compression: bytes) -> _Opened:
        name = path.decode()
        # ignore_errors() would retry a file that does not exist forever.
        check_exists(name)
        # The records before a damaged one can be read, so a file is checked at its end. But of a
        # ZLIB file TensorFlow may read only a part.
        readable = self._checked_files.readable(name, "ZLIB") if compression == b"ZLIB" else None
        if readable is None:
            return path, compression, path
        return readable[0].encode(), readable[1].encode(), path

    def _close(
        self,
        path: bytes,
        compression: bytes,
        source: bytes,
        num_records: int,
        num_bytes: int,
        is_damaged: bool,
    ) -> np.int64:
        if not is_damaged:
            # The reader sees no error in a file that is cut within the length of a record.
            name = path.decode()
            if compression:
                is_damaged = self._checked_files.readable(name, compression.decode()) is None
            else:
                is_damaged = tf.io.gfile.stat(name).length != num_bytes
        if is_damaged:
            self._report(
                f"{source.decode()}, record {num_records + 1}: file must contain complete "
                "TFRecords, got a damaged or cut record"
            )
        return np.int64(0)


def check_exists(path: str) -> None:
    """Raises a ValueError unless there is such a file."""
    if not tf.io.gfile.exists(path):
        raise ValueError(
            f"{path} must exist until training ends, got no such file; restore the file"
        )


def _open(
    open_file: Callable[[bytes, bytes], _Opened], path: tf.Tensor, compression: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    opened = tf.numpy_function(open_file, [path, compression], [tf.string, tf.string, tf.string])
    return tuple(tf.ensure_shape(tensor, []) for tensor in opened)


def _if(condition: tf.Tensor, call: Callable[[], tf.Tensor]) -> None:
    tf.cond(condition, call, lambda: tf.constant(0, tf.int64))


def _without_mark(lines: tf.Tensor) -> tf.Tensor:
    first = tf.strings.regex_replace(lines[:1], f"^{BYTE_ORDER_MARK.decode()}", "")
    return tf.concat([first, lines[1:]], 0)
