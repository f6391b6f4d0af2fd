# SPDX-License-Identifier: Apache-2.0
"""GraphModifierHook in an Estimator: the same losses and checkpoints as without it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK, checkpoints

import rec_estimator as rec

ROWS = 512
BATCH = 16

EVICTED = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=40))

FEATURES = [
    rec.EmbeddingFeature("user", 4, dtype=tf.string, filter_option=rec.CounterFilter(3)),
    rec.EmbeddingFeature("item", 4, ev_option=EVICTED),
    rec.EmbeddingFeature(
        "history", 4, table="item", combiner=None, max_length=3, ev_option=EVICTED
    ),
    rec.EmbeddingFeature("tags", 4, combiner="sum", weight="tag_weight"),
]


def input_fn(prefetch=None, seed=0, epochs=None, with_labels=True):
    """Dense strings, dense ids with padding, sparse ids with weights; new users in each epoch."""

    def build():
        rng = np.random.default_rng(seed)
        history = rng.integers(0, 30, [ROWS, 5]) * rng.integers(0, 2, [ROWS, 5]) - 1
        weight = rng.random([ROWS, 3]).astype(np.float32) * rng.integers(0, 2, [ROWS, 3])
        tag = np.where(weight > 0, rng.integers(1, 9, [ROWS, 3]), 0)
        features = {
            "user": (rng.zipf(1.2, ROWS) % 200).astype(str).astype(object),
            "item": np.concatenate(
                [rng.integers(0, 30, ROWS // 2), rng.integers(20, 60, ROWS // 2)]
            ),
            "history": history,
            "tags": tf.sparse.from_dense(tag),
            "tag_weight": tf.sparse.from_dense(weight.astype(np.float32)),
        }
        labels = rng.random(ROWS).astype(np.float32)
        columns = (features, labels) if with_labels else features
        data = tf.data.Dataset.from_tensor_slices(columns)
        data = data.shuffle(64, seed=5).repeat(epochs).batch(BATCH)
        return data.prefetch(prefetch) if prefetch else data

    return build


def model_fn(features, labels, mode):
    dense = tf.get_variable("dense", [4], initializer=tf.ones_initializer())
    history = tf.reduce_sum(features["history"], axis=1)
    total = features["user"] + features["item"] + history + features["tags"]
    logits = tf.reduce_sum(total * dense, axis=1)
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"logits": logits})
    errors = tf.square(logits - labels)
    loss = tf.reduce_mean(errors)
    tf.add_to_collection("watched", loss)
    tf.add_to_collection("watched", labels)
    tf.add_to_collection("watched", logits)
    train_op = rec.optimizers.AdagradOptimizer(0.05).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    metrics = {"error": tf.metrics.mean(errors)}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


class Watch(tf.train.SessionRunHook):
    """Fetches the loss, and the labels from the batch that model_fn got."""

    def __init__(self):
        self.losses = []
        self.modified = []
        # By graph, because train_and_evaluate evaluates inside the training loop.
        self.tensors = {}

    def begin(self):
        self.tensors[tf.get_default_graph()] = tf.get_collection("watched")

    def after_create_session(self, session, coord):
        operations = session.graph.get_operations()
        self.modified.append(any(op.name.startswith("prepared_input/") for op in operations))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.tensors[run_context.session.graph])

    def after_run(self, run_context, run_values):
        loss, labels, logits = run_values.results
        # A float32 mean in NumPy's order.
        np.testing.assert_allclose(np.mean((logits - labels) ** 2), loss, rtol=1e-5)
        self.losses.append(loss)


def estimator_in(folder):
    config = rec.RunConfig(
        tf_random_seed=1,
        session_config=QUICK,
        save_checkpoints_steps=50,
        keep_checkpoint_max=20,
        log_step_count_steps=1000,
    )
    return rec.RecEstimator(model_fn, str(folder), config, embedding_features=FEATURES)


def hooks_of(watch, modified):
    # Watch finds its tensors before the modification rewires their inputs.
    return [watch, rec.GraphModifierHook()] if modified else [watch]


def train_in_two_goes(folder, prefetch, modified):
    """Trains, stops while batches are prefetched, and resumes from the checkpoint."""
    watch = Watch()
    for max_steps in (130, 200):
        estimator_in(folder).train(
            input_fn(prefetch), max_steps=max_steps, hooks=hooks_of(watch, modified)
        )
    assert watch.modified == [modified] * 2
    return watch.losses, checkpoints(folder)


@pytest.mark.long
def test_losses_and_checkpoints_of_200_steps_equal_those_of_the_unmodified_graph(tmp_path):
    losses, files = train_in_two_goes(tmp_path / "plain", None, False)
    assert len(losses) == 200
    assert {f"model.ckpt-{step}" for step in (0, 100, 130, 180, 200)} <= set(files)
    assert [name for name in files["model.ckpt-200"] if name.endswith("_filtered")]
    for prefetch in (1, 100):
        folder = tmp_path / f"prefetch_{prefetch}"
        modified_losses, modified_files = train_in_two_goes(folder, prefetch, True)
        assert modified_losses == losses
        assert modified_files.keys() == files.keys()
        for name in files:
            assert modified_files[name] == files[name], name


@pytest.fixture(name="trained", scope="module")
def trained_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        hook = rec.GraphModifierHook(dump_graph=True)
        estimator_in(folder).train(input_fn(), steps=30, hooks=[hook])
    return folder


@pytest.mark.long
def test_the_hook_dumps_the_graphs(trained):
    dumped = sorted(path.name for path in (trained / "export_graph").glob("*.pbtxt"))
    assert dumped == ["cut_graph_train_0.pbtxt", "new_graph.pbtxt", "old_graph.pbtxt"]


@pytest.mark.long
def test_evaluate_returns_the_metrics_of_the_unmodified_graph(trained):
    results = []
    for modified in (False, True):
        watch = Watch()
        hooks = hooks_of(watch, modified)
        results.append(estimator_in(trained).evaluate(input_fn(epochs=1, seed=1), hooks=hooks))
        assert watch.modified == [modified]
        assert len(watch.losses) == ROWS // BATCH
    assert results[0] == results[1]
    assert results[0]["global_step"] == 30


@pytest.mark.long
def test_predict_returns_the_predictions_of_the_unmodified_graph(trained):
    data = input_fn(epochs=1, seed=1, with_labels=False)
    plain, modified = (
        [p["logits"] for p in estimator_in(trained).predict(data, hooks=hooks)]
        for hooks in ([], [rec.GraphModifierHook()])
    )
    assert len(plain) == ROWS
    assert modified == plain


@pytest.mark.long
def test_train_and_evaluate_with_one_hook_object_in_both_specs(tmp_path):
    results = []
    for modified in (False, True):
        watch = Watch()
        hooks = hooks_of(watch, modified)
        result, _ = rec.train_and_evaluate(
            estimator_in(tmp_path / str(modified)),
            rec.TrainSpec(input_fn(), max_steps=20, hooks=hooks),
            rec.EvalSpec(input_fn(epochs=1, seed=1), steps=None, hooks=hooks, throttle_secs=0),
        )
        assert set(watch.modified) == {modified}
        results.append((result, watch.losses))
    assert results[0] == results[1]


@pytest.mark.long
def test_training_takes_all_data_of_an_input_fn_that_returns_tensors(tmp_path):
    def tensors():
        return tf.data.make_one_shot_iterator(input_fn(epochs=1)()).get_next()

    runs = []
    for modified in (False, True):
        watch = Watch()
        estimator_in(tmp_path / str(modified)).train(tensors, hooks=hooks_of(watch, modified))
        assert watch.modified == [modified]
        runs.append(watch.losses)
    assert len(runs[0]) == ROWS // BATCH
    assert runs[0] == runs[1]


@pytest.mark.long
def test_the_hook_with_modify_graph_false_does_not_modify_the_graph(tmp_path):
    watch = Watch()
    hooks = [watch, rec.GraphModifierHook(modify_graph=False)]
    estimator_in(tmp_path).train(input_fn(), steps=1, hooks=hooks)
    assert watch.modified == [False]
