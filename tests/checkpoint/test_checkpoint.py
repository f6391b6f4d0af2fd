# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables with the stock Saver and ours, other shard counts, other processes."""

import functools
import textwrap

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf
from stored_checkpoints import copy_without

import rec_estimator as rec

NINE = {
    "keys": np.int64,
    "values": np.float32,
    "freqs": np.int64,
    "versions": np.int64,
    "keys_filtered": np.int64,
    "freqs_filtered": np.int64,
    "versions_filtered": np.int64,
    "partition_offset": np.int32,
    "partition_filter_offset": np.int32,
}


def build(shards=1, dim=3, slots=True):
    """A table and a dense variable under training; (table, keys placeholder, train op)."""
    step = tf.train.get_or_create_global_step()
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = rec.get_embedding_variable("emb", dim, partitioner=partitioner)
    keys = tf.placeholder(tf.int64, [None])
    weight = tf.get_variable("weight", [dim], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) * weight - 1.0))
    optimizer = (
        rec.optimizers.AdamOptimizer(0.1) if slots else rec.optimizers.GradientDescentOptimizer(0.1)
    )
    return table, keys, optimizer.minimize(loss, global_step=step)


def batches(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3000, 3000, 40) for _ in range(steps)]


def train_and_save(path, shards=1, steps=5, saver=tf.train.Saver, **kwargs):
    """Trains and saves; returns (prefix, {key: (value, frequency, version)})."""
    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = build(shards)
        session.run(tf.global_variables_initializer())
        for batch in batches(steps):
            session.run(train, {keys: batch})
        contents = contents_of(session, table)
        return saver(**kwargs).save(session, str(path / "model.ckpt"), global_step=steps), contents


def contents_of(session, table):
    export = session.run(table.export())
    return {key: (value.tobytes(), freq, version) for key, value, version, freq in zip(*export)}


def test_stock_saver_writes_nine_tensors_per_table_and_slot(tmp_path):
    prefix, contents = train_and_save(tmp_path)
    reader = tf.train.NewCheckpointReader(prefix)
    shapes = reader.get_variable_to_shape_map()
    for name in ("emb", "emb/Adam", "emb/Adam_1"):
        tensors = {suffix: reader.get_tensor(f"{name}-{suffix}") for suffix in NINE}
        assert {suffix: tensor.dtype for suffix, tensor in tensors.items()} == NINE
        keys = tensors["keys"]
        assert set(keys) == set(contents)
        assert [tuple(x) for x in zip(keys % 1000, keys)] == sorted(zip(keys % 1000, keys))
        assert tensors["values"].shape == (len(keys), 3)
        offsets = tensors["partition_offset"]
        assert offsets.shape == (1001,)
        np.testing.assert_array_equal(np.diff(offsets), np.bincount(keys % 1000, minlength=1000))
        assert tensors["partition_filter_offset"].tolist() == [0] * 1001
        assert all(tensors[s].shape == (0,) for s in NINE if s.endswith("_filtered"))
    assert shapes["emb/default_values"] == [4096, 3]
    expected = {
        "global_step",
        "weight",
        "weight/Adam",
        "weight/Adam_1",
        "beta1_power",
        "beta2_power",
    }
    assert expected == {name for name in shapes if not name.startswith("emb")}


