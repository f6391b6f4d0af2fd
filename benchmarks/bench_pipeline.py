# SPDX-License-Identifier: Apache-2.0
"""Measures graph modification on an input-bound job.

    python -m benchmarks.bench_pipeline [--rows 20000000] [--rounds 11] [--output FILE.json]

Workload: log lines of 26 strings, with labels, 2048 a batch, Zipf-distributed as in bench_table.
The dataset reads them; the model splits them, strips and lowers each value, puts the field's name
before it, as one table for all fields needs it, hashes that to a key, looks up values of 8 floats
in a table of 20 M rows and trains a small network and the rows with Adagrad. Variants: a dataset
that ends in prefetch, and one that does not; each unmodified and modified. How it is measured:
rounds.py; the batches that a pipeline has prefetched while another one was measured are taken
before the clock starts.

On two cores the step's own ops share both, so what is won is what the key path leaves idle: with S
ms of it, which is serial, and P ms of the rest, at most (2 S + P) / (S + P).
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import LEARNING_RATE, ZIPF_Q, ZIPF_S, fill_op

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


BATCH, FIELDS, DIM = 2048, 26, 8
NUM_BATCHES = 32  # Different ones; then they repeat.
HASH_BUCKETS = 2**63 - 1
# More than all prefetch buffers hold together.
UNTIMED_STEPS = 30

NAMES = [f"c{i}=" for i in range(FIELDS)]

VARIANTS = {
    "plain": (False, False),
    "modified": (False, True),
    "plain, prefetch": (True, False),
    "modified, prefetch": (True, True),
}


def best_of_each_side(found: Dict[str, Any]) -> Tuple[str, str]:
    """The plain and the modified variant of a result with the least median time of a step."""
    medians = {variant: seconds[1] for variant, seconds in found["seconds_per_step"].items()}
    plain = min((each for each in medians if not VARIANTS[each][1]), key=medians.__getitem__)
    modified = min((each for each in medians if VARIANTS[each][1]), key=medians.__getitem__)
    return plain, modified


def log_lines(values: int, seed: int = 0) -> Tuple[np.ndarray, np.ndarray]:
    """Returns lines of 26 strings, each of `values` values, and labels: [NUM_BATCHES * BATCH]."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, values + 1) + ZIPF_Q) ** -ZIPF_S
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(cumulative, rng.random((NUM_BATCHES * BATCH, FIELDS)))
    lines = [",".join(f" ID{rank:08d}" for rank in row) for row in ranks]
    return np.array(lines, dtype=object), rng.integers(0, 2, len(ranks)).astype(np.float32)


def _keys(values: tf.Tensor) -> tf.Tensor:
    """Returns the keys of strings [n, 26], int64."""
    import tensorflow.compat.v1 as tf

    values = tf.strings.lower(tf.strings.strip(values))
    return tf.strings.to_hash_bucket_fast(tf.constant(NAMES) + values, HASH_BUCKETS)


def _build(
    lines: Tuple[np.ndarray, np.ndarray], has_prefetch: bool, is_modified: bool
) -> Tuple[tf.Operation, tf.Operation, tf.Tensor]:
    """Returns the training op of one variant, the op that fills its table, and its placeholder."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    data = tf.data.Dataset.from_tensor_slices(lines).repeat().batch(BATCH, drop_remainder=True)
    if has_prefetch:
        data = data.prefetch(2)
    batch, label = tf.data.make_one_shot_iterator(data).get_next()
    columns = tf.reshape(tf.strings.split(batch, ",").values, [BATCH, FIELDS])
    table = rec.get_embedding_variable(
        "table", DIM, initializer=tf.random_uniform_initializer(-0.05, 0.05)
    )
    values = rec.embedding_lookup(table, _keys(columns))
    hidden = tf.reshape(values, [BATCH, FIELDS * DIM])
    for layer, units in enumerate([64, 1]):
        kernel = tf.get_variable(f"kernel_{layer}", [hidden.shape.as_list()[1], units])
        hidden = tf.matmul(tf.nn.relu(hidden) if layer else hidden, kernel)
    loss = tf.losses.sigmoid_cross_entropy(label, hidden[:, 0])
    train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(loss)
    if is_modified:
        rec.modify_graph_and_start_emb_cache()
    fed = tf.placeholder(tf.int64, [None])
    strings = "ID" + tf.strings.as_string(fed, width=8, fill="0")
    hashed = tf.reshape(_keys(tf.expand_dims(strings, 1)), [-1])
    fill = fill_op(table, hashed)
    return train, fill, fed


def _system(variant: str, rows: int) -> Dict[str, Callable[[], Any]]:
    """Builds a system for rounds.alternate, in its own process."""
    import tensorflow.compat.v1 as tf

    train, fill, fed = _build(log_lines(rows // FIELDS), *VARIANTS[variant])
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    for part in np.array_split(np.arange(rows // FIELDS), max(1, rows // 500_000)):
        session.run(fill, {fed: part})
    step = session.make_callable(train)
    return {"train": step, "before train": lambda: [step() for _ in range(UNTIMED_STEPS)]}


def report(seconds: Dict[str, List[float]], rows: int, rounds: int, steps: int) -> Dict[str, Any]:
    """Prints the table and returns the raw result."""
    print(f"\n{rows:,} rows, {BATCH} x {FIELDS} strings, dim {DIM}, Adagrad")
    print(f"{'variant':20}{'ms/step':>9}   speed-up (quartiles)")
    speed_up = {}
    for variant, times in seconds.items():
        line = f"{variant:20}{statistics.median(times) * 1e3:9.2f}"
        if VARIANTS[variant][1]:
            plain = seconds[variant.replace("modified", "plain")]
            ratio = rounds_lib.ratios(plain, times)
            speed_up[variant] = round(ratio.median, 3)
            line += f"   {ratio}"
        print(line)
    return {
        "rows": rows,
        "batch": [BATCH, FIELDS],
        "dim": DIM,
        "rounds": rounds,
        "steps_per_round": steps,
        "seconds_per_step": result_file.quartiles(seconds),
        "speed_up": speed_up,
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=20_000_000, rounds=11, steps=60)
    args = parser.parse_args()
    systems = {variant: (_system, (variant, args.rows)) for variant in VARIANTS}
    seconds = rounds_lib.alternate(systems, ["train"], args.rounds, args.steps)
    result = report(seconds["train"], args.rows, args.rounds, args.steps)
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
