# SPDX-License-Identifier: Apache-2.0
r"""Writes the rows of a table to NumPy, Parquet or TensorBoard's projector.

    rec-estimator export model/ --table user --output user.parquet --vocabulary users.txt

prints

    user: 812,345 rows of 16 numbers, 812,001 with a string

The end of ``--output`` decides: ``.npy`` writes the vectors, and the keys beside them as
``.keys.npy``; ``.parquet`` the columns key, vector, count and, with a vocabulary, string; any other
name is a folder, into which go ``tensors.tsv``, ``metadata.tsv`` and ``projector_config.pbtxt`` for
``tensorboard --logdir``. A vocabulary is a text file with a string in each line; strings are hashed
as EmbeddingFeature does. ``rec-estimator import`` reads the first two. Rows must fit into memory.
"""

import argparse
import os
import sys
from typing import Any, Dict, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import MAX_INT64, check_int
from rec_estimator.checkpoint.format.stored_tables import parent_of, values_of
from rec_estimator.inputs.parquet_columns import import_parquet
from rec_estimator.inputs.vector_files import hash_strings, keys_path
from rec_estimator.tools.key_counts import stored_tables

DESCRIPTION = "Writes the rows of a table to .npy, Parquet or TensorBoard's projector."

# Rows that are converted to float32 at once.
_ROWS = 1 << 15


class ExportedRows(NamedTuple):
    """The rows of a table, ordered by descending count.

    Attributes:
      keys: int64 [n].
      rows: float32 [n, dim].
      counts: int64 [n]. 0 where the checkpoint has none.
      strings: The string of each key, None where the vocabulary has none [n]; None without one.
    """

    keys: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    strings: Optional[np.ndarray]


def read_rows(
    checkpoint: str,
    table: str,
    vocabulary: Optional[Sequence[str]] = None,
    most_frequent: Optional[int] = None,
) -> ExportedRows:
    """Reads the rows of a table from a checkpoint into memory.

    Args:
      checkpoint: Prefix of a full checkpoint, or a folder, which stands for its latest checkpoint.
      table: The name of the table.
      vocabulary: Strings that may be keys; see hash_strings.
      most_frequent: How many rows to return, those with the greatest counts. None: all.

    Raises:
      ValueError: There is no such table, the checkpoint is a delta, or most_frequent is below 1.
      OSError, tf.errors.OpError: The checkpoint cannot be read.

    Example:
      >>> table = rec.get_embedding_variable("user", embedding_dim=4)
      >>> with tf.Session() as session:
      ...     session.run(tf.global_variables_initializer())
      ...     prefix = rec.Saver([table]).save(session, "./model.ckpt")
      >>> read_rows(prefix, "user").rows.shape
      (0, 4)
    """
    if most_frequent is not None:
        check_int("most_frequent", most_frequent, 1, MAX_INT64)
    bundle, (stored,) = stored_tables(checkpoint, table)
    if parent_of(bundle, stored) is not None:
        raise ValueError(
            f"checkpoint must be a full one, got the delta {bundle.prefix}; export the checkpoint "
            "that it builds on, or resume the training, which ends with a full one"
        )
    reader = tf.train.load_checkpoint(bundle.prefix)
    keys = np.concatenate([reader.get_tensor(f"{shard}-keys") for shard in stored.shards])
    parts = (part for shard in stored.shards for part in values_of(bundle, shard, _ROWS))
    rows = np.concatenate([np.zeros([0, stored.dim], np.float32), *parts])
    counts = np.zeros(len(keys), np.int64)
    if all(f"{shard}-freqs" in bundle.tensors for shard in stored.shards):
        counts = np.concatenate([reader.get_tensor(f"{shard}-freqs") for shard in stored.shards])
    order = np.lexsort((keys, -counts))[:most_frequent]
    keys = keys[order].astype(np.int64)
    strings = None if vocabulary is None else _strings_of(keys, vocabulary)
    return ExportedRows(keys, rows[order], counts[order], strings)


def write_rows(rows: ExportedRows, output: str) -> None:
    """Writes rows to .npy, .parquet or a folder for the projector; see the top of the module."""
    if output.endswith(".npy"):
        np.save(keys_path(output), rows.keys)
        np.save(output, rows.rows)
    elif output.endswith(".parquet"):
        _write_parquet(rows, output)
    else:
        _write_projector(rows, output)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code, 2 if a file or an argument is invalid."""
    parser = argparse.ArgumentParser(prog="rec-estimator export", description=DESCRIPTION)
    parser.add_argument("checkpoint", help="path of a checkpoint without .index, or its folder")
    parser.add_argument("--table", required=True, metavar="NAME", help="name of the table")
    parser.add_argument(
        "--output", required=True, metavar="PATH", help="a .npy or .parquet file, or a folder"
    )
    parser.add_argument("--vocabulary", metavar="FILE", help="text, a string in each line")
    parser.add_argument(
        "--most_frequent", type=int, metavar="N", help="only the rows with the greatest counts"
    )
    options = parser.parse_args(arguments)
    try:
        vocabulary = None if options.vocabulary is None else _read_lines(options.vocabulary)
        rows = read_rows(options.checkpoint, options.table, vocabulary, options.most_frequent)
        write_rows(rows, options.output)
    except (OSError, ValueError, ImportError, tf.errors.OpError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    n, dim = rows.rows.shape
    named = ""
    if rows.strings is not None:
        named = f", {sum(string is not None for string in rows.strings):,} with a string"
    print(f"{options.table}: {n:,} rows of {dim} numbers{named}")
    return 0


def _read_lines(path: str) -> Sequence[str]:
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def _strings_of(keys: np.ndarray, vocabulary: Sequence[str]) -> np.ndarray:
    hashed = hash_strings(np.array(vocabulary, object)).tolist()
    string_of = dict(zip(hashed, vocabulary))
    return np.array([string_of.get(key) for key in keys.tolist()], object)


def _write_parquet(rows: ExportedRows, path: str) -> None:
    pyarrow, parquet = import_parquet(path)
    _, dim = rows.rows.shape
    columns: Dict[str, Any] = {
        "key": pyarrow.array(rows.keys),
        "vector": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.rows.ravel()), dim),
        "count": pyarrow.array(rows.counts),
    }
    if rows.strings is not None:
        columns["string"] = pyarrow.array(rows.strings.tolist(), pyarrow.string())
    parquet.write_table(pyarrow.table(columns), path)


def _write_projector(rows: ExportedRows, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    np.savetxt(os.path.join(folder, "tensors.tsv"), rows.rows, "%.7g", delimiter="\t")
    names = rows.keys.tolist() if rows.strings is None else rows.strings.tolist()
    with open(os.path.join(folder, "metadata.tsv"), "w", encoding="utf-8") as file:
        file.write("name\tcount\n")
        for name, key, count in zip(names, rows.keys.tolist(), rows.counts.tolist()):
            shown = str(key if name is None else name).replace("\t", " ").replace("\n", " ")
            file.write(f"{shown}\t{count}\n")
    with open(os.path.join(folder, "projector_config.pbtxt"), "w", encoding="utf-8") as file:
        file.write(
            'embeddings {\n  tensor_path: "tensors.tsv"\n  metadata_path: "metadata.tsv"\n}\n'
        )


if __name__ == "__main__":
    sys.exit(main())
