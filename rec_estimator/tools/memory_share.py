# SPDX-License-Identifier: Apache-2.0
"""Tells how much memory a table on an SSD needs, from the counts of a checkpoint.

    rec-estimator memory-share model/                              # a folder's latest checkpoint
    rec-estimator memory-share model/model.ckpt-1000 --table user     # one table of one checkpoint

The command also runs as ``python -m rec_estimator.tools.memory_share``. For each table it prints

    user: 4,021 rows of 128 bytes, trained 61,250 times
      in memory       bytes    misses
            1 %      5.1 kB    47.1 %
            2 %     10.2 kB    38.0 %
      …

"misses" is the share of occurrences whose row is on disk if the rows that were trained most often
are in memory, as CacheStrategy.LFU strives for. A step reads a row once, however often its key
occurs in the batch, so it has at most this share of its occurrences to read. docs/storage.md says
what that costs.
"""

import argparse
import sys
from typing import Iterator, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, format_bytes
from rec_estimator.checkpoint.format.stored_tables import StoredTable, rows_of
from rec_estimator.tools.key_counts import row_bytes, stored_frequencies, stored_tables

DESCRIPTION = "Tells how many occurrences miss if a share of the rows is in memory."

# Shares of the rows that are printed.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def missed(frequencies: np.ndarray, keys: np.ndarray, shares: Sequence[float]) -> List[float]:
    """The share of occurrences that miss if the most frequent keys are in memory.

    Args:
      frequencies: int64 [n], distinct.
      keys: int64 [n]. How many keys have each frequency.
      shares: Which part of all keys is in memory, in [0, 1].

    Returns:
      The share of occurrences of other keys, for each of shares; 0 if there is no occurrence.

    Example:
      >>> missed(np.array([1, 8]), np.array([4, 1]), [0, 0.2, 0.4, 1])
      [1.0, 0.3333333333333333, 0.25, 0.0]
    """
    order = np.argsort(-frequencies)
    frequencies, keys = frequencies[order], keys[order]
    total = int(np.sum(frequencies * keys))
    if total == 0:
        return [0.0] * len(shares)
    # Between two frequencies, all keys have the same one.
    keys_before = np.concatenate([[0], np.cumsum(keys)])
    found_before = np.concatenate([[0], np.cumsum(frequencies * keys)])
    in_memory = np.asarray(shares, np.float64) * keys_before[-1]
    found = np.interp(in_memory, keys_before, found_before)
    return [float(share) for share in (total - found) / total]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator memory-share", description=DESCRIPTION)
    parser.add_argument("checkpoint", help="path without .index, or a folder, for its latest")
    parser.add_argument("--table", metavar="NAME", help="this table only")
    options = parser.parse_args(arguments)
    try:
        lines = list(_lines(options.checkpoint, options.table))
    except (OSError, ValueError, tf.errors.OpError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def _lines(prefix: str, name: Optional[str]) -> Iterator[str]:
    bundle, tables = stored_tables(prefix, name)
    for table in tables:
        yield from _lines_of(bundle, table)


def _lines_of(bundle: Bundle, table: StoredTable) -> Iterator[str]:
    rows = rows_of(bundle, table.shards, "-keys")
    if not rows:
        yield f"{table.name}: no rows"
        return
    if rows_of(bundle, table.shards, "-freqs") != rows:
        yield f"{table.name}: {rows:,} rows, their counts are not recorded"
        return
    found = stored_frequencies(bundle, table)
    size_of_row = row_bytes(bundle, table)
    yield (
        f"{table.name}: {rows:,} rows of {size_of_row:,} bytes, trained {found.occurrences:,} times"
    )
    yield f"  {'in memory':>9}  {'bytes':>10}  {'misses':>8}"
    for share, misses in zip(SHARES, missed(*found, SHARES)):
        size = format_bytes(int(share * rows) * size_of_row)
        yield f"  {100 * share:>7.0f} %  {size:>10}  {100 * misses:>6.1f} %"


if __name__ == "__main__":
    sys.exit(main())
