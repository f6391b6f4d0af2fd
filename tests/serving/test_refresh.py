# SPDX-License-Identifier: Apache-2.0
"""Refreshable SavedModels: what a refresh writes, what it refuses, and what requests see."""

import os
import shutil
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from stored_checkpoints import in_bucket_order, offsets, write

import rec_estimator as rec
from rec_estimator.checkpoint.files import identity_of

DIM = 4
UNKNOWN = 7.0  # What keys without a row read.
EDGES = [0, -1, -7, np.iinfo(np.int64).min, np.iinfo(np.int64).max]


def model_fn(features, labels, mode, params):
    ids = features["ids"]
    initializer = tf.constant_initializer(UNKNOWN)
    whole = rec.get_embedding_variable("whole", DIM, initializer=initializer)
    parts = rec.get_embedding_variable(
        "parts",
        DIM,
        value_dtype=tf.bfloat16,
        initializer=initializer,
        partitioner=tf.fixed_size_partitioner(3),
    )
    made = rec.create_table(
        tf.int64, DIM, "made", initializer, device_vocabulary_size=20, value_dtype=tf.float16
    )
    dense = tf.get_variable("dense", [DIM], initializer=tf.zeros_initializer())
    predictions = {
        "whole": rec.embedding_lookup(whole, ids),
        "parts": rec.embedding_lookup(parts, ids),
        "made": rec.sparse_lookup(made, ids, is_train=False, modify_graph=True),
        "dense": tf.zeros_like(ids[:, tf.newaxis], tf.float32) + dense,
        "freq": whole.get_frequency(ids),
    }
    return rec.EstimatorSpec(mode, predictions=predictions)


def receiver_fn():
    ids = {"ids": tf.placeholder(tf.int64, [None], name="ids")}
    return rec.ServingInputReceiver(ids, ids)


TABLES = ("whole", "parts", "made")


def rows(keys, value):
    """{key: row}, all of one value."""
    return {key: np.full(DIM, value, np.float32) for key in keys}


def checkpoint(prefix, step, tables, parent=None, erased=(), dense=0.0, unknown=UNKNOWN, **others):
    """Writes a full checkpoint, or a delta of ``parent``, and returns its prefix."""
    tensors = {"global_step": np.int64(step), "dense": np.full(DIM, dense, np.float32), **others}
    for name, contents in tables.items():
        keys = in_bucket_order(np.array(sorted(contents), np.int64))
        tensors[f"{name}/default_values"] = np.full([4096, DIM], unknown, np.float32)
        tensors.update(
            {
                f"{name}-keys": keys,
                f"{name}-values": np.array([contents[k] for k in keys], np.float32).reshape(
                    -1, DIM
                ),
                f"{name}-freqs": np.full(len(keys), step, np.int64),
                f"{name}-versions": np.full(len(keys), step, np.int64),
                f"{name}-partition_offset": offsets(keys),
            }
        )
        if parent is not None:
            tensors[f"{name}-keys_erased"] = np.array(erased, np.int64)
            tensors[f"{name}-delta_of"] = np.array(os.path.basename(parent))
            tensors[f"{name}-delta_of_index"] = np.array(identity_of(parent))
    return write(prefix, tensors)


