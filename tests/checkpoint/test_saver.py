# SPDX-License-Identifier: Apache-2.0
"""rec_estimator.Saver: what it writes, where, what it keeps, and the stock Saver's features."""

import os
import resource

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import atomic_checkpoint
from rec_estimator.checkpoint import saver as saver_lib
from rec_estimator.table import saveable

FILTER = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2))


def build(shards=1, ev_option=FILTER, name="emb"):
    """A filtered table and dense variables under training: (table, keys, train op)."""
    step = tf.train.get_or_create_global_step()
    partitioner = tf.fixed_size_partitioner(shards) if shards > 1 else None
    table = rec.get_embedding_variable(name, 3, partitioner=partitioner, ev_option=ev_option)
    keys = tf.placeholder(tf.int64, [None])
    weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(rec.embedding_lookup(table, keys) * weight - 1.0))
    return table, keys, rec.optimizers.AdamOptimizer(0.1).minimize(loss, global_step=step)


def contents_of(session, table):
    """The rows, slots, counts and versions of a table as bytes."""
    exports = session.run([saveable.export_shard(shard, shard.slots) for shard in table])
    return [array.tobytes() for array in tf.nest.flatten(exports)]


def tensors_of(prefix):
    reader = tf.train.NewCheckpointReader(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def names_in(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def trained():
    """A session after three training steps: (session, table, keys, train op)."""
    table, keys, train = build(shards=2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in np.random.default_rng(0).integers(-500, 500, (3, 400)):
            session.run(train, {keys: batch})
        yield session, table, keys, train


@pytest.mark.parametrize("sharded", [False, True])
def test_writes_the_tensors_that_a_stock_saver_writes(tmp_path, trained, sharded):
    session = trained[0]
    ours = tensors_of(rec.Saver(sharded=sharded).save(session, str(tmp_path / "ours")))
    stock = tensors_of(tf.train.Saver(sharded=sharded).save(session, str(tmp_path / "stock")))
    assert ours.keys() == stock.keys()
    assert stock["emb/part_1-keys_filtered"].size and stock["emb/part_1-keys"].size
    for name, value in stock.items():
        assert value.dtype == ours[name].dtype and value.shape == ours[name].shape, name
        assert value.tobytes() == ours[name].tobytes(), name


@pytest.mark.parametrize("incremental", [False, True])
def test_saves_to_one_path_replace_each_other_and_leave_nothing_else(
    tmp_path, trained, incremental
):
    session, table, keys, train = trained
    saver = rec.Saver(incremental=incremental)
    for i in range(4):
        session.run(train, {keys: [i, i]})
        saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
        n = {0: 2, 1: 3}[i % 2]
        data = [f"model.data-{k:05d}-of-{n:05d}" for k in range(2)]
        assert names_in(tmp_path) == ["checkpoint", *data, "model.index"]
    before = contents_of(session, table)
    saver.restore(session, str(tmp_path / "model"))
    assert contents_of(session, table) == before


def test_tensorflow_reads_our_index_of_an_empty_bundle(tmp_path):
    (tmp_path / "empty.index").write_bytes(atomic_checkpoint._EMPTY_INDEX)
    assert tf.train.list_variables(str(tmp_path / "empty")) == []


def test_a_failed_save_leaves_the_last_one_and_no_files(tmp_path, trained, monkeypatch):
    session, table, keys, train = trained
    saver = rec.Saver()
    prefix = saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    files = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    session.run(train, {keys: [1, 2, 3]})

    def fail(*arguments):
        raise OSError("disk is full")

    for call in ("link", "replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            if call == "link":  # a file system without links
                patch.setattr(os, "rename", fail)
            with pytest.raises(OSError, match="disk is full"):
                saver.save(session, prefix, write_meta_graph=False)
        assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == files
    saver.save(session, prefix, write_meta_graph=False)
    assert contents_of(session, table)


def test_a_file_system_without_links_gets_the_same_files(tmp_path, trained, monkeypatch):
    def fail(*arguments):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", fail)
    saver = rec.Saver()
    for n in (2, 3):
        saver.save(trained[0], str(tmp_path / "model"), write_state=False, write_meta_graph=False)
        data = [f"model.data-{k:05d}-of-{n:05d}" for k in range(2)]
        assert names_in(tmp_path) == [*data, "model.index"]


def test_a_prefix_that_holds_the_step_is_not_written_again(tmp_path, trained):
    session, _, keys, train = trained
    saver = rec.Saver(max_to_keep=2)
    step = tf.train.get_global_step()
    prefix = saver.save(session, str(tmp_path / "model"), global_step=step)

    def inode():
        return os.stat(f"{prefix}.index").st_ino

    first = inode()
    saver.save(session, str(tmp_path / "model"), global_step=step)
    assert inode() == first
    saver.restore(session, prefix)
    os.remove(tmp_path / "checkpoint")
    saver.save(session, str(tmp_path / "model"), global_step=3)
    assert inode() == first
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    # Another Saver does not know that checkpoint, and the next step is a new checkpoint.
    rec.Saver().save(session, str(tmp_path / "model"), global_step=step)
    assert inode() != first
    session.run(train, {keys: [1]})
    assert saver.save(session, str(tmp_path / "model"), global_step=step).endswith("-4")


def test_a_global_step_that_a_restore_gave_another_shape_is_an_error(tmp_path, trained):
    # A hook passes the value of the variable.
    with pytest.raises(
        ValueError, match=r"global_step must be an integer of shape \[\], got .* \[1\]"
    ):
        rec.Saver().save(trained[0], str(tmp_path / "model"), global_step=np.array([1]))
    assert names_in(tmp_path) == []


def test_checkpoint_is_written_again_if_training_does_not_count_steps(tmp_path):
    step = tf.train.get_or_create_global_step()
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    saver = rec.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in (1.0, 2.0):
            weight.load(value, session)
            prefix = saver.save(session, str(tmp_path / "model"), global_step=step)
    assert tf.train.load_variable(prefix, "weight") == 2.0


def test_max_to_keep_deletes_the_oldest(tmp_path, trained):
    session = trained[0]
    saver = rec.Saver(max_to_keep=2)
    path = str(tmp_path / "model")
    for i in (1, 2, 3, 4):
        saver.save(session, path, global_step=i)
        kept = [f"{path}-{k}" for k in (i - 1, i) if k]
        assert saver.last_checkpoints == kept
        state = tf.train.get_checkpoint_state(str(tmp_path))
        assert list(state.all_model_checkpoint_paths) == kept
    assert {name.split(".")[0] for name in names_in(tmp_path)} == {
        "checkpoint",
        "model-3",
        "model-4",
    }


def test_keep_checkpoint_every_n_hours_keeps_checkpoints(tmp_path, trained):
    session = trained[0]
    saver = rec.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)
    for i in range(3):
        saver.save(session, str(tmp_path / "model"), global_step=i)
    assert all((tmp_path / f"model-{i}.index").exists() for i in range(3))
    assert saver.last_checkpoints == [str(tmp_path / "model-2")]


@pytest.mark.parametrize("relative", [False, True])
def test_last_checkpoints_are_recovered_by_another_saver(tmp_path, trained, relative):
    session = trained[0]
    first = rec.Saver(save_relative_paths=relative)
    for i in range(3):
        first.save(session, str(tmp_path / "model"), global_step=i, write_meta_graph=False)
    text = (tmp_path / "checkpoint").read_text()
    assert (str(tmp_path) in text) == (not relative)
    moved = tmp_path / "moved"
    if relative:
        moved.mkdir()
        for name in names_in(tmp_path):
            if name != "moved":
                os.rename(tmp_path / name, moved / name)
    folder = moved if relative else tmp_path
    os.remove(folder / "model-1.index")
    second = rec.Saver(max_to_keep=2)
    state = tf.train.get_checkpoint_state(str(folder))
    second.recover_last_checkpoints(state.all_model_checkpoint_paths)
    assert second.last_checkpoints == [str(folder / "model-0"), str(folder / "model-2")]
    second.save(session, str(folder / "model"), global_step=3)
    assert second.last_checkpoints == [str(folder / "model-2"), str(folder / "model-3")]
    assert not (folder / "model-0.index").exists()


def test_other_stock_arguments_work(tmp_path, trained, monkeypatch):
    session, _, keys, train = trained
    monkeypatch.chdir(tmp_path)
    saver = rec.Saver(pad_step_number=True)
    assert saver.save(session, "new/model", 7, "latest", "graph") == "new/model-00000007"
    assert names_in("new") == [
        "latest",
        "model-00000007.data-00000-of-00002",
        "model-00000007.data-00001-of-00002",
        "model-00000007.graph",
        "model-00000007.index",
    ]
    assert tf.train.latest_checkpoint("new", "latest") == "new/model-00000007"
    assert saver.save(session, "bare", write_meta_graph=False, write_state=False) == "bare"
    assert sorted(n for n in os.listdir() if n != "new") == [
        "bare.data-00000-of-00002",
        "bare.data-00001-of-00002",
        "bare.index",
    ]
    session.run(train, {keys: [1]})
    saver.restore(session, "bare")


def test_a_saver_that_tensorflow_makes_from_the_meta_graph_saves_and_restores(tmp_path, trained):
    session, *_ = trained
    prefix = rec.Saver(sharded=True).save(session, str(tmp_path / "model"))
    expected = tensors_of(prefix)
    with tf.Graph().as_default(), tf.Session() as other:
        stock = tf.train.import_meta_graph(f"{prefix}.meta")
        assert type(stock) is tf.train.Saver
        stock.restore(other, prefix)
        again = tensors_of(stock.save(other, str(tmp_path / "again")))
    assert again.keys() == expected.keys()
    assert all(again[name].tobytes() == expected[name].tobytes() for name in again)


def test_saver_of_an_empty_graph_writes_no_checkpoint(tmp_path):
    with tf.Session() as session:
        saver = rec.Saver(allow_empty=True)
        assert saver.save(session, str(tmp_path / "model"), write_meta_graph=False) is None
    assert names_in(tmp_path) == []


def test_full_saves_evict_first(tmp_path):
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=2))
    table, keys, train = build(ev_option=option)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for key in (1, 2, 3, 4):
            session.run(train, {keys: [key]})
        prefix = rec.Saver().save(session, str(tmp_path / "model"))
        assert session.run(table.export()).keys.tolist() == [3, 4]
        assert tensors_of(prefix)["emb-keys"].tolist() == [3, 4]
        # A stock Saver, too.
        session.run(train, {keys: [4]})
        prefix = tf.train.Saver().save(session, str(tmp_path / "stock"))
        assert tensors_of(prefix)["emb-keys"].tolist() == [4]


def test_eviction_by_steps_is_skipped_without_a_global_step(tmp_path):
    option = rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(steps_to_live=2))
    table = rec.get_embedding_variable("emb", 3, ev_option=option)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for saver in (rec.Saver(), tf.train.Saver()):
            saver.save(session, str(tmp_path / "model"))
    assert table.name == "emb"


