# SPDX-License-Identifier: Apache-2.0
"""The folder sparse-<base>-<step>/ that rec_estimator.Saver writes for tables of create_table."""

import os
import pathlib
import stat
import textwrap
import types

import numpy as np
import pytest
import python_processes
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import atomic_checkpoint, files, folder_export

COUNTED = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))


def as_created(table, name, is_save=True):
    """Gives a table the attributes of create_table that folders need."""
    table.is_sparse_table = True
    table.table_name = name
    table.is_save = is_save
    table.thresholds = None
    return table


def train_op_of(table, keys, optimizer):
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) - 1.0))
    step = tf.train.get_or_create_global_step()
    return optimizer.minimize(loss, global_step=step, var_list=[table])


def build(optimizer=None, shards=1, key_dtype=tf.int64, **options):
    table = rec.get_embedding_variable(
        "user",
        3,
        key_dtype=key_dtype,
        partitioner=tf.fixed_size_partitioner(shards) if shards > 1 else None,
        **options,
    )
    as_created(table, "user_table")
    keys = tf.placeholder(key_dtype, [None])
    optimizer = optimizer or rec.optimizers.lazy_adam.create_hash_optimizer(0.1)
    return table, keys, train_op_of(table, keys, optimizer)


def read_folder(folder):
    """Reads a folder: {path below it: array in the shape that slice.attribute says}."""
    arrays = {}
    for path in sorted(pathlib.Path(folder).rglob("slice.data")):
        *shape, size = np.fromfile(path.parent / "slice.attribute", np.int64)
        name = str(path.parent.relative_to(folder))
        kind = np.float32 if size == 4 and "threshold" not in name else f"<i{size}"
        arrays[name] = np.fromfile(path, kind).reshape(shape)
    return arrays


def assert_is_of(prefix, folder, table="user", shards=("user",)):
    """Checks that a folder has the keys and vectors of a checkpoint, in its order."""
    reader = tf.train.NewCheckpointReader(prefix)
    arrays = read_folder(folder)
    for suffix, name in (("keys", "key"), ("values", "embedding")):
        expected = np.concatenate([reader.get_tensor(f"{shard}-{suffix}") for shard in shards])
        np.testing.assert_array_equal(arrays[f"{table}_table/{name}"], expected)
    return arrays


def test_save_writes_keys_vectors_and_slots_of_one_step(tmp_path):
    _, keys, train = build()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [5, -7, 2**62, 5]})
        prefix = rec.Saver().save(session, str(tmp_path / "dir" / "model"), global_step=100)
    folder = tmp_path / "dir" / "sparse-model-100"
    arrays = assert_is_of(prefix, folder)
    reader = tf.train.NewCheckpointReader(prefix)
    slots = {"LazyAdam_momentum": "user/LazyAdam", "LazyAdam_velocity": "user/LazyAdam_1"}
    assert set(arrays) == {f"user_table/{name}" for name in ("key", "embedding", *slots)}
    for name, slot in slots.items():
        values = reader.get_tensor(f"{slot}-values")
        assert values.any()
        np.testing.assert_array_equal(arrays[f"user_table/{name}"], values)
    attribute = np.fromfile(folder / "user_table/embedding/slice.attribute", np.int64)
    assert attribute.tolist() == [3, 3, 4]
    assert np.fromfile(folder / "user_table/key/slice.attribute", np.int64).tolist() == [3, 8]
    umask = os.umask(0)
    os.umask(umask)
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o750 if path.is_dir() else 0o640) & ~umask, path
    assert not [name for name in os.listdir(folder.parent) if name.startswith(".")]


