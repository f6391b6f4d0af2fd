# SPDX-License-Identifier: Apache-2.0
"""Measures a compressed model against the model as written and a graph made by hand.

    python -m benchmarks.bench_serving [--rounds 200] [--output FILE.json]

Four models on looked-up vectors of 16 floats: DIN (attention over a history of 100, then 128 and 64
units), DIEN-like (the same over the states of a GRU), DSSM (towers of 256, 128 and 64 units, 40
fields of the user, 10 of the candidate) and wide & deep (as many fields, 256 and 128 units). By
hand means: the ops that depend on the user run once, first layers are split by block, and there is
one copy of the history. All graphs are in one process and alternate; the figure is the median over
rounds of the ratio of times within a round, because the speed of the machine drifts.

Columns: ms, median and 99th percentile; median of the time over that of the compressed graph; KB of
the request; peak MB that the ops of one request hold, without the fed tensors.
"""

import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import result_file
from benchmarks import rounds as rounds_lib
from model_zoo import layers
from rec_estimator import graph_optimizer

DIM, HISTORY = 16, 100
USER_WIDTH, CONTEXT_WIDTH = 10 * DIM, DIM
FIELDS, ITEM_FIELDS = 50, 10
# Candidates per user. With one candidate per user there is nothing to gain.
REQUESTS = {
    **{f"1 x {n}": [n] for n in (50, 100, 500, 1000)},
    "8 ragged, 500": [120, 10, 75, 40, 5, 130, 60, 60],
    "256 x 1": [1] * 256,
}


Features = Dict[str, tf.Tensor]
# Repeats rows of users for their candidates.
Rows = Callable[[tf.Tensor], tf.Tensor]


def _vectors(names_and_shapes: Dict[str, List[int]]) -> Features:
    return {
        name: tf.placeholder(tf.bool if name == "mask" else tf.float32, [None, *shape], name=name)
        for name, shape in names_and_shapes.items()
    }


class Graph(NamedTuple):
    """A graph under test."""

    call: Callable  # Answers the request once.
    request_bytes: int
    peak_bytes: int


class Model(NamedTuple):
    """A model under test; shapes are those of a row."""

    name: str
    users: Dict[str, List[int]]
    items: Dict[str, List[int]]
    as_written: Callable
    by_hand: Callable


def din_as_written(features: Features) -> tf.Tensor:
    item = features["item"]
    weights = layers.attention_weights(
        features["history"], features["mask"], item, (32, 16), "attention"
    )
    interest = layers.weighted_mean(features["history"], weights)
    parts = [features["user"], item, features["context"], interest, interest * item]
    return layers.tower(tf.concat(parts, axis=1), (128, 64), "deep")


def din_by_hand(features: Features, rows: Rows) -> tf.Tensor:
    history, mask, item = features["history"], features["mask"], features["item"]
    with tf.variable_scope("attention"), tf.variable_scope("hidden_0"):
        kernel = tf.get_variable("kernel", [4 * DIM, 32])
        bias = tf.get_variable("bias", [32])
    of_history, of_item, of_difference, of_product = tf.split(kernel, 4)
    products = tf.reshape(rows(history) * item[:, tf.newaxis], [-1, DIM])
    hidden = tf.reshape(tf.matmul(products, of_product), [-1, HISTORY, 32])
    flat = tf.reshape(history, [-1, DIM])
    shared = tf.matmul(flat, of_history + of_difference) + bias
    hidden += rows(tf.reshape(shared, [-1, HISTORY, 32]))
    hidden += tf.matmul(item, of_item - of_difference)[:, tf.newaxis]
    with tf.variable_scope("attention"):
        hidden = layers.dense(tf.nn.relu(hidden), 16, "hidden_1", tf.nn.relu)
        scores = tf.squeeze(layers.dense(hidden, 1, "output"), -1)
    weights = tf.nn.softmax(tf.where_v2(rows(mask), scores, -1e9))
    weights *= rows(tf.cast(mask, tf.float32))
    interest = tf.squeeze(tf.matmul(weights[:, tf.newaxis], rows(history)), 1)
    if rows(history) is history:  # One user: one product of two matrices.
        interest = tf.matmul(weights, history[0])
    with tf.variable_scope("deep"), tf.variable_scope("hidden_0"):
        kernel = tf.get_variable("kernel", [USER_WIDTH + CONTEXT_WIDTH + 3 * DIM, 128])
        bias = tf.get_variable("bias", [128])
    sizes = [USER_WIDTH, DIM, CONTEXT_WIDTH, 2 * DIM]
    of_user, of_item, of_context, of_interest = tf.split(kernel, sizes)
    user = tf.matmul(features["user"], of_user) + tf.matmul(features["context"], of_context)
    inputs = tf.concat([item, interest, interest * item], axis=1)
    hidden = tf.matmul(inputs, tf.concat([of_item, of_interest], 0)) + rows(user + bias)
    with tf.variable_scope("deep"):
        hidden = layers.dense(tf.nn.relu(hidden), 64, "hidden_1", tf.nn.relu)
        return tf.squeeze(layers.dense(hidden, 1, "output"), -1)


