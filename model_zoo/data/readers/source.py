# SPDX-License-Identifier: Apache-2.0
"""The interface of readers, and what readers of records share."""

from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.schema import Format
from rec_estimator.inputs.checked_files import CheckedFiles
from rec_estimator.inputs.row_files import BadRows, FileBlocks, RowFiles
from rec_estimator.inputs.row_parsers import RecordFormat

_MIXED_FILES = 4  # that are read in turn, so that shuffled batches have rows of several files


class Source(Protocol):
    """The rows of some files.

    Attributes:
      paths: The files.
      names: Names of the columns of the files.
    """

    paths: Tuple[str, ...]
    names: Tuple[str, ...]

    def blocks(self, lengths: Mapping[str, int], seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of one pass over the files.

        Args:
          lengths: By name of each column that is read, how many values of a list are needed.
          seed: int64 [], of the order of the files. None: the files are read in their order.

        Returns:
          A dataset of (rows, locations int64 [n]). Rows are any structure of tensors [n, …].
          Locations increase from row to row and from file to file.
        """

    def columns(self, rows: Any, dtypes: Mapping[str, tf.DType]) -> Dict[str, tf.Tensor]:
        """Returns the columns of some rows as tensors, as fields.py describes them.

        Args:
          rows: Of blocks().
          dtypes: By name of a column, the type as which text is best decoded.
        """

    def values(self, rows: Any, row: int) -> Dict[str, Any]:
        """Returns the values of one row, for an error.

        Args:
          rows: As in columns(), in NumPy.
          row: Index of the row.

        Raises:
          ValueError: The row cannot be read; the message says why.
        """

    def place(self, location: int) -> str:
        """Returns the file and the line of a row."""


class RecordFiles:
    """Files of records, which RecordFormat splits into records.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written.

    Raises:
      ValueError: A pattern matches no file.
    """

    def __init__(self, patterns: Sequence[str], form: Format) -> None:
        compression = {"gzip": "GZIP", "zlib": "ZLIB", "none": ""}.get(form.compression or "")
        self.files = RowFiles(list(patterns), compression, _MIXED_FILES, "error")
        self.paths = tuple(self.files.find())
        self._checked_files = CheckedFiles()

    def first_compressed(self) -> Tuple[str, str]:
        """Returns the path and the compression of the first file."""
        return self.paths[0], self.files.compression(self.paths[0])

    def blocks_of(self, parser: RecordFormat, seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of (records string [n], locations int64 [n]) of one pass."""
        files = self.files
        if seed is None:  # in their order, so one after the other
            files = RowFiles(list(self.paths), files.compression_type, 1, files.on_bad_row)
        one_pass = _Blocks(files, parser, BadRows(), self._checked_files)
        return one_pass.blocks(seed, seed is not None, least_rows=0)

    def place_of(self, parser: RecordFormat, location: int) -> str:
        """Returns the file and the line of a record."""
        return FileBlocks(self.files, parser, BadRows(), self._checked_files).place(location)


class _Blocks(FileBlocks):
    """Blocks of files; an error does not advise an argument that a schema does not have."""

    def _report_bad_file(self, message: str) -> None:
        raise ValueError(f"{message}; write the file again")


def check_names(names: Sequence[str], columns: Sequence[str], paths: Sequence[str]) -> None:
    """Raises a ValueError unless the files have all columns."""
    for column in columns:
        if column not in names:
            raise ValueError(
                f"column {column!r} must be one that {paths[0]} has, {', '.join(names)}; set "
                "source: to its name there"
            )


def shortened(record: bytes) -> str:
    """Returns a record as text for an error."""
    text = record.decode(errors="replace")
    return repr(text if len(text) <= 200 else text[:200] + "…")


def scalar(values: np.ndarray) -> Any:
    """Returns a value, or an array of several, as plain Python."""
    found = values.tolist() if isinstance(values, np.ndarray) else values
    return found.decode(errors="replace") if isinstance(found, bytes) else found