@pytest.mark.parametrize(
    "optimizer, folders",
    [
        (rec.optimizers.GradientDescentOptimizer(0.1), []),
        (rec.optimizers.AdagradOptimizer(0.1), ["Adagrad_accumulator"]),
        (rec.optimizers.FtrlOptimizer(0.1), ["Ftrl_accum", "Ftrl_linear"]),
        (rec.optimizers.MomentumOptimizer(0.1, 0.9), ["Momentum_momentum"]),
        (
            rec.optimizers.RMSPropOptimizer(0.1, centered=True),
            ["RMSProp_rms", "RMSProp_mg", "RMSProp_momentum"],
        ),
        (rec.optimizers.AdamAsyncOptimizer(0.1), ["AdamAsync_momentum", "AdamAsync_velocity"]),
    ],
)
def test_slots_are_named_after_optimizer_and_role(tmp_path, optimizer, folders):
    _, keys, train = build(optimizer)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 2]})
        rec.Saver().save(session, str(tmp_path / "model"))
    names = {path.name for path in (tmp_path / "sparse-model" / "user_table").iterdir()}
    assert names == {"key", "embedding", *folders}


@pytest.mark.parametrize("shards, key_dtype", [(3, tf.int64), (1, tf.int32), (2, tf.int32)])
def test_shards_are_joined_and_keys_are_int64(tmp_path, shards, key_dtype):
    table, keys, train = build(shards=shards, key_dtype=key_dtype)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: np.arange(-500, 5000)})
        prefix = rec.Saver(sharded=True).save(session, str(tmp_path / "model"))
    names = [shard.name for shard in table]
    arrays = assert_is_of(prefix, tmp_path / "sparse-model", shards=names)
    assert arrays["user_table/key"].dtype == np.int64
    assert len(arrays["user_table/LazyAdam_momentum"]) == 5500


def test_table_with_an_access_threshold_writes_counts_and_thresholds(tmp_path):
    table, keys, train = build(ev_option=COUNTED)
    table.thresholds = types.SimpleNamespace(access_threshold=2, eviction_threshold=60)
    time = tf.get_variable("rec_estimator_timestamp", [], tf.int64, tf.constant_initializer(77))
    assert time in tf.global_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [4, 4, 9]})
        session.run(train, {keys: [4, 8]})
        rec.Saver().save(session, str(tmp_path / "model"))
    arrays = read_folder(tmp_path / "sparse-model" / "user_table")
    assert arrays["table_2_threshold"].tolist() == [2, 60, 1]
    assert arrays["key"].tolist() == [4]
    time, *records = arrays["history_record"]
    assert time == 77
    assert np.reshape(records, (-1, 3)).tolist() == [[4, 3, 1], [8, 1, 1], [9, 1, 0]]


def test_empty_tables_are_written_and_tables_with_is_save_false_are_not(tmp_path):
    build()
    other = as_created(rec.get_embedding_variable("other", 2), "other_table", is_save=False)
    rec.get_embedding_variable("third", 2)
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "model-0"), global_step=0)
        assert os.listdir(tmp_path / "sparse-model-0-0") == ["user_table"]
        arrays = read_folder(tmp_path / "sparse-model-0-0" / "user_table")
        assert {name: array.shape for name, array in arrays.items()} == {
            "key": (0,),
            "embedding": (0, 3),
            "LazyAdam_momentum": (0, 3),
            "LazyAdam_velocity": (0, 3),
        }
        rec.Saver([other]).save(session, str(tmp_path / "without"))
        rec.Saver(sparse_folders=False).save(session, str(tmp_path / "off"))
        tf.train.Saver().save(session, str(tmp_path / "stock"))
    assert [name for name in os.listdir(tmp_path) if name.startswith("sparse")] == [
        "sparse-model-0-0"
    ]


def test_rec_sdk_script_finds_the_folder_and_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(batches, rank_id=0):
        with tf.Graph().as_default():
            table, keys, train = build()
            saver = rec.Saver()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                if os.path.exists(f"./saved-model/sparse-model-{rank_id}-%d" % 0):
                    saver.restore(session, f"./saved-model/model-{rank_id}-%d" % 0)
                    resumed = True
                else:
                    saver.save(session, f"./saved-model/model-{rank_id}", global_step=0)
                    resumed = False
                for batch in batches:
                    session.run(train, {keys: batch})
                saver.save(session, f"./saved-model/model-{rank_id}", global_step=len(batches))
                return resumed, session.run(rec.embedding_lookup(table, tf.range(50, 90)))

    first, initial = run([[1, 2], [2, 3]])
    second, restored = run([[1, 2], [2, 3], [3, 4]])
    assert (first, second) == (False, True)
    np.testing.assert_array_equal(initial, restored)
    assert sorted(name for name in os.listdir("saved-model") if name.startswith("sparse")) == [
        f"sparse-model-0-{step}" for step in (0, 2, 3)
    ]
    # A restore needs only the ordinary checkpoint.
    for step in (0, 2, 3):
        files.remove_folder(f"saved-model/sparse-model-0-{step}")
    table, _, _ = build()
    with tf.Session() as session:
        rec.Saver().restore(session, "./saved-model/model-0-3")
        assert session.run(table.size()) == 4


