# SPDX-License-Identifier: Apache-2.0
"""Prints the content of a checkpoint: tables, rows, filtered features and their frequencies.

    rec-estimator inspect model/                                  # a folder's latest checkpoint
    rec-estimator inspect model/model.ckpt-1000 --table user      # one table of one checkpoint
    rec-estimator inspect model/ --filtered --top 50              # the most frequent filtered keys
    rec-estimator inspect model/ --filtered --csv filtered.csv    # all of them
    rec-estimator inspect model/ --csv frequencies.csv --png frequencies.png
    rec-estimator inspect model/ --compare model/model.ckpt-1000  # what has changed since

The command also runs as ``python -m rec_estimator.tools.inspect_checkpoint``. For each table it
prints

    user: dim 16, int64 keys, 3 shards
      rows            4,021
      filtered keys   2,790
      versions        0 to 999
      bytes           1.1 MB
        values        257.3 kB
        …
      frequency of rows
         4-7  1,800  ##############################
        8-15  1,410  ########################
        …
      age of rows
           0    512  ########
         …

It also reads DeepRec's checkpoints. Without --compare it does not read vectors, and needs a few
megabytes of memory beyond TensorFlow itself, whatever the size of the checkpoint. With --compare it
needs the memory of a table's vectors in both checkpoints, and reads a delta with what it builds on.
The files must be on a local or mounted file system.
"""

import argparse
import csv
import os
import shutil
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_int
from rec_estimator.checkpoint import deltas
from rec_estimator.checkpoint.format.bundle import Bundle, format_bytes
from rec_estimator.checkpoint.format.stored_tables import (
    SCALE_OFFSET,
    SKETCH,
    StoredTable,
    find_tables,
    parent_of,
    rows_of,
    tensors_of,
)
from rec_estimator.tools.compare_checkpoints import compared
from rec_estimator.tools.frequency_histogram import FrequencyHistogram, draw

DESCRIPTION = "Prints the content of a checkpoint: tables, rows, filtered features."

# Keys in memory at once.
_ROWS = 1 << 15

_BLOOM = "Bloom filter"
_AGES = "age of rows"  # From their last training to the newest of any row.

# The part of the report that counts a table's tensor, by suffix. Slots have parts of their own.
_PARTS = {
    **dict.fromkeys(SKETCH, "counts of the filter"),
    "-values": "values",
    SCALE_OFFSET: "values",
    "-keys": "keys",
    "-partition_offset": "offsets",
    "-partition_filter_offset": "offsets",
    "-freqs": "frequencies",
    "-versions": "versions",
    "-version_unit": "versions",
    "-keys_erased": "erased keys",
    "-keys_filtered": "filtered keys",
    "-freqs_filtered": "filtered keys",
    "-versions_filtered": "filtered keys",
    "-cbf_blocks": _BLOOM,
    "-cbf_counters": _BLOOM,
    "-cbf_layout": _BLOOM,
    "-cbf_generations": _BLOOM,
}


class FilteredFeature(NamedTuple):
    """A key without a row. None: the checkpoint did not record the number."""

    key: int
    frequency: Optional[int]
    version: Optional[int]


class Versions(NamedTuple):
    """The range of global steps at which rows were last updated; None if no row was updated."""

    oldest: Optional[int]
    newest: Optional[int]


class TableReport(NamedTuple):
    """The content of a table in a checkpoint. None: the checkpoint did not record it."""

    table: StoredTable
    rows: int
    filtered_keys: int
    frequencies: Optional[FrequencyHistogram]  # The rows' frequencies.
    filtered_frequencies: Optional[FrequencyHistogram]
    versions: Optional[Versions]  # The rows' versions.
    ages: Optional[FrequencyHistogram]  # Ages of trained rows, in the unit of versions.
    nbytes: Dict[str, int]  # By part.
    notes: Dict[str, str]  # About deltas and Bloom filters, by label.


