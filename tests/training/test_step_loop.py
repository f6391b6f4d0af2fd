# SPDX-License-Identifier: Apache-2.0
"""Tests of RunConfig(iterations_per_loop=N): one run gives the results of N runs."""

import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf_behavior import control_flow, resource_variables

import rec_estimator as rec
from rec_estimator.training import step_loop

pytestmark = pytest.mark.usefixtures("resource_variables")

ROWS, BATCH = 480, 8

FEATURES = [
    rec.EmbeddingFeature("user", 4, dtype=tf.string, filter_option=rec.CounterFilter(2)),
    rec.EmbeddingFeature(
        "item",
        4,
        ev_option=rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=9)),
    ),
    rec.EmbeddingFeature("tags", 4, combiner="mean"),
]


def columns():
    rng = np.random.default_rng(0)
    tags = rng.integers(1, 9, [ROWS, 3]) * rng.integers(0, 2, [ROWS, 3])
    features = {
        "user": (rng.zipf(1.3, ROWS) % 90).astype(str).astype(object),
        "item": rng.integers(0, 60, ROWS),
        "tags": tf.sparse.from_dense(tags),
    }
    return features, rng.random(ROWS).astype(np.float32)


def input_fn(epochs=None):
    """A dataset; Estimator makes an initializable iterator for it."""
    return lambda: data_of(epochs)


def data_of(epochs):
    data = tf.data.Dataset.from_tensor_slices(columns())
    return data.shuffle(64, seed=5).repeat(epochs).batch(BATCH)


def model_fn(features, labels, mode, params):
    """Dropout, moving averages, a decaying rate, control flow v1 and v2, all our features."""
    step = tf.train.get_global_step()
    vectors = tf.concat([features[feature.name] for feature in FEATURES], axis=1)
    mean = tf.get_variable("mean", [12], initializer=tf.zeros_initializer(), trainable=False)
    old_mean = mean.read_value()
    new_mean = 0.9 * old_mean + 0.1 * tf.reduce_mean(vectors, axis=0)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign(new_mean))
    hidden = tf.nn.dropout(vectors - old_mean, rate=0.2)
    hidden += tf.random.normal(tf.shape(hidden), stddev=0.01)
    kernel = tf.get_variable("kernel", [12, 12])
    _, hidden = params.get("loop", tf.while_loop)(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, tf.nn.tanh(tf.matmul(x, kernel))),
        [tf.constant(0), hidden],
    )
    hidden = tf.cond(step % 2 > 0, lambda: hidden * 1.5, lambda: hidden + old_mean)
    logits = tf.squeeze(tf.matmul(hidden, tf.get_variable("output", [12, 1])), axis=1)
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    _, accuracy_op = tf.metrics.accuracy(labels > 0.5, logits > 0.0)
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("accuracy", accuracy_op)
    for tensor in (loss, labels, logits):
        tf.add_to_collection("watched", tensor)
    rate = tf.train.exponential_decay(0.1, step, 10, 0.9)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = rec.optimizers.AdamOptimizer(rate).minimize(loss, global_step=step)
    return rec.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops={"mean": tf.metrics.mean(logits)}
    )


class Watch(tf.train.SessionRunHook):
    """Fetches the loss and what it is computed from, and the global step after each run."""

    def __init__(self):
        self.runs, self.steps = [], []
        self.tensors = {}

    def begin(self):
        self.tensors[tf.get_default_graph()] = tf.get_collection("watched")

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.tensors[run_context.session.graph])

    def after_run(self, run_context, run_values):
        self.runs.append([np.asarray(value).tobytes() for value in run_values.results])
        session = run_context.session
        self.steps.append(int(session.run(tf.train.get_global_step(session.graph))))


def small_model_fn(features, labels, mode):
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["user"], axis=1) - labels))
    step = tf.train.get_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    tf.add_to_collection("train_op", train_op)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_in(folder, iterations, params=None, optimized=False, **config):
    """An Estimator of the large model, or of the small one if params is None."""
    session_config = tf.ConfigProto()
    # Optimizing these small graphs takes longer than running them.
    session_config.graph_options.rewrite_options.disable_meta_optimizer = not optimized
    defaults = dict(
        keep_checkpoint_max=20, save_checkpoints_steps=10, session_config=session_config
    )
    return rec.RecEstimator(
        small_model_fn if params is None else model_fn,
        str(folder),
        rec.RunConfig(tf_random_seed=1, iterations_per_loop=iterations, **{**defaults, **config}),
        params,
        embedding_features=FEATURES[:1] if params is None else FEATURES,
    )


