# SPDX-License-Identifier: Apache-2.0
"""Parses and builds a checkpoint's ``.index`` file, a sorted table of keys and values.

    block* · metaindex block (empty) · index block · footer

    block     entry* · position* · number of positions · compression, 1 byte · masked CRC-32C
    entry     length shared with the previous key · length of the rest · length of the value
              · rest of the key · value
    position  where an entry with its whole key begins

The index block maps the last key of each block to the block's place. The footer holds the place of
the index block.

Source: LevelDB, doc/table_format.md (https://github.com/google/leveldb); TensorFlow writes it
uncompressed.
"""

import struct
from typing import Iterable, Iterator, List, Tuple

import numpy as np

from rec_estimator.checkpoint.format.crc32c import crc32c, masked

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48  # Bytes: two places of at most 20 bytes each, and the magic number.
_TRAILER = 5  # Bytes after a block: compression and checksum.

# Bytes of entries in a block. Readers load one block at a time.
_BLOCK = 1 << 16

# Every so many entries, one stores its whole key.
_SHARING = 16

# The keys of an index take at most so many times the bytes of the file: keys that share their start
# could take any memory.
_MOST_SHARED = 64


class DamagedIndexError(Exception):
    """The bytes are not a valid index; the message says where."""


def identity_of(data: bytes) -> str:
    """Returns the identity of a checkpoint, which incremental checkpoints store of their parent.

    The index contains the checksums of all tensors. So checkpoints of equal identity have equal
    content. A copy of a checkpoint has the same identity.

    Args:
      data: The whole index file.

    Returns:
      The length in bytes and the CRC-32C of the file.

    Example:
      >>> identity_of(b"123456789")
      '9-e3069283'
    """
    return f"{len(data)}-{crc32c(np.frombuffer(data, np.uint8)):08x}"


def parse_index(data: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """Yields the keys and values of an index file in order.

    Args:
      data: The whole file.

    Yields:
      (key, value).

    Raises:
      DamagedIndexError: The file is cut, changed or compressed.

    Example:
      >>> list(parse_index(build_index([(b"a", b"1"), (b"ab", b"2")])))
      [(b'a', b'1'), (b'ab', b'2')]
    """
    if len(data) < _FOOTER or not data.endswith(_MAGIC):
        raise DamagedIndexError("it does not end as an index does")
    metaindex, position = _parse_place(data, len(data) - _FOOTER)
    for _ in _parse_block(data, *metaindex):
        raise DamagedIndexError("its metaindex must be empty")
    place, _ = _parse_place(data, position)
    before, total = None, 0
    for _, value in _parse_block(data, *place):
        place, _ = _parse_place(value, 0)
        for key, entry in _parse_block(data, *place):
            # Otherwise TensorFlow, which searches, may find other entries than are seen here.
            if before is not None and key <= before:
                raise DamagedIndexError("its keys are not in order")
            total += len(key)
            if total > _MOST_SHARED * len(data):
                raise DamagedIndexError("its keys are longer than the file can hold")
            before = key
            yield key, entry


def build_index(entries: Iterable[Tuple[bytes, bytes]]) -> bytes:
    """Builds an index file.

    Args:
      entries: (key, value), sorted by the bytes of the key.

    Returns:
      The whole file.
    """
    file, places = bytearray(), []
    block: List[Tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        block.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK:
            places.append((key, _append_block(file, block)))
            block, size = [], 0
    if block:
        places.append((block[-1][0], _append_block(file, block)))
    footer = _append_block(file, []) + _append_block(file, places)
    return bytes(file) + footer.ljust(_FOOTER - len(_MAGIC), b"\0") + _MAGIC


def _parse_block(data: bytes, offset: int, size: int) -> Iterator[Tuple[bytes, bytes]]:
    block = data[offset : offset + size + 1]
    trailer = data[offset + size : offset + size + _TRAILER]
    if len(trailer) < _TRAILER or size < 4:
        raise DamagedIndexError("a block lies outside of the file")
    if masked(crc32c(np.frombuffer(block, np.uint8))) != struct.unpack("<I", trailer[1:])[0]:
        raise DamagedIndexError(f"the checksum of the block at byte {offset} does not match")
    if trailer[0]:
        raise DamagedIndexError("it is compressed, which an index of TensorFlow never is")
    restarts = struct.unpack_from("<I", block, size - 4)[0]
    end = size - 4 - 4 * restarts
    if end < 0:
        raise DamagedIndexError(f"the block at byte {offset} has {restarts} positions")
    positions = set(struct.unpack_from(f"<{restarts}I", block, end))
    key, position = b"", 0
    while position < end:
        begin = position
        shared, position = parse_varint(block, position)
        rest, position = parse_varint(block, position)
        length, position = parse_varint(block, position)
        if shared > len(key) or position + rest + length > end:
            raise DamagedIndexError(f"the entry at byte {offset + begin} does not fit")
        if shared == 0:
            positions.discard(begin)
        key = key[:shared] + block[position : position + rest]
        position += rest
        yield key, block[position : position + length]
        position += length
    # TensorFlow begins to read there.
    if positions - {0}:
        raise DamagedIndexError(f"the block at byte {offset} has positions within an entry")


def _append_block(file: bytearray, entries: List[Tuple[bytes, bytes]]) -> bytes:
    """Appends a block and returns its encoded place."""
    # Readers require at least one position.
    block, positions, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(entries):
        if number and not number % _SHARING:
            positions.append(len(block))
            before = b""
        both = min(len(before), len(key))
        shared = next((i for i in range(both) if before[i] != key[i]), both)
        block += varint(shared) + varint(len(key) - shared) + varint(len(value))
        block += key[shared:] + value
        before = key
    block += struct.pack(f"<{len(positions) + 1}I", *positions, len(positions))
    place = varint(len(file)) + varint(len(block))
    block += b"\0"  # No compression.
    file += block + struct.pack("<I", masked(crc32c(np.frombuffer(block, np.uint8))))
    return place


def _parse_place(data: bytes, position: int) -> Tuple[Tuple[int, int], int]:
    offset, position = parse_varint(data, position)
    size, position = parse_varint(data, position)
    return (offset, size), position


def parse_varint(data: bytes, position: int) -> Tuple[int, int]:
    """Parses a number that is stored in 7 bits a byte, the lowest first.

    Args:
      data: Bytes that hold the number.
      position: Where it begins.

    Returns:
      The number, and where it ends.

    Raises:
      DamagedIndexError: It has more than 64 bits or does not end.

    Example:
      >>> parse_varint(bytes([0xAC, 2]), 0)
      (300, 2)
    """
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedIndexError("a number does not end")


def varint(value: int) -> bytes:
    """Encodes an integer >= 0: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
