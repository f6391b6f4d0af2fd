# SPDX-License-Identifier: Apache-2.0
r"""Copies a checkpoint without its filtered features.

    rec-estimator shrink \
        --input_checkpoint model/model.ckpt-1000 --output_checkpoint copy/model.ckpt

prints

    user: 812,345 rows kept, 3,456,789 filtered keys dropped
    copy/model.ckpt: 104.5 MB, was 187.4 MB

With ``--drop_slots``, the copy has no optimizer slots of tables either: serving needs none. A
training that starts from such a copy starts their slots anew.

The command also runs under DeepRec's name, as
``python -m rec_estimator.tools.shrink_ckpt_with_filtered_features``.

In the copy, the tensors ``-keys_filtered``, ``-freqs_filtered`` and ``-versions_filtered`` of each
table and slot are empty, ``-partition_filter_offset`` is zero, and the tensors of Bloom filters,
``-cbf_…``, are left out. All other tensors are copied bit for bit and keep their slices. So DeepRec
can restore the copy of a DeepRec checkpoint.

The command needs a few megabytes of memory beyond TensorFlow itself, whatever the size of the
checkpoint. It verifies checksums, and the copy appears whole or not at all. It does not change the
``checkpoint`` file of the folder, so that training does not resume from the copy by accident. The
files must be on a local or mounted file system.
"""

import argparse
import os
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.checkpoint.format.bundle import Bundle, NewBundle, PathLike, format_bytes
from rec_estimator.checkpoint.format.stored_tables import (
    FILTERED,
    SKETCH,
    StoredTable,
    find_tables,
    parent_of,
    rows_of,
    tensors_of,
)

DESCRIPTION = "Copies a checkpoint without its filtered features."


class ShrunkTable(NamedTuple):
    """What was kept and dropped of a table."""

    name: str
    rows: int  # Kept.
    filtered_keys: int  # Dropped.


class Shrunk(NamedTuple):
    """The result of ``shrink``."""

    tables: List[ShrunkTable]
    bytes_before: int  # Bytes of all files of the checkpoint.
    bytes_after: int


def shrink(
    input_checkpoint: PathLike, output_checkpoint: PathLike, *, drop_slots: bool = False
) -> Shrunk:
    """Copies a checkpoint without its filtered features.

    Args:
      input_checkpoint: Prefix of a checkpoint of this package or of DeepRec.
      output_checkpoint: Prefix of the copy. Its folder is made if it is missing.
      drop_slots: Whether to leave out the optimizer slots of tables.

    Returns:
      The rows kept and keys dropped of each table, and the sizes.

    Raises:
      FileNotFoundError: The input does not exist.
      IsADirectoryError: The input or the output is a folder.
      FileExistsError: The output exists.
      ValueError: The output is empty or equals the input, or the input is a delta or not a V2
        checkpoint.
      tf.errors.DataLossError: The input is damaged. No output was written.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> with tf.Session() as session:
      ...     session.run(tf.global_variables_initializer())
      ...     prefix = rec.Saver([table]).save(session, "./model.ckpt")
      >>> shrink(prefix, "./serving.ckpt").tables
      [ShrunkTable(name='user', rows=0, filtered_keys=0)]
    """
    source = Bundle(input_checkpoint)
    source.check_files()
    output = os.fspath(output_checkpoint)
    if _real(source.prefix) == _real(output):
        raise ValueError(f"output_checkpoint must differ from input_checkpoint, got {output} twice")
    check_output("output_checkpoint", output)
    tables = find_tables(source)
    for table in tables.values():
        parent = parent_of(source, table)
        if parent is not None:
            raise ValueError(
                f"input_checkpoint must be a full checkpoint, got {source.prefix}, which has what "
                f"changed in {table.name!r} since {parent}; resume its training, which begins and "
                "ends with a full one, or restore it in a session of the model and save it with "
                "rec_estimator.Saver()"
            )
    replaced = _replacements(source, tables, drop_slots)
    os.makedirs(os.path.dirname(os.path.abspath(output_checkpoint)), exist_ok=True)
    with NewBundle(output_checkpoint, source.header.version) as copy:
        for name, replacement in replaced.items():
            if name in source.tensors and replacement is not None:
                copy.add_array(name, replacement)
        copy.copy(source, [name for name in source.tensors if name not in replaced])
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
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator shrink", description=DESCRIPTION)
    for argument, text in (
        ("--input_checkpoint", "path of the checkpoint without .index"),
        ("--output_checkpoint", "path of the copy without .index"),
    ):
        parser.add_argument(argument, required=True, metavar="PREFIX", help=text)
    parser.add_argument(
        "--drop_slots", action="store_true", help="leave out the optimizer slots of tables"
    )
    options = parser.parse_args(arguments)
    try:
        done = shrink(
            options.input_checkpoint, options.output_checkpoint, drop_slots=options.drop_slots
        )
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


def check_output(name: str, output: str) -> None:
    """Checks the prefix of a checkpoint that a tool writes.

    Args:
      name: The name of the argument.
      output: The prefix.

    Raises:
      ValueError, IsADirectoryError, FileExistsError: It is empty or a folder, or has an index.
    """
    rule = f"{name} must be a prefix of files that do not exist"
    if not output:
        raise ValueError(f"{rule}, got {output!r}; pass model.ckpt for the working folder")
    if os.path.isdir(output) or not os.path.basename(output):
        raise IsADirectoryError(
            f"{rule}, got {output!r}, a folder; pass {os.path.join(output, 'model.ckpt')}"
        )
    # A data file without an index, which a killed run may leave, is overwritten.
    if os.path.lexists(output + ".index"):
        raise FileExistsError(f"{rule}, got {output!r}; remove them or pass another")


def _real(prefix: str) -> str:
    return os.path.realpath(prefix + ".index")


def _replacements(
    source: Bundle, tables: Dict[str, StoredTable], drop_slots: bool
) -> Dict[str, Optional[np.ndarray]]:
    """Returns by name the tensors that replace what is dropped; None: left out."""
    replaced: Dict[str, Optional[np.ndarray]] = {}
    for table in tables.values():
        slots = [name for names in table.slots.values() for name in names]
        if drop_slots:
            replaced.update(
                (tensor.name, None) for slot in slots for tensor in tensors_of(source, slot)
            )
            slots = []
        for name in [*table.shards, *slots]:
            shapes: Dict[str, Tuple[int, ...]] = dict.fromkeys(FILTERED, (0,))
            offset = source.tensors.get(f"{name}-partition_filter_offset")
            if offset is not None:
                shapes["-partition_filter_offset"] = offset.shape
            for suffix, shape in shapes.items():
                if name + suffix in source.tensors:
                    dtype = source.tensors[name + suffix].dtype.as_numpy_dtype
                    replaced[name + suffix] = np.zeros(shape, dtype)
            replaced.update((name + suffix, None) for suffix in SKETCH)
    return replaced


if __name__ == "__main__":
    sys.exit(main())
