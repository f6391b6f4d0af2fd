# SPDX-License-Identifier: Apache-2.0
"""What a table cannot take over from a checkpoint: the unit of versions, slots, the filter."""

import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import stored_checkpoints
import tensorflow.compat.v1 as tf

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOW = 1_700_000_000  # A timestamp of the data, in seconds since 1970.
HOUR = 3600


class Messages(logging.Handler):
    """The messages of that kind which TensorFlow's logger gets in a ``with`` block."""

    def __enter__(self):
        self.texts, self.before = [], tf.logging.get_verbosity()
        tf.logging.set_verbosity(tf.logging.WARN)
        tf.get_logger().addHandler(self)
        return self.texts

    def __exit__(self, *_):
        tf.get_logger().removeHandler(self)
        tf.logging.set_verbosity(self.before)

    def emit(self, record):
        if "from checkpoint" in record.msg:
            self.texts.append(record.getMessage())


class Model:
    """A table of create_table, with eviction by the seconds of the data or without."""

    def __init__(self, evicts, trains=True, name="t"):
        self.table = rec.create_table(
            tf.int64, 2, name, tf.ones_initializer(), device_vocabulary_size=1000
        )
        self.keys, self.now = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [])
        config = {"access_threshold": 0, **({"eviction_threshold": HOUR} if evicts else {})}
        if evicts:
            tf.add_to_collection(rec.ASCEND_TIMESTAMP, self.now)
        values = rec.sparse_lookup(
            self.table,
            self.keys,
            modify_graph=True,
            is_train=trains,
            access_and_evict_config=config if trains else None,
        )
        self.step = tf.train.get_or_create_global_step()
        if trains:
            loss = tf.reduce_sum(values)
            self.train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, self.step)
        self.evict = self.table.evict() if evicts and trains else None
        self.versions = self.table.get_version(np.arange(5))

    def train(self, session, keys, now=NOW):
        session.run(self.train_op, {self.keys: keys, self.now: now})


