# SPDX-License-Identifier: Apache-2.0
"""A restore checks all files before it changes anything."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fuzz.mutant_checkpoints import put_string
from stored_checkpoints import copy_without

import rec_estimator as rec
from rec_estimator.checkpoint.format.bundle import Bundle
from rec_estimator.table import saveable

STEPS = 3


class Model:
    """Two tables and two variables, one of them large, under training."""

    def __init__(self):
        self.step = tf.train.get_or_create_global_step()
        self.tables = [rec.get_embedding_variable(name, 4) for name in ("first", "second")]
        self.keys = tf.placeholder(tf.int64, [None])
        small = tf.get_variable("small", [4], initializer=tf.ones_initializer())
        large = tf.get_variable("large", [20_000, 4], initializer=tf.ones_initializer())
        vectors = [rec.embedding_lookup(table, self.keys) for table in self.tables]
        loss = tf.reduce_sum(tf.add_n(vectors) * small) + tf.reduce_sum(large)
        self.train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=self.step)
        self._contents = [[table.export() for table in self.tables], small, large, self.step]

    def contents(self, session):
        return [array.tobytes() for array in tf.nest.flatten(session.run(self._contents))]


@pytest.fixture
def chain(tmp_path):
    """A session that has trained on, the prefix of a delta of a delta, and the Saver and Model."""
    model = Model()
    saver = rec.Saver(incremental=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for i in range(STEPS):
            session.run(model.train, {model.keys: np.arange(100 * i, 100 * i + 200)})
            prefix = saver.save(session, str(tmp_path / "model"), global_step=model.step)
        session.run(model.train, {model.keys: [7, 8, 9]})
        yield session, prefix, saver, model


def cut(path, size):
    os.truncate(path, size)


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def place_of(prefix, name):
    """The data file of a tensor, and where its last byte is."""
    bundle = Bundle(prefix)
    part = bundle.tensors[name].ranges[-1]
    files = bundle.header.num_shards
    path = f"{prefix}.data-{part.entry.shard_id:05d}-of-{files:05d}"
    return path, part.entry.offset + part.entry.size - 1


@pytest.mark.each_value
@pytest.mark.parametrize("damage", [cut, flip, None], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("name", ["small", "second-keys", "second/Adagrad-values"])
@pytest.mark.parametrize("step", [1, 3])
def test_damage_of_any_file_of_the_chain_changes_nothing(chain, damage, name, step):
    session, prefix, saver, model = chain
    before = model.contents(session)
    path, last = place_of(f"{prefix[:-1]}{step}", name)
    if damage is None:
        os.remove(path)
    else:
        damage(path, last)
    with pytest.raises(tf.errors.DataLossError) as caught:
        saver.restore(session, prefix)
    assert path in caught.value.message
    if damage is flip:
        assert name in caught.value.message
    assert model.contents(session) == before


def test_a_cut_file_of_variables_names_file_and_tensor_and_changes_nothing(chain):
    session, prefix, saver, model = chain
    before = model.contents(session)
    path, last = place_of(prefix, "large")
    cut(path, last)
    with pytest.raises(tf.errors.DataLossError, match=rf"{path} is damaged: tensor 'large' must"):
        saver.restore(session, prefix)
    assert model.contents(session) == before


@pytest.mark.parametrize("step", [1, 3])
def test_damage_within_a_large_tensor_changes_nothing_where_a_table_is_initialized(chain, step):
    session, prefix, saver, model = chain
    before = model.contents(session)
    path, last = place_of(f"{prefix[:-1]}{step}", "large")
    flip(path, last - 100)
    damaged = f"{path} is damaged: the checksum of tensor 'large' does not match"
    with pytest.raises(tf.errors.DataLossError, match=damaged):
        saver.restore(session, prefix)
    assert model.contents(session) == before


def test_damage_within_a_large_tensor_is_a_data_loss_in_a_new_session(chain):
    _, prefix, saver, _ = chain
    path, last = place_of(prefix, "large")
    flip(path, last - 100)
    with tf.Session() as session, pytest.raises(tf.errors.DataLossError):
        saver.restore(session, prefix)


@pytest.mark.parametrize("names", ["delta_of", "delta_of delta_of_index"])
def test_a_delta_that_does_not_name_its_parent_is_a_data_loss(chain, names):
    session, prefix, saver, model = chain
    before = model.contents(session)
    endings = tuple(f"-{name}" for name in names.split())
    bare = copy_without(prefix, f"{prefix}-bare", lambda name: name.endswith(endings))
    with pytest.raises(tf.errors.DataLossError, match="has tensor first-.* without first-delta_of"):
        saver.restore(session, bare)
    restore = saveable.build_restore(model.tables[0].shards[0], bare)  # As a stock Saver has it.
    with pytest.raises(tf.errors.DataLossError, match="has tensor first-.* without first-delta_of"):
        session.run(restore)
    assert model.contents(session) == before


@pytest.mark.parametrize("parent", ["../model-2", "/model-2", "a/model-2"])
def test_a_parent_in_another_folder_is_a_data_loss(chain, parent):
    session, prefix, saver, model = chain
    before = model.contents(session)
    put_string(prefix, b"first-delta_of", parent.encode())
    with pytest.raises(tf.errors.DataLossError, match="first-delta_of of .* in the same folder"):
        saver.restore(session, prefix)
    assert model.contents(session) == before
