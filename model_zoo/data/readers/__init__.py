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

# What arguments of rec_estimator.inputs are in a schema.
_WORDS = {
    "pass header=False and column_names=": "set header: false and names in format",
    "pass column_names=": "write a header and rows",
    "column_names": "names in format",
}


def open_files(patterns: Sequence[str], form: Format, key: str) -> Source:
    """Returns the source of files of a format.

    Args:
      patterns: Paths and glob patterns.
      form: How the files are written.
      key: The key of the schema that has the patterns, for errors.

    Raises:
      ModuleNotFoundError: The files are Parquet, and pyarrow is not installed.
      ValueError: A pattern matches no file, or the files are not of the format.
    """
    try:
        if form.name == "parquet":
            return ParquetFiles(patterns)
        if form.name == "tfrecord":
            return ExampleFiles(patterns, form)
        return (LibsvmFiles if form.name == "libsvm" else DelimitedFiles)(patterns, form)
    except ValueError as error:
        message = str(error)
        for argument, words in {"file_pattern": key, **_WORDS}.items():
            message = message.replace(argument, words)
        raise ValueError(message) from None
