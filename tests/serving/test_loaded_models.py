# SPDX-License-Identifier: Apache-2.0
"""Models that tf.saved_model.load of TensorFlow 2 loads: their tables live as long as they do."""

import json
import textwrap

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import run

import rec_estimator as rec
from rec_estimator import _ops
from rec_estimator.graph_passes.graph_state import TABLE_HANDLES

PROGRAM = textwrap.dedent(
    """
    import gc, json, os, sys
    import numpy as np
    import tensorflow as tf
    import rec_estimator as rec

    path, disk = sys.argv[1:]

    def load():
        return tf.saved_model.load(path)

    def read(signature):
        ids = tf.constant([1, 2, 10**12], tf.int64)
        return {name: value.numpy().tolist() for name, value in signature(ids=ids).items()}

    def memory():
        gc.collect()
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def files():
        gc.collect()
        return sum(len(names) for _, _, names in os.walk(disk))

    def signature_of(model):
        return model.signatures["serving_default"]
    """
)


def model_fn(features, labels, mode, params):
    storage = rec.StorageOption(rec.StorageType.DRAM_SSDHASH, params["disk"], [100 * 16 * 4])
    options = {
        "plain": {},
        "parts": {"partitioner": tf.fixed_size_partitioner(3)},
        "on_disk": {"ev_option": rec.EmbeddingVariableOption(storage_option=storage)},
    }
    values = {
        name: rec.embedding_lookup(rec.get_embedding_variable(name, 16, **option), features["ids"])
        for name, option in options.items()
    }
    made = rec.create_table(
        tf.int64, 16, "made", tf.ones_initializer(), device_vocabulary_size=60_000, is_save=False
    )
    values["made"] = rec.sparse_lookup(
        made, features["ids"], is_train=mode == "train", modify_graph=True
    )
    dense = tf.get_variable("dense", [16])
    values["sum"] = tf.add_n(list(values.values())) * dense
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions=values)
    loss = tf.reduce_sum(values["sum"])
    step = tf.train.get_global_step()
    train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def receiver():
    ids = {"ids": tf.placeholder(tf.int64, [None], name="ids")}
    return rec.ServingInputReceiver(ids, ids)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The paths of an export and of the folder for its rows on disk."""
    folder = tmp_path_factory.mktemp("loaded")
    disk = folder / "disk"
    estimator = rec.RecEstimator(model_fn, str(folder / "model"), params={"disk": str(disk)})
    estimator.train(lambda: tf.data.Dataset.from_tensors({"ids": np.arange(50_000)}))
    return estimator.export_saved_model(str(folder / "export"), receiver).decode(), str(disk)


def result_of(exported, code):
    done = run(["-c", PROGRAM + textwrap.dedent(code), *exported])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_tables_end_with_the_model_that_was_loaded(exported):
    """The files of its rows on disk show when a table ends; the memory shows that all do."""
    result = result_of(
        exported,
        """
        before = []
        for _ in range(12):
            model = load()
            read(signature_of(model))
            kept = files()
            del model
            before.append((kept, files(), memory()))
        print(json.dumps(before))
        """,
    )
    kept, left, memory = zip(*result)
    assert min(kept) > 0 and set(left) == {0}
    # A model has two tables with 50,000 rows of 64 bytes in memory. The first loads also fill the
    # allocator.
    assert memory[-1] - memory[2] < 2 * 2 * 50_000 * 64


@pytest.mark.long
def test_a_signature_alone_keeps_its_tables(exported):
    first, again, left = result_of(
        exported,
        """
        signature = signature_of(load())
        gc.collect()
        result = [read(signature)]
        result.append(read(signature))
        del signature
        print(json.dumps([*result, files()]))
        """,
    )
    assert first == again and left == 0
    assert np.any(first["plain"]) and np.any(first["parts"]) and np.any(first["on_disk"])


def test_a_model_keeps_its_tables_when_another_one_of_its_export_ends(exported):
    one, other, after = result_of(
        exported,
        """
        one, other = load(), load()
        result = [read(signature_of(one)), read(signature_of(other))]
        del one
        gc.collect()
        print(json.dumps([*result, read(signature_of(other))]))
        """,
    )
    assert one == other == after


def test_a_session_reads_the_same_rows(exported):
    (by_function,) = result_of(exported, "print(json.dumps([read(signature_of(load()))]))")
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], exported[0]).signature_def
        outputs = {key: out.name for key, out in signature["serving_default"].outputs.items()}
        result = session.run(outputs, {"ids:0": [1, 2, 10**12]})
    assert {name: value.tolist() for name, value in result.items()} == by_function


def test_a_graph_that_was_imported_can_be_exported_again():
    with tf.Graph().as_default():
        rec.get_embedding_variable("t", 2)
        meta = tf.train.Saver().export_meta_graph()
    for scope in (None, "scope"):
        with tf.Graph().as_default():
            tf.train.import_meta_graph(meta, import_scope=scope)
            again = tf.train.export_meta_graph(export_scope=scope)
            assert again.collection_def[TABLE_HANDLES] == meta.collection_def[TABLE_HANDLES]


def test_each_call_of_an_op_whose_handle_owns_the_table_makes_one():
    with tf.Graph().as_default(), tf.Session() as session:
        handle = _ops.gen.rec_estimator_table_handle(shared_name="t", dim=2, owned_by_handle=True)
        initialize = _ops.gen.rec_estimator_table_initialize(handle, tf.ones([1, 2]))
        with tf.control_dependencies([initialize]):
            is_initialized = _ops.gen.rec_estimator_table_is_initialized(handle)
        assert session.run(is_initialized)
        assert not session.run(_ops.gen.rec_estimator_table_is_initialized(handle))
