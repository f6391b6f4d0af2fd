# SPDX-License-Identifier: Apache-2.0
"""Measures what graph modification gains for a table whose rows are mostly on disk.

    python -m benchmarks.bench_tiers_ahead --folder /ssd [--rows 20000000] [--output FILE]
    python -m benchmarks.bench_tiers_ahead --nets "wide & deep"      some of the nets only

The table and the keys of bench_tiers.py, but the keys come from a dataset, which reads them from a
file and prefetches, and the vectors go through a net: reads can only be hidden behind something.
Nets: the deep layers of wide & deep, and layers of an eighth to twice their widths.

* memory: all rows in memory, the graph is modified.
* step: rows on disk, the graph is not modified: the step reads the rows.
* ahead: rows on disk, the graph is modified: the dataset reads the rows.

Before each round the dataset starts again and some steps run, more than batches wait for a step, so
that the time of reads is in the round. After it, the dataset ends: it must not read on while others
are measured. rounds.py describes the measurement. Columns: ms a step and its CPU ms, median over
the rounds; misses of a step, and KiB that were read in its time; rows in memory, which are more
than the share if the rows of the batches on their way are; and how much longer a step takes without
reading ahead.
"""

import functools
import json
import pathlib
import statistics
import tempfile
from typing import Any, Callable, Dict, List

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_models import layers
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, fill_op
from benchmarks.bench_tiers import EXPONENTS, PART, zipf_ranks
from benchmarks.criteo_ids import scattered

STEPS = 20  # In a round.
WARM_UP = 15  # Steps before each round; ten batches wait for a step.
FIRST_WARM_UP = 60
SCATTER = np.uint64(0x9E3779B97F4A7C15).astype(np.int64)
DEEP = (1024, 512, 256)
NETS = {
    "an eighth as wide": 0.125,
    "a quarter as wide": 0.25,
    "half as wide": 0.5,
    "five eighths as wide": 0.625,
    "wide & deep": 1.0,
    "twice as wide": 2.0,
}
SYSTEMS = ("memory", "step", "ahead")


