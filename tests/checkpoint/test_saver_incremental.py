# SPDX-License-Identifier: Apache-2.0
"""Incremental checkpoints: base and deltas restore to the bits of the live tables."""

import errno
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import atomic_checkpoint, deltas, removal
from rec_estimator.table import saveable
from rec_estimator.tools.shrink_ckpt_with_filtered_features import shrink

TABLES = {
    "plain": rec.EmbeddingVariableOption(),
    "steps": rec.EmbeddingVariableOption(
        filter_option=rec.CounterFilter(3), evict_option=rec.GlobalStepEvict(steps_to_live=6)
    ),
    "small": rec.EmbeddingVariableOption(evict_option=rec.L2WeightEvict(0.02)),
    "bloom": rec.EmbeddingVariableOption(
        filter_option=rec.CBFFilter(3, max_element_size=2000, false_positive_probability=0.01),
        evict_option=rec.GlobalStepEvict(steps_to_live=9),
    ),
}


class Model:
    """Tables of every kind, trained by Adam, with a dense variable beside them."""

    def __init__(self, options=TABLES, shards=2):
        self.step = tf.train.get_or_create_global_step()
        self.keys = tf.placeholder(tf.int64, [None])
        # One shard only: a restored shard has the Bloom cells of all shards, and thus other bits.
        cuts = {
            name: tf.fixed_size_partitioner(1 if name == "bloom" else shards) for name in options
        }
        self.tables = [
            rec.get_embedding_variable(name, 4, ev_option=option, partitioner=cuts[name])
            for name, option in options.items()
        ]
        self.weight = tf.get_variable("weight", [4], initializer=tf.ones_initializer())
        vectors = [rec.embedding_lookup(table, self.keys) for table in self.tables]
        loss = tf.reduce_sum(tf.square(tf.add_n(vectors) * self.weight - 0.3))
        optimizer = rec.optimizers.AdamOptimizer(0.05)
        self.train_op = optimizer.minimize(loss, global_step=self.step)
        self.evictions = [t.evict() for t in self.tables if t.ev_option.evict_option]
        self._exports = [
            saveable.export_shard(shard, shard.slots) for table in self.tables for shard in table
        ]

    def train(self, session, keys):
        session.run(self.train_op, {self.keys: keys})

    def contents(self, session):
        """All bits of rows, slots, counts, versions, filtered keys, Bloom cells and the weight."""
        exports, *dense = session.run([self._exports, self.weight, self.step])
        return [array.tobytes() for array in tf.nest.flatten([exports, dense])]


def parent_of(prefix):
    parent = deltas.Deltas().parent_of(prefix)
    return parent and os.path.basename(parent)


def restored(prefix, saver=rec.Saver):
    with tf.Graph().as_default(), tf.Session() as session:
        model = Model()
        saver().restore(session, prefix)
        return model.contents(session)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.long
def test_base_and_deltas_are_the_live_tables_bit_for_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    model = Model()
    saver = rec.Saver(incremental=True, max_to_keep=None, sharded=bool(seed))
    live, deltas = {}, 0
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(10):
            for _ in range(rng.integers(0, 4)):
                model.train(session, rng.zipf(1.3, rng.integers(1, 120)) % 1500 - 300)
            if rng.random() < 0.5:
                session.run(model.evictions)
            prefix = saver.save(
                session,
                str(tmp_path / "model"),
                global_step=len(live),
                write_meta_graph=False,
                full=bool(rng.random() < 0.1),
            )
            live[prefix] = model.contents(session)
            deltas += parent_of(prefix) is not None
    assert deltas > 5
    for i, (prefix, contents) in enumerate(live.items()):
        if i % 3 == seed or i == len(live) - 1:
            assert restored(prefix, tf.train.Saver if i % 2 else rec.Saver) == contents, prefix