def test_max_to_keep_deletes_folders_and_a_second_save_replaces_its_folder(tmp_path):
    _, keys, train = build()
    saver = rec.Saver(max_to_keep=2)

    def folders():
        return sorted(name for name in os.listdir(tmp_path) if name.startswith("sparse"))

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(1, 5):
            session.run(train, {keys: [step]})
            prefix = saver.save(session, str(tmp_path / "model"), global_step=step)
        assert folders() == ["sparse-model-3", "sparse-model-4"]
        session.run(train, {keys: [50, 60]})
        assert saver.save(session, str(tmp_path / "model"), global_step=4) == prefix
        arrays = assert_is_of(prefix, tmp_path / "sparse-model-4")
        assert len(arrays["user_table/key"]) == 6
        # Without folders, a save removes the old folder, which would not match the new tables.
        session.run(train, {keys: [70]})
        rec.Saver(sparse_folders=False).save(session, str(tmp_path / "model"), global_step=4)
        assert folders() == ["sparse-model-3"]


def test_next_save_of_a_step_adds_the_folder_that_a_kill_left_out(tmp_path):
    _, keys, train = build()
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 2]})
        prefix = saver.save(session, str(tmp_path / "model"), global_step=1)
        files.remove_folder(str(tmp_path / "sparse-model-1"))
        saver.restore(session, prefix)
        inode = os.stat(f"{prefix}.index").st_ino
        saver.save(session, str(tmp_path / "model"), global_step=1)
        assert os.stat(f"{prefix}.index").st_ino == inode
        assert_is_of(prefix, tmp_path / "sparse-model-1")