def _build(
    system: str, rows: int, share: float, width: float, folder: str, report: str
) -> Dict[str, Callable[[], None]]:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    storage = rec.StorageOption()
    if system != "memory":
        memory = int(rows * share) * 2 * DIM * 4
        storage = rec.StorageOption(rec.StorageType.DRAM_SSDHASH, folder, [memory])
    option = rec.EmbeddingVariableOption(storage_option=storage)
    initializer = tf.random_uniform_initializer(-0.05, 0.05)
    table = rec.get_embedding_variable("table", DIM, initializer=initializer, ev_option=option)
    inserted = tf.placeholder(tf.int64, [None])
    fill = fill_op(table, inserted)

    file = tf.placeholder(tf.string, [])
    first = tf.placeholder(tf.int64, [])

    iterator = tf.data.make_initializable_iterator(_batches_of_ranks(file, first))
    keys = iterator.get_next() * SCATTER
    values = rec.embedding_lookup(table, keys)
    widths = [int(width * each) for each in DEEP] + [1]
    logits = layers(tf.reshape(values, [BATCH, FIELDS * DIM]), widths, "deep", False)
    train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(tf.reduce_mean(logits**2))
    counts = table.tier_counts()
    if system != "step":
        rec.modify_graph_and_start_emb_cache()
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    # The least frequent first: they leave memory.
    for part in np.array_split(np.arange(rows)[::-1], max(rows // PART, 1)):
        session.run(fill, {inserted: scattered(part)})
    step = session.make_callable(train)
    started: List[float] = []

    def prepare(exponent: float) -> None:
        """Starts the data, warms up, and reports what the disk has done until now."""
        passed = started.count(exponent)
        skipped = FIRST_WARM_UP + passed * (WARM_UP + STEPS) if passed else 0
        session.run(iterator.initializer, {file: _file(folder, exponent), first: skipped})
        for _ in range(WARM_UP if passed else FIRST_WARM_UP):
            step()
        started.append(exponent)
        _report(session.run(counts), report, exponent)

    def end(exponent: float) -> None:
        """Reports what the disk has done until now, and ends what reads ahead."""
        _report(session.run(counts), report, exponent)
        session.run(iterator.initializer, {file: _file(folder, exponent), first: 0})

    run: Dict[str, Callable[[], None]] = {}
    for exponent in EXPONENTS:
        run[f"zipf {exponent}"] = step
        run[f"before zipf {exponent}"] = functools.partial(prepare, exponent)
        run[f"after zipf {exponent}"] = functools.partial(end, exponent)
    return run


def _batches_of_ranks(file: Any, first: Any) -> Any:
    """A dataset of the batches of a file, int64 [BATCH * FIELDS], from batch `first` on."""
    import tensorflow.compat.v1 as tf

    def ranks(record: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.io.decode_raw(record, tf.int64), [BATCH * FIELDS])

    data = tf.data.FixedLengthRecordDataset(file, BATCH * FIELDS * 8).skip(first)
    return data.map(ranks).prefetch(10)


def _file(folder: str, exponent: float) -> str:
    return f"{folder}/ranks {exponent}"


def write_ranks(folder: str, rows: int, rounds: int) -> None:
    """Writes the ranks of all steps, a file for each distribution."""
    steps = FIRST_WARM_UP + (rounds + 1) * (WARM_UP + STEPS)
    for exponent in EXPONENTS:
        random = np.random.default_rng(1)
        with open(_file(folder, exponent), "wb") as file:
            for _ in range(steps):
                file.write(zipf_ranks(rows, exponent, random).tobytes())


def _report(counts: Any, report: str, exponent: float) -> None:
    state = {"what": f"zipf {exponent}", **{name: int(n) for name, n in counts._asdict().items()}}
    with open(report, "a") as file:
        file.write(json.dumps(state) + "\n")


def by_round(report: pathlib.Path, what: str) -> List[Dict[str, float]]:
    """What the disk has done in each round, per step, and the rows in memory."""
    states = [json.loads(line) for line in report.read_text().splitlines()]
    states = [state for state in states if state["what"] == what]
    # Before each round and after it.
    return [
        {
            **{name: (after[name] - before[name]) / STEPS for name in ("misses", "bytes_read")},
            "memory_rows": after["memory_rows"],
        }
        for before, after in zip(states[::2], states[1::2])
    ]


def measure(rows: int, share: float, width: float, rounds: int, folder: str) -> Dict[str, Any]:
    """Returns the raw result of one net."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        reports = {name: pathlib.Path(scratch) / f"{name}.jsonl" for name in SYSTEMS}
        write_ranks(scratch, rows, rounds)
        whats = [f"zipf {exponent}" for exponent in EXPONENTS]
        seconds = rounds_lib.alternate(
            {
                name: (_build, (name, rows, share, width, scratch, str(report)))
                for name, report in reports.items()
            },
            whats,
            rounds,
            STEPS,
            with_cpu=True,
        )
        done = {what: {name: by_round(reports[name], what) for name in SYSTEMS} for what in whats}
    return {
        "width": width,
        "summary": {what: summary(seconds, done[what], what) for what in whats},
    }


def summary(
    seconds: rounds_lib.Seconds, done: Dict[str, List[Dict[str, float]]], what: str
) -> Dict[str, float]:
    """The figures of one distribution of keys, medians over the rounds."""
    wall, cpu = seconds[what], seconds[f"{what}, CPU"]
    figures = {f"{name}_ms": 1e3 * statistics.median(wall[name]) for name in SYSTEMS}
    figures.update({f"{name}_cpu_ms": 1e3 * statistics.median(cpu[name]) for name in SYSTEMS})
    for name in SYSTEMS[1:]:
        of_rounds = {key: statistics.median(e[key] for e in done[name]) for key in done[name][0]}
        figures[f"{name}_misses"] = of_rounds["misses"]
        figures[f"{name}_read_kib"] = of_rounds["bytes_read"] / 1024
        figures[f"{name}_memory_rows"] = of_rounds["memory_rows"]
    figures["gain"] = rounds_lib.ratios(wall["step"], wall["ahead"]).median
    return {name: float(f"{figure:.4g}") for name, figure in figures.items()}


def main() -> None:
    parser = result_file.parser(__doc__, rows=20_000_000, rounds=9)
    parser.add_argument("--share", type=float, default=0.1, help="of the rows in memory")
    parser.add_argument("--folder", default=".", help="on the disk to be measured")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    args = parser.parse_args()
    print(f"{args.rows:,} rows, {args.share:.0%} in memory")
    found = {
        "rows": args.rows,
        "share": args.share,
        "dim": DIM,
        "batch": [BATCH, FIELDS],
        "steps_per_round": STEPS,
    }
    nets = {}
    for net in args.nets:
        nets[net] = measure(args.rows, args.share, NETS[net], args.rounds, args.folder)
        for what, figures in nets[net]["summary"].items():
            print(f"{net}, {what}")
            for name, figure in figures.items():
                print(f"  {name:20}{figure:>14,.6g}")
    result_file.write(args.output, {**found, "nets": nets})


if __name__ == "__main__":
    main()