def test_a_delta_holds_what_was_touched_or_erased_and_no_more(tmp_path):
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=1))
    model = Model({"emb": option}, shards=1)
    saver = rec.Saver(incremental=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for keys in ([1, 2, 3], [2, 3, 4], [3, 4, 5]):
            model.train(session, keys)
        saver.save(session, str(tmp_path / "model"), global_step=model.step)
        model.train(session, [5, 6])
        session.run(model.evictions)
        prefix = saver.save(session, str(tmp_path / "model"), global_step=model.step)
        reader = tf.train.NewCheckpointReader(prefix)
        assert reader.get_tensor("emb-delta_of") == b"model-3"
        assert reader.get_tensor("emb-keys").tolist() == [5, 6]
        assert reader.get_tensor("emb-keys_erased").tolist() == [3, 4]
        assert reader.get_tensor("weight").shape == (4,)
        expected = model.contents(session)
        saver.restore(session, prefix)
        assert model.contents(session) == expected


def save_some(model, session, saver, folder, steps, full=None):
    """Trains and saves `steps` times; returns the names of the parents, None for full saves."""
    parents = []
    for _ in range(steps):
        model.train(session, [1, 2])
        prefix = saver.save(
            session, f"{folder}/model", global_step=model.step, write_meta_graph=False, full=full
        )
        parents.append(parent_of(prefix))
    return parents


@pytest.fixture
def small():
    model = Model({"emb": rec.EmbeddingVariableOption()})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        yield model, session


def test_full_saves_come_first_when_asked_for_and_after_max_deltas(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental=True, max_deltas=2, max_to_keep=None)
    assert save_some(model, session, saver, tmp_path, 5) == [
        None,
        "model-1",
        "model-2",
        None,
        "model-4",
    ]
    assert save_some(model, session, saver, tmp_path, 1, full=True) == [None]
    assert save_some(model, session, saver, tmp_path, 1, full=False) == ["model-6"]


def test_deeprecs_argument_writes_deltas_only_when_asked_for(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental_save_restore=True, max_to_keep=None)
    assert save_some(model, session, saver, tmp_path, 2) == [None, None]
    assert save_some(model, session, saver, tmp_path, 2, full=False) == ["model-2", "model-3"]
    assert save_some(model, session, saver, tmp_path, 1) == [None]
    expected = model.contents(session)
    saver.restore(session, f"{tmp_path}/model-4")
    saver.restore(session, f"{tmp_path}/model-5")
    assert model.contents(session) == expected


@pytest.mark.parametrize(
    "change", ["restore", "initialize", "other saver", "parent is gone", "other folder", "session"]
)
def test_without_a_known_parent_the_save_is_full(tmp_path, small, change):
    model, session = small
    saver, other = (rec.Saver(incremental=True) for _ in range(2))
    stock = tf.train.Saver()
    assert save_some(model, session, saver, tmp_path, 2) == [None, "model-1"]
    model.train(session, [7])
    folder = tmp_path
    if change == "restore":
        stock.restore(session, str(tmp_path / "model-2"))
    elif change == "initialize":
        session.run(tf.global_variables_initializer())
        session.run(model.step.assign(2))
    elif change == "other saver":
        other.save(session, str(tmp_path / "other"))
    elif change == "parent is gone":
        removal.remove(str(tmp_path / "model-1"))
    elif change == "other folder":
        folder = tmp_path / "other"
    if change != "session":
        assert save_some(model, session, saver, folder, 2)[0] is None
    else:
        with tf.Session() as again:
            saver.restore(again, str(tmp_path / "model-2"))
            assert save_some(model, again, saver, folder, 2) == [None, "model-3"]
        # The first session's files are unchanged.
        assert save_some(model, session, saver, folder, 1) == ["model-2"]


def test_max_to_keep_keeps_what_a_kept_delta_needs(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental=True, max_deltas=3, max_to_keep=2)
    kept = []
    for _ in range(9):
        save_some(model, session, saver, tmp_path, 1)
        kept.append([int(path.rpartition("-")[2]) for path in saver.last_checkpoints])
    assert kept == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [5, 6],
        [5, 6, 7],
        [5, 6, 7, 8],
        [5, 6, 7, 8, 9],
    ]
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        f"model-{i}.index" for i in (5, 6, 7, 8, 9)
    ]
    # A Saver of another process that writes no deltas continues from these checkpoints.
    after = rec.Saver(max_to_keep=1)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    after.recover_last_checkpoints(state.all_model_checkpoint_paths)
    after.restore(session, state.model_checkpoint_path)
    save_some(model, session, after, tmp_path, 1)
    assert [path.name for path in tmp_path.glob("*.index")] == ["model-10.index"]