def test_a_delta_has_no_folder_and_the_next_full_save_has(tmp_path):
    _, keys, train = build()
    saver = rec.Saver(incremental=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(1, 4):
            session.run(train, {keys: [step]})
            saver.save(session, str(tmp_path / "model"), global_step=step, full=step == 3)
    names = sorted(name for name in os.listdir(tmp_path) if name.startswith("sparse"))
    assert names == ["sparse-model-1", "sparse-model-3"]


def test_a_failed_save_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    _, keys, train = build()
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1]})
        prefix = saver.save(session, str(tmp_path / "model"))
        session.run(train, {keys: [2]})

        def fail(*arguments):
            raise OSError("disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "sendfile", fail)
            with pytest.raises(OSError, match="disk is full"):
                saver.save(session, prefix)
        assert len(assert_is_of(prefix, tmp_path / "sparse-model")["user_table/key"]) == 1
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


KILLED_AT_EVERY_CALL = textwrap.dedent(
    """
    import os, pathlib, shutil, signal, sys
    import numpy as np
    from rec_estimator.checkpoint import atomic_checkpoint, files, removal, sparse_folders

    sources, folder = map(pathlib.Path, sys.argv[1:])
    CALLS = ("fsync", "link", "mkdir", "open", "remove", "rename", "replace", "rmdir", "sendfile",
             "unlink")

    class Table:
        name = table_name = "user"
        class shards_0:
            slots = ()
            class handle:
                consumers = staticmethod(list)
        shards = [shards_0]
        thresholds = None

    def kill_at(moment):
        count = [0]
        def wrap(call):
            def wrapped(*args, **kwargs):
                count[0] += 1
                if count[0] == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)
            return wrapped
        for name in CALLS:
            setattr(os, name, wrap(getattr(os, name)))

    def save(value):
        def merge(prefixes, merged):
            os.rename(f"{prefixes[0]}.data-00000-of-00001", f"{merged}.data-00000-of-00002")
            shutil.copy(sources / f"{value}-of-2.index", f"{merged}.index")
        with atomic_checkpoint.AtomicCheckpoint(str(folder / "model")) as checkpoint:
            for suffix in ("index", "data-00000-of-00001"):
                shutil.copy(sources / f"{value}.{suffix}", f"{checkpoint.prefix}.{suffix}")
            sparse_folders.write(checkpoint.prefix, checkpoint.sparse_folder, [Table])
            checkpoint.place(merge)

    def value_of():
        index = (folder / "model.index").read_bytes()
        values = [v for v in (1, 2, 3) for n in ("", "-of-2")
                  if (sources / f"{v}{n}.index").exists()
                  and (sources / f"{v}{n}.index").read_bytes() == index]
        return values[0]

    def folder_value():
        path = folder / "sparse-model" / "user"
        if not path.parent.exists():
            return None
        n, dim, size = np.fromfile(path / "embedding" / "slice.attribute", np.int64)
        values = np.fromfile(path / "embedding" / "slice.data", np.float32)
        assert len(np.fromfile(path / "key" / "slice.data", np.int64)) == n == 5
        assert len(values) == n * dim and len(set(values)) == 1, values
        return int(values[0])

    moment, seen = 0, set()
    while True:
        moment += 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save(1)
        assert value_of() == folder_value() == 1
        child = os.fork()
        if child == 0:
            kill_at(moment)
            save(2)
            removal.remove(str(folder / "model"))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        is_there = (folder / "model.index").exists()
        seen.add((value_of() if is_there else 0, folder_value()))
        if status == 0:
            break
        save(3)
        assert value_of() == folder_value() == 3
        names = sorted(os.listdir(folder))
        assert len(names) == 3 and names[1:] == ["model.index", "sparse-model"], names
    # Never a folder without a checkpoint; an older folder only between the two renames.
    assert seen == {(1, 1), (2, 1), (2, None), (2, 2), (0, None)}, seen
    print(moment)
    """
)


@pytest.mark.long
def test_killed_at_every_moment_a_folder_is_whole_and_has_its_checkpoint(tmp_path):
    for value in (1, 2, 3):
        with tf.Graph().as_default(), tf.Session() as session:
            table = rec.get_embedding_variable("user", 3)
            tables_of = {"user-keys": np.arange(5), "user-values": np.full((5, 3), value, "f4")}
            assert table.dim == 3
            for prefix in (f"{tmp_path}/{value}", f"{tmp_path}/again"):
                session.run(
                    tf.raw_ops.SaveV2(
                        prefix=prefix,
                        tensor_names=list(tables_of),
                        shape_and_slices=["", ""],
                        tensors=list(tables_of.values()),
                    )
                )
            (tmp_path / "filler.index").write_bytes(atomic_checkpoint._EMPTY_INDEX)
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=[f"{tmp_path}/again", f"{tmp_path}/filler"],
                    destination_prefix=f"{tmp_path}/{value}-of-2",
                    delete_old_dirs=False,
                )
            )
    done = python_processes.run(["-c", KILLED_AT_EVERY_CALL, tmp_path, tmp_path / "model"])
    assert int(done.stdout) > 30


