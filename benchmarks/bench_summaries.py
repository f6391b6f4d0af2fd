# SPDX-License-Identifier: Apache-2.0
"""Measures what TableSummaryHook adds to a training step.

    python -m benchmarks.bench_summaries [--rounds 15] [--output FILE.json]

26 tables of dim 16 with Adagrad, batch 2048, Zipf ids, and the zoo's network of 128 and 64 units.
Two MonitoredTrainingSessions of one process take turns, of 100 steps each; one has the hook, which
reads the tables and writes summaries every 100 steps, as in an Estimator.

Prints seconds a step without the hook, and the ratio with the hook to without, in quartiles.
"""

import statistics
import tempfile
from typing import Any, Callable, Optional, Sequence

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

TABLES, BATCH, DIM, STEPS = 26, 2048, 16, 100


def build(folder: Optional[str]) -> Callable[[], Any]:
    """Builds a training; returns a function that makes one step. folder: of summaries, or none."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec
    from model_zoo import layers

    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        rng = np.random.default_rng(1)
        ids = tf.constant(rng.zipf(1.2, [50, TABLES, BATCH]) % 10_000_000, tf.int64)
        batch = tf.gather(ids, step % 50)
        tables = [rec.get_embedding_variable(f"t{i}", DIM) for i in range(TABLES)]
        rows = [rec.embedding_lookup(table, batch[i]) for i, table in enumerate(tables)]
        logits = layers.dense(
            layers.hidden(tf.concat(rows, axis=1), (128, 64), "deep"), 1, "output"
        )
        loss = tf.reduce_mean(tf.square(logits - 1.0))
        train_op = rec.optimizers.AdagradOptimizer(0.05).minimize(loss, global_step=step)
        hooks = [] if folder is None else [rec.TableSummaryHook(folder, every_steps=STEPS)]
        session = tf.train.MonitoredTrainingSession(hooks=hooks)
    return lambda: session.run(train_op)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = result_file.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    args = parser.parse_args(arguments)
    rounds_lib.start_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        steps = {"without": build(None), "with": build(folder)}
        wall, cpu = rounds_lib.take_turns(steps, args.rounds, STEPS, warm_up=0)
    found = {}
    for what, seconds in {"wall": wall, "cpu": cpu}.items():
        without = statistics.median(seconds["without"])
        ratio = rounds_lib.ratios(seconds["with"], seconds["without"])
        found[what] = {"seconds_without": without, "ratio": list(ratio)}
        print(what, found[what])
    sizes = {"tables": TABLES, "batch": BATCH, "dim": DIM, "steps": STEPS, "rounds": args.rounds}
    result_file.write(args.output, {**sizes, **found})


if __name__ == "__main__":
    main()
