# SPDX-License-Identifier: Apache-2.0
"""Counts keys by frequency, in bins of powers of two, and draws them as text or as a picture."""

import math
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Lower ends of all bins but the first, which holds frequency 0.
_POWERS = 2 ** np.arange(63, dtype=np.int64)

# The most labels that fit under a panel, and the most letters that fit next to its legend.
_MAX_TICKS = 11
_MAX_TITLE = 32


class Bin(NamedTuple):
    """The number of keys with a frequency in [low, high]."""

    low: int
    high: int
    keys: int

    @property
    def label(self) -> str:
        """The range of frequencies, in few characters."""
        low, high = _short(self.low), _short(self.high)
        return low if self.low == self.high else f"{low}-{high}"


class FrequencyHistogram:
    r"""A histogram of keys by frequency: 0, 1, 2-3, 4-7, …

    Example:
      >>> histogram = FrequencyHistogram()
      >>> histogram.add(np.array([1, 1, 3]))
      >>> print(*histogram.lines(columns=16), sep="\n")
        1  2  ########
      2-3  1  ####
    """

    def __init__(self) -> None:
        self._keys = np.zeros(len(_POWERS) + 1, np.int64)

    def add(self, frequencies: np.ndarray) -> None:
        """Adds keys with these frequencies, int64 [n]."""
        found = np.searchsorted(_POWERS, frequencies, side="right")
        self._keys += np.bincount(found, minlength=len(self._keys))

    def bins(self) -> List[Bin]:
        """Returns the bins from the first to the last one that has keys."""
        filled = np.flatnonzero(self._keys)
        if not len(filled):
            return []
        return [
            Bin(0, 0, int(self._keys[0]))
            if not place
            else Bin(2 ** (place - 1), 2**place - 1, int(self._keys[place]))
            for place in range(int(filled[0]), int(filled[-1]) + 1)
        ]

    def lines(self, columns: int) -> Iterator[str]:
        """Yields a line with an ASCII bar for each bin, ``columns`` wide where numbers allow."""
        bins = self.bins()
        labels = [(each.label, f"{each.keys:,}") for each in bins]
        widths = [max(map(len, column)) for column in zip(*labels)]
        most = max((each.keys for each in bins), default=0)
        for each, (label, keys) in zip(bins, labels):
            space = max(columns - sum(widths) - 4, 1)
            # Rounded up, so that a single key is visible.
            bar = "#" * -(-each.keys * space // most)
            yield f"{label:>{widths[0]}}  {keys:>{widths[1]}}  {bar}".rstrip()


# Frequencies of rows and of filtered keys; None: the checkpoint did not record them.
Pair = Tuple[Optional[FrequencyHistogram], Optional[FrequencyHistogram]]


def draw(path: str, tables: Dict[str, Pair]) -> None:
    """Writes a PNG file with one panel for each table.

    Args:
      path: Path of the file.
      tables: By table, the frequencies of its rows and of its filtered keys.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "matplotlib, which --png needs, is not installed; pip install rec_estimator[plot]"
        ) from None
    # About twice as wide as high: a panel is 6 by 3 inches.
    across = max(math.ceil(math.sqrt(len(tables) / 2)), 1)
    down = max(math.ceil(len(tables) / across), 1)
    figure = Figure(figsize=(6 * across, 3 * down), layout="constrained")
    for place, (name, pair) in enumerate(tables.items(), 1):
        axes = figure.add_subplot(down, across, place)
        title = name if len(name) <= _MAX_TITLE else "…" + name[1 - _MAX_TITLE :]
        axes.set_title(title, loc="left")
        _draw_panel(axes, pair)
    figure.savefig(path, format="png", dpi=100)


def _draw_panel(axes: "Axes", pair: Pair) -> None:
    found = [histogram.bins() if histogram else [] for histogram in pair]
    lows = sorted({each.low for bins in found for each in bins})
    if not lows:
        axes.text(0.5, 0.5, "no frequencies recorded", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    # The place of a bin on the axis is the number of bits of its frequencies.
    styles = ((-0.2, "rows", "C0"), (0.2, "filtered keys", "C1"))
    for bins, (offset, label, color) in zip(found, styles):
        places = [each.low.bit_length() + offset for each in bins]
        if places:
            heights = [each.keys for each in bins]
            axes.bar(places, heights, width=0.4, label=label, color=color)
    ticks = lows[:: math.ceil(len(lows) / _MAX_TICKS)]
    axes.set_xticks([low.bit_length() for low in ticks], [_short(low) for low in ticks])
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)  # So that a single key has a bar.
    axes.set_xlabel("frequency, from this to twice as much")
    axes.set_ylabel("keys")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def _short(count: int) -> str:
    """Formats a frequency in few characters: 8191, 16k, 1.0M."""
    if count < 10_000:
        return str(count)
    thousands = (len(str(count)) - 1) // 3
    size = count / 1000**thousands
    return f"{size:.{0 if size >= 10 else 1}f}{'kMGTPE'[thousands - 1]}"
