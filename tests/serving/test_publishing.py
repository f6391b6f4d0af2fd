# SPDX-License-Identifier: Apache-2.0
"""Publishing: a base and deltas that bring it up to date, whole or not at all."""

import functools
import json
import os
import uuid

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from storage_runs import largest_file
from test_refresh import Served, numbers, receiver_fn

import rec_estimator as rec
from rec_estimator.checkpoint.files import identity_of

DIM = 4
IDS = np.arange(200)


def model_fn(features, labels, mode):
    table = rec.get_embedding_variable("item", DIM, partitioner=tf.fixed_size_partitioner(2))
    rows = rec.embedding_lookup(table, features["ids"])
    scores = rows * tf.get_variable("dense", [DIM])
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions={"rows": rows, "scores": scores})
    loss = tf.reduce_mean(tf.square(scores - 1.0))
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.range(10**6).map(lambda i: {"ids": tf.range(i, i + 5)})


class Trained:
    """A training that publishes every two steps, and what it published."""

    def __init__(self, folder, published, steps, row_dtype=None, **hook):
        config = rec.RunConfig(
            save_checkpoints_secs=None,
            save_checkpoints_steps=1000,
            save_incremental_checkpoints_steps=1000,
            keep_checkpoint_max=None,
        )
        self.estimator = rec.RecEstimator(model_fn, str(folder / "model"), config=config)
        self.export = functools.partial(
            self.estimator.export_saved_model,
            serving_input_receiver_fn=receiver_fn,
            row_dtype=row_dtype,
        )
        self.published = published
        publish = rec.serving.PublishHook(
            published, self.export, self.estimator.model_dir, every_steps=2, **hook
        )
        self.estimator.train(input_fn, steps=steps, hooks=[publish])

    @property
    def manifest(self):
        return rec.serving.read_manifest(self.published)

    def prefix(self, step):
        return os.path.join(self.estimator.model_dir, f"model.ckpt-{step}")

    def answers_of(self, prefix):
        fresh = Served(self.export(str(uuid.uuid4()), checkpoint_path=prefix).decode())
        answers = fresh.predict(IDS)
        fresh.session.close()
        return answers


def check_follows(trained, step):
    """Checks that base and deltas give what a fresh export of a step gives."""
    manifest = trained.manifest
    served = Served(os.path.join(trained.published, manifest["base"]))
    for delta in manifest["deltas"]:
        assert numbers(served.refresh_by_name(delta["name"]))[0] == delta["step"]
    got = served.predict(IDS)
    served.session.close()
    for name, expected in trained.answers_of(trained.prefix(step)).items():
        np.testing.assert_array_equal(got[name], expected)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch, resource_variables):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REC_ESTIMATOR_REFRESH_FOLDER", raising=False)


@pytest.mark.long
def test_a_training_publishes_a_base_and_deltas_that_lead_to_its_last_step(tmp_path):
    trained = Trained(tmp_path, str(tmp_path / "published"), steps=10)
    manifest = trained.manifest
    steps = [delta["step"] for delta in manifest["deltas"]]
    assert len(steps) >= 3 and steps == sorted(set(steps)) and manifest["step"] < steps[0]
    check_follows(trained, steps[-1])

    # Deltas for serving are ordinary checkpoints without what serving does not need.
    first = os.path.join(trained.published, "deltas", manifest["deltas"][0]["name"])
    names = dict(tf.train.list_variables(first))
    assert {"item/part_0-keys", "item/part_1-values", "dense", "global_step"} <= set(names)
    assert not any("Adagrad" in name or "filtered" in name for name in names)

    # Nothing that is published is published again; damage changes nothing.
    assert rec.serving.publish(trained.prefix(steps[-1]), trained.published) == manifest
    with pytest.raises(ValueError, match="export must be a function, got None"):
        rec.serving.publish(trained.prefix(10), trained.published)

    # A full checkpoint is a new base; the base before it stays until the next one.
    before = manifest["base"]
    rec.serving.publish(trained.prefix(10), trained.published, trained.export)
    assert trained.manifest["base"] != before and trained.manifest["deltas"] == []
    check_follows(trained, 10)
    rec.serving.publish(trained.prefix(steps[-1]), trained.published, trained.export)
    bases = {trained.manifest["base"], trained.manifest["previous"]["base"]}
    assert before not in bases
    assert set(os.listdir(trained.published)) == {*bases, "deltas", "manifest.json"}
    assert os.listdir(os.path.join(trained.published, "deltas")) == []


@pytest.mark.long
def test_deltas_bring_a_base_of_8_bits_to_the_last_step(tmp_path):
    trained = Trained(tmp_path, str(tmp_path / "published"), steps=6, row_dtype="int8")
    base = os.path.join(trained.published, trained.manifest["base"])
    types = tf.train.load_checkpoint(f"{base}/variables/variables").get_variable_to_dtype_map()
    assert types["item/part_0-values"] == tf.uint8
    steps = [delta["step"] for delta in trained.manifest["deltas"]]
    assert len(steps) >= 2
    check_follows(trained, steps[-1])


