# SPDX-License-Identifier: Apache-2.0
"""Measures train steps of whole models against tf.Variables and TFRA.

    python -m benchmarks.bench_models [--batches 512 2048 8192] [--rounds 15] [--output FILE.json]

Wide & deep, DeepFM and DLRM over 26 fields of ids and 13 numbers, as in Criteo's logs
(criteo_ids.py): 26 tables of 16 floats and, except for DLRM, 26 of one float; Adagrad trains
tables and nets. Layers are those of the papers. All engines have the same net and get the same
batches; they differ in the tables:

    floor      vectors of the right shape for nothing; their gradient is computed
    stock      tf.Variable, tf.nn.embedding_lookup, tf.train.AdagradOptimizer
    tfra       tensorflow_recommenders_addons.dynamic_embedding (bench_table.py says how to install)
    single     get_embedding_variable, one embedding_lookup a table
    features   EmbeddingFeature
    modified   the same, with graph modification

The engines of a model are graphs of one process and take turns. In processes of their own, the net
of one engine took up to 8 % longer than that of another in all rounds, which is as much as tables
take.

The figure is the time above the floor, relative to stock's and TFRA's: (engine - floor) / (other -
floor), median over the rounds. The same is printed and stored of CPU time, which other work on the
machine changes less.
"""

from __future__ import annotations

import importlib.util
import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence

import numpy as np

from benchmarks import criteo_ids, result_file
from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import fill_op

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

DIM = 16
NUMBERS = 13
LEARNING_RATE = 0.05
NUM_BATCHES = 32
CLICK_RATE = 0.256
OURS = ("single", "features", "modified")
REFERENCES = ("stock", "tfra")
_FILLS = "fills"  # collection of ops that insert all rows

# By width of the tables: what is looked up for each field, [B, width].
Vectors = List[List["tf.Tensor"]]
# (ids by field, widths, the most rows of a table)
Lookup = Callable[[Dict[str, "tf.Tensor"], Sequence[int], int], Vectors]


def layers(inputs: tf.Tensor, units: Sequence[int], name: str, last_relu: bool) -> tf.Tensor:
    """Dense layers with Relu; the last one only with ``last_relu``."""
    import tensorflow.compat.v1 as tf

    for number, width in enumerate(units):
        with tf.variable_scope(f"{name}_{number}"):
            depth = tf.dimension_value(inputs.shape[-1])
            kernel = tf.get_variable("kernel", [depth, width], use_resource=True)
            bias = tf.get_variable(
                "bias", [width], initializer=tf.zeros_initializer(), use_resource=True
            )
        inputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
        if last_relu or number < len(units) - 1:
            inputs = tf.nn.relu(inputs)
    return inputs


def wide_and_deep(vectors: Vectors, numbers: tf.Tensor) -> tf.Tensor:
    """Logits [B, 1]; layers of Cheng et al. (2016), section 4.2."""
    import tensorflow.compat.v1 as tf

    deep = tf.concat([*vectors[0], numbers], axis=1)
    return layers(deep, [1024, 512, 256, 1], "deep", False) + tf.add_n(vectors[1])


def deepfm(vectors: Vectors, numbers: tf.Tensor) -> tf.Tensor:
    """Logits [B, 1]; layers of Guo et al. (2017), section 3.1."""
    import tensorflow.compat.v1 as tf

    stacked = tf.stack(vectors[0], axis=1)
    of_sum = tf.square(tf.reduce_sum(stacked, axis=1))
    sum_of = tf.reduce_sum(tf.square(stacked), axis=1)
    pairs = 0.5 * tf.reduce_sum(of_sum - sum_of, axis=1, keepdims=True)
    deep = tf.concat([tf.reshape(stacked, [-1, len(vectors[0]) * DIM]), numbers], axis=1)
    return layers(deep, [400, 400, 400, 1], "deep", False) + tf.add_n(vectors[1]) + pairs


def dlrm(vectors: Vectors, numbers: tf.Tensor) -> tf.Tensor:
    """Logits [B, 1]; layers of Naumov et al. (2019) for Criteo Kaggle."""
    import tensorflow.compat.v1 as tf

    bottom = layers(numbers, [512, 256, 64, DIM], "bottom", True)
    stacked = tf.stack([bottom, *vectors[0]], axis=1)
    products = tf.matmul(stacked, stacked, transpose_b=True)
    rows, columns = np.tril_indices(len(vectors[0]) + 1, -1)
    n = len(vectors[0]) + 1
    pairs = tf.gather(tf.reshape(products, [-1, n * n]), rows * n + columns, axis=1)
    return layers(tf.concat([bottom, pairs], axis=1), [512, 256, 1], "top", False)