def test_rewriting_a_checkpoint_removes_the_deltas_of_what_it_was(tmp_path, small):
    model, session = small
    first = rec.Saver(incremental=True)
    save_some(model, session, first, tmp_path, 4)
    again = rec.Saver(incremental=True)
    again.restore(session, str(tmp_path / "model-1"))
    assert save_some(model, session, again, tmp_path, 1) == [None]
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "model-1.index",
        "model-2.index",
    ]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-2")
    expected = model.contents(session)
    again.restore(session, str(tmp_path / "model-2"))
    assert model.contents(session) == expected


def test_a_save_that_fails_loses_no_changes(tmp_path, small, monkeypatch):
    model, session = small
    saver = rec.Saver(incremental=True)
    save_some(model, session, saver, tmp_path, 1)

    def fail(*arguments):
        raise OSError("disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        model.train(session, [10, 11])
        with pytest.raises(OSError, match="disk is full"):
            saver.save(session, str(tmp_path / "model"), global_step=model.step)
    assert save_some(model, session, saver, tmp_path, 1) == ["model-1"]
    expected = model.contents(session)
    saver.restore(session, str(tmp_path / "model-3"))
    assert model.contents(session) == expected


@pytest.mark.parametrize("cut", [2, 3])
def test_a_delta_that_is_cut_is_a_data_loss(tmp_path, small, cut):
    model, session = small
    saver = rec.Saver(incremental=True)
    save_some(model, session, saver, tmp_path, 3)
    for data in tmp_path.glob(f"model-{cut}.data-*"):
        os.truncate(data, 1)
    with pytest.raises((tf.errors.DataLossError, tf.errors.OutOfRangeError)):
        saver.restore(session, f"{tmp_path}/model-3")
    assert deltas.Deltas().parent_of(f"{tmp_path}/model-{cut}") is None


def test_a_rewrite_that_fails_leaves_the_deltas_of_what_is_there(tmp_path, small, monkeypatch):
    model, session = small
    save_some(model, session, rec.Saver(incremental=True), tmp_path, 3)
    expected = model.contents(session)
    again = rec.Saver(incremental=True)
    with monkeypatch.context() as patch:

        def fail(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "mkdir", fail)
        with pytest.raises(OSError, match="save_path must be .* No space left .* free space"):
            again.save(session, f"{tmp_path}/model", global_step=1)
    model.train(session, [9])
    again.restore(session, f"{tmp_path}/model-3")
    assert model.contents(session) == expected


def test_delta_with_a_missing_base_is_an_error_that_names_the_base(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental=True)
    save_some(model, session, saver, tmp_path, 3)
    removal.remove(str(tmp_path / "model-1"))
    before = model.contents(session)
    for shard in model.tables[0]:
        with pytest.raises((tf.errors.NotFoundError, tf.errors.DataLossError), match="model-1"):
            session.run(saveable.build_restore(shard, str(tmp_path / "model-3")))
    assert model.contents(session) == before


def exchange_base(how, folder):
    """Overwrites model-1 by another checkpoint."""
    base = f"{folder}/model-1"
    if how == "shrunk":
        shrink(base, f"{folder}/small")
        os.remove(f"{base}.data-00001-of-00002")
        for file in ("index", "data-00000-of-00001"):
            os.replace(f"{folder}/small.{file}", f"{base}.{file}")
        return
    with tf.Graph().as_default(), tf.Session() as session:
        model = Model({"emb": rec.EmbeddingVariableOption()})
        session.run(tf.global_variables_initializer())
        model.train(session, [3, 4])
        saver = tf.train.Saver() if how == "stock" else rec.Saver()
        where = f"{folder}/model" if how == "stock" else f"{folder}/other/model"
        saver.save(session, where, global_step=1, write_state=False)
    if how == "copied":
        for file in os.listdir(f"{folder}/other"):
            os.replace(f"{folder}/other/{file}", f"{folder}/{file}")


@pytest.mark.long
@pytest.mark.parametrize("how", ["stock", "copied", "shrunk"])
def test_delta_of_an_overwritten_base_is_refused(tmp_path, small, how):
    model, session = small
    saver, stock = rec.Saver(incremental=True), tf.train.Saver()
    save_some(model, session, saver, tmp_path, 3)
    exchange_base(how, tmp_path)
    model.train(session, [5])
    before = model.contents(session)
    message = f"{tmp_path}/model-1 was written again or exchanged: {tmp_path}/model-2 holds the"
    with pytest.raises(tf.errors.DataLossError, match=message):
        saver.restore(session, f"{tmp_path}/model-3")
    assert model.contents(session) == before
    with pytest.raises(tf.errors.DataLossError, match=message):
        stock.restore(session, f"{tmp_path}/model-2")
    with pytest.raises(tf.errors.DataLossError, match=message):
        rec.init_from_checkpoint(f"{tmp_path}/model-3", {"emb": "emb"})
    # The next save is full, because the chain cannot be restored.
    assert save_some(model, session, saver, tmp_path, 1) == [None]


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move])
def test_deltas_restore_from_a_copied_or_moved_folder(tmp_path, small, how):
    model, session = small
    saver = rec.Saver(incremental=True)
    save_some(model, session, saver, tmp_path / "here", 3)
    expected = model.contents(session)
    how(tmp_path / "here", tmp_path / "there")
    saver.restore(session, f"{tmp_path}/there/model-3")
    assert model.contents(session) == expected


