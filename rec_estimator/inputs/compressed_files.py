# SPDX-License-Identifier: Apache-2.0
"""Reads GZIP and ZLIB files, and checks that they are complete.

A file may hold several compressed streams, one behind the other. TensorFlow reads all of them in a
GZIP file, but only the first one in a ZLIB file, without an error.
"""

import gzip
import io
import zlib
from typing import Any, BinaryIO, Iterator

import tensorflow as tf

# What reading raises if a file is damaged or cut short.
DAMAGE_ERRORS = (EOFError, OSError, zlib.error)


def count_streams(path: str, compression: str) -> int:
    """The number of ZLIB streams, or 1 for a GZIP file; 0 if the file is damaged."""
    try:
        with open_uncompressed(path, compression) as stream:
            while stream.read(1 << 20):
                pass
            raw = getattr(stream, "raw", None)
            return raw.count if isinstance(raw, _ZlibStream) else 1
    except DAMAGE_ERRORS:
        return 0


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
    """Decompresses a ZLIB file. The standard library has such a stream for GZIP only.

    Attributes:
      count: Number of compressed streams that were read to their ends.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.count = 0
        self._chunks = self._decompress(file)
        self._rest = b""

    def _decompress(self, file: BinaryIO) -> Iterator[bytes]:
        stream = zlib.decompressobj()
        has_begun = False
        while compressed := file.read(1 << 16):
            while compressed:
                has_begun = True
                yield stream.decompress(compressed)
                compressed = stream.unused_data
                if stream.eof:
                    self.count += 1
                    stream, has_begun = zlib.decompressobj(), False
        if has_begun or not self.count:
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