NETS = {"wide_and_deep": wide_and_deep, "deepfm": deepfm, "dlrm": dlrm}
# The widths of the tables that each field has.
WIDTHS = {"wide_and_deep": (DIM, 1), "deepfm": (DIM, 1), "dlrm": (DIM,)}
WARM_UP = 2  # Steps of an engine before its turn is timed.


def _initializer() -> Callable[..., tf.Tensor]:
    import tensorflow.compat.v1 as tf

    return tf.random_uniform_initializer(-0.05, 0.05)


def _floor(name: str, width: int, ids: tf.Tensor, rows: int) -> tf.Tensor:
    """A variable in place of looked-up vectors."""
    import tensorflow.compat.v1 as tf

    vectors = tf.get_variable(
        name,
        [*ids.shape.as_list(), width],
        initializer=_initializer(),
        trainable=False,
        use_resource=True,
    )
    return vectors.read_value()


def _stock(name: str, width: int, ids: tf.Tensor, rows: int) -> tf.Tensor:
    import tensorflow.compat.v1 as tf

    table = tf.get_variable(name, [rows, width], initializer=_initializer(), use_resource=True)
    return tf.nn.embedding_lookup(table, ids)


def _tfra(name: str, width: int, ids: tf.Tensor, rows: int) -> tf.Tensor:
    import tensorflow.compat.v1 as tf
    import tensorflow_recommenders_addons.dynamic_embedding as de

    table = de.get_variable(name, dim=width, initializer=_initializer(), init_size=2 * rows)
    keys = tf.range(rows, dtype=tf.int64)
    tf.add_to_collection(_FILLS, table.upsert(keys, tf.zeros([rows, width])))
    return de.embedding_lookup_unique(table, ids)


def _single(name: str, width: int, ids: tf.Tensor, rows: int) -> tf.Tensor:
    import rec_estimator as rec

    table = rec.get_embedding_variable(name, width, initializer=_initializer())
    return rec.embedding_lookup(table, ids)


def _each(vector: Callable[..., tf.Tensor]) -> Lookup:
    """One lookup a table."""

    def lookup(ids: Dict[str, tf.Tensor], widths: Sequence[int], limit: int) -> Vectors:
        return [
            [vector(f"{name}_{width}", width, ids[name], _rows(name, limit)) for name in ids]
            for width in widths
        ]

    return lookup


def _features(ids: Dict[str, tf.Tensor], widths: Sequence[int], limit: int) -> Vectors:
    import rec_estimator as rec
    from rec_estimator.features import lookup_features

    named = {f"{name}_{width}": ids[name] for width in widths for name in ids}
    declared = [
        rec.EmbeddingFeature(name, int(name.split("_")[1]), initializer=_initializer())
        for name in named
    ]
    vectors = lookup_features(named, declared)
    return [[vectors[f"{name}_{width}"] for name in ids] for width in widths]


ENGINES: Dict[str, Lookup] = {
    "floor": _each(_floor),
    "stock": _each(_stock),
    "tfra": _each(_tfra),
    "single": _each(_single),
    "features": _features,
    "modified": _features,
}


def _rows(field: str, limit: int) -> int:
    return criteo_ids.rows(criteo_ids.FIELDS[field], limit)


def draw_batches(batch: int, rows: int) -> Dict[str, np.ndarray]:
    """NUM_BATCHES batches: ids by field, "numbers" and "labels"."""
    rng = np.random.default_rng(1)
    data = criteo_ids.draw((NUM_BATCHES, batch), rows)
    data["numbers"] = rng.lognormal(size=(NUM_BATCHES, batch, NUMBERS)).astype(np.float32)
    data["numbers"] = np.log1p(data["numbers"])
    data["labels"] = (rng.random((NUM_BATCHES, batch, 1)) < CLICK_RATE).astype(np.float32)
    return data


def _optimizer(engine: str) -> tf.train.Optimizer:
    import tensorflow.compat.v1 as tf

    if engine in OURS:
        import rec_estimator as rec

        return rec.optimizers.AdagradOptimizer(LEARNING_RATE)
    adagrad = tf.train.AdagradOptimizer(LEARNING_RATE)
    if engine != "tfra":
        return adagrad
    import tensorflow_recommenders_addons.dynamic_embedding as de

    return de.DynamicEmbeddingOptimizer(adagrad)


def _train_op(model: str, engine: str, batch: Dict[str, tf.Tensor], limit: int) -> tf.Operation:
    import tensorflow.compat.v1 as tf

    numbers, labels = batch.pop("numbers"), batch.pop("labels")
    vectors = ENGINES[engine](batch, WIDTHS[model], limit)
    logits = NETS[model](vectors, numbers)
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    step = tf.train.get_or_create_global_step()
    if engine != "floor":
        return _optimizer(engine).minimize(loss, step)
    # The gradient of the vectors belongs to the net, as does reading the ids. An op with a side
    # effect takes them: TensorFlow does not compute what only a control edge waits for. Gates are
    # those of minimize(): without them ops run in another order.
    variables = tf.trainable_variables()
    flat = [vector for of_width in vectors for vector in of_width]
    grads = tf.gradients(loss, [*variables, *flat], gate_gradients=True)
    train = _optimizer(engine).apply_gradients(zip(grads, variables), step)
    taken = [*grads[len(variables) :], *batch.values()]
    return tf.group(train, tf.raw_ops.Assert(condition=loss > -1, data=taken))