def _gru(steps: tf.Tensor) -> tf.Tensor:
    """Returns the states [B, T, D] of a GRU over [B, T, D], in a tf.while_loop."""
    with tf.variable_scope("gru"):
        gates = tf.get_variable("gates", [2 * DIM, 2 * DIM])
        candidate = tf.get_variable("candidate", [2 * DIM, DIM])
    inputs = tf.TensorArray(tf.float32, HISTORY).unstack(tf.transpose(steps, [1, 0, 2]))

    def step(
        time: tf.Tensor, state: tf.Tensor, states: tf.TensorArray
    ) -> Tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        now = inputs.read(time)
        reset, update = tf.split(
            tf.sigmoid(tf.matmul(tf.concat([now, state], axis=1), gates)), 2, axis=1
        )
        new = tf.tanh(tf.matmul(tf.concat([now, reset * state], axis=1), candidate))
        state = update * state + (1 - update) * new
        return time + 1, state, states.write(time, state)

    states = tf.TensorArray(tf.float32, HISTORY, element_shape=[None, DIM])
    start = [0, tf.zeros([tf.shape(steps)[0], DIM]), states]
    _, _, states = tf.while_loop(lambda time, *_: time < HISTORY, step, start)
    states = tf.transpose(states.stack(), [1, 0, 2])
    return tf.ensure_shape(states, [None, HISTORY, DIM])


def dien_as_written(features: Features) -> tf.Tensor:
    return din_as_written({**features, "history": _gru(features["history"])})


def dien_by_hand(features: Features, rows: Rows) -> tf.Tensor:
    return din_by_hand({**features, "history": _gru(features["history"])}, rows)


def _tower(features: tf.Tensor, name: str) -> tf.Tensor:
    with tf.variable_scope(name):
        for number, units in enumerate((256, 128)):
            features = layers.dense(features, units, f"hidden_{number}", tf.nn.relu)
        return tf.nn.l2_normalize(layers.dense(features, 64, "output"), axis=1)


def dssm_as_written(features: Features) -> tf.Tensor:
    user = tf.concat([features["user"], features["context"]], axis=1)
    towers = _tower(user, "user"), _tower(features["item"], "item")
    return tf.reduce_sum(towers[0] * towers[1], axis=1)


def dssm_by_hand(features: Features, rows: Rows) -> tf.Tensor:
    user = tf.concat([features["user"], features["context"]], axis=1)
    return tf.reduce_sum(rows(_tower(user, "user")) * _tower(features["item"], "item"), axis=1)


def wide_and_deep_as_written(features: Features) -> tf.Tensor:
    rows = [features[f"field_{i}"] for i in range(FIELDS)]
    deep = tf.concat([row[:, :-1] for row in rows], axis=1)
    return tf.add_n([row[:, -1] for row in rows]) + layers.tower(deep, (256, 128), "deep")


def wide_and_deep_by_hand(features: Features, rows: Rows) -> tf.Tensor:
    with tf.variable_scope("deep"), tf.variable_scope("hidden_0"):
        kernels = tf.split(tf.get_variable("kernel", [FIELDS * DIM, 256]), FIELDS)
        bias = tf.get_variable("bias", [256])

    def share(names: Iterable[str]) -> Tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.concat([features[name][:, :-1] for name in names], axis=1)
        kernel = tf.concat([kernels[int(name.partition("_")[2])] for name in names], axis=0)
        return tf.matmul(inputs, kernel), tf.add_n([features[name][:, -1] for name in names])

    user, user_wide = share(WIDE_AND_DEEP_USERS)
    item, item_wide = share(WIDE_AND_DEEP_ITEMS)
    hidden = tf.nn.relu(item + rows(user + bias))
    with tf.variable_scope("deep"):
        hidden = layers.dense(hidden, 128, "hidden_1", tf.nn.relu)
        deep = tf.squeeze(layers.dense(hidden, 1, "output"), -1)
    return deep + item_wide + rows(user_wide)


DIN_USERS = {
    "history": [HISTORY, DIM],
    "mask": [HISTORY],
    "user": [USER_WIDTH],
    "context": [CONTEXT_WIDTH],
}
STEP = FIELDS // ITEM_FIELDS
WIDE_AND_DEEP_USERS = {f"field_{i}": [DIM + 1] for i in range(FIELDS) if i % STEP}
WIDE_AND_DEEP_ITEMS = {f"field_{i}": [DIM + 1] for i in range(0, FIELDS, STEP)}
MODELS = (
    Model("DIN", DIN_USERS, {"item": [DIM]}, din_as_written, din_by_hand),
    Model("DIEN-like", DIN_USERS, {"item": [DIM]}, dien_as_written, dien_by_hand),
    Model(
        "DSSM",
        {"user": [40 * DIM], "context": [CONTEXT_WIDTH]},
        {"item": [10 * DIM]},
        dssm_as_written,
        dssm_by_hand,
    ),
    Model(
        "wide & deep",
        WIDE_AND_DEEP_USERS,
        WIDE_AND_DEEP_ITEMS,
        wide_and_deep_as_written,
        wide_and_deep_by_hand,
    ),
)


