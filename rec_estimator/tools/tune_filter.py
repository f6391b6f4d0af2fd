# SPDX-License-Identifier: Apache-2.0
"""Proposes a filter from how often ids occur: in a sample of the data, or in a checkpoint.

    rec-estimator tune clicks.csv --column user            # a column of a CSV file with a header
    rec-estimator tune clicks.csv --column item history    # columns that share a table
    zcat day_0.gz | rec-estimator tune /dev/stdin --delimiter tab --column 14    # without a header
    rec-estimator tune clicks.parquet --column user        # a column of a Parquet file
    rec-estimator tune users.npy                           # an array of NumPy
    rec-estimator tune model/ --table user                 # the counts of the latest checkpoint

The command also runs as ``python -m rec_estimator.tools.tune_filter``. For each table it prints

    user: 61,250 occurrences of 606 keys
      filter_freq  rows   of keys    covers  CounterFilter   CBFFilter
             none   606   100.0 %   100.0 %       101.8 kB
                2   276    45.5 %    99.5 %        59.6 kB     50.6 kB
      …
    proposed: CounterFilter(filter_freq=10)
          or: CBFFilter(filter_freq=10, max_element_size=610, false_positive_probability=0.01)

"covers" is the share of occurrences whose key gets a row. The last columns are the memory of the
table, about. docs/tuning.md explains the proposal. A file is read as a stream, in memory for two
million keys; beyond, numbers of keys are estimates with an error well below one per cent.
"""

import argparse
import csv
import os
import sys
from typing import Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import MAX_INT64, check_int
from rec_estimator.checkpoint.format.bundle import format_bytes
from rec_estimator.checkpoint.format.stored_tables import rows_of
from rec_estimator.tools.key_counts import (
    Frequencies,
    KeyCounter,
    row_bytes,
    stored_frequencies,
    stored_tables,
)
from rec_estimator.tools.key_streams import hashes_of_array, hashes_of_csv, hashes_of_parquet

DESCRIPTION = "Proposes filter_freq and max_element_size from a sample or a checkpoint."

CANDIDATES = (2, 3, 5, 10, 20, 50, 100)

# Above, only memory speaks for a filter: a row that was trained ten times has learnt something.
_MOST_PROPOSED = 10
# A filter that leaves more of the keys only loses information.
_MOST_LEFT = 0.5

# Bytes of an entry in the table, beyond the floats of its row: the upper end of what was measured.
_ENTRY = 40
# Bytes for each bit of a cell, for each key of a CBFFilter with this probability (docs/filters.md).
_PROBABILITY, _BYTES_BY_BIT = 0.01, 1.75


class Choice(NamedTuple):
    """What a filter leaves."""

    filter_freq: int  # 0: none.
    rows: int
    rows_share: float  # The share of keys that get rows.
    covered: float  # Share of the occurrences.
    counter_bytes: int  # Memory of the table with a CounterFilter or, without a filter, alone.
    bloom_bytes: int  # With a CBFFilter.


def choices(found: Frequencies, size_of_row: int) -> List[Choice]:
    """What each candidate leaves; the first one is no filter.

    Args:
      found: How often keys occur; not empty.
      size_of_row: Bytes of the value and the slots of a row.

    Returns:
      A choice for each number of CANDIDATES, in this order.

    Example:
      >>> found = Frequencies(np.array([1, 8]), np.array([4, 1]))
      >>> [(each.filter_freq, each.rows, each.covered) for each in choices(found, 64)][:2]
      [(0, 5, 1.0), (2, 1, 0.6666666666666666)]
    """
    keys = int(np.sum(found.keys))
    result = []
    for filter_freq in (0, *CANDIDATES):
        is_left = found.frequencies >= filter_freq
        rows = int(np.sum(found.keys[is_left]))
        covered = int(np.sum(found.frequencies[is_left] * found.keys[is_left]))
        of_rows = rows * (size_of_row + _ENTRY)
        bits = 4 if filter_freq < 16 else 8
        result.append(
            Choice(
                filter_freq,
                rows,
                rows / keys,
                covered / max(found.occurrences, 1),
                of_rows + (keys - rows) * _ENTRY,
                of_rows + int(keys * bits * _BYTES_BY_BIT),
            )
        )
    return result