def report(bundle: Bundle, table: StoredTable) -> TableReport:
    """Reads the content of a table.

    Args:
      bundle: The checkpoint.
      table: One of ``find_tables(bundle)``.

    Returns:
      The report.

    Raises:
      tf.errors.DataLossError: The checkpoint is damaged.
    """
    versions = _versions(bundle, table)
    return TableReport(
        table,
        rows_of(bundle, table.shards, "-keys"),
        rows_of(bundle, table.shards, "-keys_filtered"),
        _frequencies(bundle, table, "-keys", "-freqs"),
        _frequencies(bundle, table, "-keys_filtered", "-freqs_filtered"),
        versions,
        _ages(bundle, table, versions),
        _bytes_by_part(bundle, table),
        _notes(bundle, table),
    )


def filtered_features(bundle: Bundle, table: StoredTable) -> Iterator[FilteredFeature]:
    """Yields all filtered features of a table, shard by shard."""
    for columns in _filtered_columns(bundle, table):
        for feature in zip(*(_listed(column, len(columns[0])) for column in columns)):
            yield FilteredFeature(*feature)


def most_frequent(bundle: Bundle, table: StoredTable, top: int) -> List[FilteredFeature]:
    """Returns the ``top`` most frequent filtered features, most frequent first, then by key."""
    best: List[FilteredFeature] = []
    for keys, frequencies, versions in _filtered_columns(bundle, table):
        order = np.lexsort((keys,) if frequencies is None else (keys, -frequencies))[:top]
        columns = (
            _listed(None if column is None else column[order], len(order))
            for column in (keys, frequencies, versions)
        )
        best += map(FilteredFeature._make, zip(*columns))
        best = sorted(best, key=lambda feature: (-(feature.frequency or 0), feature.key))[:top]
    return best


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator inspect", description=DESCRIPTION)
    parser.add_argument("checkpoint", help="path without .index, or a folder, for its latest")
    parser.add_argument("--table", metavar="NAME", help="this table only")
    parser.add_argument("--filtered", action="store_true", help="list filtered features")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many (default: 20)")
    parser.add_argument(
        "--csv", metavar="FILE", help="write frequencies; with --filtered: all filtered features"
    )
    parser.add_argument("--png", metavar="FILE", help="draw frequencies")
    parser.add_argument(
        "--compare", metavar="OLDER", help="only print what has changed since this checkpoint"
    )
    options = parser.parse_args(arguments)
    try:
        lines = _run(options)
    except (OSError, ValueError, ImportError, tf.errors.OpError) as error:
        print(_printable(f"{parser.prog}: error: {error}"), file=sys.stderr)
        return 2
    try:
        for line in lines:
            print(_printable(line))
        sys.stdout.flush()
    except BrokenPipeError:  # The reader, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _printable(text: str) -> str:
    """Escapes control characters: a tensor's name may contain codes that change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _run(options: argparse.Namespace) -> List[str]:
    """Writes the files and returns the lines to print, so that a failure prints nothing."""
    check_int("--top", options.top, 1)
    bundle = Bundle(_prefix_of(options.checkpoint))
    bundle.check_files()
    tables = find_tables(bundle)
    lines = [_first_line(bundle, tables)]
    if options.table is not None:
        if options.table not in tables:
            raise ValueError(f"--table must be one of {list(tables)}, got {options.table!r}")
        tables = {options.table: tables[options.table]}
    if options.compare is not None:
        return compared(_prefix_of(options.compare), bundle.prefix, list(tables))
    for file in (options.csv, options.png):
        if file and os.path.realpath(file) in map(os.path.realpath, bundle.files):
            raise ValueError(f"--csv and --png must not be files of the checkpoint, got {file}")
    reports = []
    for table in tables.values():
        found = report(bundle, table)
        reports.append(found)
        lines += ["", *_report_lines(found, shutil.get_terminal_size().columns)]
        if options.filtered:
            lines += _filtered_lines(most_frequent(bundle, table, options.top), found)
    if options.png:
        draw(
            options.png,
            {
                found.table.name: (found.frequencies, found.filtered_frequencies)
                for found in reports
            },
        )
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            rows = _feature_rows(bundle, tables) if options.filtered else _bin_rows(reports)
            csv.writer(file).writerows(rows)
    return lines


def _prefix_of(path: str) -> str:
    """The prefix of a checkpoint, of a folder that of its latest one."""
    if os.path.isdir(path) and not os.path.exists(path + ".index"):
        return tf.train.latest_checkpoint(path) or path
    return path


def _first_line(bundle: Bundle, tables: Dict[str, StoredTable]) -> str:
    of_tables = sum(sum(_bytes_by_part(bundle, table).values()) for table in tables.values())
    everything = sum(tensor.nbytes for tensor in bundle.tensors.values())
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    return (
        f"{bundle.prefix}: {count}, {format_bytes(of_tables)}, "
        f"and {format_bytes(everything - of_tables)} of other tensors"
    )


def _report_lines(found: TableReport, columns: int) -> Iterator[str]:
    table = found.table
    shards = f", {len(table.shards)} shards" if len(table.shards) > 1 else ""
    yield f"{table.name}: dim {table.dim}, {table.key_dtype.name} keys{shards}"
    numbers = {"rows": f"{found.rows:,}", "filtered keys": f"{found.filtered_keys:,}"}
    if found.rows:
        numbers["versions"] = _versions_text(found.versions)
    numbers.update(found.notes)
    numbers["bytes"] = format_bytes(sum(found.nbytes.values()))
    width = max(map(len, [*numbers, *("  " + part for part in found.nbytes)]))
    for name, number in numbers.items():
        yield f"  {name:<{width}}  {number}"
    for part, size in found.nbytes.items():
        yield f"    {part:<{width - 2}}  {format_bytes(size)}"
    for title, histogram, keys in (
        ("frequency of rows", found.frequencies, found.rows),
        ("frequency of filtered keys", found.filtered_frequencies, found.filtered_keys),
        (_AGES, found.ages, found.rows),
    ):
        if keys and histogram is None and title != _AGES:
            yield f"  {title}: not recorded"
        elif keys and histogram is not None:
            yield f"  {title}"
            yield from (f"    {line}" for line in histogram.lines(columns - 4))


def _versions_text(versions: Optional[Versions]) -> str:
    if versions is None:
        return "not recorded"
    if versions.oldest is None:
        return "none"
    return f"{versions.oldest:,} to {versions.newest:,}"


def _filtered_lines(features: List[FilteredFeature], found: TableReport) -> Iterator[str]:
    if _BLOOM in found.notes:
        yield "  features that the Bloom filter counts are not known by key"
    if not features:
        yield "  no filtered features"
        return
    is_whole = len(features) == found.filtered_keys
    yield "  filtered features" if is_whole else "  most frequent filtered features"
    cells: List[Tuple[str, ...]] = [("key", "frequency", "version")]
    cells += [tuple("-" if x is None else f"{x}" for x in feature) for feature in features]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for row in cells:
        yield "    " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths))


def _bin_rows(reports: List[TableReport]) -> Iterator[Tuple[object, ...]]:
    yield ("table", "kind", "frequency_from", "frequency_to", "keys")
    for found in reports:
        for kind, histogram in (
            ("rows", found.frequencies),
            ("filtered", found.filtered_frequencies),
        ):
            for each in histogram.bins() if histogram else ():
                yield (found.table.name, kind, *each)


def _feature_rows(bundle: Bundle, tables: Dict[str, StoredTable]) -> Iterator[Tuple[object, ...]]:
    yield ("table", *FilteredFeature._fields)
    for table in tables.values():
        for feature in filtered_features(bundle, table):
            yield (table.name, *feature)  # csv writes None as an empty cell.


def _filtered_columns(
    bundle: Bundle, table: StoredTable
) -> Iterator[Tuple[np.ndarray, Optional[np.ndarray], Optional[np.ndarray]]]:
    """Yields keys, frequencies and versions of filtered features, _ROWS at once."""
    for shard in table.shards:
        keys_name = f"{shard}-keys_filtered"
        if keys_name not in bundle.tensors:
            continue
        frequencies, versions = (
            bundle.read_rows(name, _ROWS) if _is_recorded(bundle, name, keys_name) else None
            for name in (f"{shard}-freqs_filtered", f"{shard}-versions_filtered")
        )
        for keys in bundle.read_rows(keys_name, _ROWS):
            yield (
                keys,
                None if frequencies is None else next(frequencies),
                None if versions is None else next(versions),
            )


def _listed(column: Optional[np.ndarray], rows: int) -> List[Optional[int]]:
    return [None] * rows if column is None else column.tolist()


def _is_recorded(bundle: Bundle, name: str, keys: str) -> bool:
    """Returns whether a tensor has an element for each key; DeepRec may leave it empty."""
    tensors = bundle.tensors
    return name in tensors and keys in tensors and tensors[name].shape == tensors[keys].shape


def _frequencies(
    bundle: Bundle, table: StoredTable, keys: str, freqs: str
) -> Optional[FrequencyHistogram]:
    histogram = FrequencyHistogram()
    for shard in table.shards:
        if _is_recorded(bundle, shard + freqs, shard + keys):
            for some in bundle.read_rows(shard + freqs, _ROWS):
                histogram.add(some)
        elif rows_of(bundle, [shard], keys):
            return None
    return histogram


def _versions(bundle: Bundle, table: StoredTable) -> Optional[Versions]:
    oldest: Optional[int] = None
    newest: Optional[int] = None
    for shard in table.shards:
        if not _is_recorded(bundle, f"{shard}-versions", f"{shard}-keys"):
            return None
        for some in bundle.read_rows(f"{shard}-versions", _ROWS):
            some = some[some >= 0]  # -1: never updated.
            if len(some):
                oldest = int(min(some.min(), some.min() if oldest is None else oldest))
                newest = int(max(some.max(), some.max() if newest is None else newest))
    return Versions(oldest, newest)


def _ages(
    bundle: Bundle, table: StoredTable, versions: Optional[Versions]
) -> Optional[FrequencyHistogram]:
    if versions is None or versions.newest is None:
        return None
    histogram = FrequencyHistogram()
    for shard in table.shards:
        for some in bundle.read_rows(f"{shard}-versions", _ROWS):
            histogram.add(versions.newest - some[some >= 0])
    return histogram


def _bytes_by_part(bundle: Bundle, table: StoredTable) -> Dict[str, int]:
    parts = dict.fromkeys(_PARTS.values(), 0)
    for shard in table.shards:
        for tensor in tensors_of(bundle, shard):
            part = _PARTS.get(tensor.name[len(shard) :])
            if part is not None:
                parts[part] += tensor.nbytes
    bank = bundle.tensors.get(f"{table.name}/default_values")
    parts["initial values"] = bank.nbytes if bank else 0
    for slot, names in table.slots.items():
        parts[f"slot {slot}"] = sum(
            tensor.nbytes for name in names for tensor in tensors_of(bundle, name)
        )
    return {part: size for part, size in parts.items() if size}


def _notes(bundle: Bundle, table: StoredTable) -> Dict[str, str]:
    notes = {}
    parent = parent_of(bundle, table)
    if parent is not None:
        notes["changes since"] = parent
        try:
            deltas.check_lengths(bundle.prefix)
        except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
            notes["problem"] = error.message
        notes["erased keys"] = f"{rows_of(bundle, table.shards, '-keys_erased'):,}"
    layouts = [f"{shard}-cbf_layout" for shard in table.shards]
    for name in [name for name in layouts if name in bundle.tensors][:1]:  # Shards have the same.
        blocks, width, hashes, bits = np.concatenate([*bundle.read_rows(name, 4)]).tolist()
        used = rows_of(bundle, table.shards, "-cbf_blocks")
        # Checkpoints of earlier releases have one generation and do not say so.
        ages = bundle.tensors.get(name.replace("-cbf_layout", "-cbf_generations"))
        generations, _ = ages.shape if ages else (1, 3)
        blocks *= generations
        notes[_BLOOM] = (
            f"{used:,} of {blocks:,} blocks, {width} cells of {bits} bits each, {hashes} hashes"
        )
    return notes


if __name__ == "__main__":
    sys.exit(main())