def checkpoints(folder):
    """{checkpoint: {tensor: its bytes}} of all checkpoints in the folder."""
    found = {}
    for index in sorted(pathlib.Path(folder).glob("model.ckpt-*.index")):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        names = reader.get_variable_to_shape_map()
        found[index.name] = {name: reader.get_tensor(name).tobytes() for name in names}
    return found


def v1_loop(*arguments):
    """A control flow v1 loop, made of Switch and Merge ops."""
    with control_flow(1):
        return tf.while_loop(*arguments)


@pytest.mark.long
def test_losses_rows_slots_counts_and_checkpoints_equal_those_of_single_steps(tmp_path):
    watches = {1: Watch(), 5: Watch()}
    for iterations, watch in watches.items():
        estimator = estimator_in(tmp_path / str(iterations), iterations, {}, optimized=True)
        estimator.train(input_fn(), steps=20, hooks=[watch])
    assert watches[1].steps == list(range(1, 21))
    assert watches[5].steps == list(range(5, 21, 5))
    assert watches[5].runs == watches[1].runs[4::5]
    ours = checkpoints(tmp_path / "5")
    assert list(ours) == [f"model.ckpt-{step}.index" for step in (0, 10, 20)]
    assert ours == checkpoints(tmp_path / "1")


@pytest.mark.long
def test_modified_graphs_and_v1_loops_give_equal_results(tmp_path):
    runs, files = {}, {}
    for name, iterations, hooks in (
        ("one", 1, []),
        ("loop", 5, []),
        ("modified", 5, [rec.GraphModifierHook()]),
    ):
        watch = Watch()
        estimator = estimator_in(tmp_path / name, iterations, {"loop": v1_loop})
        estimator.train(input_fn(), max_steps=10, hooks=[watch, *hooks])
        runs[name], files[name] = watch.runs, checkpoints(tmp_path / name)
    assert runs["loop"] == runs["modified"] == runs["one"][4::5]
    assert files["loop"] == files["modified"] == files["one"]


@pytest.mark.long
def test_a_one_shot_iterator_with_few_threads_gives_equal_results(tmp_path):
    def one_shot():
        return tf.data.make_one_shot_iterator(data_of(None)).get_next()

    session_config = tf.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    for iterations in (1, 5):
        folder = tmp_path / str(iterations)
        estimator = estimator_in(folder, iterations, session_config=session_config)
        estimator.train(one_shot, steps=10)
    assert checkpoints(tmp_path / "1") == checkpoints(tmp_path / "5")


@pytest.mark.long
def test_steps_are_kept_when_the_data_end_within_a_loop(tmp_path):
    watches = {1: Watch(), 10: Watch()}
    for iterations, watch in watches.items():
        estimator = estimator_in(tmp_path / str(iterations), iterations, {})
        estimator.train(lambda: data_of(None).take(14), hooks=[watch])
    assert watches[10].steps == [10]
    assert watches[10].runs == watches[1].runs[9:10]
    ours = checkpoints(tmp_path / "10")
    assert ours == checkpoints(tmp_path / "1") and "model.ckpt-14.index" in ours
    # Training resumes from that step.
    estimator.train(input_fn(), steps=10)
    assert estimator.get_variable_value("global_step") == 24


@pytest.mark.long
def test_train_and_evaluate_evaluates_between_loops(tmp_path):
    estimator = estimator_in(tmp_path, 5)
    metrics, _ = rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(input_fn(), max_steps=20),
        rec.EvalSpec(input_fn(epochs=1), steps=None, throttle_secs=0),
    )
    assert metrics["global_step"] == 20
    events = sorted((tmp_path / "eval").glob("events*"))
    steps = {event.step for path in events for event in tf.train.summary_iterator(str(path))}
    assert steps - {0} == {10, 20}


