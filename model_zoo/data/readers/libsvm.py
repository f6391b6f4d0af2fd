# SPDX-License-Identifier: Apache-2.0
"""Reads libsvm and libfm files: lines like `1 17:1 204:1 3078:0.5`."""

import re
from typing import Any, Dict, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from model_zoo.data.readers.source import RecordFiles, shortened
from model_zoo.data.schema import Format

LABEL = "label"
INDICES = "features"

_LINE = re.compile(r"\S+(\s+[^\s:]+:[^\s:]+)*\s*")


class LibsvmFiles(RecordFiles):
    """Text files whose lines have a label and pairs of index and value.

    With names, each line has one pair per name, in their order: `name` is the index of the pair and
    `name.value` its value. Without names, "features" has all indices, separated by blanks, and
    "features.value" their values. "label" is the label. What follows a # is ignored.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written; its names are those of the positions.

    Raises:
      ValueError: A pattern matches no file.
    """

    number_name = "line"
    is_text = True
    header = False

    def __init__(self, patterns: Sequence[str], form: Format) -> None:
        super().__init__(patterns, form)
        self._positions = form.names
        names = [name for each in form.names or (INDICES,) for name in (each, f"{each}.value")]
        self.names = (LABEL, *names)

    def blocks(self, lengths: Mapping[str, int], seed: Optional[tf.Tensor]) -> tf.data.Dataset:
        """Makes a dataset of (lines string [n], locations) of one pass."""
        return self.blocks_of(self, seed)

    def records(self, path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        """The lines of a file."""
        return tf.data.TextLineDataset(path, compression_type=compression)

    def columns(self, rows: Any, dtypes: Mapping[str, tf.DType]) -> Dict[str, tf.Tensor]:
        """Returns the columns of some lines as text, or as the type that is asked for."""
        lines = tf.strings.strip(tf.strings.regex_replace(rows, r"\s*#.*$", ""))
        if self._positions:
            lines = tf.strings.regex_replace(lines, r"[\s:]+", " ")
            defaults = [tf.constant([], dtypes.get(name, tf.string)) for name in self.names]
            decoded = tf.io.decode_csv(lines, defaults, " ", use_quote_delim=False)
            return {name: each for name, each in zip(self.names, decoded) if name in dtypes}
        pairs = tf.strings.regex_replace(lines, r"^\S+\s*", "")
        return {
            LABEL: tf.strings.regex_replace(lines, r"\s.*$", ""),
            INDICES: tf.strings.regex_replace(pairs, r":\S*", ""),
            f"{INDICES}.value": tf.strings.regex_replace(pairs, r"[^\s:]+:", ""),
        }

    def values(self, rows: Any, row: int) -> Dict[str, Any]:
        """Returns the fields of one line."""
        line = re.sub(r"\s*#.*$", "", rows[row].decode(errors="replace")).strip()
        if not _LINE.fullmatch(line):
            raise ValueError(
                f"row must be a label and pairs index:value, got {shortened(rows[row])}"
            )
        label, *pairs = line.split()
        split = [pair.split(":") for pair in pairs]
        if not self._positions:
            indices, values = (" ".join(each) for each in zip(*split)) if split else ("", "")
            return {LABEL: label, INDICES: indices, f"{INDICES}.value": values}
        if len(pairs) != len(self._positions):
            raise ValueError(
                f"row must have {len(self._positions)} pairs, got {len(pairs)} in "
                f"{shortened(rows[row])}"
            )
        return dict(zip(self.names, [label, *(part for pair in split for part in pair)]))

    def place(self, location: int) -> str:
        """Returns the file and the line of a row."""
        return self.place_of(self, location)
