# SPDX-License-Identifier: Apache-2.0
"""Measures train steps of lookups whose ids have weights, against tf.Variables.

    python -m benchmarks.bench_weighted_lookups [--examples 256 2048] [--ids 1 3 10] [--rounds 15]
        [--output FILE.json]

26 tables of 16 floats; some examples a step, with some ids of each table (rows 1 to 100,000,
Zipf-distributed with exponent 1.2) that combine to a sum; Adagrad. All ways are in one graph of a
process and take turns:

    stock      tf.Variable, tf.nn.embedding_lookup_sparse with weights
    products   tables, one product for each looked-up value, and unsorted_segment_sum
    weighted   tables, embedding_lookup_sparse with weights
    plain      tables, embedding_lookup_sparse without weights
    reads      tables, embedding_lookup of the same ids, which are not combined

Columns: milliseconds a step, median; the time of weighted over that of each other way, median over
the rounds, with quartiles.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

TABLES, DIM, ROWS, EXPONENT = 26, 16, 100_000, 1.2
WAYS = ("stock", "products", "weighted", "plain", "reads")


def _lookup(way: str, params: Any, ids: tf.SparseTensor, weights: tf.SparseTensor) -> tf.Tensor:
    """[examples, DIM]. The sum of each example; for "reads", a row for each id."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    if way == "stock":
        return tf.nn.embedding_lookup_sparse(params, ids, weights, combiner="sum")
    if way == "reads":
        return rec.embedding_lookup(params, ids.values)
    if way == "products":
        products = rec.embedding_lookup(params, ids.values) * weights.values[:, tf.newaxis]
        return tf.math.unsorted_segment_sum(products, ids.indices[:, 0], ids.dense_shape[0])
    return rec.embedding_lookup_sparse(
        params, ids, weights if way == "weighted" else None, combiner="sum"
    )


def _inputs(examples: int, ids_each: int) -> List[Any]:
    """Ids and weights for each table. A step draws none: they are variables."""
    import tensorflow.compat.v1 as tf

    rng = np.random.default_rng(0)
    shape = [examples, ids_each]
    indices = np.argwhere(np.ones(shape))
    pairs = []
    for i in range(TABLES):
        values = np.minimum(rng.zipf(EXPONENT, len(indices)), ROWS) - 1
        ids, weights = (
            tf.get_variable(f"{what}_{i}", initializer=initial, trainable=False, use_resource=True)
            for what, initial in (
                ("ids", values.astype(np.int64)),
                ("weights", rng.random(len(indices), np.float32)),
            )
        )
        pairs.append([tf.SparseTensor(indices, each.value(), shape) for each in (ids, weights)])
    return pairs


def _build(examples: int, ids_each: int) -> Dict[str, Callable[[], Any]]:
    """By way, a step."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    inputs = _inputs(examples, ids_each)
    steps = {}
    for way in WAYS:
        if way == "stock":
            shape = [ROWS, DIM]
            params = [
                tf.get_variable(f"{way}_{i}", shape, use_resource=True) for i in range(TABLES)
            ]
            optimizer = tf.train.AdagradOptimizer(0.05)
        else:
            params = [rec.get_embedding_variable(f"{way}_{i}", DIM) for i in range(TABLES)]
            optimizer = rec.optimizers.AdagradOptimizer(0.05)
        values = [_lookup(way, each, *pair) for each, pair in zip(params, inputs)]
        loss = tf.add_n([tf.reduce_sum(tf.square(each)) for each in values])
        steps[way] = optimizer.minimize(loss, var_list=params)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return {way: session.make_callable(step) for way, step in steps.items()}


def _run(
    examples: int, ids_each: int, rounds: int, steps: int
) -> Tuple[Dict[str, List[float]], Dict[str, List[float]]]:
    """Runs all ways in turn; returns their time and their CPU time."""
    return rounds_lib.take_turns(_build(examples, ids_each), rounds, steps, warm_up=2)


def measure(examples: int, ids_each: int, rounds: int, steps: int) -> Dict[str, Any]:
    """Measures one size of a step, prints its table and returns the raw result."""
    wall, cpu = rounds_lib.in_process(_run, examples, ids_each, rounds, steps)
    print(f"\n{examples} examples of {ids_each} ids")
    print(f"{'way':12}{'ms':>8}   weighted / this: time, CPU time")
    ratios: Dict[str, Dict[str, float]] = {}
    for way in WAYS:
        shown = []
        for name, seconds in (("time", wall), ("CPU time", cpu)):
            ratio = rounds_lib.ratios(seconds["weighted"], seconds[way])
            ratios.setdefault(way, {})[name] = round(ratio.median, 3)
            shown.append(str(ratio))
        print(
            f"{way:12}{statistics.median(wall[way]) * 1e3:8.2f}   {'   '.join(shown)}", flush=True
        )
    return {
        "examples": examples,
        "ids_an_example": ids_each,
        "seconds": result_file.quartiles(wall),
        "cpu_seconds": result_file.quartiles(cpu),
        "weighted_over": ratios,
    }


def main() -> None:
    parser = result_file.parser(__doc__, rounds=15, steps=20)
    parser.add_argument("--examples", type=int, nargs="+", default=[256, 2048], help="of a step")
    parser.add_argument("--ids", type=int, nargs="+", default=[1, 3, 10], help="of an example")
    args = parser.parse_args()
    results = [
        measure(examples, ids_each, args.rounds, args.steps)
        for examples in args.examples
        for ids_each in args.ids
    ]
    sizes = {"tables": TABLES, "dim": DIM, "rows": ROWS}
    result_file.write(args.output, {**sizes, "results": results})


if __name__ == "__main__":
    main()