@pytest.mark.long
def test_a_hooks_own_run_does_one_step(tmp_path):
    class Extra(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            session = run_context.session
            step = tf.train.get_global_step(session.graph)
            before = session.run(step)
            session.run(tf.get_collection("train_op"))
            self.done = session.run(step) - before

    extra = Extra()
    estimator_in(tmp_path, 6).train(input_fn(), steps=6, hooks=[extra])
    assert extra.done == 1


@pytest.mark.long
def test_the_progress_line_counts_steps_and_not_runs(tmp_path, capsys):
    hook = rec.ProgressHook(max_steps=20, every_seconds=1e-6)
    estimator_in(tmp_path, 5).train(input_fn(), max_steps=20, hooks=[hook])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train ")]
    assert [line.split(" ")[1] for line in lines][-5:] == [
        "5/20",
        "10/20",
        "15/20",
        "20/20",
        "20/20",
    ]
    assert "loss" in lines[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(steps=12), "steps must be a multiple of iterations_per_loop=5, got 12; train 15"),
        (
            dict(max_steps=13),
            r"current step must be a multiple of iterations_per_loop=5, got 13 - 0; train to 15",
        ),
    ],
)
def test_steps_that_are_not_a_multiple_are_refused_before_training(tmp_path, arguments, message):
    def no_input():
        raise AssertionError("no step is prepared")

    with pytest.raises(ValueError, match=message):
        estimator_in(tmp_path, 5).train(no_input, **arguments)
    with pytest.raises(ValueError, match="got 7 - 0; train to 10"):
        rec.train_and_evaluate(
            estimator_in(tmp_path, 5),
            rec.TrainSpec(no_input, max_steps=7),
            rec.EvalSpec(no_input),
        )


@pytest.mark.long
def test_max_steps_is_counted_from_the_checkpoint_that_training_resumes_from(tmp_path):
    estimator_in(tmp_path, 1).train(input_fn(), steps=3)
    estimator = estimator_in(tmp_path, 5)
    with pytest.raises(ValueError, match="got 10 - 3; train to 13"):
        estimator.train(input_fn(), max_steps=10)
    estimator.train(input_fn(), max_steps=13)
    assert estimator.get_variable_value("global_step") == 13
    # As in TensorFlow, there is nothing to do.
    estimator.train(input_fn(), max_steps=12)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None, 1_000_001])
def test_iterations_out_of_range_are_an_error(value):
    with pytest.raises(ValueError, match="iterations_per_loop must be an integer in .1, 1000000"):
        rec.RunConfig(iterations_per_loop=value)


def test_replace_keeps_or_changes_iterations_per_loop():
    config = rec.RunConfig(iterations_per_loop=7).replace(model_dir="a")
    assert config.iterations_per_loop == 7
    assert config.replace(iterations_per_loop=3).iterations_per_loop == 3
    with pytest.raises(ValueError, match="iterations_per_loop"):
        config.replace(iterations_per_loop=0)
    assert rec.RunConfig().iterations_per_loop == 1


def fed(x):
    return x * tf.placeholder(tf.float32, [], name="fed")


def drawn_in_a_branch(version):
    def part(x):
        with control_flow(version):
            return tf.cond(tf.reduce_sum(x) > 0, lambda: x * tf.random.uniform([]), lambda: x)

    return part


def of_a_reference(x):
    return x * tf.get_variable("old", [], use_resource=False)


@pytest.mark.parametrize(
    "part, message",
    [
        (fed, "no feeding with iterations_per_loop, got placeholder 'fed'"),
        (drawn_in_a_branch(2), "drawn outside of control flow .* got RandomUniform in 'cond'"),
        (drawn_in_a_branch(1), "got RandomUniform in 'cond/random_uniform/RandomUniform'"),
        (of_a_reference, "variables must be resources .* tf.enable_resource_variables"),
    ],
)
def test_unsupported_steps_are_refused_with_a_remedy(part, message):
    x = tf.get_variable("x", [2])
    loss = tf.reduce_sum(part(x * tf.ones([])))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    operations = len(tf.get_default_graph().get_operations())
    with pytest.raises(ValueError, match=message):
        step_loop.add_step_loop(train_op)
    assert len(tf.get_default_graph().get_operations()) == operations


@pytest.mark.long
def test_reference_variables_are_refused_before_the_first_step(tmp_path):
    watch = Watch()
    with resource_variables(False), pytest.raises(ValueError, match="must be resources") as caught:
        estimator_in(tmp_path, 5, {}).train(input_fn(), steps=20, hooks=[watch])
    assert "; call tf.enable_resource_variables() first" in str(caught.value)
    assert (watch.steps, checkpoints(tmp_path)) == ([], {})


def test_loop_and_graph_steps_share_one_random_sequence():
    x = tf.get_variable("x", [], initializer=tf.zeros_initializer())
    drawn = tf.random.uniform([], seed=7)
    train_op = x.assign_add(drawn)
    with tf.Session() as session:
        session.run(x.initializer)
        expected = [session.run(train_op) for _ in range(6)]
    count = step_loop.add_step_loop(train_op.op)
    with tf.Session() as session:
        session.run(x.initializer)
        # TensorFlow prunes a graph for each set of fetches, but all share the sequence.
        found = [session.run(train_op, {count: 1}), session.run([train_op, count])[0]]
        found += [session.run(train_op, {count: 2})]
    assert found == [expected[1], expected[2], expected[5]]