def _graph(model: Model, kind: str, sizes: List[int], values: Dict[str, np.ndarray]) -> Graph:
    """Builds a graph that answers the request."""
    with tf.Graph().as_default():
        users, items = _vectors(model.users), _vectors(model.items)
        item_size = tf.placeholder(tf.int32, [None], name="item_size")
        features = {**users, **items}
        if kind == "compressed":
            graph_optimizer.enable_sample_awared_graph_compression(users, items, item_size)
        if kind == "by hand":
            row = tf.repeat(tf.range(tf.size(item_size)), item_size)
            one = len(sizes) == 1
            scores = model.by_hand(features, lambda x: x if one else tf.gather(x, row))
        else:
            scores = graph_optimizer.compress(model.as_written(features))
        config = tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        session = tf.Session(config=config)
        random = np.random.RandomState(1)
        for variable in sorted(tf.global_variables(), key=lambda v: v.name):
            session.run(variable.assign(random.uniform(-0.2, 0.2, variable.shape.as_list())))
        index = np.repeat(np.arange(len(sizes)), sizes)
        feed = {item_size: np.array(sizes, np.int32)}
        for name, tensor in features.items():
            repeats = kind == "as written" and name in users
            feed[tensor] = values[name][index] if repeats else values[name]
        keys = list(feed)
        run = session.make_callable(scores, keys)
        arguments = [feed[key] for key in keys]
        peak = _peak_bytes(session, scores, feed)
        sent = sum(feed[key].nbytes for key in keys if kind != "as written" or key is not item_size)
        return Graph(lambda: run(*arguments), sent, peak)


def _peak_bytes(session: tf.Session, scores: tf.Tensor, feed: Dict[tf.Tensor, np.ndarray]) -> int:
    """Returns the peak bytes that the ops of a step hold, from TensorFlow's allocation records."""
    peaks = []
    for _ in range(15):  # The ops that run at the same time differ between runs.
        metadata = tf.RunMetadata()
        session.run(scores, feed, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
        records = [
            (record.alloc_micros, record.alloc_bytes)
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
            for memory in node.memory
            for record in memory.allocation_records
        ]
        held = np.cumsum([size for _, size in sorted(records)])
        peaks.append(int(held.max(initial=0)))
    return int(np.median(peaks))


def _values(model: Model, sizes: List[int]) -> Dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    found = {}
    for shapes, rows in ((model.users, len(sizes)), (model.items, sum(sizes))):
        for name, shape in shapes.items():
            value = random.uniform(-1, 1, [rows, *shape])
            found[name] = value > -0.5 if name == "mask" else value.astype(np.float32)
    return found


def measure(
    model: Model, sizes: List[int], rounds: int
) -> Tuple[Dict[str, Graph], Dict[str, np.ndarray]]:
    """Returns the graphs, and the seconds of each in every round."""
    values = _values(model, sizes)
    graphs = {
        kind: _graph(model, kind, sizes, values) for kind in ("as written", "by hand", "compressed")
    }
    answers = {kind: graph.call() for kind, graph in graphs.items()}
    for answer in answers.values():
        largest = np.abs(answers["as written"]).max()
        np.testing.assert_allclose(answer, answers["as written"], rtol=0, atol=1e-5 * largest)
    calls = {kind: graph.call for kind, graph in graphs.items()}
    rounds_lib.take_turns(calls, 10, steps=1, warm_up=0)
    seconds, _ = rounds_lib.take_turns(calls, rounds, steps=1, warm_up=0)
    return graphs, {kind: np.array(times) for kind, times in seconds.items()}


def main() -> None:
    parser = result_file.parser(__doc__, rounds=200)
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    points = []
    print(
        f"{'model':12}{'request':>15}{'graph':>12}{'p50 ms':>9}{'p99 ms':>9}{'ratio':>7}"
        f"{'KB sent':>9}{'peak MB':>9}"
    )
    for model in MODELS:
        for request, sizes in REQUESTS.items():
            graphs, seconds = measure(model, sizes, args.rounds)
            for kind, times in seconds.items():
                point: Dict[str, Any] = {
                    "model": model.name,
                    "request": request,
                    "graph": kind,
                    "p50_ms": float(np.percentile(times, 50)) * 1e3,
                    "p99_ms": float(np.percentile(times, 99)) * 1e3,
                    "time_over_compressed": float(np.median(times / seconds["compressed"])),
                    "request_bytes": graphs[kind].request_bytes,
                    "peak_bytes": graphs[kind].peak_bytes,
                }
                points.append(point)
                print(
                    f"{model.name:12}{request:>15}{kind:>12}{point['p50_ms']:9.2f}"
                    f"{point['p99_ms']:9.2f}{point['time_over_compressed']:7.2f}"
                    f"{point['request_bytes'] / 1e3:9.0f}{point['peak_bytes'] / 1e6:9.2f}"
                )
    result = {"rounds": args.rounds, "points": points}
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
