# SPDX-License-Identifier: Apache-2.0
"""Measures a train step and a lookup against a dense tf.Variable and TFRA.

    python -m benchmarks.bench_table [--rows 5000000] [--rounds 15] [--output FILE.json]
    python -m benchmarks.bench_table --exponent 1.25     hotter keys: half as many distinct ones
    python -m benchmarks.bench_table --batch 128         small batches: 3,328 ids

Workload: batches of 4096 x 26 ids, Zipf-distributed as fitted to click logs (p(rank) ~ (rank +
q)^-s), ranks shuffled over the table's rows, values of 16 floats, Adagrad. The gradient of
a value is the value and noise, which costs little. All systems get the same batches. rounds.py
describes the measurement.
TFRA is measured if it is installed:

    pip install --no-deps tensorflow-recommenders-addons==0.7.2 typeguard==2.13.3 packaging

Columns: M ids/s: millions of looked-up ids per second, median. ratio: speed of rec_estimator over
that of the other system, median over the rounds, with quartiles.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec


BATCH, FIELDS, DIM = 4096, 26, 16
ZIPF_S, ZIPF_Q = 1.1, 2.0  # Between Criteo's C4 and C21.
LEARNING_RATE = 0.05
NUM_BATCHES = 16

# Floats per row of the slot of each rule that rec_estimator's tables are measured with; None: dim.
SLOT_WIDTHS = {"Adagrad": None, "RowwiseAdagrad": 1}


class System(NamedTuple):
    """A table in the default graph.

    Attributes:
      steps: Ops by name, among them "train" and "lookup". Each run takes the next batch.
      fill: Fills the table, given a session. None: it has all rows from the beginning.
    """

    steps: Dict[str, Any]
    fill: Optional[Callable[[Any], Any]] = None


def zipf_batches(
    rows: int, seed: int = 0, exponent: float = ZIPF_S, batch: int = BATCH
) -> np.ndarray:
    """Batches of ids, int64 [NUM_BATCHES, batch, FIELDS] in [0, rows)."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, rows + 1) + ZIPF_Q) ** -exponent
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(cumulative, rng.random((NUM_BATCHES, batch, FIELDS)))
    return rng.permutation(rows)[np.minimum(ranks, rows - 1)].astype(np.int64)


def _steps_of(
    embed: Callable[[tf.Tensor], Tuple[tf.Tensor, List[Any]]],
    optimizer: tf.train.Optimizer,
    batches: np.ndarray,
    dim: int = DIM,
) -> Dict[str, tf.Operation]:
    """Returns the steps of one system."""
    import tensorflow.compat.v1 as tf

    next_batch = tf.get_local_variable(
        "next_batch", initializer=np.int64(0), use_resource=True, trainable=False
    )
    ids = tf.constant(batches)[tf.math.floormod(next_batch.assign_add(1), NUM_BATCHES)]
    values, variables = embed(ids)
    noise = np.random.default_rng(1).normal(size=(*batches.shape[1:], dim)).astype(np.float32)
    # It needs the values: TensorFlow prunes a gather that nothing reads.
    gradient = values + noise
    train = optimizer.minimize(values, var_list=variables, grad_loss=gradient)
    return {"train": train, "lookup": values.op}


def _dense(rows: int, batches: np.ndarray) -> System:
    import tensorflow.compat.v1 as tf

    table = tf.get_variable(
        "table",
        [rows, DIM],
        initializer=tf.random_uniform_initializer(-0.05, 0.05),
        use_resource=True,
    )
    steps = _steps_of(
        lambda ids: (tf.nn.embedding_lookup(table, ids), [table]),
        tf.train.AdagradOptimizer(LEARNING_RATE),
        batches,
    )
    return System(steps)


def fill_op(table: rec.EmbeddingTable, keys: tf.Tensor, rule: str = "Adagrad") -> tf.Operation:
    """Returns a step with zero gradients; it inserts a row for each key.

    Args:
      table: The table.
      keys: int64 [n].
      rule: The rule that trains the table, one of SLOT_WIDTHS.
    """
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    reservation, _ = rec._ops.gen.rec_estimator_tables_reserve(
        [table.handle],
        [keys],
        [tf.zeros([0], tf.int64)],
        rule=rule,
        slot_names=[rule],
        slot_widths=[SLOT_WIDTHS[rule] or table.dim],
        slot_initials=[0.1],
    )
    grads = tf.zeros([tf.size(keys), table.dim])
    return rec._ops.gen.rec_estimator_tables_apply(
        reservation, [grads], tf.constant(-1, tf.int64), [tf.constant(LEARNING_RATE)]
    )