def save(path, evicts, saver=rec.Saver):
    """A checkpoint of the keys 0 to 4, trained by one step."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = Model(evicts)
        session.run(tf.global_variables_initializer())
        model.train(session, range(5))
        return saver().save(session, str(path))


def unit_in(prefix, name="t"):
    reader, name = tf.train.load_checkpoint(prefix), f"{name}-version_unit"
    return reader.get_tensor(name) if reader.has_tensor(name) else b"step"


def restore(way, session, prefix):
    """Restores the table and, with a Saver, all variables."""
    if way == "init_from_checkpoint":
        rec.init_from_checkpoint(prefix, {"t": "t"})
    session.run(tf.global_variables_initializer())
    if way == "rec.Saver":
        rec.Saver().restore(session, prefix)
    elif way == "tf.train.Saver":
        tf.train.Saver().restore(session, prefix)


WAYS = ["rec.Saver", "tf.train.Saver", "init_from_checkpoint"]


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_not_read_as_seconds_when_a_table_begins_to_evict(tmp_path, way):
    prefix = save(tmp_path / "source", evicts=False)
    model = Model(evicts=True)
    with tf.Session() as session:
        with Messages() as messages:
            restore(way, session, prefix)
        said = "its versions are steps there and seconds here"
        if way == "tf.train.Saver":
            assert not messages  # The op logs it: see the test of a process.
        else:
            assert [said in message for message in messages] == [True]
        assert session.run(model.versions).tolist() == [-1] * 5
        model.train(session, [0, 1])
        assert session.run(model.evict) == 0
        # From that eviction on, the age counts.
        for seconds in [*range(60, HOUR, 60), HOUR - 1]:
            model.train(session, [0], NOW + seconds)
        assert session.run(model.evict) == 0
        model.train(session, [0], NOW + HOUR)
        assert session.run(model.evict) == 4
        assert unit_in(rec.Saver().save(session, str(tmp_path / "own"))) == b"second"


@pytest.mark.parametrize("way", WAYS)
def test_seconds_are_not_read_as_steps(tmp_path, way):
    prefix = save(tmp_path / "source", evicts=True)
    model = Model(evicts=False)
    with tf.Session() as session:
        with Messages() as messages:
            restore(way, session, prefix)
        assert len(messages) == (way != "tf.train.Saver")
        assert session.run(model.versions).tolist() == [-1] * 5
        step = session.run(model.step)
        model.train(session, [0])
        assert session.run(model.versions).tolist() == [step, -1, -1, -1, -1]


@pytest.mark.each_value
@pytest.mark.parametrize("writer", [rec.Saver, tf.train.Saver])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("evicts", [False, True])
def test_versions_of_the_same_unit_stay(tmp_path, way, writer, evicts):
    prefix = save(tmp_path / "source", evicts, writer)
    assert unit_in(prefix) == (b"second" if evicts else b"step")
    model = Model(evicts)
    with tf.Session() as session, Messages() as messages:
        restore(way, session, prefix)
        assert session.run(model.versions).tolist() == [NOW if evicts else 0] * 5
    assert not messages


@pytest.mark.parametrize("saver", [rec.Saver, tf.train.Saver])
def test_a_graph_that_does_not_train_keeps_versions_and_unit(tmp_path, saver):
    prefix = save(tmp_path / "source", evicts=True)
    model = Model(evicts=True, trains=False)
    with tf.Session() as session, Messages() as messages:
        saver([shard.saveable for shard in model.table]).restore(session, prefix)
        assert session.run(model.versions).tolist() == [NOW] * 5
        # As an export does.
        copy = saver([shard.saveable for shard in model.table]).save(session, str(tmp_path / "b"))
    assert unit_in(copy) == b"second" and not messages


def older(prefix, path, with_timestamp):
    """Copies a checkpoint as a release wrote it that knew no unit of versions."""
    reader = tf.train.load_checkpoint(prefix)
    names = [
        name
        for name in reader.get_variable_to_shape_map()
        if not name.endswith("-version_unit")
        and (with_timestamp or name != "rec_estimator_timestamp")
    ]
    return stored_checkpoints.write(path, {name: reader.get_tensor(name) for name in names})


@pytest.mark.each_value
@pytest.mark.parametrize(
    "evicted, evicts, with_timestamp, kept",
    [
        (False, True, False, False),  # DeepRec's checkpoints have steps.
        (False, False, False, True),
        (True, True, True, True),  # The timestamp tells that some table had seconds.
        (False, False, True, True),
        (False, True, True, True),  # As in an older release, which did not tell.
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_without_a_unit_versions_are_steps_unless_a_timestamp_is_there(
    tmp_path, way, evicted, evicts, with_timestamp, kept
):
    source = save(tmp_path / "source", evicted)
    if with_timestamp and not evicted:
        tensors = {"rec_estimator_timestamp": np.int64(NOW)}
        reader = tf.train.load_checkpoint(source)
        tensors.update({n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()})
        source = stored_checkpoints.write(tmp_path / "timed", tensors)
    prefix = older(source, tmp_path / "older", with_timestamp)
    model = Model(evicts)
    with tf.Session() as session:
        with Messages() as messages:
            restore(way, session, prefix)
        expected = (NOW if evicted else 0) if kept else -1
        assert session.run(model.versions).tolist() == [expected] * 5
    assert len(messages) == (not kept and way != "tf.train.Saver")


@pytest.mark.parametrize("way", WAYS)
def test_a_table_beside_one_with_seconds_has_steps(tmp_path, way):
    reader = tf.train.load_checkpoint(save(tmp_path / "source", evicts=False))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    tensors.update({"rec_estimator_timestamp": np.int64(NOW), "other-version_unit": b"second"})
    prefix = stored_checkpoints.write(tmp_path / "both", tensors)
    model = Model(evicts=True)
    with tf.Session() as session:
        restore(way, session, prefix)
        assert session.run(model.versions).tolist() == [-1] * 5


def test_steps_in_a_chain_of_deltas_are_not_read_as_seconds(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        model = Model(evicts=False)
        session.run(tf.global_variables_initializer())
        saver = rec.Saver(incremental=True)
        model.train(session, range(4))
        saver.save(session, str(tmp_path / "m"), global_step=1)
        model.train(session, [4])
        delta = saver.save(session, str(tmp_path / "m"), global_step=2)
    model = Model(evicts=True)
    with tf.Session() as session:
        restore("rec.Saver", session, delta)
        assert session.run(model.versions).tolist() == [-1] * 5
        assert session.run(model.table.size()) == 5


@pytest.mark.long
def test_a_resumed_run_that_begins_to_evict_keeps_its_rows(tmp_path):
    def model_fn(features, labels, mode, params):
        table = rec.create_table(
            tf.int64, 2, "t", tf.ones_initializer(), device_vocabulary_size=1000
        )
        if params:
            tf.add_to_collection(rec.ASCEND_TIMESTAMP, features["time"])
        rows = rec.sparse_lookup(
            table,
            features["id"],
            modify_graph=True,
            access_and_evict_config={"access_threshold": 0, **params},
        )
        loss, step = tf.reduce_sum(rows), tf.train.get_global_step()
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, step)
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(keys, params):
        estimator = rec.RecEstimator(model_fn, str(tmp_path), params=params)
        example = {"id": np.arange(keys), "time": np.int64(NOW)}
        evict = [rec.EvictHook(evict_enable=True, evict_step_interval=1)] if params else []
        estimator.train(lambda: tf.data.Dataset.from_tensors(example).repeat(2), hooks=evict)
        return estimator.get_variable_value("t-versions").tolist()

    assert train(5, {}) == [1] * 5
    with Messages() as messages:
        assert train(2, {"eviction_threshold": HOUR}) == [NOW] * 5
    assert ["its versions are steps there" in message for message in messages] == [True]


def test_an_unknown_unit_is_damage(tmp_path):
    prefix = save(tmp_path / "source", evicts=False)
    reader = tf.train.load_checkpoint(prefix)
    tensors = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
    other = stored_checkpoints.write(tmp_path / "other", {**tensors, "t-version_unit": b"month"})
    model = Model(evicts=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.DataLossError, match="t-version_unit of .* got 'month'"):
            rec.Saver([model.table]).restore(session, other)


def of_filter(option, optimizer=None, shards=1):
    """A table of get_embedding_variable: the table, its placeholder and its train op or None."""
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = rec.get_embedding_variable(
        "user",
        2,
        partitioner=partitioner,
        ev_option=rec.EmbeddingVariableOption(filter_option=option),
    )
    keys = tf.placeholder(tf.int64, [None])
    rows = rec.embedding_lookup(table, keys)
    step = tf.train.get_or_create_global_step()
    train = None if optimizer is None else optimizer.minimize(tf.reduce_sum(rows), step)
    return table, keys, train


def save_filtered(path, option, shards=1):
    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = of_filter(option, rec.optimizers.AdagradOptimizer(0.1), shards)
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 1, 1, 2, 3]})
        return rec.Saver([table]).save(session, str(path))


@pytest.mark.each_value
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("option", [rec.CounterFilter(3), rec.CBFFilter(3, 1000, 0.01)])
@pytest.mark.parametrize("way", ["rec.Saver", "init_from_checkpoint"])
def test_a_graph_that_drops_the_filter_is_told_so(tmp_path, option, way, shards):
    prefix = save_filtered(tmp_path / "source", option, shards)
    for declared, expected in ((None, 1), (option, 0)):
        with tf.Graph().as_default(), tf.Session() as session, Messages() as messages:
            table, *_ = of_filter(declared)
            if way == "rec.Saver":
                rec.Saver([table]).restore(session, prefix)
            else:
                rec.init_from_checkpoint(prefix, {"user": table})
        assert len(messages) == expected
        if expected:
            assert "Table 'user'" in messages[0]
            assert "default_value_no_permission" in messages[0]


@pytest.mark.parametrize(
    "optimizer, lacking",
    [
        (rec.optimizers.AdamOptimizer, "Adam, Adam_1"),
        (rec.optimizers.AdagradOptimizer, None),
        (rec.optimizers.GradientDescentOptimizer, None),
    ],
)
@pytest.mark.parametrize("stock", [False, True])
def test_a_resumed_training_is_told_which_slots_start_fresh(tmp_path, optimizer, lacking, stock):
    prefix = save_filtered(tmp_path / "source", None, shards=2)
    with tf.Session() as session, Messages() as messages:
        table, *_ = of_filter(None, optimizer(0.1))
        saver = tf.train.Saver if stock else rec.Saver
        saver([shard.saveable for shard in table]).restore(session, prefix)
    assert [f"no slots {lacking} of it" in m for m in messages] == [True] * bool(
        lacking and not stock
    )


@pytest.mark.long
def test_evaluation_is_not_told_of_slots(tmp_path):
    def model_fn(features, labels, mode, params):
        table = rec.get_embedding_variable("user", 2)
        loss = tf.reduce_sum(rec.embedding_lookup(table, features["id"]))
        train_op = params["optimizer"].minimize(loss, tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def estimator(optimizer):
        params = {"optimizer": optimizer}
        return rec.RecEstimator(model_fn, str(tmp_path / "model"), params=params)

    def input_fn():
        return tf.data.Dataset.from_tensors({"id": np.array([1, 2])})

    estimator(rec.optimizers.AdagradOptimizer(0.1)).train(input_fn)
    other = estimator(rec.optimizers.MomentumOptimizer(0.1, 0.9))
    with Messages() as messages:
        other.evaluate(input_fn)
        assert not messages
        other.train(input_fn)
    assert ["slots Momentum of it" in message for message in messages] == [True]


IN_A_PROCESS = """
import sys
import tensorflow.compat.v1 as tf
import rec_estimator as rec

