# SPDX-License-Identifier: Apache-2.0
r"""Copies a checkpoint without what is known of filtered features, for serving.

    shrink_ckpt_with_filtered_features \
        --input_checkpoint model/model.ckpt-1000 --output_checkpoint serving/model.ckpt

(or ``python -m rec_estimator.tools.shrink_ckpt_with_filtered_features …``) prints

    user: 812,345 rows kept, 3,456,789 filtered keys dropped
    serving/model.ckpt: 104.5 MB, was 187.4 MB

Of every table, and of its slots, the tensors ``-keys_filtered``, ``-freqs_filtered`` and
``-versions_filtered`` become empty and ``-partition_filter_offset`` zero; those of a Bloom filter,
``-cbf_…``, are left out. All else is copied bit for bit, in the form it is stored in: frequencies
and versions of rows, slots, variables. So DeepRec's checkpoints can be shrunk for DeepRec as well.

Beyond TensorFlow itself it takes a few megabytes of memory, whatever the size of the checkpoint and
of its tensors. The copy appears whole or not at all, and checksums are checked on the way. The
folder's ``checkpoint`` file is left alone: training does not resume from the copy by accident.
Files must be on a local or mounted file system.
"""

import argparse
import os
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle, PathLike, format_bytes
from rec_estimator.checkpoint.format.stored_tables import (
    BLOOM,
    FILTERED,
    StoredTable,
    find_tables,
    parent_of,
    rows_of,
)


class ShrunkTable(NamedTuple):
    """What became of a table."""

    name: str
    rows: int
    filtered_keys: int  # Dropped.


class Shrunk(NamedTuple):
    """What ``shrink`` did; bytes are of all files of a checkpoint."""

    tables: List[ShrunkTable]
    bytes_before: int
    bytes_after: int


def shrink(input_checkpoint: PathLike, output_checkpoint: PathLike) -> Shrunk:
    """Copies a checkpoint without what is known of filtered features.

    Args:
      input_checkpoint: Prefix of a checkpoint of this package or of DeepRec.
      output_checkpoint: Prefix of the copy, in a folder that exists.

    Returns:
      Rows kept and keys dropped by table, and bytes.

    Raises:
      FileNotFoundError, IsADirectoryError: The input or the output's folder does not exist, or a
        folder stands in place of a prefix.
      FileExistsError: The output exists already.
      ValueError: Input and output are one, or the input is incremental or not a V2 checkpoint.
      tf.errors.DataLossError: The input is damaged. There is no output then.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> with tf.Session() as session:
      ...     session.run(tf.global_variables_initializer())
      ...     prefix = rec.Saver([table]).save(session, "./model.ckpt")
      >>> shrink(prefix, "./serving.ckpt").tables
      [ShrunkTable(name='user', rows=0, filtered_keys=0)]
    """
    source = Bundle(input_checkpoint)
    _check_output(source.prefix, os.fspath(output_checkpoint))
    tables = find_tables(source)
    for table in tables.values():
        parent = parent_of(source, table)
        if parent is not None:
            raise ValueError(
                f"input_checkpoint must be a full checkpoint, got {source.prefix}, which has what "
                f"changed in {table.name!r} since {parent}; restore it and save in "
                "full"
            )
    replaced = _replacements(source, tables)
    with NewBundle(output_checkpoint, source.header.version) as copy:
        pieces = []
        for name, tensor in source.tensors.items():
            if name not in replaced:
                pieces += tensor.pieces
                if tensor.header.entry.slices:
                    copy.add_header(tensor.header)
            elif replaced[name] is not None:
                copy.add_array(name, replaced[name])
        # As they lie on the disk.
        for piece in sorted(pieces, key=lambda piece: (piece.entry.shard_id, piece.entry.offset)):
            copy.add(piece.key, piece.entry, source.read(piece))
    return Shrunk(
        [
            ShrunkTable(
                name,
                rows_of(source, table.shards, "-keys"),
                rows_of(source, table.shards, "-keys_filtered"),
            )
            for name, table in tables.items()
        ],
        source.nbytes,
        Bundle(output_checkpoint).nbytes,
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit code, 2 if a file is not as it must be."""
    parser = argparse.ArgumentParser(
        prog="shrink_ckpt_with_filtered_features",
        description="Copies a checkpoint without what is known of filtered features.",
    )
    prefix = dict(required=True, metavar="PREFIX")
    parser.add_argument("--input_checkpoint", help="path without .index", **prefix)
    parser.add_argument("--output_checkpoint", help="path of the copy, likewise", **prefix)
    options = parser.parse_args(arguments)
    try:
        done = shrink(options.input_checkpoint, options.output_checkpoint)
    except (OSError, ValueError, tf.errors.OpError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    for table in done.tables:
        print(
            f"{table.name}: {table.rows:,} rows kept, {table.filtered_keys:,} filtered keys dropped"
        )
    if not done.tables:
        print("no tables in it")
    print(
        f"{options.output_checkpoint}: {format_bytes(done.bytes_after)}, "
        f"was {format_bytes(done.bytes_before)}"
    )
    return 0


def _check_output(source: str, output: str) -> None:
    folder = os.path.dirname(os.path.abspath(output))
    rule = "output_checkpoint must be a prefix of files that do not exist"
    if _real(source) == _real(output):
        raise ValueError(f"output_checkpoint must differ from input_checkpoint, got {output} twice")
    if os.path.isdir(output) or not os.path.basename(output):
        raise IsADirectoryError(
            f"{rule}, got {output!r}, a folder; pass {os.path.join(output, 'model.ckpt')}"
        )
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{rule}, got {output!r}; make its folder first: mkdir -p {folder}")
    # Data without an index is what a killed run may leave.
    if os.path.lexists(output + ".index"):
        raise FileExistsError(f"{rule}, got {output!r}; remove them or pass another")


def _real(prefix: str) -> str:
    return os.path.realpath(prefix + ".index")


def _replacements(
    source: Bundle, tables: Dict[str, StoredTable]
) -> Dict[str, Optional[np.ndarray]]:
    """What takes the place of tensors on filtered features, by name; None: nothing does."""
    replaced: Dict[str, Optional[np.ndarray]] = {}
    for table in tables.values():
        for name in [*table.shards, *(name for names in table.slots.values() for name in names)]:
            shapes = {suffix: [0] for suffix in FILTERED}
            offset = source.tensors.get(f"{name}-partition_filter_offset")
            if offset is not None:
                shapes["-partition_filter_offset"] = offset.shape
            for suffix, shape in shapes.items():
                if name + suffix in source.tensors:
                    dtype = source.tensors[name + suffix].dtype.as_numpy_dtype
                    replaced[name + suffix] = np.zeros(shape, dtype)
            replaced.update((name + suffix, None) for suffix in BLOOM)
    return replaced


if __name__ == "__main__":
    sys.exit(main())