def table_system(
    rows: int,
    batches: np.ndarray,
    rule: str = "Adagrad",
    value_dtype: str = "float32",
    dim: int = DIM,
) -> System:
    """A table of rec_estimator. Its steps also have "memory": the bytes of the table.

    Args:
      rows: Rows of the table, all inserted before the measurement.
      batches: Ids, int64 [NUM_BATCHES, batch, FIELDS].
      rule: The rule that trains it, one of SLOT_WIDTHS.
      value_dtype: Name of the type in which vectors are stored.
      dim: Numbers of a vector.
    """
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    table = rec.get_embedding_variable(
        "table",
        dim,
        initializer=tf.random_uniform_initializer(-0.05, 0.05),
        value_dtype=tf.as_dtype(value_dtype),
    )
    optimizer = getattr(rec.optimizers, f"{rule}Optimizer")(LEARNING_RATE)
    steps = _steps_of(
        lambda ids: (rec.embedding_lookup(table, ids), [table]), optimizer, batches, dim
    )
    keys = tf.placeholder(tf.int64, [None])
    fill = fill_op(table, keys, rule)
    return System(
        {**steps, "memory": table.memory_bytes()},
        lambda session: [
            session.run(fill, {keys: part}) for part in np.array_split(np.arange(rows), 20)
        ],
    )


def _tfra(rows: int, batches: np.ndarray) -> System:
    import tensorflow.compat.v1 as tf
    import tensorflow_recommenders_addons.dynamic_embedding as de

    table = de.get_variable(
        "table", dim=DIM, initializer=tf.random_uniform_initializer(-0.05, 0.05), init_size=2 * rows
    )

    def embed(ids: tf.Tensor) -> Tuple[tf.Tensor, List[Any]]:
        values, trainable = de.embedding_lookup_unique(table, ids, return_trainable=True)
        return values, [trainable]

    steps = _steps_of(
        embed, de.DynamicEmbeddingOptimizer(tf.train.AdagradOptimizer(LEARNING_RATE)), batches
    )
    keys = tf.placeholder(tf.int64, [None])
    fill = table.upsert(keys, tf.zeros([tf.size(keys), DIM]))
    return System(
        steps,
        lambda session: [
            session.run(fill, {keys: part}) for part in np.array_split(np.arange(rows), 20)
        ],
    )


SYSTEMS: Dict[str, Callable[[int, np.ndarray], System]] = {
    "dense": _dense,
    "rec_estimator": table_system,
    "tfra": _tfra,
}


def start(system: System) -> Dict[str, Callable[[], Any]]:
    """Fills a table and warms it up; returns its steps for rounds.alternate."""
    import tensorflow.compat.v1 as tf

    session = tf.Session()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    if system.fill is not None:
        system.fill(session)
    run = {name: session.make_callable(step) for name, step in system.steps.items()}
    for step in run.values():
        for _ in range(NUM_BATCHES):
            step()
    return run


def build(system: str, rows: int, batches: np.ndarray) -> Dict[str, Callable[[], Any]]:
    """Builds a system for rounds.alternate, in its own process."""
    return start(SYSTEMS[system](rows, batches))


def report(
    seconds: rounds_lib.Seconds, batches: np.ndarray, args: argparse.Namespace
) -> Dict[str, Any]:
    """Prints the table and returns the raw result."""
    unique = statistics.mean(len(np.unique(batch)) / batch.size for batch in batches)
    ids = args.batch * FIELDS
    result = {
        "rows": args.rows,
        "batch": [args.batch, FIELDS],
        "dim": DIM,
        "optimizer": "Adagrad",
        "zipf": {"s": args.exponent, "q": ZIPF_Q},
        "unique_share": round(unique, 4),
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "seconds_per_step": result_file.quartiles(seconds),
        "ratios": {},
    }
    size = f"{args.rows:,} rows, {args.batch} x {FIELDS} ids"
    print(f"\n{size}, unique share {unique:.2f}, dim {DIM}, Adagrad")
    print(f"{'':12}{'system':16}{'M ids/s':>10}   ratio (quartiles)")
    for what, by_system in seconds.items():
        for system, times in by_system.items():
            speed = ids / statistics.median(times) / 1e6
            line = f"{what:12}{system:16}{speed:10.1f}"
            if system != "rec_estimator":
                ratio = rounds_lib.ratios(times, by_system["rec_estimator"])
                result["ratios"][f"{what}/{system}"] = round(ratio.median, 3)
                line += f"   {ratio}"
            print(line)
    return result


def main() -> None:
    parser = result_file.parser(__doc__, rows=5_000_000, rounds=15, steps=60)
    parser.add_argument("--exponent", type=float, default=ZIPF_S, help="s of the ids' law")
    parser.add_argument("--batch", type=int, default=BATCH, help="examples of a batch")
    args = parser.parse_args()
    systems = ["dense", "rec_estimator"]
    if importlib.util.find_spec("tensorflow_recommenders_addons"):
        systems.append("tfra")
    else:
        print("tensorflow_recommenders_addons is not installed: not measured")
    batches = zipf_batches(args.rows, exponent=args.exponent, batch=args.batch)
    seconds = rounds_lib.alternate(
        {system: (build, (system, args.rows, batches)) for system in systems},
        ("train", "lookup"),
        args.rounds,
        args.steps,
        with_cpu=True,
    )
    result_file.write(args.output, report(seconds, batches, args))


if __name__ == "__main__":
    main()
