# SPDX-License-Identifier: Apache-2.0
r"""Checks that text files are UTF-8 and that their lines end with \n or \r\n.

TensorFlow's reader of lines drops every \r, inside of a line too, without an error.
"""

import codecs
import re
from typing import Optional

from rec_estimator.inputs.compressed_files import open_uncompressed

# Bytes that are read to check the beginning of a file.
_BEGINNING = 1 << 20

# The first bytes of some UTF-8 text files.
BYTE_ORDER_MARK = codecs.BOM_UTF8

_OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def first_line(path: str, compression: str) -> bytes:
    """The first line of a file with its end; at most the first MiB."""
    with open_uncompressed(path, compression) as stream:
        if compression:
            return stream.readline(_BEGINNING)
        # readline() of TensorFlow's file drops carriage returns.
        line, end, _ = stream.read(_BEGINNING).partition(b"\n")
        return line + end


def check_beginning(path: str, compression: str) -> None:
    """Checks the first MiB of a file.

    Raises:
      ValueError: It is not UTF-8, or has a carriage return that is not part of a line end.
    """
    with open_uncompressed(path, compression) as stream:
        check_text(path, stream.read(_BEGINNING))


def check_text(path: str, beginning: bytes) -> None:
    """Checks the first bytes of a file, at most 1 MiB, as check_beginning does."""
    for mark, encoding in _OTHER_ENCODINGS.items():
        if beginning.startswith(mark):
            raise ValueError(
                f"{path} must be UTF-8 text, got {encoding}; convert it, for example with "
                f"iconv -f {encoding} -t UTF-8"
            )
    # The \n that belongs to a last \r may be in the next MiB.
    found = _LONE_RETURN.search(beginning[:-1] if len(beginning) == _BEGINNING else beginning)
    if found:
        raise _return_error(path, 1 + beginning.count(b"\n", 0, found.start()))


def check_returns(path: str, compression: str, source: str) -> None:
    """Checks the line ends of a whole file.

    Args:
      path: The file.
      compression: As in open_uncompressed.
      source: The path to name.

    Raises:
      ValueError: A line has a carriage return that is not part of its end.
    """
    line = _find_return(path, compression)
    if line is not None:
        raise _return_error(source, line)


_LONE_RETURN = re.compile(rb"\r(?!\n)")


def _find_return(path: str, compression: str) -> Optional[int]:
    """The number of the first line with a carriage return that is not part of its end."""
    line, rest = 1, b""
    with open_uncompressed(path, compression) as stream:
        while chunk := stream.read(_BEGINNING):
            chunk = rest + chunk
            # What follows a last \r is in the next chunk.
            rest = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(rest)]
            found = _LONE_RETURN.search(chunk)
            if found:
                return line + chunk.count(b"\n", 0, found.start())
            line += chunk.count(b"\n")
    return line if rest else None


def _return_error(path: str, line: int) -> ValueError:
    return ValueError(
        f"{path}, line {line}: lines must end with \\n or \\r\\n, got a \\r elsewhere; replace it"
    )
