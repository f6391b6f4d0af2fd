# SPDX-License-Identifier: Apache-2.0
"""Reads CSV, TSV and other text files with fields between separators."""

import csv
import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo.data.fields import MISSING_INT
from model_zoo.data.readers.source import RecordFiles, shortened
from model_zoo.data.schema import Format
from rec_estimator.inputs.csv_headers import column_names
from rec_estimator.inputs.row_parsers import csv_fields

# Stands for a separator of several characters, which tf.io.decode_csv does not know. No text has
# it: it separates units in ASCII.
_UNIT_SEPARATOR = "\x1f"

_SEPARATORS = (";", "\t", "|", ",")  # that files often have

_MISSING = {tf.string: "", tf.int64: MISSING_INT, tf.float32: np.float32(np.nan)}


class DelimitedFiles(RecordFiles):
    """Text files whose lines are rows.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written.

    Raises:
      ValueError: A pattern matches no file, headers are missing or differ, or fields have another
        separator.
    """

    number_name = "line"
    is_text = True

    def __init__(self, patterns: Sequence[str], form: Format) -> None:
        super().__init__(patterns, form)
        self.header = form.header
        self._separator = form.separator
        self._delimiter = form.separator if len(form.separator) == 1 else _UNIT_SEPARATOR
        self._quotes = form.quotes
        self.names = column_names(self.files, form.names or None, form.header, self._delimiter)
        others = [each for each in _SEPARATORS if each in self.names[0]]
        if len(self.names) == 1 and others:
            raise ValueError(
                f"separator of the format must be that of the header, got {self._separator!r} and "
                f"the only column {self.names[0]!r}; set separator: {json.dumps(others[0])}"
            )

    def blocks(self, lengths: Mapping[str, int], seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of (lines string [n], locations) of one pass."""
        return self.blocks_of(self, seed)

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The lines of a file after its header."""
        lines = tf.data.TextLineDataset(path, compression_type=compression)
        return lines.skip(1) if self.header else lines

    def columns(self, rows: Any, dtypes: Mapping[str, tf.DType]) -> Dict[str, tf.Tensor]:
        """Returns the columns of some lines."""
        if len(self._separator) > 1:
            rows = tf.strings.regex_replace(rows, _escaped(self._separator), _UNIT_SEPARATOR)
        # Columns that nobody needs are decoded as text, so that a line with too few or too many
        # fields is an error.
        types = [dtypes.get(name, tf.string) for name in self.names]
        defaults = [tf.constant([_MISSING[dtype]], dtype) for dtype in types]
        decoded = tf.io.decode_csv(rows, defaults, self._delimiter, use_quote_delim=self._quotes)
        return {name: each for name, each in zip(self.names, decoded) if name in dtypes}

    def values(self, rows: Any, row: int) -> Dict[str, Any]:
        """Returns the fields of one line."""
        try:
            fields = self._fields(rows[row])
        except (csv.Error, StopIteration):
            fields = None
        is_short = fields is not None and len(fields) < len(self.names)
        if fields is None or not (is_short or self._has_whole_quotes(rows[row])):
            raise ValueError(
                'row must be CSV with quotes around whole fields only, and "" for a quote, got '
                f"{shortened(rows[row])}; correct it, or set quotes: false in format if no field "
                "is in quotes"
            )
        if len(fields) != len(self.names):
            remedy = "; a line break, even in quotes, ends a row" if is_short else ""
            raise ValueError(
                f"row must have {len(self.names)} fields, got {len(fields)} in "
                f"{shortened(rows[row])}{remedy}"
            )
        return dict(zip(self.names, fields))

    def place(self, location: int) -> str:
        """Returns the file and the line of a row."""
        return self.place_of(self, location)

    def _fields(self, line: bytes) -> List[str]:
        if self._quotes:
            return csv_fields(line, self._delimiter)
        return line.decode(errors="replace").split(self._separator)

    def _has_whole_quotes(self, line: bytes) -> bool:
        """Whether tf.io.decode_csv can read a line; Python's csv module also takes `5" disc`."""
        separator = re.escape(self._delimiter)
        field = f'("([^"]|"")*"|[^"{separator}]*)'
        text = line.decode(errors="replace")
        return not self._quotes or bool(re.fullmatch(f"{field}({separator}{field})*", text))


def _escaped(text: str) -> str:
    """Returns the regular expression, in the dialect RE2, of a text."""
    return "".join(char if char.isalnum() else rf"\x{{{ord(char):x}}}" for char in text)
