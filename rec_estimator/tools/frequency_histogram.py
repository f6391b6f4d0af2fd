# SPDX-License-Identifier: Apache-2.0
"""How often features occurred: counts of keys by powers of two, as text and as a picture."""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

# Lower ends of the buckets after the first, which holds what never occurred.
_POWERS = 2 ** np.arange(63, dtype=np.int64)

# So many labels fit under a panel, and letters beside its legend.
_MAX_TICKS = 11
_MAX_TITLE = 32


class Bucket(NamedTuple):
    """Keys whose frequency is in [low, high]."""

    low: int
    high: int
    keys: int

    @property
    def label(self) -> str:
        """The frequencies, for people."""
        low, high = _short(self.low), _short(self.high)
        return low if self.low == self.high else f"{low}-{high}"


class FrequencyHistogram:
    r"""Keys by frequency: 0, 1, 2-3, 4-7, …

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
        """Counts keys of these frequencies, int64 [n]."""
        found = np.searchsorted(_POWERS, frequencies, side="right")
        self._keys += np.bincount(found, minlength=len(self._keys))

    def buckets(self) -> List[Bucket]:
        """From the first bucket with a key to the last."""
        filled = np.flatnonzero(self._keys)
        if not len(filled):
            return []
        return [
            Bucket(0, 0, int(self._keys[0]))
            if not place
            else Bucket(2 ** (place - 1), 2**place - 1, int(self._keys[place]))
            for place in range(int(filled[0]), int(filled[-1]) + 1)
        ]

    def lines(self, columns: int) -> Iterator[str]:
        """A bar per bucket, in ASCII, at most ``columns`` wide if the numbers leave space."""
        buckets = self.buckets()
        labels = [(bucket.label, f"{bucket.keys:,}") for bucket in buckets]
        widths = [max(map(len, column)) for column in zip(*labels)]
        most = max((bucket.keys for bucket in buckets), default=0)
        for bucket, (label, keys) in zip(buckets, labels):
            space = max(columns - sum(widths) - 4, 1)
            # Rounded up: a single key can be seen.
            bar = "#" * -(-bucket.keys * space // most)
            yield f"{label:>{widths[0]}}  {keys:>{widths[1]}}  {bar}".rstrip()


# Frequencies of rows and of filtered keys; None: the checkpoint has none.
Pair = Tuple[Optional[FrequencyHistogram], Optional[FrequencyHistogram]]


def draw(path: str, tables: Dict[str, Pair]) -> None:
    """Writes a PNG with the frequencies of each table.

    Args:
      path: File to write.
      tables: Frequencies of rows and of filtered keys, by the table's name.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "--png must have matplotlib, which is not installed; pip install rec_estimator[plot]"
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


def _draw_panel(axes: Any, pair: Pair) -> None:
    found = [histogram.buckets() if histogram else [] for histogram in pair]
    lows = sorted({bucket.low for buckets in found for bucket in buckets})
    if not lows:
        axes.text(0.5, 0.5, "no frequencies recorded", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    # A bucket's place is the number of bits of its frequencies.
    styles = ((-0.2, "rows", "C0"), (0.2, "filtered keys", "C1"))
    for buckets, (offset, label, color) in zip(found, styles):
        places = [bucket.low.bit_length() + offset for bucket in buckets]
        if places:
            heights = [bucket.keys for bucket in buckets]
            axes.bar(places, heights, width=0.4, label=label, color=color)
    ticks = lows[:: math.ceil(len(lows) / _MAX_TICKS)]
    axes.set_xticks([low.bit_length() for low in ticks], [_short(low) for low in ticks])
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)  # A single key has a bar.
    axes.set_xlabel("frequency, from this to twice as much")
    axes.set_ylabel("keys")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def _short(count: int) -> str:
    """A frequency in few characters: 8191, 16k, 1.0M."""
    if count < 10_000:
        return str(count)
    thousands = (len(str(count)) - 1) // 3
    size = count / 1000**thousands
    return f"{size:.{0 if size >= 10 else 1}f}{'kMGTPE'[thousands - 1]}"
