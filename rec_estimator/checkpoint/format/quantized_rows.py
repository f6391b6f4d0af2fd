# SPDX-License-Identifier: Apache-2.0
"""Rows of 8 bits: bytes with a scale and an offset for each row, as the tables of an export.

The same computation as in ops/core/math/quantized_floats.cc, which explains it, bit by bit.
"""

from typing import Tuple

import numpy as np

_LEAST_NORMAL, _LEAST_SCALE = 2.0**-126, 2.0**-124
_LARGEST_RANGE = 2.0**127


def quantize(rows: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Quantizes rows.

    Args:
      rows: float32 [n, dim].

    Returns:
      The bytes, uint8 [n, dim], and the scale and the offset of each row, float32 [n, 2]; NaN for a
      row that is not finite or has numbers that are more than 2**127 apart.

    Example:
      >>> stored = quantize(np.array([[0, 0.4, 1], [7, 7, 7]], np.float32))
      >>> stored[0].tolist(), dequantize(*stored)[1].tolist()
      ([[0, 102, 255], [0, 0, 0]], [7.0, 7.0, 7.0])
    """
    wide = rows.astype(np.float64)
    is_good = np.isfinite(wide).all(axis=1)
    wide = np.where(is_good[:, np.newaxis], wide, 0.0)
    least, greatest = wide.min(axis=1), wide.max(axis=1)
    least = np.where(np.abs(least) < _LEAST_NORMAL, 0.0, least)
    is_good &= greatest - least <= _LARGEST_RANGE
    ranges = np.where(is_good, greatest - least, 0.0)
    bits = (ranges / 255).view(np.int64) + (1 << 36)
    nearest = (bits & ~((1 << 37) - 1)).view(np.float64)
    exponents = np.frexp(least)[1] - 1
    finest = np.where(least == 0, _LEAST_SCALE, np.ldexp(1.0, exponents - 12))
    scales = np.maximum(np.maximum(nearest, finest), _LEAST_SCALE)
    is_constant = ranges * (1.0 / scales) + 0.5 < 1.0
    steps = np.where(is_constant, 0.0, 1.0 / scales)
    distances = wide - least[:, np.newaxis]
    stored = (distances * steps[:, np.newaxis] + 0.5).astype(np.uint8)
    scale_offset = np.stack([np.where(is_constant, 0.0, scales), least], axis=1)
    scale_offset[~is_good] = np.nan
    return stored, scale_offset.astype(np.float32)


def dequantize(stored: np.ndarray, scale_offset: np.ndarray) -> np.ndarray:
    """Returns the rows, float32 [n, dim], of what ``quantize`` returns."""
    scales, offsets = scale_offset[:, :1], scale_offset[:, 1:]
    return offsets + scales * stored.astype(np.float32)