@pytest.mark.long
def test_checkpoint_option_initializes_a_table_and_can_override_restores(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        table, keys, train = build(ev_option=None, name="old")
        session.run(tf.global_variables_initializer())
        session.run(train, {keys: [1, 2, 3]})
        source = rec.Saver([table]).save(session, str(tmp_path / "source"))

    def keys_after_restore(always):
        with tf.Graph().as_default(), tf.Session() as session:
            option = rec.EmbeddingVariableOption(ckpt=rec.CheckpointOption(source, "old", always))
            table, keys, train = build(ev_option=option)
            session.run(tf.global_variables_initializer())
            assert session.run(table.export()).keys.tolist() == [1, 2, 3]
            session.run(train, {keys: [9]})
            saver = rec.Saver()
            prefix = saver.save(session, str(tmp_path / f"own{always}"))
            saver.restore(session, prefix)
            return session.run(table.export()).keys.tolist()

    assert keys_after_restore(False) == [1, 2, 3, 9]
    assert keys_after_restore(True) == [1, 2, 3]
    # A graph that does not train the table reads what was trained.
    with tf.Graph().as_default(), tf.Session() as session:
        option = rec.EmbeddingVariableOption(ckpt=rec.CheckpointOption(source, "old", True))
        table = rec.get_embedding_variable("emb", 3, ev_option=option)
        rec.Saver([table]).restore(session, str(tmp_path / "ownFalse"))
        assert session.run(table.export()).keys.tolist() == [1, 2, 3, 9]


@pytest.mark.parametrize("damage", ["cut", "flipped", "index"])
def test_a_damaged_file_is_a_data_loss_that_names_it(tmp_path, trained, damage):
    session, table, *_ = trained
    saver = rec.Saver()
    prefix = saver.save(session, str(tmp_path / "model"))
    before = contents_of(session, table)
    path = tmp_path / ("model.index" if damage == "index" else "model.data-00001-of-00002")
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
    # Runs the table's restore ops alone: with restore(), TensorFlow's error for the variables may
    # come first. Each shard reads its own rows, so that the flipped bit fails one or two of them.
    errors = []
    for shard in table:
        try:
            session.run(saveable.build_restore(shard, prefix))
        except tf.errors.DataLossError as error:
            errors.append(str(error))
    assert errors
    assert all(str(tmp_path / "model") in error for error in errors)
    assert contents_of(session, table) == before


@pytest.mark.parametrize(
    "path, error, said, remedy",
    [
        ("/proc/nothing/model", FileNotFoundError, "No such file", "save elsewhere"),
        ("file/model", FileExistsError, "File exists", "give each job its own folder"),
        ("file/folder/model", NotADirectoryError, "Not a directory", "save elsewhere"),
        ("x" * 250, tf.errors.InvalidArgumentError, "File name too long", "choose a shorter one"),
        ("model", tf.errors.OpError, "File too large", "free space there or save elsewhere"),
    ],
)
def test_file_system_error_names_path_and_remedy_and_leaves_no_files(
    tmp_path, trained, path, error, said, remedy
):
    (tmp_path / "file").touch()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if path == "model":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(error) as caught:
            rec.Saver(incremental=True).save(trained[0], str(tmp_path / path), global_step=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "save_path must be in a writable folder with free space" in str(caught.value)
    assert f"got '{tmp_path / path}-3'" in str(caught.value)
    assert said in str(caught.value) and remedy in str(caught.value)
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"full": False}, ValueError, "full must be None or True with incremental=False"),
        ({"latest_filename": "a/b"}, ValueError, "latest_filename must be a name without"),
        ({"latest_filename": "model"}, ValueError, "latest_filename must differ from"),
        ({"sess": "session"}, TypeError, "sess must be a Session, got 'session'"),
    ],
)
def test_bad_arguments_of_save_are_errors_and_write_nothing(
    tmp_path, trained, arguments, error, message
):
    saver = rec.Saver()
    with pytest.raises(error, match=message):
        saver.save(**{"sess": trained[0], "save_path": str(tmp_path / "model"), **arguments})
    assert names_in(tmp_path) == []