def build(model: str, engine: str, batch: int, limit: int) -> Callable[[], Any]:
    """Builds an engine in the default graph and returns its step."""
    import tensorflow.compat.v1 as tf

    data = tf.data.Dataset.from_tensor_slices(draw_batches(batch, limit)).repeat().prefetch(2)
    train = _train_op(model, engine, tf.data.make_one_shot_iterator(data).get_next(), limit)
    if engine == "modified":
        import rec_estimator as rec

        rec.modify_graph_and_start_emb_cache()
    if engine in OURS:
        for table in tf.get_collection("embedding_variables"):
            rows = _rows(table.name.split("_")[0], limit)
            tf.add_to_collection(_FILLS, fill_op(table, tf.range(rows, dtype=tf.int64)))
    session = tf.Session()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    # All rows are inserted before the measurement.
    for fill in tf.get_collection(_FILLS):
        session.run(fill)
    step = session.make_callable(train)
    for _ in range(NUM_BATCHES):
        step()
    return step


def measure(
    model: str, engines: Sequence[str], batch: int, limit: int, rounds: int, steps: int
) -> rounds_lib.Seconds:
    """Times engines in turns, in a process of its own: seconds a step by clock and engine."""
    import tensorflow.compat.v1 as tf

    run = {}
    for engine in engines:
        with tf.Graph().as_default():
            run[engine] = build(model, engine, batch, limit)
        print(f"{engine}: ready", flush=True)
    wall, cpu = rounds_lib.take_turns(run, rounds, steps, WARM_UP)
    return {"train": wall, "train, CPU": cpu}


def above_floor(seconds: Dict[str, List[float]], engine: str, other: str) -> rounds_lib.Ratio:
    """Quartiles of (engine - floor) / (other - floor) within the rounds."""
    ours, theirs = (
        [time - floor for time, floor in zip(seconds[name], seconds["floor"])]
        for name in (engine, other)
    )
    return rounds_lib.ratios(ours, theirs)


def _report(title: str, seconds: Dict[str, List[float]]) -> Dict[str, Dict[str, float]]:
    """Prints the table of one clock and returns what it says of our engines."""
    others = [name for name in REFERENCES if name in seconds]
    print(f"\n{title}")
    print(f"{'engine':12}{'ms/step':>9}" + "".join(f"{'above floor / ' + o:>28}" for o in others))
    ratios: Dict[str, Dict[str, float]] = {}
    for engine, times in seconds.items():
        line = f"{engine:12}{statistics.median(times) * 1e3:9.2f}"
        if engine in OURS:
            for other in others:
                ratio = above_floor(seconds, engine, other)
                ratios.setdefault(engine, {})[other] = round(ratio.median, 3)
                line += f"{ratio!s:>28}"
        print(line, flush=True)
    return ratios


def report(model: str, batch: int, seconds: rounds_lib.Seconds) -> Dict[str, Any]:
    """Prints the rows of one model and batch size and returns the raw result."""
    found: Dict[str, Any] = {"model": model, "batch": batch}
    for what, key in (("train", ""), ("train, CPU", "cpu_")):
        title = f"{model}, batch {batch}{', CPU time' if key else ''}"
        found[f"{key}seconds_per_step"] = result_file.quartiles(seconds[what])
        found[f"{key}above_floor"] = _report(title, seconds[what])
    return found


def main() -> None:
    parser = result_file.parser(__doc__, rows=1_000_000, rounds=15, steps=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--models", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    args = parser.parse_args()
    engines = list(args.engines)
    if "tfra" in engines and not importlib.util.find_spec("tensorflow_recommenders_addons"):
        print("tensorflow_recommenders_addons is not installed: not measured")
        engines.remove("tfra")
    results = []
    for batch in args.batches:
        for model in args.models:
            case = (model, engines, batch, args.rows, args.rounds, args.steps)
            # A process for each, because its memory is kept to its end.
            seconds = rounds_lib.in_process(measure, *case)
            results.append(report(model, batch, seconds))
            # After each: the next one may need more memory than there is.
            result_file.write(
                args.output,
                {
                    "rows": args.rows,
                    "rounds": args.rounds,
                    "steps_per_round": args.steps,
                    "results": results,
                },
            )


if __name__ == "__main__":
    main()
