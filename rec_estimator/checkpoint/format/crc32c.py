# SPDX-License-Identifier: Apache-2.0
"""CRC-32C (Castagnoli) over arrays, fast enough to check a checkpoint while it is read.

TensorFlow stores one with every tensor and every block of an index, but has no Python function for
it. The sum is linear over GF(2), so many stretches of the data are summed side by side, two bytes a
step, and their sums are joined in pairs.

Sources: RFC 3720 appendix B.4 (polynomial, test vectors); M. Adler, crc32_combine of zlib 1.2.
"""

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, lowest bit first.

# Stretches summed side by side: enough to hide NumPy's cost per call, few enough for the cache.
_STRETCHES = 4096


def crc32c(data: np.ndarray, before: int = 0) -> int:
    """Sum of the bytes of ``data`` after others.

    Args:
      data: uint8 [n].
      before: Sum of the bytes before these; 0 if there are none.

    Returns:
      CRC-32C of all of them, in [0, 2**32).

    Example:
      >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
      '0xe3069283'
    """
    # A register of all ones before, inverted after: as the standard has it.
    register = before ^ 0xFFFFFFFF
    words = len(data) // (2 * _STRETCHES)
    if words:
        wide = words * 2 * _STRETCHES
        sums = _stretch_sums(data[:wide].view("<u2").reshape(_STRETCHES, words))
        register = int(_shift(np.uint32([register]), wide)[0]) ^ _join(sums, 2 * words)
        data = data[wide:]
    table = _byte_table()
    for byte in data.tolist():
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The form in which TensorFlow stores a sum: a sum over stored sums would be a weak one."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _stretch_sums(words: np.ndarray) -> np.ndarray:
    """Register, from zero, of each row of uint16 [stretches, words]."""
    table = _word_table()
    sums = np.zeros(len(words), np.uint32)
    for column in np.ascontiguousarray(words.T):
        sums = table[(sums ^ column) & 0xFFFF] ^ (sums >> 16)
    return sums


def _join(sums: np.ndarray, width: int) -> int:
    """Register of stretches of ``width`` bytes one after the other."""
    while len(sums) > 1:
        sums = _shift(sums[0::2], width) ^ sums[1::2]
        width *= 2
    return int(sums[0])


def _shift(registers: np.ndarray, count: int) -> np.ndarray:
    """Registers uint32 [n] after ``count`` bytes of zeros."""
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
def _byte_table() -> list:
    """Register after each byte, from zero: 256 ints."""
    registers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        registers = np.where(registers & 1, registers >> 1 ^ _POLYNOMIAL, registers >> 1)
    return registers.tolist()


@functools.cache
def _word_table() -> np.ndarray:
    """Register after each two bytes, from zero: uint32 [65536]."""
    table = np.array(_byte_table(), np.uint32)
    once = table[np.arange(1 << 16) & 0xFF] ^ (np.arange(1 << 16, dtype=np.uint32) >> 8)
    return table[once & 0xFF] ^ (once >> 8)


@functools.cache
def _shift_table(power: int) -> np.ndarray:
    """Register after 2**power zeros, from each byte of a register: uint32 [4, 256]."""
    if power == 0:
        registers = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
        return np.array(_byte_table(), np.uint32)[registers & 0xFF] ^ (registers >> 8)
    half = _shift_table(power - 1)
    return np.array([_shift(row, 1 << (power - 1)) for row in half])