tf.disable_eager_execution()
source = sys.argv[1]
for optimizer in (rec.optimizers.AdagradOptimizer(0.1), rec.optimizers.AdamOptimizer(0.1)):
    with tf.Graph().as_default(), tf.Session() as session:
        table = rec.create_table(
            tf.int64, 2, "t", tf.ones_initializer(), device_vocabulary_size=1000
        )
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, tf.constant(10, tf.int64))
        config = {"access_threshold": 0, "eviction_threshold": 10}
        rows = rec.sparse_lookup(
            table, tf.constant([1], tf.int64), modify_graph=True, access_and_evict_config=config
        )
        optimizer.minimize(tf.reduce_sum(rows), tf.train.get_or_create_global_step())
        tf.train.Saver([shard.saveable for shard in table]).restore(session, source)
"""


@pytest.mark.long
def test_what_a_stock_saver_does_not_keep_is_logged_by_the_op(tmp_path):
    prefix = save(tmp_path / "source", evicts=False)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, prefix],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = [line.partition("Table t is restored from ")[2] for line in done.stderr.splitlines()]
    unit = "; its versions do not count seconds, so that all keys count as trained at the first "
    slots = "; it lacks slots Adam, Adam_1, which start fresh"
    assert [text for text in said if text] == [
        f"{prefix}{unit}eviction.",
        f"{prefix}{unit}eviction{slots}.",
    ]
