# SPDX-License-Identifier: Apache-2.0
"""Reads GZIP and ZLIB files, and checks that they are complete."""

import gzip
import io
import zlib
from typing import Any, BinaryIO, Iterator

import tensorflow as tf

# What reading raises if a file is damaged or cut short.
DAMAGE_ERRORS = (EOFError, OSError, zlib.error)


def is_complete(path: str, compression: str) -> bool:
    """Whether a compressed file can be read to its end."""
    try:
        with open_uncompressed(path, compression) as stream:
            while stream.read(1 << 20):
                pass
    except DAMAGE_ERRORS:
        return False
    return True


def open_uncompressed(path: str, compression: str) -> io.BufferedIOBase:
    """Opens a file for reading its uncompressed bytes.

    Args:
      path: The file.
      compression: "GZIP", "ZLIB" or "" for none.

    Returns:
      A stream. Reading it raises one of DAMAGE_ERRORS if the file is damaged.
    """
    file = tf.io.gfile.GFile(path, "rb")
    if compression == "GZIP":
        return gzip.GzipFile(fileobj=file)
    if compression == "ZLIB":
        return io.BufferedReader(_ZlibStream(file))
    return file


class _ZlibStream(io.RawIOBase):
    """Decompresses a ZLIB file. The standard library has such a stream for GZIP only."""

    def __init__(self, file: BinaryIO) -> None:
        self._chunks = self._decompress(file)
        self._rest = b""

    @staticmethod
    def _decompress(file: BinaryIO) -> Iterator[bytes]:
        stream = zlib.decompressobj()
        while chunk := file.read(1 << 16):
            yield stream.decompress(chunk)
        yield stream.flush()
        if not stream.eof:
            raise EOFError("the compressed stream is cut short")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # any writable buffer
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
