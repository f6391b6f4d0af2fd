# SPDX-License-Identifier: Apache-2.0
"""RecEstimator's checkpoints: which are full, which are deltas, and resumed training."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint.deltas import Deltas


def model_fn(features, labels, mode):
    weight = tf.get_variable("weight", [4], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(features["user"] * weight - 1.0)) + tf.reduce_sum(labels)
    train_op = rec.optimizers.AdamOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    keys = np.random.default_rng(0).integers(0, 50, (40, 6))
    return tf.data.Dataset.from_tensor_slices(({"user": keys}, np.zeros((40, 6), np.float32)))


def estimator_in(folder, **config):
    return rec.RecEstimator(
        model_fn,
        str(folder),
        rec.RunConfig(tf_random_seed=1, log_step_count_steps=1000, **config),
        embedding_features=[rec.EmbeddingFeature("user", dim=4)],
    )


def kinds_of(folder):
    """{step: step of the parent, or None for a full checkpoint}."""
    deltas = Deltas()
    kinds = {}
    for path in sorted(folder.glob("*.index")):
        prefix = str(path)[: -len(".index")]
        parent = deltas.parent_of(prefix)
        kinds[int(prefix.rpartition("-")[2])] = parent and int(parent.rpartition("-")[2])
    return kinds


@pytest.mark.long
def test_deltas_are_written_between_the_full_checkpoints(tmp_path):
    config = dict(save_checkpoints_steps=10, save_incremental_checkpoints_steps=3)
    estimator = estimator_in(tmp_path, keep_checkpoint_max=None, **config)
    estimator.train(input_fn, steps=20)
    deltas = {3: 0, 6: 3, 9: 6, 12: 10, 15: 12, 18: 15}
    assert kinds_of(tmp_path) == {0: None, 10: None, 20: None, **deltas}
    # A run without deltas ends with the same bits, and a delta restores like a full checkpoint.
    plain = estimator_in(tmp_path / "plain", save_checkpoints_steps=9)
    plain.train(input_fn, steps=20)
    for name in plain.get_variable_names():
        ours, theirs = (e.get_variable_value(name) for e in (estimator, plain))
        assert ours.tobytes() == theirs.tobytes(), name
    losses = [
        each.evaluate(input_fn, checkpoint_path=str(folder / "model.ckpt-9"))["loss"]
        for each, folder in ((estimator, tmp_path), (plain, tmp_path / "plain"))
    ]
    assert losses[0] == losses[1]


@pytest.mark.long
def test_keep_checkpoint_max_keeps_the_parents_of_deltas(tmp_path):
    config = dict(save_checkpoints_steps=10, save_incremental_checkpoints_steps=2)
    estimator = estimator_in(tmp_path, keep_checkpoint_max=2, **config)
    estimator.train(input_fn, steps=17)
    assert kinds_of(tmp_path) == {10: None, 12: 10, 14: 12, 16: 14, 17: None}


@pytest.mark.long
def test_training_resumes_from_a_delta_and_begins_with_a_full_checkpoint(tmp_path):
    config = dict(save_checkpoints_steps=100, save_incremental_checkpoints_steps=5)

    class Stop(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if tf.train.global_step(run_context.session, tf.train.get_global_step()) == 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimator_in(tmp_path, **config).train(input_fn, hooks=[Stop()])
    assert kinds_of(tmp_path) == {0: None, 5: 0, 10: 5}
    estimator = estimator_in(tmp_path, **config)
    before = estimator.evaluate(input_fn)
    assert before["global_step"] == 10
    estimator.train(input_fn, steps=6)
    assert kinds_of(tmp_path) == {0: None, 5: 0, 10: None, 15: 10, 16: None}
    assert estimator.evaluate(input_fn, checkpoint_path=str(tmp_path / "model.ckpt-10")) == before


@pytest.mark.long
def test_a_resumed_training_does_not_write_its_checkpoint_again(tmp_path):
    estimator = estimator_in(tmp_path)
    estimator.train(input_fn, steps=2)
    first = os.stat(tmp_path / "model.ckpt-2.index")
    estimator_in(tmp_path).train(input_fn, steps=2)
    again = os.stat(tmp_path / "model.ckpt-2.index")
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


@pytest.mark.long
def test_best_exporter_exports_what_evaluation_saw(tmp_path):
    def receiver():
        keys = tf.placeholder(tf.int64, [None, 6], name="user")
        return rec.build_raw_serving_input_receiver_fn({"user": keys})()

    def with_outputs(features, labels, mode):
        if mode != rec.ModeKeys.PREDICT:
            return model_fn(features, labels, mode)
        outputs = {"serving_default": rec.PredictOutput({"x": features["user"]})}
        return rec.EstimatorSpec(mode, predictions=features["user"], export_outputs=outputs)

    estimator = rec.RecEstimator(
        with_outputs,
        str(tmp_path),
        rec.RunConfig(save_checkpoints_steps=100, save_incremental_checkpoints_steps=5),
        embedding_features=[rec.EmbeddingFeature("user", dim=4)],
    )
    exporter = rec.BestExporter(serving_input_receiver_fn=receiver)
    rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(input_fn, max_steps=12),
        rec.EvalSpec(input_fn, steps=None, throttle_secs=0, exporters=exporter),
    )
    exports = tmp_path / "export" / "best_exporter"
    (folder,) = (path for path in exports.iterdir() if path.is_dir())
    reader = tf.train.NewCheckpointReader(str(folder / "variables" / "variables"))
    for suffix in ("keys", "values", "freqs"):
        saved = estimator.get_variable_value(f"user-{suffix}")
        assert reader.get_tensor(f"user-{suffix}").tobytes() == saved.tobytes()
    names = sorted(path.name for path in (folder / "variables").iterdir())
    assert names[-1] == "variables.index" and all(n.startswith("variables.") for n in names)


class Stop(tf.train.SessionRunHook):
    """Ends a training as an error does: no hook writes a last checkpoint."""

    def after_run(self, run_context, run_values):
        if int(run_context.session.run(tf.train.get_global_step())) == 3:
            raise InterruptedError


@pytest.mark.long
def test_the_changed_rows_of_a_table_are_not_read_as_its_rows(tmp_path):
    estimator = estimator_in(
        tmp_path, save_checkpoints_steps=100, save_incremental_checkpoints_steps=1
    )
    with pytest.raises(InterruptedError):
        estimator.train(input_fn, steps=9, hooks=[Stop()])
    assert kinds_of(tmp_path)[3] == 2
    message = r"'user-{}' must be read from a full checkpoint, got .*ckpt-3, .*; resume the train"
    for part in ("keys", "values", "freqs"):
        with pytest.raises(ValueError, match=message.format(part)):
            estimator.get_variable_value(f"user-{part}")
    assert estimator.get_variable_value("global_step") == 3
    with pytest.raises(InterruptedError):  # Before its first step, it has saved in full.
        estimator.train(input_fn, steps=9, hooks=[StopAtOnce()])
    assert len(estimator.get_variable_value("user-keys")) > 0


class StopAtOnce(tf.train.SessionRunHook):
    """Ends a training before its first step."""

    def before_run(self, run_context):
        raise InterruptedError


@pytest.mark.long
def test_a_hook_without_a_saver_finds_that_of_the_estimator(tmp_path):
    hook = tf.train.CheckpointSaverHook(str(tmp_path / "hook"), save_steps=2)
    (tmp_path / "hook").mkdir()
    estimator_in(tmp_path).train(input_fn, steps=2, hooks=[hook])
    assert kinds_of(tmp_path / "hook") == {0: None, 2: None}


@pytest.mark.long
def test_deltas_by_time(tmp_path):
    config = dict(save_checkpoints_steps=1000, save_incremental_checkpoints_secs=1e-6)
    estimator_in(tmp_path, keep_checkpoint_max=None, **config).train(input_fn, steps=4)
    assert kinds_of(tmp_path) == {0: None, 1: 0, 2: 1, 3: 2, 4: None}


def test_a_saver_of_the_model_fn_must_write_deltas(tmp_path):
    def with_own_saver(features, labels, mode):
        spec = model_fn(features, labels, mode)
        return spec._replace(scaffold=tf.train.Scaffold(saver=tf.train.Saver()))

    estimator = rec.RecEstimator(
        with_own_saver,
        str(tmp_path),
        rec.RunConfig(save_incremental_checkpoints_steps=5),
        embedding_features=[rec.EmbeddingFeature("user", dim=4)],
    )
    message = r"Saver of model_fn must be rec_estimator\.Saver\(incremental=True\)"
    with pytest.raises(ValueError, match=message):
        estimator.train(input_fn)


@pytest.mark.parametrize(
    "config, message",
    [
        (dict(save_incremental_checkpoints_secs=0), "_secs must be above 0, got 0"),
        (dict(save_incremental_checkpoints_steps=-2), "_steps must be above 0, got -2"),
        (
            dict(save_incremental_checkpoints_secs=1, save_incremental_checkpoints_steps=2),
            "must be None, got 1 and 2",
        ),
        (dict(save_checkpoints_secs=1, save_checkpoints_steps=2), "save_checkpoints_steps"),
    ],
)
def test_bad_run_configs_are_errors(config, message):
    with pytest.raises(ValueError, match=message):
        rec.RunConfig(**config)


def test_run_configs_are_replaced_with_all_they_say():
    config = rec.RunConfig(model_dir="a", save_incremental_checkpoints_secs=5)
    other = config.replace(model_dir="b", save_checkpoints_steps=7, save_checkpoints_secs=None)
    assert (other.model_dir, other.save_checkpoints_steps) == ("b", 7)
    assert other.save_incremental_checkpoints_secs == 5
    other = config.replace(
        save_incremental_checkpoints_secs=None, save_incremental_checkpoints_steps=3
    )
    assert (other.save_incremental_checkpoints_secs, other.save_incremental_checkpoints_steps) == (
        None,
        3,
    )
    assert config.save_incremental_checkpoints_secs == 5
    with pytest.raises(ValueError, match="must be None, got 5 and 3"):
        config.replace(save_incremental_checkpoints_steps=3)


@pytest.mark.parametrize(
    "incremental, arguments, message",
    [
        (False, dict(save_steps=1), "saver must be a rec_estimator.Saver.incremental=True"),
        (True, {}, "exactly one of save_secs and save_steps"),
        (True, dict(save_steps=1, save_secs=1), "exactly one of save_secs and save_steps"),
        (True, dict(save_steps=0), "save_steps must be above 0, got 0"),
    ],
)
def test_bad_hooks_are_errors(incremental, arguments, message):
    table = rec.get_embedding_variable("user", 4)
    saver = rec.Saver([table], incremental=incremental)
    with pytest.raises(ValueError, match=message):
        rec.IncrementalSaverHook("model", saver, **arguments)


def test_a_hook_needs_a_global_step():
    table = rec.get_embedding_variable("user", 4)
    hook = rec.IncrementalSaverHook("model", rec.Saver([table], incremental=True), save_steps=1)
    with pytest.raises(ValueError, match="the graph has no global step"):
        hook.begin()


@pytest.mark.long
@pytest.mark.parametrize("in_every_mode", [False, True])
def test_only_training_always_loads_from_a_specific_checkpoint(tmp_path, in_every_mode):
    ones = rec.InitializerOption(tf.ones_initializer(), default_value_dim=2)
    with tf.Graph().as_default(), tf.Session() as session:
        option = rec.EmbeddingVariableOption(init_option=ones)
        rec.get_embedding_variable("old", 1, ev_option=option)
        session.run(tf.global_variables_initializer())
        source = rec.Saver().save(session, str(tmp_path / "source"))

    def trained_or_not(features, labels, mode):
        del labels
        ckpt = rec.CheckpointOption(source, "old", always_load_from_specific_ckpt=True)
        option = rec.EmbeddingVariableOption(init_option=ones, ckpt=ckpt)
        table = rec.get_embedding_variable("new", 1, ev_option=option)
        rows = rec.embedding_lookup(table, features["id"])
        loss = tf.reduce_sum(rows)
        train_op = None
        if in_every_mode or mode == rec.ModeKeys.TRAIN:
            optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
            train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"rows": rows})

    def ids():
        return tf.data.Dataset.from_tensors({"id": np.array([1])}).repeat(4)

    def receiver():
        id_ = tf.placeholder(tf.int64, [1])
        return rec.ServingInputReceiver({"id": id_}, id_)

    estimator = rec.RecEstimator(trained_or_not, str(tmp_path / "model"))
    estimator.train(ids)
    assert estimator.get_variable_value("new-values").tolist() == [[-1.0]]  # 1 - 4 · 0.5
    assert estimator.evaluate(ids)["loss"] == -1.0
    assert next(estimator.predict(ids))["rows"] == -1.0
    exported = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    exported = os.path.join(os.fsdecode(exported), "variables", "variables")
    assert tf.train.load_checkpoint(exported).get_tensor("new-values").tolist() == [[-1.0]]
    # The next training starts from the other checkpoint again, as the option says.
    estimator.train(ids, steps=1)
    assert estimator.get_variable_value("new-values").tolist() == [[0.5]]