@pytest.mark.long
def test_what_fails_on_the_way_is_not_published_and_publishing_goes_on(tmp_path):
    trained = Trained(tmp_path, str(tmp_path / "published"), steps=10, max_deltas=1000)
    last = trained.manifest["deltas"][-1]
    steps = [delta["step"] for delta in trained.manifest["deltas"]]
    earlier = {**trained.manifest, "deltas": [], "source": None}
    # As if the publisher had been killed after its base, within a delta.
    earlier["source"] = identity_of(trained.prefix(trained.manifest["step"]))
    with open(os.path.join(trained.published, "manifest.json"), "w") as file:
        json.dump(earlier, file)
    left = os.path.join(trained.published, "deltas", f"model.ckpt-{steps[0]}.index")
    with open(left + ".unfinished", "w") as file:
        file.write("half")

    for room in (0, 100, 5000):
        with largest_file(room), pytest.raises((OSError, tf.errors.OpError)):
            rec.serving.publish(trained.prefix(steps[-1]), trained.published)
        assert trained.manifest == earlier
    again = rec.serving.publish(trained.prefix(steps[-1]), trained.published)
    assert [delta["name"] for delta in again["deltas"]][-1] == last["name"]
    check_follows(trained, steps[-1])


@pytest.mark.long
def test_a_file_system_of_tensorflow_takes_base_and_deltas(tmp_path):
    trained = Trained(tmp_path, f"ram://{uuid.uuid4().hex}", steps=6)
    assert trained.manifest["deltas"]
    check_follows(trained, trained.manifest["deltas"][-1]["step"])


def test_wrong_intervals_and_manifests_are_errors(tmp_path):
    with pytest.raises(ValueError, match="exactly one of every_secs and every_steps"):
        rec.serving.PublishHook("a", lambda: b"", "b")
    with pytest.raises(ValueError, match="above 0"):
        rec.serving.PublishHook("a", lambda: b"", "b", every_secs=0)
    assert rec.serving.read_manifest(str(tmp_path)) is None
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a manifest"):
        rec.serving.read_manifest(str(tmp_path))


def test_a_saver_writes_as_many_deltas_as_a_base_may_have(tmp_path):
    table = rec.get_embedding_variable("item", DIM)
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(rec.embedding_lookup(table, tf.constant([1, 2])))
    update = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
    saver = rec.Saver(incremental=True, max_deltas=1, max_to_keep=None)
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    hook = rec.serving.PublishHook("published", lambda: b"", "model", every_secs=5, max_deltas=3)
    hook.begin()
    with tf.Session() as session:
        hook.after_create_session(session, None)
        session.run(tf.global_variables_initializer())
        prefixes = []
        for _ in range(5):
            session.run(update)
            prefixes.append(saver.save(session, str(tmp_path / "model.ckpt"), step))
    names = [dict(tf.train.list_variables(prefix)) for prefix in prefixes]
    assert ["item-delta_of" in each for each in names] == [False, True, True, True, False]


@pytest.mark.long
def test_a_session_publishes_with_the_saver_that_it_makes_or_gets(tmp_path):
    def train(name, make_session, **arguments):
        folder = str(tmp_path / name)
        estimator = rec.RecEstimator(model_fn, folder)
        export = functools.partial(
            estimator.export_saved_model, serving_input_receiver_fn=receiver_fn
        )
        with tf.Graph().as_default():
            tf.train.get_or_create_global_step()
            features = tf.data.make_one_shot_iterator(input_fn()).get_next()
            train_op = model_fn(features, None, rec.ModeKeys.TRAIN).train_op
            saver = rec.Saver(incremental=True) if arguments.pop("has_saver") else None
            hook = rec.serving.PublishHook(
                f"{folder}-published", export, folder, every_steps=2, saver=saver
            )
            scaffold = tf.train.Scaffold(saver=saver)
            with make_session(
                checkpoint_dir=folder, hooks=[hook], scaffold=scaffold, **arguments
            ) as session:
                for _ in range(7):
                    session.run(train_op)
        return [each["step"] for each in rec.serving.read_manifest(f"{folder}-published")["deltas"]]

    secs = {"save_incremental_checkpoint_secs": 600}
    assert train("ours", rec.MonitoredTrainingSession, has_saver=False, **secs)
    assert train("scaffold", tf.train.MonitoredTrainingSession, has_saver=True)
    with pytest.raises(ValueError, match="must be incremental for PublishHook"):
        train("stock", tf.train.MonitoredTrainingSession, has_saver=False)
