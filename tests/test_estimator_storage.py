# SPDX-License-Identifier: Apache-2.0
"""RecEstimator with tables mostly on disk: the same losses, checkpoints and predictions."""

import gc
import pathlib

import numpy as np
import pytest
import storage_runs
import tensorflow.compat.v1 as tf
from modified_graphs import QUICK

import rec_estimator as rec
from rec_estimator.table.memory_limit import share_memory
from rec_estimator.table.table import graph_tables

ROWS, BATCH, STEPS = 4096, 128, 60
DIM = 32
USERS = ["user"]


def columns(seed=0):
    """Users come in runs, as in samples to be grouped."""
    random = np.random.default_rng(seed)
    users = np.repeat(random.integers(0, 2000, ROWS // 4), 4)
    items = (4000 * random.random((ROWS, 3)) ** 2).astype(np.int64)
    return {"user": users, "items": items}, random.random(ROWS).astype(np.float32)


def input_fn(is_grouped=False, epochs=None, seed=0):
    def build():
        data = tf.data.Dataset.from_tensor_slices(columns(seed)).repeat(epochs).batch(BATCH)
        return rec.inputs.group_samples(data, USERS) if is_grouped else data

    return build


def option(storage):
    return rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(2), storage_option=storage)


def features_of(storage):
    return [
        rec.EmbeddingFeature("user", DIM, ev_option=option(storage)),
        rec.EmbeddingFeature("items", DIM, ev_option=option(storage)),
    ]


def spec_of(vectors, labels, mode):
    kernel = tf.get_variable("kernel", [2 * DIM], initializer=tf.ones_initializer())
    logits = tf.reduce_sum(tf.concat(vectors, axis=1) * kernel, axis=1)
    if mode == rec.ModeKeys.PREDICT:
        outputs = {"serving_default": rec.PredictOutput({"logits": logits})}
        return rec.EstimatorSpec(mode, predictions={"logits": logits}, export_outputs=outputs)
    errors = tf.square(logits - labels)
    loss = tf.reduce_mean(errors)
    tf.add_to_collection("watched", loss)
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = rec.optimizers.AdamOptimizer(0.01).minimize(loss, global_step=step)
    metrics = {"error": tf.metrics.mean(errors)}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def model_fn(features, labels, mode):
    return spec_of([features["user"], features["items"]], labels, mode)


def columns_model_fn(features, labels, mode, params):
    """The same with feature columns."""
    made = [
        rec.embedding_column(
            rec.categorical_column_with_embedding(
                name, tf.int64, ev_option=option(params["storage"])
            ),
            DIM,
        )
        for name in ("items", "user")
    ]
    vectors = [tf.feature_column.input_layer(features, [column]) for column in made]
    return spec_of(vectors, labels, mode)


class Watch(tf.train.SessionRunHook):
    """Fetches the losses, and in the end what the disk of the tables has done."""

    def begin(self):
        self.losses, self.tiers = [], None
        (self.loss,) = tf.get_collection("watched")
        self.counts = [table.tier_counts() for table in graph_tables()]

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results)

    def end(self, session):
        found = session.run(self.counts)
        self.tiers = rec.TierCounts(*(int(sum(each)) for each in zip(*found)))


def estimator_in(folder, storage, variant):
    config = rec.RunConfig(
        tf_random_seed=1,
        session_config=QUICK,
        save_checkpoints_steps=20,
        save_incremental_checkpoints_steps=10,
        keep_checkpoint_max=20,
        iterations_per_loop=5 if variant == "step loop" else 1,
        table_memory_bytes=1 if variant == "one limit" and storage.storage_path else None,
    )
    if variant == "feature columns":
        params = {"storage": storage}
        return rec.RecEstimator(columns_model_fn, str(folder), config, params)
    compression = rec.SampleCompression(user=USERS) if variant == "grouped samples" else None
    return rec.RecEstimator(
        model_fn,
        str(folder),
        config,
        embedding_features=features_of(storage),
        sample_compression=compression,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "variant",
    [
        *("plain", "graph modification", "step loop", "grouped samples", "feature columns"),
        "one limit",
    ],
)
def test_an_estimator_gives_the_same_bits(variant, tmp_path, request):
    is_modified = variant == "graph modification"
    if variant == "step loop":  # It refuses ref variables.
        request.getfixturevalue("resource_variables")
    is_grouped = variant == "grouped samples"

    def scenario(storage, folder):
        estimator, watch = estimator_in(folder, storage, variant), Watch()
        hooks = [watch] + [rec.GraphModifierHook()] * is_modified
        estimator.train(input_fn(is_grouped), max_steps=STEPS, hooks=hooks)
        files = {
            path.name: path.read_bytes() for path in pathlib.Path(folder).glob("model.ckpt-*.data*")
        }
        metrics = estimator.evaluate(input_fn(is_grouped, epochs=1, seed=1), steps=4)
        found = estimator.predict(input_fn(is_grouped, epochs=1, seed=1))
        logits = [row["logits"] for _, row in zip(range(200), found)]
        return watch.losses, files, sorted(metrics.items()), logits, watch.tiers

    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario, is_modified)
    gc.collect()
    left = list((tmp_path / "rows").iterdir())
    assert left == [], "a run that ends removes its files"


