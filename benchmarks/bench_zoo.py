# SPDX-License-Identifier: Apache-2.0
"""Measures the training of each model of the zoo against the same model on tf.Variables.

    python -m benchmarks.bench_zoo [--models deepfm din ...] [--rounds 7] [--output FILE.json]

The clicks are generated, with 100,000 users and 50,000 items, in 32 batches in memory. Both systems
build the model with the model_fn of the zoo and train it with Adagrad; they differ in the vectors
that the model_fn gets: of EmbeddingFeature, or of tf.nn.embedding_lookup in variables that have a
row for each id. They are graphs of one process and take turns; the ratio is the median over the
rounds. All models take about a quarter of an hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks import result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec
    from model_zoo.data import DataSet

SYSTEMS = ("tables", "variables")
BATCHES = 32
USERS, ITEMS = 100_000, 50_000
LEARNING_RATE = 0.05
WARM_UP = 3
ENOUGH = 1.1  # Times as fast; for less, profile_zoo.py gives the reason.


def batches_of(data: DataSet, batch_size: int) -> Any:
    """Nested arrays [BATCHES, ...] of features and labels, as a model gets them."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        dataset = data.input_fn("train", batch_size, seed=1, epochs=None)()
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        found = [session.run(batch) for _ in range(BATCHES)]
    return tf.nest.map_structure(lambda *arrays: np.stack(arrays), *found)


def number_ids(data: DataSet, features: Dict[str, np.ndarray]) -> Dict[str, int]:
    """Replaces the ids of each table by numbers from 0 on; returns how many, by column."""
    tables: Dict[str, List[str]] = {}
    for column in data.columns:
        if column.kind == "id":
            tables.setdefault(column.table or column.name, []).append(column.name)
    sizes = {}
    for names in tables.values():
        ids = np.unique(np.concatenate([features[name].ravel() for name in names]))
        ids = ids[ids != -1]
        for name in names:
            sizes[name] = len(ids)
            numbers = np.searchsorted(ids, features[name])
            features[name] = np.where(features[name] == -1, -1, numbers).astype(np.int64)
    return sizes


def look_up_in_variables(
    batch: Dict[str, tf.Tensor], declared: Sequence[rec.EmbeddingFeature], sizes: Dict[str, int]
) -> Dict[str, tf.Tensor]:
    """What lookup_features gives, looked up in variables."""
    import tensorflow.compat.v1 as tf

    found = dict(batch)
    for feature in declared:
        with tf.variable_scope("rows", reuse=tf.AUTO_REUSE):
            variable = tf.get_variable(
                feature.table,
                [sizes[feature.source], feature.dim],
                initializer=tf.truncated_normal_initializer(stddev=0.05),
                use_resource=True,
            )
        ids = batch[feature.source]
        found[f"{feature.name}_ids"] = ids
        rows = tf.nn.embedding_lookup(variable, tf.maximum(ids, 0))
        if ids.shape.rank == 2:
            mask = ids >= 0
            weights = tf.cast(mask, tf.float32)[..., tf.newaxis]
            rows *= weights
            if feature.combiner is None:
                found[f"{feature.name}_mask"] = mask
            else:
                rows = tf.reduce_sum(rows, 1) / tf.maximum(tf.reduce_sum(weights, 1), 1.0)
        found[feature.name] = rows
    return found


def build(
    model: str, system: str, data: DataSet, batches: Any, sizes: Dict[str, int]
) -> Callable[[], Any]:
    """Builds a system in the default graph; returns a function that makes one training step."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec
    from model_zoo.minimize import Training
    from model_zoo.models import MODELS, params_of
    from rec_estimator.features import lookup_features

    tf.set_random_seed(1)
    tf.train.get_or_create_global_step()
    dataset = tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(2)
    iterator = tf.data.make_initializable_iterator(dataset)
    batch, labels = iterator.get_next()
    adagrad = {"name": "adagrad", "learning_rate": LEARNING_RATE}
    params = params_of(model, data, None, Training(optimizer=adagrad))
    declared = MODELS[model].features(data, params)
    if system == "tables":
        features = lookup_features(batch, declared)
    else:
        features = look_up_in_variables(batch, declared, sizes)
    spec = MODELS[model].model_fn(features, labels, rec.ModeKeys.TRAIN, params)
    config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    session = tf.Session(config=config)
    session.run([tf.global_variables_initializer(), iterator.initializer])
    step: Callable[[], Any] = session.make_callable(spec.train_op)
    return step


def inputs_of(model: str, batch_size: int) -> Tuple[DataSet, Any, Dict[str, int]]:
    """The data of a model, as batches_of, and as number_ids returns them."""
    from model_zoo.data import generate_clicks
    from model_zoo.models import view_of

    clicks = generate_clicks(rows=3 * BATCHES * batch_size, users=USERS, items=ITEMS)
    data = view_of(model, clicks)
    features, labels = batches_of(data, batch_size)
    sizes = number_ids(data, features)
    return data, (features, labels), sizes


def measure(model: str, batch_size: int, rounds: int, steps: int) -> Dict[str, Any]:
    """Measures a model, in a process of its own."""
    import tensorflow.compat.v1 as tf

    data, batches, sizes = inputs_of(model, batch_size)
    run = {}
    for system in SYSTEMS:
        with tf.Graph().as_default():
            run[system] = build(model, system, data, batches, sizes)
    for step in run.values():
        for _ in range(BATCHES):  # All rows are there then.
            step()
    seconds, cpu = rounds_lib.take_turns(run, rounds, steps, WARM_UP)
    rates = {name: [batch_size / each for each in times] for name, times in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["tables"], seconds["variables"])]
    cpu_ratios = [b / a for a, b in zip(cpu["tables"], cpu["variables"])]
    return {
        "model": model,
        "batch": batch_size,
        "samples_per_second": result_file.quartiles(rates),
        "times_as_fast": result_file.quartiles(ratios),
        "times_as_fast_by_cpu": result_file.quartiles(cpu_ratios),
    }


def slow_cases(found: Dict[str, Any]) -> List[Tuple[str, int]]:
    """(model, batch) of each case of a result that is less than ENOUGH times as fast."""
    return [
        (one["model"], one["batch"]) for one in found["results"] if one["times_as_fast"][1] < ENOUGH
    ]


def main() -> None:
    from model_zoo.models import MODELS

    parser = result_file.parser(__doc__, rounds=7, steps=BATCHES // 2)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 2048])
    args = parser.parse_args()
    results = []
    for batch in args.batches:
        for model in args.models:
            case = (model, batch, args.rounds, args.steps)
            results.append(rounds_lib.in_process(measure, *case))
            found = results[-1]
            ours, theirs = (found["samples_per_second"][name][1] for name in SYSTEMS)
            print(
                f"{model:17} batch {batch:5}: {ours:10,.0f} samples/s, {theirs:10,.0f} on "
                f"variables, {found['times_as_fast'][1]:.2f} times as fast",
                flush=True,
            )
            sizes = {"rounds": args.rounds, "steps_per_round": args.steps}
            result_file.write(args.output, {**sizes, "results": results})


if __name__ == "__main__":
    main()