# For such a save_path, a stock Saver writes hidden files, or files that are named like a folder.
@pytest.mark.each_value
@pytest.mark.parametrize(
    "save_path, step, got",
    [
        ("", None, "''"),
        ("", 3, "''"),
        ("folder", None, "'folder', a folder"),
        ("folder/", None, "'folder/'"),
        ("folder/", 3, "'folder/'"),
        ("new/", None, "'new/'"),
        (".", None, "'.', a folder"),
        ("folder/..", None, "'folder/..', a folder"),
        (b"folder", None, "'folder', a folder"),
        ("parent/folder-3", None, "'parent/folder-3', a folder"),
        ("parent/folder", 3, "'parent/folder-3', a folder"),
        ("ram://folder/", None, "'ram://folder/'"),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"incremental": True}, {"sharded": True}])
def test_save_path_without_a_file_name_is_refused_before_anything_is_written(
    tmp_path, trained, monkeypatch, save_path, step, got, arguments
):
    (tmp_path / "work" / "folder").mkdir(parents=True)
    (tmp_path / "work" / "parent" / "folder-3").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    before = sorted(tmp_path.rglob("*"))
    saver = rec.Saver(**arguments)
    with pytest.raises(ValueError) as caught:
        saver.save(trained[0], save_path, global_step=step)
    assert str(caught.value).startswith("save_path must be the prefix of the checkpoint's files")
    assert f", got {got}; " in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert saver.last_checkpoints == []


