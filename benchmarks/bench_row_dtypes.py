# SPDX-License-Identifier: Apache-2.0
"""Measures lookups of an export's rows by row_dtype: float32, 16 bits and 8 bits.

    python -m benchmarks.bench_row_dtypes [--rows 1000000] [--rounds 9] [--output FILE.json]

Batches are those of bench_table.py. Of 10M rows or more, each type is measured against float32 in a
run of its own: with more tables than that, the last ones get no huge pages on a machine of 24 GB.

Columns: ms: a lookup of a batch, median. MB: memory of the table, index included. ratio: time, and
CPU time, over that of float32, median over the rounds, with quartiles.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict

import numpy as np

from benchmarks import bench_table, result_file
from benchmarks import rounds as rounds_lib

SIZES = (1_000_000, 50_000_000)
ROW_DTYPES = ("float32", "bfloat16", "float16", "int8")
FIRST, *OTHERS = ROW_DTYPES
_MANY_ROWS = 10_000_000
# Rows that are written at once.
_WRITTEN = 1_000_000


def build(row_dtype: str, rows: int) -> Dict[str, Callable[[], Any]]:
    """Builds a table for rounds.alternate, in its own process."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec
    from rec_estimator.table.row_dtype import ROW_DTYPES as DTYPES
    from rec_estimator.table.row_dtype import exporting_rows_as

    with exporting_rows_as(DTYPES.get(row_dtype, tf.float32)):
        table = rec.get_embedding_variable("table", bench_table.DIM)
    keys = tf.placeholder(tf.int64, [None])
    # Numbers that cost little and are other ones in each row.
    vectors = tf.math.sin(
        tf.cast(keys % 8191, tf.float32)[:, tf.newaxis]
        + tf.range(bench_table.DIM, dtype=tf.float32)
    )
    write, size = table.assign(keys, vectors), table.memory_bytes()
    next_batch = tf.get_local_variable("next_batch", initializer=np.int64(0), use_resource=True)
    batches = tf.constant(bench_table.zipf_batches(rows))
    number = tf.math.floormod(next_batch.assign_add(1), bench_table.NUM_BATCHES)
    lookup = rec.embedding_lookup(table, batches[number]).op
    session = tf.Session()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for begin in range(0, rows, _WRITTEN):
        session.run(write, {keys: np.arange(begin, min(rows, begin + _WRITTEN))})
    run = session.make_callable(lookup)
    for _ in range(bench_table.NUM_BATCHES):
        run()
    print(f"{row_dtype}: {session.run(size) / 1e6:.0f} MB", flush=True)
    return {"lookup": run}


def measure(rows: int, rounds: int, steps: int) -> Dict[str, Any]:
    """Measures tables of one size, prints its lines and returns the raw result."""
    seconds: rounds_lib.Seconds = {}
    ratios = {}
    print(f"\n{rows:,} rows")
    for others in [OTHERS] if rows < _MANY_ROWS else [[other] for other in OTHERS]:
        found = rounds_lib.alternate(
            {row_dtype: (build, (row_dtype, rows)) for row_dtype in [FIRST, *others]},
            ("lookup",),
            rounds,
            steps,
            with_cpu=True,
            at_once=False,
        )
        for what, by_dtype in found.items():
            seconds.setdefault(what, {}).update(by_dtype)
            for row_dtype, times in by_dtype.items():
                ratio = rounds_lib.ratios(times, by_dtype[FIRST])
                ratios[f"{what}/{row_dtype}"] = round(ratio.median, 3)
                print(f"{what:14}{row_dtype:10}{statistics.median(times) * 1e3:8.2f} ms   {ratio}")
    return {"seconds_per_lookup": result_file.quartiles(seconds), "ratios": ratios}


def main() -> None:
    parser = result_file.parser(__doc__, rounds=9, steps=60)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=SIZES, help="sizes of tables; 1M and 50M by default"
    )
    args = parser.parse_args()
    result = {
        "batch": [bench_table.BATCH, bench_table.FIELDS],
        "dim": bench_table.DIM,
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "rows": {str(rows): measure(rows, args.rounds, args.steps) for rows in args.rows},
    }
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
