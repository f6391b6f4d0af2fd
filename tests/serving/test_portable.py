# SPDX-License-Identifier: Apache-2.0
"""Portable SavedModels: the same predictions with TensorFlow's own ops only."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import predict

import rec_estimator as rec
from model_zoo import data, runner
from model_zoo.runner import config
from model_zoo.runner.build import build_estimator

SERVER = pathlib.Path(__file__).parent / "serve_without_rec_estimator.py"
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

FEATURES = [
    rec.EmbeddingFeature("user", 4),
    rec.EmbeddingFeature("word", 3, combiner="sum", filter_option=rec.CounterFilter(3)),
    rec.EmbeddingFeature("tag", 3, combiner="sqrtn", weight="weight"),
    rec.EmbeddingFeature(
        "topic",
        5,
        combiner="sqrtn",
        filter_option=rec.CBFFilter(2, 100, 0.01),
        value_dtype=tf.bfloat16,
    ),
    rec.EmbeddingFeature(
        "rare",
        2,
        filter_option=rec.CounterFilter(10**6),
        ev_option=rec.EmbeddingVariableOption(
            init_option=rec.InitializerOption(default_value_no_permission=0.25)
        ),
    ),
    rec.EmbeddingFeature("history", 4, table="user", combiner=None, max_length=3),
]


def model_fn(features, labels, mode, params):
    """Every kind of lookup, each with its own output, and one behind a vocabulary file."""
    initializer = tf.random_uniform_initializer(1, 2, seed=5)
    whole = rec.get_embedding_variable("whole", 2, key_dtype=tf.int32, initializer=initializer)
    parts = rec.get_embedding_variable(
        "parts", 2, initializer=initializer, partitioner=tf.fixed_size_partitioner(3)
    )
    ids = features["ids"]
    sparse = tf.sparse.from_dense(ids)
    weights = sparse.with_values(tf.cast(sparse.values, tf.float32) / 7.0)
    outputs = {feature.name: features[feature.name] for feature in FEATURES}
    outputs.update(
        history_mask=tf.cast(features["history_mask"], tf.float32),
        whole=rec.embedding_lookup(whole, tf.cast(ids, tf.int32), max_norm=1.5),
        parts=rec.embedding_lookup(parts, ids),
        parts_sum=rec.embedding_lookup_sparse(parts, sparse, weights, combiner="sum"),
        ragged=rec.embedding_lookup_sparse(
            whole, tf.RaggedTensor.from_tensor(tf.cast(ids, tf.int32), padding=0), combiner="mean"
        ),
    )
    made = rec.create_table(tf.int64, 2, "made", initializer, device_vocabulary_size=1000)
    for name, default in (("made", None), ("made_default", tf.constant([3.0, 4.0]))):
        outputs[name] = rec.sparse_lookup(
            made,
            ids,
            is_train=mode == rec.ModeKeys.TRAIN,
            modify_graph=True,
            serving_default_value=default,
        )
    # The op of a training lookup, which reads initial vectors.
    outputs["made_initial"] = rec.embedding_lookup(made, ids)
    index = tf.lookup.TextFileIndex
    lines = tf.lookup.TextFileInitializer(
        params["vocabulary"], tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    line = tf.lookup.StaticHashTable(lines, -1).lookup(tf.strings.as_string(ids))
    outputs["line"] = tf.cast(line, tf.float32)
    # No op reads this variable, but a loader looks its tensor up.
    tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, tf.constant(params["vocabulary"]))
    outputs["dense"] = tf.get_variable("dense", [3], initializer=tf.ones_initializer()) + 0.0
    loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs.values()])
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        )
    return rec.EstimatorSpec(
        mode,
        predictions=outputs,
        loss=loss,
        train_op=train_op,
        export_outputs={"predict": rec.PredictOutput(outputs)},
    )


def batch(rows, low=-3, high=9):
    random = np.random.RandomState(rows)
    features = {
        name: random.randint(low, high, (rows, 3))
        for name in ("word", "tag", "topic", "rare", "history", "ids")
    }
    features["user"] = random.randint(low, high, rows)
    features["weight"] = random.uniform(0.5, 1, (rows, 3)).astype(np.float32)
    return features


def receiver():
    shapes = {name: [None] if value.ndim == 1 else [None, 3] for name, value in batch(1).items()}
    tensors = {
        name: tf.placeholder(tf.float32 if name == "weight" else tf.int64, shape, name=f"in_{name}")
        for name, shape in shapes.items()
    }
    return rec.ServingInputReceiver(tensors, tensors)


def input_fn():
    return tf.data.Dataset.from_tensors((batch(40), np.zeros(40, np.float32))).repeat()


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    vocabulary = tmp_path_factory.mktemp("assets") / "vocabulary.txt"
    vocabulary.write_text("".join(f"{id}\n" for id in (5, -1, 3)))
    made = rec.RecEstimator(
        model_fn,
        model_dir=str(tmp_path_factory.mktemp("model")),
        config=rec.RunConfig(tf_random_seed=3),
        params={"vocabulary": str(vocabulary)},
        embedding_features=FEATURES,
    )
    made.train(input_fn, steps=2)
    return made


@pytest.fixture(scope="module")
def exports(estimator, tmp_path_factory):
    """Folders of the SavedModel with our ops and of the portable one."""
    folder = tmp_path_factory.mktemp("exports")
    extra = folder / "extra"
    extra.write_text("beside the model")
    made = [
        tf.compat.as_str(
            estimator.export_saved_model(
                str(folder / name), receiver, {"more/extra": str(extra)}, portable=portable
            )
        )
        for name, portable in (("ours", False), ("portable", True))
    ]
    assert os.listdir(folder / "portable") == [os.path.basename(made[1])]
    return made


def request():
    """Known, unknown and filtered keys, the least and the greatest key, and rows without keys."""
    features = batch(12, low=-5, high=20)
    for name in ("user", "ids", "tag"):
        features[name].flat[:2] = [LEAST, MOST] if name != "ids" else [-(2**31), 2**31 - 1]
    for name in ("word", "tag", "topic", "history"):
        features[name][3:5] = -1
    features["ids"][5] = -1
    return features


def names_of(folder):
    """The names of the tensors of the signature "predict"."""
    with tf.Session(graph=tf.Graph()) as session:
        signature = tf.saved_model.load(session, ["serve"], folder).signature_def["predict"]
    return {
        side: {key: info.name for key, info in getattr(signature, side).items()}
        for side in ("inputs", "outputs")
    }


@pytest.mark.long
@pytest.mark.parametrize("loader", ["v1", "v2", "c"])
def test_portable_export_is_served_without_our_library(loader, exports, tmp_path):
    ours, portable = exports
    expected = predict(ours, request())
    np.savez(tmp_path / "request.npz", **request())
    wheel = tf.sysconfig.get_lib()
    subprocess.run(
        [
            *(sys.executable, str(SERVER), loader, portable, json.dumps(names_of(portable))),
            *(str(tmp_path / "request.npz"), str(tmp_path / "response.npz")),
        ],
        check=True,
        env={**os.environ, "PYTHONPATH": "", "TENSORFLOW_FOLDER": wheel},
        cwd=tmp_path,
    )
    got = np.load(tmp_path / "response.npz")
    assert set(got) == set(expected) and len(expected) > 9
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.long
def test_compressed_portable_export_of_a_zoo_model_gives_equal_predictions(tmp_path):
    clicks = data.load("generated")
    settings = config.from_dict(
        {
            "model": "din",
            "params": {"dim": 4, "hidden_units": [8, 4]},
            "export": {"kind": "compressed"},
        }
    )
    estimator = build_estimator(settings, clicks, str(tmp_path / "model"))
    estimator.train(clicks.input_fn("train", 64), steps=2)
    columns = {"item_size": np.array([3, 0, 4], np.int32)}
    for column in clicks.columns:
        rows = clicks.in_memory("train").features[column.name]
        rows = rows[: 7 if column.role == "item" else 3]
        is_key = column.kind == "id" and rows.ndim == 1
        columns[column.name] = rows[:, None] if is_key else rows
    receiver_fn = runner.receiver_fn(settings, clicks)
    folders = [
        estimator.export_savedmodel(str(tmp_path / str(portable)), receiver_fn, portable=portable)
        for portable in (False, True)
    ]
    expected, got = (predict(folder, columns) for folder in folders)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6)


def ops_of(folder):
    with tf.Session(graph=tf.Graph()) as session:
        definition = tf.saved_model.load(session, ["serve"], folder).graph_def
    bodies = [function.node_def for function in definition.library.function]
    return {node.op for nodes in (*bodies, definition.node) for node in nodes}


@pytest.mark.long
def test_portable_export_contains_only_tensorflow_ops(exports):
    ours, portable = (ops_of(folder) for folder in exports)
    assert any(op.startswith("RecEstimator>") for op in ours)
    assert not [op for op in portable if op.startswith("RecEstimator>")]
    stored = dict(tf.train.list_variables(os.path.join(exports[1], "variables", "variables")))
    assert stored["rare/stock/keys"] == [0]
    assert {"dense", "global_step"} < set(stored)
    assert not [name for name in stored if name.endswith(("-values", "/default_values"))]
    extra = pathlib.Path(exports[1], "assets.extra", "more", "extra")
    assert extra.read_text() == "beside the model"
    assert os.listdir(pathlib.Path(exports[1], "assets")) == ["vocabulary.txt"]


def supervised(features, labels):
    """A receiver with labels."""
    return rec.experimental.build_raw_supervised_input_receiver_fn(
        {name: tf.convert_to_tensor(value) for name, value in features.items()},
        tf.convert_to_tensor(labels),
    )


@pytest.mark.long
def test_several_modes_are_exported_as_text(estimator, exports, tmp_path):
    labelled = supervised(batch(1), np.zeros(1, np.float32))
    receivers = {rec.ModeKeys.PREDICT: receiver, rec.ModeKeys.EVAL: labelled}
    portable = estimator.experimental_export_all_saved_models(
        str(tmp_path), receivers, as_text=True, portable=True
    ).decode()
    assert "saved_model.pbtxt" in os.listdir(portable)
    expected, got = predict(exports[1], request()), predict(portable, request())
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["eval"], portable)


class TestRefusals:
    """Ops that cannot be replaced are an error that names them, and no file remains."""

    def export(self, tmp_path, outputs_of, mode=rec.ModeKeys.PREDICT):
        def model_fn(features, labels, mode):
            table = rec.get_embedding_variable("table", 2)
            read = rec.embedding_lookup(table, features["ids"])
            loss = tf.reduce_sum(read)
            train_op = None
            if mode == rec.ModeKeys.TRAIN:
                train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
                    loss, global_step=tf.train.get_global_step()
                )
            else:
                read = outputs_of(table, features["ids"])
            outputs = {"predict": rec.PredictOutput({"out": read})}
            return rec.EstimatorSpec(
                mode, predictions=read, loss=loss, train_op=train_op, export_outputs=outputs
            )

        def ids():
            tensors = {"ids": tf.placeholder(tf.int64, [None], name="in_ids")}
            return rec.ServingInputReceiver(tensors, tensors)

        estimator = rec.RecEstimator(model_fn, model_dir=str(tmp_path / "model"))
        estimator.train(lambda: tf.data.Dataset.from_tensors(({"ids": np.arange(4)}, 0.0)))
        try:
            estimator.export_saved_model(
                str(tmp_path / "export"),
                ids if mode == rec.ModeKeys.PREDICT else supervised({"ids": np.arange(4)}, 0.0),
                experimental_mode=mode,
                portable=True,
            )
        finally:
            self.left = os.listdir(tmp_path / "export")

    @pytest.mark.long
    def test_a_lookup_inside_of_tf_cond(self, tmp_path, version):
        def outputs_of(table, ids):
            return tf.cond(
                tf.size(ids) > 2,
                lambda: rec.embedding_lookup(table, ids),
                lambda: tf.zeros([1, 2]),
            )

        where = {1: "'cond/.*'", 2: "'.*' in function '.*cond_true.*'"}[version]
        with pytest.raises(ValueError, match=f"got TableLookup {where}; look keys up outside"):
            self.export(tmp_path, outputs_of)
        assert self.left == []

    @pytest.mark.long
    def test_an_output_that_needs_the_table(self, tmp_path):
        with pytest.raises(ValueError, match="got TableFrequencies .* signatures that only read"):
            self.export(tmp_path, lambda table, ids: table.get_frequency(ids))

    @pytest.mark.long
    def test_a_training_graph(self, tmp_path):
        with pytest.raises(ValueError, match="got Tables.* a graph that does not train"):
            self.export(tmp_path, None, mode=rec.ModeKeys.TRAIN)