def test_save_path_of_a_saver_of_nothing_is_checked_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tf.Session() as session:
        with pytest.raises(ValueError, match="save_path must be .*, got ''; "):
            rec.Saver(allow_empty=True).save(session, "")
    assert names_in(tmp_path) == []


@pytest.mark.long
def test_save_path_may_lack_a_folder_or_share_the_stem_of_one(tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    saver = rec.Saver()
    for save_path, step, prefix in [
        ("bare", None, "bare"),
        ("model", 3, "model-3"),
        ("new/folder/model", None, "new/folder/model"),
        (".hidden", None, ".hidden"),
    ]:
        assert saver.save(trained[0], save_path, global_step=step) == prefix
        saver.restore(trained[0], prefix)
    assert names_in(tmp_path / "model") == []


@pytest.mark.parametrize(
    "save_path, got",
    [
        ("", "''; pass the path that save() returned"),
        ("folder", "'folder', a folder; pass folder/model-3"),
        ("folder/", "'folder/', a folder; pass folder/model-3"),
        ("empty", "'empty', a folder; no file 'checkpoint' in it names one"),
        ("nothing", "'nothing'; nothing.index does not exist"),
        ("folder/model-3.index", "'folder/model-3.index', one of its files; pass folder/model-3"),
    ],
)
def test_restore_path_that_is_no_prefix_is_refused_and_changes_nothing(
    tmp_path, trained, monkeypatch, save_path, got
):
    session, table, keys, train = trained
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    saver = rec.Saver()
    saver.save(session, "folder/model", global_step=3)
    session.run(train, {keys: [1]})
    before = contents_of(session, table)
    with pytest.raises(ValueError, match="save_path must be the prefix of a checkpoint") as caught:
        saver.restore(session, save_path)
    assert f", got {got}" in str(caught.value)
    assert contents_of(session, table) == before


def test_restore_takes_the_checkpoint_beside_a_folder_of_its_name(tmp_path, trained):
    prefix = rec.Saver().save(trained[0], str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    rec.Saver().restore(trained[0], prefix)
    with pytest.raises(ValueError, match="save_path must be .*, a folder; "):
        rec.Saver().save(trained[0], prefix)


@pytest.mark.parametrize("sharded", [False, True])
def test_variables_restore_from_tensorflows_v1_format_as_with_a_stock_saver(tmp_path, sharded):
    weight = tf.get_variable("weight", [2], initializer=tf.zeros_initializer())
    stock = tf.train.Saver(write_version=tf.train.SaverDef.V1, sharded=sharded)
    with tf.Session() as session:
        weight.load([1.0, 2.0], session)
        prefix = stock.save(session, str(tmp_path / "model"))
        weight.load([0.0, 0.0], session)
        rec.Saver().restore(session, prefix)
        assert session.run(weight).tolist() == [1.0, 2.0]


def test_bad_construction_is_an_error(tmp_path):
    table, *_ = build()
    with pytest.raises(TypeError, match="var_list must be a list to save tables"):
        rec.Saver({"table": table})
    with pytest.raises(ValueError, match="max_deltas must be >= 1, got 0"):
        rec.Saver(max_deltas=0)
    with tf.Session() as session:
        with pytest.raises(RuntimeError, match="build\\(\\) must be called"):
            rec.Saver(defer_build=True).save(session, str(tmp_path / "model"))


@pytest.mark.long
def test_a_monitored_session_saves_and_resumes_with_it(tmp_path):
    def run(steps):
        with tf.Graph().as_default():
            _, keys, train = build(shards=2)
            scaffold = tf.train.Scaffold(saver=rec.Saver(max_to_keep=2))
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                scaffold=scaffold,
                save_checkpoint_steps=3,
                save_checkpoint_secs=None,
            ) as session:
                for i in range(steps):
                    session.run(train, {keys: [i, i]})
            return scaffold.saver.last_checkpoints

    assert [path.rpartition("-")[2] for path in run(4)] == ["3", "4"]
    assert [path.rpartition("-")[2] for path in run(3)] == ["4", "7"]


@pytest.mark.long
def test_other_file_systems_are_written_in_place(trained):
    session, table, keys, train = trained
    saver = rec.Saver(incremental=True, max_to_keep=1)
    for _ in range(3):
        prefix = saver.save(session, "ram://folder/model", global_step=tf.train.get_global_step())
        session.run(train, {keys: [1, 5]})
    before = contents_of(session, table)
    saver.save(session, "ram://folder/model", global_step=9)
    saver.restore(session, "ram://folder/model-9")
    assert contents_of(session, table) == before
    assert saver.last_checkpoints == [f"ram://folder/model-{i}" for i in (3, 4, 5, 9)]
    saver.save(session, "ram://folder/model", global_step=10)
    assert saver.last_checkpoints == ["ram://folder/model-10"]
    assert not tf.io.gfile.exists(f"{prefix}.index")


def test_a_long_save_says_how_much_it_wrote(tmp_path, trained, monkeypatch):
    lines = []
    monkeypatch.setattr(saver_lib, "_LOGGED_SECONDS", 0.0)
    monkeypatch.setattr(tf.logging, "info", lambda text, *values: lines.append(text % values))
    rows = trained[0].run(trained[1].size())
    prefix = rec.Saver().save(trained[0], str(tmp_path / "model"))
    (line,) = [line for line in lines if line.startswith("Saved")]
    assert line.startswith(f"Saved {prefix}: {rows} rows, 0.") and line.endswith("MB/s.")