@pytest.mark.long
def test_rec_estimator_writes_folders_in_training_only(tmp_path):
    def model_fn(features, labels, mode):
        table = as_created(rec.get_embedding_variable("user", 3), "user_table")
        loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, features["user"]) - 1.0))
        if mode == rec.ModeKeys.PREDICT:
            outputs = {"serving_default": rec.PredictOutput({"x": loss})}
            return rec.EstimatorSpec(mode, predictions=loss, export_outputs=outputs)
        optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.1)
        train = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return rec.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn():
        return tf.data.Dataset.from_tensors({"user": tf.range(9, dtype=tf.int64)}).repeat(6)

    def receiver():
        keys = tf.placeholder(tf.int64, [None], name="user")
        return rec.build_raw_serving_input_receiver_fn({"user": keys})()

    config = rec.RunConfig(save_checkpoints_steps=2, keep_checkpoint_max=2)
    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"), config)
    estimator.train(input_fn)
    estimator.evaluate(input_fn)
    exported = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    folders = sorted(path.name for path in tmp_path.rglob("sparse-*"))
    assert folders == ["sparse-model.ckpt-4", "sparse-model.ckpt-6"]
    prefix = str(tmp_path / "model" / "model.ckpt-6")
    assert_is_of(prefix, tmp_path / "model" / "sparse-model.ckpt-6")
    assert os.path.isdir(exported)
    (path,) = rec.export_tables()
    assert path == str(tmp_path / "model" / "sparse-model.ckpt-6" / "user_table" / "key-emb.npy")


def test_export_writes_vectors_by_key_that_numpy_reads_without_pickle(tmp_path, monkeypatch):
    table, keys, train = build()
    # Several chunks, the last one cut.
    monkeypatch.setattr(folder_export, "_CHUNK", 100)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: np.arange(-30, 33)})
        rec.Saver().save(session, str(tmp_path / "model"))
        export = session.run(table.export())
    for tables in (None, ["user_table"], [table]):
        (path,) = rec.export_tables(tables)
        assert path == str(tmp_path / "sparse-model" / "user_table" / "key-emb.npy")
        rows = np.load(path, allow_pickle=False)
        np.testing.assert_array_equal(rows["key"], export.keys)
        np.testing.assert_array_equal(rows["embedding"], export.values)
    assert len(os.listdir(os.path.dirname(path))) == 5


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("embedding/slice.attribute", [3, -1, 4]),
        ("embedding/slice.attribute", [3, 2, 8]),
        ("embedding/slice.attribute", [3, 2]),
        ("embedding/slice.attribute", []),
        ("key/slice.attribute", [2**62, 8]),
        ("key/slice.data", [1]),
    ],
)
def test_export_refuses_a_damaged_folder_by_name_and_writes_nothing(name, numbers, tmp_path):
    table = tmp_path / "sparse-model" / "user_table"
    for folder, array in (("key", np.arange(3)), ("embedding", np.ones([3, 2], np.float32))):
        (table / folder).mkdir(parents=True)
        array.tofile(table / folder / "slice.data")
        attribute = np.array([*array.shape, array.itemsize], np.int64)
        attribute.tofile(table / folder / "slice.attribute")
    folder_export.remember(str(table.parent))
    np.array(numbers, np.int64).tofile(table / name)
    with pytest.raises(ValueError, match=f"{table / os.path.dirname(name)}/slice.* must h.*, got"):
        rec.export_tables()
    assert sorted(os.listdir(table)) == ["embedding", "key"]


def test_export_warns_about_missing_tables_and_folders(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(
        tf.logging, "warning", lambda text, *arguments: messages.append(text % arguments)
    )
    monkeypatch.setattr(folder_export, "_last_folder", None)
    assert rec.export_tables() == []
    build()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rec.Saver().save(session, str(tmp_path / "model"))
    assert len(rec.export_tables(["nobody", "user_table"])) == 1
    files.remove_folder(str(tmp_path / "sparse-model"))
    assert rec.export_tables(["user_table"]) == []
    nothing, nobody, removed = messages
    assert "no rec_estimator.Saver has saved tables of create_table" in nothing
    assert "'nobody' is not exported: it is not in " in nobody
    assert "sparse-model was removed" in removed
    with pytest.raises(ValueError, match="table_list must be a list .* got 'user_table'"):
        rec.export_tables("user_table")


def test_a_stock_saver_saves_and_restores_the_same_tables(tmp_path):
    table, keys, train = build()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [3, 4]})
        saver = tf.train.Saver()
        prefix = saver.save(session, str(tmp_path / "model"))
        before = session.run(table.export())
        session.run(train, {keys: [3, 4, 5]})
        saver.restore(session, prefix)
        after = session.run(table.export())
    assert [a.tobytes() for a in before] == [a.tobytes() for a in after]