def same(contents):
    return dict.fromkeys(TABLES, contents)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The SavedModel of a base with keys 1 to 9, and the folder with the base."""
    folder = tmp_path_factory.mktemp("refresh")
    base = checkpoint(folder / "model-1", 1, same(rows(range(1, 10), 1.0)), dense=1.0)
    estimator = rec.RecEstimator(model_fn, str(folder / "model"), params={})
    path = estimator.export_saved_model(
        str(folder / "export"),
        receiver_fn,
        checkpoint_path=base,
        refreshable=True,
        refresh_folder=str(folder / "nowhere"),
    )
    return path.decode(), base


class Served:
    """A SavedModel in a session."""

    def __init__(self, path):
        with tf.Graph().as_default() as graph:
            self.session = tf.Session(graph=graph)
            self._signatures = tf.saved_model.load(self.session, ["serve"], path).signature_def

    def _run(self, key, name, value):
        signature = self._signatures[key]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        return self.session.run(outputs, {signature.inputs[name].name: value})

    def refresh(self, delta):
        return self._run("refresh", "delta", os.path.basename(str(delta)))

    def refresh_by_name(self, name):
        return self._run("refresh", "delta", name)

    def predict(self, ids):
        return self._run("serving_default", "ids", np.asarray(ids, np.int64))

    def check(self, contents, dense, ids=range(-3, 30)):
        """Checks that all tables have these rows."""
        predictions = self.predict(ids)
        expected = [contents.get(key, np.full(DIM, UNKNOWN)) for key in ids]
        for name in ("whole", "parts"):
            np.testing.assert_array_equal(predictions[name], expected)
        expected = [contents.get(key, np.zeros(DIM)) for key in ids]
        np.testing.assert_array_equal(predictions["made"], expected)
        np.testing.assert_array_equal(predictions["dense"], np.full([len(ids), DIM], dense))


@pytest.fixture
def folder(tmp_path, exported, monkeypatch):
    """A folder of deltas, with a copy of the base."""
    path = tmp_path / "deltas"
    path.mkdir()
    for name in os.listdir(os.path.dirname(exported[1])):
        if name.startswith("model-1."):
            shutil.copy(os.path.join(os.path.dirname(exported[1]), name), path)
    monkeypatch.setenv("REC_ESTIMATOR_REFRESH_FOLDER", str(path))
    return path


@pytest.fixture
def served(exported, folder):
    model = Served(exported[0])
    yield model
    model.session.close()


BASE = rows(range(1, 10), 1.0)
ALL_NUMBERS = ("step", "rows_written", "rows_deleted", "variables_written")


def numbers(result):
    return [int(result[name]) for name in ALL_NUMBERS]


def test_deltas_write_and_delete_rows_and_dense_variables(served, folder):
    served.check(BASE, dense=1.0)
    first = checkpoint(
        folder / "model-2", 2, same(rows([3, 20, 21], 2.0)), folder / "model-1", [5], 2.0
    )
    second = checkpoint(folder / "model-3", 3, same(rows([5, 20], 3.0)), first, [21, 4], 3.0)
    result = served.refresh(first)
    assert numbers(result) == [2, 9, 3, 2] and result["checkpoint"] == b"model-2"
    contents = {**BASE, **rows([3, 20, 21], 2.0)}
    del contents[5]
    served.check(contents, dense=2.0)
    assert numbers(served.refresh(second)) == [3, 6, 6, 2]
    contents.update(rows([5, 20], 3.0))
    del contents[21], contents[4]
    served.check(contents, dense=3.0)
    assert list(served.predict([20, 3, 1, 4])["freq"]) == [3, 2, 1, 0]


def test_every_int64_is_a_key_and_an_absent_key_may_be_deleted(served, folder):
    both = sorted({*EDGES} - {-1})
    delta = checkpoint(
        folder / "model-2", 2, same(rows(both, 2.0)), folder / "model-1", [99, 1000, 1, 1]
    )
    assert numbers(served.refresh(delta)) == [2, 3 * len(both), 3, 2]
    contents = {**BASE, **rows(both, 2.0)}
    del contents[1]
    served.check(contents, 0.0, ids=[*EDGES, 99, 1, 2, 1000])


def test_a_key_that_was_deleted_and_written_again_has_its_new_row(served, folder):
    delta = checkpoint(
        folder / "model-2", 2, same(rows([5, 6], 2.0)), folder / "model-1", [5, 7], dense=1.0
    )
    assert numbers(served.refresh(delta)) == [2, 6, 3, 2]
    contents = {**BASE, **rows([5, 6], 2.0)}
    del contents[7]
    served.check(contents, dense=1.0)


def test_slots_of_a_training_delta_are_skipped(served, folder):
    slots = {f"whole/Adagrad-{part}": np.zeros([1, DIM], np.float32) for part in ("values", "keys")}
    delta = checkpoint(
        folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1", [], 1.0, **slots
    )
    served.refresh(delta)
    served.check({**BASE, **rows([5], 2.0)}, dense=1.0)


def test_an_empty_name_tells_where_the_model_is(served, folder):
    assert numbers(served.refresh_by_name("")) == [1, 0, 0, 0]
    served.refresh(checkpoint(folder / "model-2", 2, same({}), folder / "model-1"))
    result = served.refresh_by_name("")
    assert numbers(result) == [2, 0, 0, 0] and result["checkpoint"] == b"model-2"


def test_a_model_that_is_loaded_again_begins_with_its_base(served, exported, folder):
    delta = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1")
    served.refresh(delta)
    again = Served(exported[0])
    again.check(BASE, dense=1.0)
    assert numbers(again.refresh(delta)) == [2, 3, 0, 2]
    again.session.close()


@pytest.mark.parametrize(
    "name",
    ["../model-2", "a/../model-2", "/model-2", "./model-2", "a//model-2", "model-2/", "a\0b"],
)
def test_names_that_may_lead_out_of_the_folder_are_refused(served, folder, name):
    checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1")
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a name in the folder"):
        served.refresh_by_name(name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a name in the folder"):
        served.refresh_by_name(f"file://{folder}/model-2")
    served.check(BASE, dense=1.0)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_link_out_of_the_folder_is_refused(served, folder, tmp_path, suffix):
    delta = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1")
    os.rename(delta + suffix, tmp_path / "outside")
    os.symlink(tmp_path / "outside", delta + suffix)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is a link that leads out of it"):
        served.refresh(delta)
    served.check(BASE, dense=1.0)
    os.rename(tmp_path / "outside", folder / "inside")
    os.remove(delta + suffix)
    os.symlink("inside", delta + suffix)
    served.refresh(delta)


def refused(served, delta, error, match):
    with pytest.raises(error, match=match):
        served.refresh(delta)
    served.check(BASE, dense=1.0)


def test_deltas_that_do_not_fit_are_refused_and_change_nothing(served, folder):
    base, fits = folder / "model-1", tf.errors.FailedPreconditionError
    first = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), base)
    second = checkpoint(folder / "model-3", 3, same(rows([5], 3.0)), first)
    refused(served, second, fits, "must hold the changes to model-1 .* got those to model-2")
    refused(served, base, tf.errors.AlreadyExistsError, "is in the model already")
    refused(served, folder / "model-9", tf.errors.NotFoundError, "model-9")
    full = checkpoint(folder / "model-4", 4, same(rows([5], 4.0)))
    refused(served, full, fits, "got a full checkpoint")
    other = checkpoint(folder / "other-1", 1, same(rows([5], 1.5)))
    of_other = checkpoint(folder / "other-2", 2, same(rows([5], 2.0)), other)
    refused(served, of_other, fits, "got those to other-1")
    alone = checkpoint(folder / "alone", 2, {"whole": rows([5], 2.0)}, base)
    refused(served, alone, tf.errors.NotFoundError, "table parts must be in checkpoint")
    many = checkpoint(folder / "many", 2, same(rows(range(100, 112), 2.0)), base)
    refused(served, many, tf.errors.ResourceExhaustedError, "must have at most 20 rows, got 21")
    served.refresh(first)
    with pytest.raises(tf.errors.AlreadyExistsError, match="model-2 is in the model already"):
        served.refresh(first)
    served.refresh(second)
    served.check({**BASE, **rows([5], 3.0)}, dense=0.0)


def changed(delta, name, tensors):
    """Writes a copy of a delta in which some tensors are others."""
    reader = tf.train.load_checkpoint(str(delta))
    read = {each: reader.get_tensor(each) for each in reader.get_variable_to_shape_map()}
    return write(os.path.join(os.path.dirname(delta), name), {**read, **tensors})


def test_deltas_of_another_model_are_refused(served, folder):
    delta = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1")
    wide = changed(delta, "wide", {"dense": np.zeros(9, np.float32)})
    refused(served, wide, tf.errors.InvalidArgumentError, "dense of .* must be float of shape")
    vectors = changed(delta, "vectors", {"parts-values": np.zeros([1, 9], np.float32)})
    refused(served, vectors, tf.errors.InvalidArgumentError, "must have 4 columns")
    bank = changed(delta, "bank", {"whole/default_values": np.zeros([4096, DIM], np.float32)})
    refused(served, bank, tf.errors.FailedPreconditionError, "must have the initial vectors")


def test_damaged_and_cut_deltas_are_refused_and_the_whole_one_fits_afterwards(served, folder):
    delta = checkpoint(folder / "model-2", 2, same(rows([5, 40], 2.0)), folder / "model-1", [1])
    for suffix, positions in ((".index", 5), (".data-00000-of-00001", 40)):
        path = delta + suffix
        with open(path, "rb") as file:
            whole = file.read()
        for at in np.linspace(0, len(whole) - 1, positions).astype(int):
            for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]):
                with open(path, "wb") as file:
                    file.write(damaged)
                try:
                    served.refresh(delta)
                except tf.errors.OpError as error:
                    assert isinstance(
                        error,
                        (tf.errors.DataLossError, tf.errors.FailedPreconditionError),
                    ), (suffix, at, error)
                else:  # Bytes that nothing of the model is read from.
                    pytest.fail(f"{suffix}, byte {at} of {len(whole)}")
        with open(path, "wb") as file:
            file.write(whole)
    served.check(BASE, dense=1.0)
    served.refresh(delta)


def test_of_two_refreshes_at_once_one_is_refused(served, folder):
    delta = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1", dense=2.0)
    outcomes = []

    def refresh():
        try:
            outcomes.append(numbers(served.refresh(delta)))
        except tf.errors.AlreadyExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=refresh) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=bool) == [None, None, None, [2, 3, 0, 2]]
    served.check({**BASE, **rows([5], 2.0)}, dense=2.0)


def test_without_a_folder_the_error_names_the_variable(exported, monkeypatch, tmp_path):
    monkeypatch.delenv("REC_ESTIMATOR_REFRESH_FOLDER", raising=False)
    served = Served(exported[0])
    with pytest.raises(tf.errors.NotFoundError, match="nowhere/model-2"):
        served.refresh_by_name("model-2")
    served.session.close()


def test_a_table_that_was_restored_after_the_load_is_not_refreshed(served, exported, folder):
    delta = checkpoint(folder / "model-2", 2, same(rows([5], 2.0)), folder / "model-1")
    with served.session.graph.as_default():
        restore = tf.get_default_graph().get_operation_by_name("save/restore_all")
    prefix = os.path.join(exported[0], "variables", "variables")
    served.session.run(restore, {"save/Const:0": prefix})
    with pytest.raises(tf.errors.FailedPreconditionError, match="load the model again"):
        served.refresh(delta)


@pytest.mark.long
def test_requests_beside_refreshes_succeed_and_read_tables_before_or_after(served, folder):
    """Long lookups take the locks of a table several times; the dense variable never lags."""
    many = np.arange(100, 10_100)  # As many keys as three sets of locks are taken for.
    parent, deltas = folder / "model-1", []
    for step in range(2, 14):
        contents = {**dict.fromkeys(["whole", "parts"], rows(many, float(step))), "made": {}}
        parent = checkpoint(folder / f"model-{step}", step, contents, parent, dense=float(step))
        deltas.append(parent)
    served.refresh(deltas[0])
    failures, answers = [], []
    begun, ended = [2], threading.Event()

    def request():
        try:
            while not ended.is_set():
                at_least = begun[0]
                got = served.predict(many)
                tables = np.unique(np.concatenate([got["whole"], got["parts"]]))
                dense = np.unique(got["dense"])
                answers.append(len(tables) == 1 and min(tables[0], dense[0]) >= at_least)
        except tf.errors.OpError as error:
            failures.append(error)

    threads = [threading.Thread(target=request) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step, delta in enumerate(deltas[1:], start=3):
        served.refresh(delta)
        begun[0] = step  # Whoever asks from now on gets it.
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures and all(answers) and len(answers) > len(threads)


@pytest.mark.long
@pytest.mark.parametrize("row_dtype", ["int8", "float16", "bfloat16"])
def test_a_refreshed_export_of_fewer_bits_equals_a_new_one(row_dtype, tmp_path, monkeypatch):
    random = np.random.RandomState(0)
    numbers_of = {key: random.randn(DIM).astype(np.float32) for key in range(1, 30)}
    older = {key: numbers_of[key] for key in range(1, 10)}
    changed = {3: numbers_of[13], 20: numbers_of[20], 21: numbers_of[21]}
    newer = {key: row for key, row in {**older, **changed}.items() if key != 5}
    unknown = numbers_of[29]
    base = checkpoint(tmp_path / "model-1", 1, same(older), dense=1.0, unknown=unknown)
    delta = checkpoint(
        tmp_path / "model-2", 2, same(changed), base, [5], dense=2.0, unknown=unknown
    )
    full = checkpoint(tmp_path / "full-2", 2, same(newer), dense=2.0, unknown=unknown)
    monkeypatch.setenv("REC_ESTIMATOR_REFRESH_FOLDER", str(tmp_path))
    estimator = rec.RecEstimator(model_fn, str(tmp_path / "model"), params={})
    refreshed, new = (
        Served(
            estimator.export_saved_model(
                str(tmp_path / "export"),
                receiver_fn,
                checkpoint_path=prefix,
                refreshable=True,
                row_dtype=row_dtype,
            ).decode()
        )
        for prefix in (base, full)
    )
    assert numbers(refreshed.refresh(delta)) == [2, 9, 3, 2]
    ids = range(30)
    expected = new.predict(ids)
    with np.testing.assert_raises(AssertionError):
        np.testing.assert_array_equal(expected["whole"][3], numbers_of[13])
    bad = checkpoint(
        tmp_path / "model-3", 3, same({7: [1, 2, np.inf, 3]}), delta, dense=2.0, unknown=unknown
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match="must fit into the .*, got key 7"):
        refreshed.refresh(bad)
    got = refreshed.predict(ids)
    for name in TABLES:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    refreshed.session.close()
    new.session.close()
