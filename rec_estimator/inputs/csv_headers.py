# SPDX-License-Identifier: Apache-2.0
"""Reads the column names of CSV files from their headers."""

from typing import Optional, Sequence, Tuple

from rec_estimator.inputs.compressed_files import DAMAGE_ERRORS
from rec_estimator.inputs.row_files import RowFiles
from rec_estimator.inputs.row_parsers import as_names, csv_fields
from rec_estimator.inputs.text_files import BYTE_ORDER_MARK, check_text, first_line


def column_names(
    files: RowFiles, given: Optional[Sequence[str]], header: bool, delimiter: str
) -> Tuple[str, ...]:
    """Returns the column names of CSV files.

    Args:
      files: The files.
      given: The names, if the user gives them.
      header: Whether the first line of each file is a header.
      delimiter: The character between fields.

    Raises:
      ValueError: Headers differ from each other or from the given names, or there is no header.
    """
    names, source = given, "column_names"
    for path in files.find() if header else []:
        found = _header_names(path, files.compression(path), delimiter)
        if found is None:
            continue
        if names is not None and found != tuple(names):
            raise ValueError(
                f"{path}, line 1: header must name the columns of {source}, {list(names)}, got "
                f"{list(found)}; read files with different columns separately"
            )
        names, source = found, path
    if names is None:
        raise ValueError(
            "file_pattern must match a file with a header, got empty files only for "
            f"{list(files.patterns)}; pass column_names="
        )
    return as_names("column_names", names)


def _header_names(path: str, compression: str, delimiter: str) -> Optional[Tuple[str, ...]]:
    """The names in the first line of a CSV file; None if the file is empty.

    Raises:
      ValueError: The first line is blank or contains a name twice, or the file is damaged.
    """
    try:
        line = first_line(path, compression)
    except DAMAGE_ERRORS as error:
        raise ValueError(f"{path} must be a readable file, got {error}; write it again") from error
    check_text(path, line)
    text = line[len(BYTE_ORDER_MARK) :] if line.startswith(BYTE_ORDER_MARK) else line
    text = text.rstrip(b"\r\n")
    if not text:
        if line:
            raise ValueError(
                f"{path}, line 1: header must name the columns, got a blank line; "
                "pass header=False and column_names= for files without a header"
            )
        return None
    names = tuple(csv_fields(text, delimiter))
    if len(set(names)) != len(names):
        raise ValueError(
            f"{path}, line 1: header must name each column once, got {names}; rename a column"
        )
    return names
