# SPDX-License-Identifier: Apache-2.0
"""Computes CRC-32C (Castagnoli) with NumPy, fast enough to check a checkpoint while reading it.

TensorFlow stores this checksum with every tensor and every index block, but has no Python function
for it. The checksum is linear over GF(2). So the data are divided into equal stretches. All
stretches advance together, two bytes a step, and their checksums are then joined in pairs.

Sources: RFC 3720 appendix B.4 (polynomial, test vectors); M. Adler, crc32_combine of zlib 1.2.
"""

import functools
from typing import List

import numpy as np

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, lowest bit first.

# Number of stretches: enough to amortize NumPy's cost per call, few enough for the cache.
_STRETCHES = 4096


def crc32c(data: np.ndarray, before: int = 0) -> int:
    """Returns the checksum of ``data``, or of earlier bytes followed by ``data``.

    Args:
      data: uint8 [n].
      before: Checksum of the earlier bytes; 0 if there are none.

    Returns:
      CRC-32C of all bytes, in [0, 2**32).

    Example:
      >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
      '0xe3069283'
    """
    # The standard starts with a register of ones and inverts the result.
    register = before ^ 0xFFFFFFFF
    words = len(data) // (2 * _STRETCHES)
    if words:
        wide = words * 2 * _STRETCHES
        sums = _stretch_sums(data[:wide].view("<u2").reshape(_STRETCHES, words))
        register = int(_shift(np.array([register], np.uint32), wide)[0]) ^ _join(sums, 2 * words)
        data = data[wide:]
    table = _byte_table()
    for byte in data.tolist():
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Returns the form in which TensorFlow stores a checksum.

    A checksum over bytes that contain plain checksums would be weak.
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _stretch_sums(words: np.ndarray) -> np.ndarray:
    """Returns the register of each row of uint16 [stretches, words], starting from 0."""
    table = _word_table()
    sums = np.zeros(len(words), np.uint32)
    for column in np.ascontiguousarray(words.T):
        sums = table[(sums ^ column) & 0xFFFF] ^ (sums >> 16)
    return sums


def _join(sums: np.ndarray, width: int) -> int:
    """Returns the register of consecutive stretches of ``width`` bytes."""
    while len(sums) > 1:
        sums = _shift(sums[0::2], width) ^ sums[1::2]
        width *= 2
    return int(sums[0])


def _shift(registers: np.ndarray, count: int) -> np.ndarray:
    """Returns registers, uint32 [n], after ``count`` more bytes of zeros."""
    for power in range(count.bit_length()):
        if count >> power & 1:
            table = _shift_table(power)
            registers = (
                table[0][registers & 0xFF]
                ^ table[1][registers >> 8 & 0xFF]
                ^ table[2][registers >> 16 & 0xFF]
                ^ table[3][registers >> 24]
            )
    return registers


@functools.cache
def _byte_table() -> List[int]:
    """Returns the register after each of the 256 bytes, starting from 0."""
    registers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        registers = np.where(registers & 1, registers >> 1 ^ _POLYNOMIAL, registers >> 1)
    return registers.tolist()


@functools.cache
def _word_table() -> np.ndarray:
    """Returns the register after each pair of bytes, starting from 0: uint32 [65536]."""
    table = np.array(_byte_table(), np.uint32)
    once = table[np.arange(1 << 16) & 0xFF] ^ (np.arange(1 << 16, dtype=np.uint32) >> 8)
    return table[once & 0xFF] ^ (once >> 8)


@functools.cache
def _shift_table(power: int) -> np.ndarray:
    """Returns the register after 2**power zeros for each byte of a register: uint32 [4, 256]."""
    if power == 0:
        registers = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
        return np.array(_byte_table(), np.uint32)[registers & 0xFF] ^ (registers >> 8)
    half = _shift_table(power - 1)
    return np.array([_shift(row, 1 << (power - 1)) for row in half])