def continue_from(prefix, saver, sharded, shards):
    """The contents of a table after the restore and after three more steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = build(shards)
        saver(sharded=sharded).restore(session, prefix)
        restored = contents_of(session, table)
        for batch in batches(3, seed=1):
            session.run(train, {keys: batch})
        return restored, contents_of(session, table)


@pytest.fixture(scope="module")
def saved_and_continued(tmp_path_factory):
    """(saver, sharded, shards) -> prefix, contents, contents three steps later; made once."""

    @functools.lru_cache(None)
    def make(saver, sharded, shards):
        folder = tmp_path_factory.mktemp("saved")
        prefix, contents = train_and_save(folder, shards, saver=saver, sharded=sharded)
        return prefix, contents, continue_from(prefix, saver, sharded, shards)[1]

    return make


@pytest.mark.parametrize(
    "saver, sharded, from_shards, to_shards",
    [(tf.train.Saver, False, a, b) for a in (1, 3, 7) for b in (1, 3, 7)]
    + [(tf.train.Saver, True, 3, 1), (rec.Saver, False, 1, 3), (rec.Saver, True, 3, 7)],
)
def test_any_shard_count_restores_into_any_other(
    saved_and_continued, saver, sharded, from_shards, to_shards
):
    prefix, contents, continued = saved_and_continued(saver, sharded, from_shards)
    restored, trained = continue_from(prefix, saver, sharded, to_shards)
    assert restored == contents
    # The next steps are equal only if the slots were restored, too.
    assert trained == continued


def test_restore_replaces_what_was_there(tmp_path):
    prefix, contents = train_and_save(tmp_path)
    with tf.Session() as session:
        table, keys, train = build()
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [123456789]})
        tf.train.Saver().restore(session, prefix)
        assert contents_of(session, table) == contents


def test_unknown_keys_read_the_restored_bank(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        table, _, _ = build()
        session.run(tf.global_variables_initializer())
        before = session.run(rec.embedding_lookup(table, [77]))
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Session() as session:
        table, _, _ = build()
        tf.train.Saver().restore(session, prefix)
        np.testing.assert_array_equal(session.run(rec.embedding_lookup(table, [77])), before)


def test_graph_without_slots_reads_a_checkpoint_with_slots(tmp_path):
    prefix, contents = train_and_save(tmp_path)
    with tf.Session() as session:
        table = rec.get_embedding_variable("emb", 3)
        rec.Saver([table]).restore(session, prefix)
        assert contents_of(session, table) == contents


def test_slots_that_the_checkpoint_lacks_start_fresh(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = build(slots=False)
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 2, 2]})
        prefix = rec.Saver([table]).save(session, str(tmp_path / "model"))
        contents = contents_of(session, table)
    with tf.Session() as session:
        table, keys, train = build()
        session.run(tf.global_variables_initializer())
        rec.Saver([table]).restore(session, prefix)
        assert contents_of(session, table) == contents
        fresh = tf.train.Saver().save(session, str(tmp_path / "fresh"))
    moments = tf.train.NewCheckpointReader(fresh).get_tensor("emb/Adam-values")
    assert moments.tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("saver", [tf.train.Saver, rec.Saver], ids=["stock", "rec"])
def test_graph_of_tables_only_is_saved_and_restored(tmp_path, saver):
    def graph():
        table = rec.get_embedding_variable("emb", 2, partitioner=tf.fixed_size_partitioner(2))
        keys = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
        return table, keys, rec.optimizers.AdagradOptimizer(0.1).minimize(loss)

    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = graph()
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [5, 6, 1007]})
        contents = contents_of(session, table)
        prefix = saver().save(session, str(tmp_path / "model"))
    with tf.Session() as session:
        table, _, _ = graph()
        saver().restore(session, prefix)
        assert contents_of(session, table) == contents


def test_our_saver_draws_a_bank_where_the_checkpoint_has_none(tmp_path):
    prefix, contents = train_and_save(tmp_path)
    bare = copy_without(prefix, tmp_path / "bare", lambda name: name.endswith("default_values"))
    with tf.Session() as session:
        table, _, _ = build()
        rec.Saver().restore(session, bare)
        assert contents_of(session, table) == contents
        assert np.std(session.run(rec.embedding_lookup(table, [10**12]))) > 0


@pytest.mark.parametrize("suffix", ["freqs", "versions", "partition_offset", "keys_filtered"])
def test_checkpoint_that_lacks_optional_tensors_restores(tmp_path, suffix):
    prefix, contents = train_and_save(tmp_path)
    bare = copy_without(prefix, tmp_path / "bare", lambda name: name.endswith(f"-{suffix}"))
    with tf.Session() as session:
        table, _, _ = build(shards=3)
        tf.train.Saver().restore(session, bare)
        restored = contents_of(session, table)
    assert {key: row[0] for key, row in restored.items()} == {
        key: row[0] for key, row in contents.items()
    }
    if suffix == "versions":
        assert {row[2] for row in restored.values()} == {-1}


@pytest.mark.parametrize("missing", [1, 2])
def test_file_without_one_of_its_shards_is_an_error(tmp_path, missing):
    prefix, _ = train_and_save(tmp_path, shards=3)
    bare = copy_without(prefix, tmp_path / "bare", lambda name: f"/part_{missing}" in name)
    with tf.Session() as session:
        build()
        with pytest.raises(tf.errors.DataLossError, match="shards are missing"):
            rec.Saver().restore(session, bare)


def test_missing_table_is_an_error_that_names_it_and_keeps_the_rows(tmp_path):
    prefix, _ = train_and_save(tmp_path)
    bare = copy_without(prefix, tmp_path / "bare", lambda name: name == "emb-keys")
    with tf.Session() as session:
        table, keys, train = build()
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 2]})
        with pytest.raises((tf.errors.NotFoundError, ValueError), match="emb"):
            tf.train.Saver().restore(session, bare)
        assert session.run(table.size()) == 2


def test_other_dimension_is_an_error_with_both_numbers(tmp_path):
    prefix, _ = train_and_save(tmp_path)
    with tf.Session() as session:
        table = rec.get_embedding_variable("emb", 4)
        with pytest.raises(tf.errors.InvalidArgumentError, match="emb.*4.*3|emb.*3.*4"):
            rec.Saver([table]).restore(session, prefix)


TRAINER = textwrap.dedent(
    """
    import sys
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    optimizers = {
        "momentum": lambda: rec.optimizers.MomentumOptimizer(0.01, 0.9),
        "adam": lambda: rec.optimizers.AdamOptimizer(0.01),
        "ftrl": lambda: rec.optimizers.FtrlOptimizer(0.05, l1_regularization_strength=0.001),
    }

    def train_and_save(rule, optimizer, folder, first, last):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(7)
            step = tf.train.get_or_create_global_step()
            keys = tf.placeholder(tf.int64, [None, 3])
            tables = [rec.get_embedding_variable(f"t{dim}", dim) for dim in (4, 9)]
            vectors = [tf.reshape(rec.embedding_lookup(t, keys), [-1, 3 * t.dim]) for t in tables]
            weight = tf.get_variable("weight", [39, 1])
            loss = tf.reduce_mean(tf.square(tf.concat(vectors, 1) @ weight - 1.0))
            train = optimizer().minimize(loss, global_step=step)
            saver = tf.train.Saver()
            if first:
                saver.restore(session, f"{folder}/{rule}-{first}")
            else:
                session.run(tf.global_variables_initializer())
            rng = np.random.default_rng(0)
            for i, batch in enumerate(rng.zipf(1.3, size=(200, 16, 3)) % 10**9):
                if first <= i < last:
                    session.run(train, {keys: batch})
            saver.save(session, f"{folder}/{rule}", global_step=last)

    for folder, first, last in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
        for rule, optimizer in optimizers.items():
            train_and_save(rule, optimizer, folder, int(first), int(last))
    """
)


@pytest.fixture(scope="module")
def trained_folders(tmp_path_factory):
    """Checkpoints of 200 steps in one process, and of 100 and 100 in two."""
    whole, halves = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("halves")
    for runs in ([whole, 0, 200, halves, 0, 100], [halves, 100, 200]):
        python_processes.run(["-c", TRAINER, *runs])
    return whole, halves


@pytest.mark.long
@pytest.mark.parametrize("rule", ["momentum", "adam", "ftrl"])
def test_training_in_two_processes_gives_the_bits_of_training_in_one(trained_folders, rule):
    readers = [
        tf.train.NewCheckpointReader(str(folder / f"{rule}-200")) for folder in trained_folders
    ]
    names = readers[0].get_variable_to_shape_map()
    assert names == readers[1].get_variable_to_shape_map()
    assert readers[0].get_tensor("t4-keys").size > 100
    for name in names:
        first, second = (reader.get_tensor(name) for reader in readers)
        assert first.tobytes() == second.tobytes(), name
