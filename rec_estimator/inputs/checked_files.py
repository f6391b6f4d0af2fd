# SPDX-License-Identifier: Apache-2.0
"""Checks files, each once for all passes over the data."""

import os
import shutil
import tempfile
from typing import Dict, Optional, Set, Tuple

import tensorflow as tf

from rec_estimator.inputs.compressed_files import count_streams, open_uncompressed
from rec_estimator.inputs.text_files import check_returns

_State = Tuple[str, int, int]  # (path, bytes, time of change)


class CheckedFiles:
    """Checks compressed files, each once, and gives TensorFlow files that it reads to their ends.

    It holds copies of ZLIB files with several streams until it is deleted.
    """

    def __init__(self) -> None:
        self._readable: Dict[_State, Tuple[str, str]] = {}  # The path and compression to read.
        self._with_good_lines: Set[_State] = set()
        self._folder: Optional[tempfile.TemporaryDirectory] = None

    def readable(self, path: str, compression: str) -> Optional[Tuple[str, str]]:
        """Returns the path and compression to read instead; None if the file is damaged."""
        if not compression:
            return path, compression
        key = _state_of(path)
        if key not in self._readable:
            streams = count_streams(path, compression)
            if not streams:
                return None
            is_read_whole = compression == "GZIP" or streams == 1
            self._readable[key] = (path, compression) if is_read_whole else (self._copy(path), "")
        return self._readable[key]

    def check_lines(self, path: str, compression: str, source: str) -> None:
        """Checks the line ends of a file as check_returns does."""
        state = _state_of(path)
        if state not in self._with_good_lines:
            check_returns(path, compression, source)
            self._with_good_lines.add(state)

    def _copy(self, path: str) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rec_estimator-")
        copy = os.path.join(self._folder.name, str(len(self._readable)))
        with open_uncompressed(path, "ZLIB") as stream, open(copy, "wb") as file:
            shutil.copyfileobj(stream, file)
        return copy


def _state_of(path: str) -> _State:
    stat = tf.io.gfile.stat(path)
    return path, stat.length, stat.mtime_nsec
