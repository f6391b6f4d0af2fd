# SPDX-License-Identifier: Apache-2.0
"""Readers of files, one module per kind of file; each streams blocks of rows."""

from typing import Sequence

from model_zoo.data.readers.delimited import DelimitedFiles
from model_zoo.data.readers.examples import ExampleFiles
from model_zoo.data.readers.libsvm import LibsvmFiles
from model_zoo.data.readers.parquet import ParquetFiles
from model_zoo.data.readers.source import Source
from model_zoo.data.schema import Format

__all__ = ["Source", "open_files"]


def open_files(patterns: Sequence[str], form: Format) -> Source:
    """Returns the source of files of a format.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written.

    Raises:
      ModuleNotFoundError: The files are Parquet, and pyarrow is not installed.
      ValueError: A pattern matches no file, or the files are not of the format.
    """
    if form.name == "parquet":
        return ParquetFiles(patterns)
    if form.name == "tfrecord":
        return ExampleFiles(patterns, form)
    return (LibsvmFiles if form.name == "libsvm" else DelimitedFiles)(patterns, form)