def proposed(of: Sequence[Choice], cover: float) -> int:
    """The highest filter_freq that covers enough and pays; 0: none does.

    Args:
      of: The choices.
      cover: The share of the occurrences whose key must get a row, in [0, 1].

    Returns:
      The filter_freq, at most 10, of a filter that leaves at most half of the keys.
    """
    fitting = (
        each.filter_freq
        for each in of
        if each.filter_freq <= _MOST_PROPOSED
        and each.covered >= cover
        and each.rows_share <= _MOST_LEFT
    )
    return max(fitting, default=0)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator tune", description=DESCRIPTION)
    parser.add_argument(
        "data", help="a CSV or Parquet file (.parquet), an array (.npy), a checkpoint or its folder"
    )
    parser.add_argument(
        "--column",
        nargs="+",
        metavar="NAME",
        help="columns of one table: names, or numbers from 0 if a CSV file has no header",
    )
    parser.add_argument("--delimiter", default=",", help="of a CSV file (default: a comma), or tab")
    parser.add_argument("--table", metavar="NAME", help="this table of a checkpoint only")
    parser.add_argument("--dim", type=int, default=16, help="dimension of a row (default: 16)")
    parser.add_argument("--slots", type=int, default=1, help="of its optimizer (default: 1)")
    parser.add_argument(
        "--occurrences",
        type=int,
        metavar="N",
        help="occurrences in all training data, if the file is a sample of them",
    )
    parser.add_argument(
        "--cover",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="of the occurrences that must have a row (default: 0.5)",
    )
    options = parser.parse_args(arguments)
    try:
        lines = list(_lines(options))
    except (ImportError, OSError, ValueError, csv.Error, tf.errors.OpError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def _lines(options: argparse.Namespace) -> Iterator[str]:
    if not 0 <= options.cover <= 1:
        raise ValueError(f"--cover must be in [0, 1], got {options.cover}")
    check_int("--dim", options.dim, 1)
    check_int("--slots", options.slots, 0)
    if options.occurrences is not None:
        check_int("--occurrences", options.occurrences, 1, MAX_INT64)
    if os.path.isdir(options.data) or os.path.exists(options.data + ".index"):
        if options.occurrences is not None:
            raise ValueError(
                "--occurrences must be given for a sample of the data only, got a checkpoint"
            )
        yield from _lines_of_checkpoint(options.data, options.table, options.cover)
        return
    counter = KeyCounter()
    if options.data.endswith(".npy"):
        batches = hashes_of_array(options.data)
    elif options.data.endswith(".parquet"):
        batches = hashes_of_parquet(options.data, options.column)
    else:
        batches = hashes_of_csv(options.data, options.column, options.delimiter)
    for hashes, counts in batches:
        counter.add(hashes, counts)
    name = " ".join(options.column or [options.data])
    size_of_row = 4 * options.dim * (1 + options.slots)
    expected = counter.keys_after(options.occurrences or 0)
    yield from _lines_of(name, counter.frequencies(), size_of_row, options.cover, expected)


def _lines_of_checkpoint(prefix: str, name: Optional[str], cover: float) -> Iterator[str]:
    bundle, tables = stored_tables(prefix, name)
    for table in tables:
        rows = rows_of(bundle, table.shards, "-keys")
        if rows_of(bundle, table.shards, "-freqs") != rows:
            yield f"{table.name}: {rows:,} rows, their counts are not recorded"
        elif any(f"{shard}-cbf_layout" in bundle.tensors for shard in table.shards):
            yield f"{table.name}: has a CBFFilter, which does not know the keys without a row"
        else:
            found = stored_frequencies(bundle, table, ("-freqs", "-freqs_filtered"))
            keys = int(np.sum(found.keys))
            yield from _lines_of(table.name, found, row_bytes(bundle, table), cover, keys)


def _lines_of(
    name: str, found: Frequencies, size_of_row: int, cover: float, expected: int
) -> Iterator[str]:
    keys = int(np.sum(found.keys))
    yield f"{name}: {found.occurrences:,} occurrences of {keys:,} keys"
    if not keys:
        return
    of = choices(found, size_of_row)
    width = max(len(f"{keys:,}"), 4)
    yield (f"  filter_freq  {'rows':>{width}}   of keys    covers  CounterFilter   CBFFilter")
    for each in of:
        memory = f"{format_bytes(each.counter_bytes):>13}"
        if each.filter_freq:
            memory += f"  {format_bytes(each.bloom_bytes):>10}"
        yield (
            f"  {each.filter_freq or 'none':>11}  {each.rows:>{width},}  "
            f"{100 * each.rows_share:>6.1f} %  {100 * each.covered:>6.1f} %  {memory}"
        )
    filter_freq = proposed(of, cover)
    if not filter_freq:
        yield "proposed: no filter"
        return
    yield f"proposed: CounterFilter(filter_freq={filter_freq})"
    yield (
        f"      or: CBFFilter(filter_freq={filter_freq}, max_element_size={_rounded_up(expected)}, "
        f"false_positive_probability={_PROBABILITY})"
    )


def _rounded_up(number: int) -> int:
    """Rounds up to two digits."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // unit) * unit


if __name__ == "__main__":
    sys.exit(main())