if hasattr(tf.data.experimental, "CheckpointInputPipelineHook"):  # TensorFlow 2.15.

    @pytest.mark.long
    def test_saved_state_of_the_input_goes_on_where_it_was(tmp_path):
        def scenario(storage, folder):
            losses, is_on_disk = [], bool(storage.storage_path)
            for steps in (30, STEPS):
                estimator, watch = estimator_in(folder, storage, "plain"), Watch()
                hooks = [watch, tf.data.experimental.CheckpointInputPipelineHook(estimator)]
                hooks += [rec.GraphModifierHook()] * is_on_disk
                estimator.train(input_fn(), max_steps=steps, hooks=hooks)
                losses += watch.losses
            assert len(losses) == STEPS
            assert tf.train.latest_checkpoint(str(folder), "checkpoint_input")
            return losses, watch.tiers

        storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario)

    @pytest.mark.long
    def test_the_hook_that_saves_the_state_of_the_input_comes_first(tmp_path):
        estimator = estimator_in(tmp_path / "model", storage_runs.on_disk(tmp_path), "plain")
        saves_input = tf.data.experimental.CheckpointInputPipelineHook(estimator)
        hooks = [rec.GraphModifierHook(), saves_input]
        with pytest.raises(tf.errors.OpError, match="TablesBringIn is stateful"):
            estimator.train(input_fn(), steps=2, hooks=hooks)


def receiver():
    return rec.build_raw_serving_input_receiver_fn(
        {
            "user": tf.placeholder(tf.int64, [None], name="user"),
            "items": tf.placeholder(tf.int64, [None, 3], name="items"),
        }
    )()


@pytest.mark.long
def test_a_saved_model_gives_the_same_bits_and_leaves_rows_on_disk(tmp_path):
    def scenario(storage, folder):
        estimator, watch = estimator_in(folder, storage, "plain"), Watch()
        estimator.train(input_fn(), max_steps=STEPS, hooks=[watch])
        path = estimator.export_saved_model(str(folder / "export"), receiver).decode()
        gc.collect()
        with tf.Graph().as_default(), tf.Session() as session:
            model = tf.saved_model.load(session, ["serve"], path)
            signature = model.signature_def["serving_default"]
            features, _ = columns()
            feed = {signature.inputs[name].name: features[name] for name in ("user", "items")}
            files = list((tmp_path / "rows").iterdir()) if storage.storage_path else []
            assert len(files) == (2 if storage.storage_path else 0), "the server's own"
            size = sum(file.stat().st_size for file in files)
            served = [session.run(signature.outputs["logits"].name, feed) for _ in range(2)]
            assert size == sum(file.stat().st_size for file in files), "nothing was spilled"
        return served, watch.tiers

    storage_runs.assert_same_in_memory_and_on_disk(tmp_path, scenario)


# ------------------------------------------------------------------ one limit of all tables


def attrs_of(table):
    names = ("memory_rows", "memory_bytes", "memory_limit")
    return [tuple(shard.op.get_attr(name) for name in names) for shard in table]


def test_one_limit_gives_each_table_the_memory_of_as_many_keys(tmp_path):
    storage = rec.EmbeddingVariableOption(storage_option=storage_runs.on_disk(tmp_path))
    narrow = rec.get_embedding_variable("narrow", 8, ev_option=storage)
    wide = rec.get_embedding_variable(
        "wide", 24, ev_option=storage, partitioner=tf.fixed_size_partitioner(2)
    )
    sized = rec.create_table(
        *(tf.int64, 32, "sized", tf.zeros_initializer()),
        host_vocabulary_size=9,
        ssd_vocabulary_size=9,
        ssd_data_path=[str(tmp_path)],
    )
    in_memory = rec.get_embedding_variable("in_memory", 8)
    keys = tf.constant([1, 2], tf.int64)
    values = [rec.embedding_lookup(table, keys) for table in (narrow, wide, in_memory)]
    values.append(rec.sparse_lookup(sized, keys, modify_graph=True))
    loss = tf.add_n([tf.reduce_sum(value) for value in values])
    rec.optimizers.AdagradOptimizer(0.1).minimize(loss)
    keys_of_all = 1000
    # Bytes of a row, value and slot, and of an entry in the index.
    of_key = {narrow: 2 * 8 * 4 + 35, wide: 2 * 24 * 4 + 35, sized: 2 * 32 * 4 + 35}
    share_memory(graph_tables(), keys_of_all * sum(of_key.values()))
    assert attrs_of(narrow) == [(0, 0, keys_of_all * of_key[narrow])]
    assert attrs_of(wide) == [(0, 0, keys_of_all * of_key[wide] // 2)] * 2
    assert attrs_of(sized) == [(0, 0, keys_of_all * of_key[sized])]
    assert attrs_of(in_memory) == [(0, 0, 0)]


def test_one_limit_without_a_table_on_disk_is_refused(tmp_path):
    config = rec.RunConfig(table_memory_bytes=10)
    estimator = rec.RecEstimator(
        model_fn, str(tmp_path), config, embedding_features=features_of(rec.StorageOption())
    )
    with pytest.raises(ValueError, match="table_memory_bytes must be None if no table has a tier"):
        estimator.train(input_fn(), steps=1)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_one_limit_must_be_a_number_of_bytes(value):
    with pytest.raises(ValueError, match="table_memory_bytes must be an integer in .1, "):
        rec.RunConfig(table_memory_bytes=value)


def test_replace_keeps_or_changes_the_limit():
    config = rec.RunConfig(table_memory_bytes=7).replace(model_dir="a")
    assert config.table_memory_bytes == 7
    assert config.replace(table_memory_bytes=None).table_memory_bytes is None
    assert rec.RunConfig().table_memory_bytes is None