def test_delta_without_its_parent_is_refused_before_anything_changes(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental=True)
    save_some(model, session, saver, tmp_path, 2)
    removal.remove(f"{tmp_path}/model-1")
    model.train(session, [5])
    before = model.contents(session)
    with pytest.raises(
        tf.errors.NotFoundError, match="model-1, to which .*model-2 holds .*missing; copy"
    ):
        saver.restore(session, f"{tmp_path}/model-2")
    assert model.contents(session) == before


def test_current_delta_with_an_overwritten_base_is_written_again_in_full(tmp_path, small):
    model, session = small
    saver = rec.Saver(incremental=True)
    assert save_some(model, session, saver, tmp_path, 2) == [None, "model-1"]
    exchange_base("stock", tmp_path)
    prefix = saver.save(session, f"{tmp_path}/model", global_step=model.step)
    assert prefix == f"{tmp_path}/model-2" and parent_of(prefix) is None
    expected = model.contents(session)
    saver.restore(session, prefix)
    assert model.contents(session) == expected


def test_deltas_of_older_releases_restore_with_a_warning(tmp_path, small, monkeypatch):
    model, session = small
    place = atomic_checkpoint.AtomicCheckpoint.place
    with monkeypatch.context() as patch:
        # Without the identity, the kernel writes deltas as older releases did.
        patch.setattr(atomic_checkpoint.AtomicCheckpoint, "place", lambda *a: place(*a) and "")
        saver = rec.Saver(incremental=True)
        assert save_some(model, session, saver, tmp_path, 3) == [None, "model-1", "model-2"]
    assert not tf.train.NewCheckpointReader(f"{tmp_path}/model-3").has_tensor("emb-delta_of_index")
    expected = model.contents(session)
    calls = []
    monkeypatch.setattr(tf.logging, "log_first_n", lambda *call: calls.append(call))
    saver.restore(session, f"{tmp_path}/model-3")
    assert model.contents(session) == expected
    level, text, times, *names = calls[0]
    assert (level, times) == (tf.logging.WARN, 1)
    assert "model-3 was written by an older release" in text % tuple(names)
    assert "Save a full checkpoint" in text
