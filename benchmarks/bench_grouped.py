# SPDX-License-Identifier: Apache-2.0
"""Measures the size and the reading time of files with samples grouped by user.

    python -m benchmarks.bench_grouped --data_path purchases.csv.gz [--rows 200000] [--output FILE]

The rows are those of Online Retail in the model zoo: one purchase, or an item that was not bought,
with the customer's last 20 items. Flat: one tf.train.Example per row, read by
inputs.tfrecord_input_fn. Grouped: one tf.train.SequenceExample for all rows of a customer at one
time, in windows of 65,536 rows, read by inputs.grouped_tfrecord_input_fn. Batches of 512 rows. The
two readers alternate; the speed-up is the median of the ratios.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Sequence

import numpy as np

from benchmarks import result_file

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from model_zoo import data


BATCH = 512
WINDOW = 65_536


def _write_flat(path: str, part: data.Rows, label: str, rows: int) -> None:
    import tensorflow as tf

    kind = "GZIP" if path.endswith(".gz") else ""
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=kind)) as writer:
        for row in range(rows):
            example = tf.train.Example()
            for name, column in part.features.items():
                values = column[row]
                kept = [values] if column.ndim == 1 else values[values != -1]
                example.features.feature[name].int64_list.value.extend(kept)
            example.features.feature["label"].float_list.value.append(part.labels[label][row])
            writer.write(example.SerializeToString())


def _write_grouped(path: str, part: data.Rows, label: str, rows: int, users: Sequence[str]) -> int:
    import rec_estimator as rec

    def input_fn() -> tf.data.Dataset:
        columns = {
            name: column[:rows]
            if column.ndim == 1
            else [values[values != -1] for values in column[:rows]]
            for name, column in part.features.items()
        }
        flat = rec.inputs.numpy_input_fn(columns, part.labels[label][:rows], batch_size=WINDOW)
        return rec.inputs.group_samples(flat(), users)

    return rec.inputs.write_grouped_samples(input_fn, path, users)


def _features(columns: Sequence[data.Column], names: Sequence[str]) -> Dict[str, Any]:
    import tensorflow as tf

    return {
        column.name: tf.io.FixedLenFeature([], tf.int64)
        if not column.is_padded
        else tf.io.RaggedFeature(tf.int64)
        for column in columns
        if column.name in names
    }


def _seconds(input_fn: Callable[[], tf.data.Dataset]) -> float:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(input_fn())
        batch = iterator.get_next()
        session.run(iterator.initializer)
        start = time.perf_counter()
        while True:
            try:
                session.run(batch)
            except tf.errors.OutOfRangeError:
                return time.perf_counter() - start


def measure(data_path: str, rows: int, rounds: int) -> Dict[str, Any]:
    """Returns the figures by name."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec
    from model_zoo import data

    tf.disable_eager_execution()
    retail = data.load("online_retail", data_path)
    assert isinstance(retail, data.LoggedDataSet)
    part, main = retail.in_memory("train"), retail.labels[0]
    rows = min(rows, len(part))
    users = [column.name for column in retail.columns if column.role != "item"]
    items = [column.name for column in retail.columns if column.role == "item"]
    label = {"label": tf.io.FixedLenFeature([], tf.float32)}
    figures: Dict[str, Any] = {"rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            (kind, end): os.path.join(folder, kind + end)
            for kind in ("flat", "grouped")
            for end in ("", ".gz")
        }
        for end in ("", ".gz"):
            _write_flat(paths["flat", end], part, main, rows)
            start = time.perf_counter()
            figures["groups"] = _write_grouped(paths["grouped", end], part, main, rows, users)
            figures[f"grouped{end}_rows_written_a_second"] = rows / (time.perf_counter() - start)
        for (kind, end), path in paths.items():
            figures[f"{kind}{end}_bytes_a_row"] = os.path.getsize(path) / rows
        flat = rec.inputs.tfrecord_input_fn(
            paths["flat", ""],
            {**_features(retail.columns, users + items), **label},
            label_column="label",
            batch_size=BATCH,
        )
        grouped = rec.inputs.grouped_tfrecord_input_fn(
            paths["grouped", ""],
            _features(retail.columns, users),
            {**_features(retail.columns, items), **label},
            label_column="label",
            batch_size=BATCH,
        )
        times = [(_seconds(flat), _seconds(grouped)) for _ in range(rounds)]
    figures["flat_rows_read_a_second"] = rows / statistics.median(t for t, _ in times)
    figures["grouped_rows_read_a_second"] = rows / statistics.median(t for _, t in times)
    figures["read_speed_up"] = float(np.median([a / b for a, b in times]))
    return figures


def main() -> None:
    """Runs the command."""
    parser = result_file.parser(__doc__, rows=200_000, rounds=5)
    parser.add_argument("--data_path", required=True, help="CSV file of Online Retail")
    options = parser.parse_args()
    figures = measure(options.data_path, options.rows, options.rounds)
    for name, value in figures.items():
        print(f"{name}: {value:,.2f}")
    result_file.write(options.output, figures)


if __name__ == "__main__":
    main()
