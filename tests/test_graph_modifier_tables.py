"""Graph modification of sparse_lookup: with admission, eviction and timestamps, bit for bit."""

import pathlib

import numpy as np
import tensorflow.compat.v1 as tf
from modified_graphs import BATCH, QUICK

import rec_estimator as rec

ROWS = 512
USER = {"access_threshold": 3, "eviction_threshold": 60}
ITEM = {"access_threshold": 1, "eviction_threshold": 25}
SPECS = [
    rec.FeatureSpec("user", **USER),
    rec.FeatureSpec("item", index_key="item_ids", **ITEM),
    rec.FeatureSpec("history", "item", **ITEM),
    rec.FeatureSpec("time", is_timestamp=True),
]


def columns(seed):
    """Ever new users, two waves of items, histories with padding, and seconds."""
    rng = np.random.default_rng(seed)
    items = np.concatenate([rng.integers(0, 30, ROWS // 2), rng.integers(20, 60, ROWS // 2)])
    return {
        "user": rng.zipf(1.2, [ROWS, 1]) % 200,
        "item_ids": np.stack([items, np.full(ROWS, -1)], axis=1),
        "history": rng.integers(0, 30, [ROWS, 5]) * rng.integers(0, 2, [ROWS, 5]) - 1,
        "time": np.arange(ROWS),
        "label": rng.random(ROWS).astype(np.float32),
    }


def input_fn(is_training, prefetch=None, by_spec=False):
    """The clock of the data goes on with its epochs, a second in 16 examples."""

    def later(epoch):
        data = tf.data.Dataset.from_tensor_slices(columns(0 if is_training else 1))

        def shifted(row):
            time = (row["time"] + epoch * ROWS) // 16 + 1
            return {**row, "user": row["user"] + epoch * 60, "time": time}

        return data.map(shifted)

    def build():
        data = tf.data.Dataset.range(20 if is_training else 1).flat_map(later).batch(BATCH)
        data = data.map(lambda batch: {**batch, "time": tf.reduce_max(batch["time"])})
        if by_spec:
            data = data.map(rec.get_asc_insert_func(tgt_key_specs=SPECS, is_training=is_training))
        data = data.prefetch(prefetch) if prefetch else data
        return data.map(lambda batch: (batch, batch["label"]))

    return build


def tables():
    initializer = tf.random_normal_initializer(seed=7)
    return {
        name: rec.create_table(tf.int64, 4, name, initializer, device_vocabulary_size=2000)
        for name in ("user", "item")
    }


def as_text_and_back(ids):
    return tf.strings.to_number(tf.strings.as_string(ids), tf.int64)


def vectors_of(features, is_train, by_spec):
    """One lookup of users, two of items of which one takes no part in the gradient."""
    if not by_spec:
        tf.add_to_collection(rec.ASCEND_TIMESTAMP, features["time"])
    found = []
    for spec, config in zip(SPECS, (USER, ITEM, ITEM)):
        how = {"batch": features} if by_spec else {"modify_graph": True}
        if not by_spec:
            how["access_and_evict_config"] = config
        ids = spec if by_spec else as_text_and_back(features[spec.index_key])
        vectors = rec.sparse_lookup(
            tables()[spec.table_name],
            ids,
            is_train=is_train,
            is_grad=spec.name != "history",
            serving_default_value=tf.fill([4], 0.25),
            **how,
        )
        found.append(tf.reduce_sum(vectors, axis=1))
    return found


def model_fn(features, labels, mode, params):
    is_train = mode == rec.ModeKeys.TRAIN
    dense = tf.get_variable("dense", [4], initializer=tf.ones_initializer())
    total = tf.add_n(vectors_of(features, is_train, params["by_spec"]))
    errors = tf.square(tf.reduce_sum(total * dense, axis=1) - labels)
    loss = tf.reduce_mean(errors)
    tf.add_to_collection("watched", loss)
    train_op = None
    if is_train:
        optimizer = rec.optimizers.lazy_adam.create_hash_optimizer(0.01)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = {"error": tf.metrics.mean(errors)}
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


class Losses(tf.train.SessionRunHook):
    def __init__(self):
        self.losses = []
        self.modified = []

    def after_create_session(self, session, coord):
        operations = session.graph.get_operations()
        self.modified.append(any(op.name.startswith("prepared_input/") for op in operations))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(run_context.session.graph.get_collection("watched"))

    def after_run(self, run_context, run_values):
        self.losses += run_values.results


def checkpoints(folder):
    """{checkpoint: {tensor: its type, shape and bytes}} of all that are left."""
    found = {}
    for index in sorted(pathlib.Path(folder).glob("model.ckpt-*.index")):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        found[index.stem] = {k: (v.dtype, v.shape, v.tobytes()) for k, v in tensors.items()}
    return found


def run(folder, modified, by_spec=False, prefetch=None):
    """Trains, stops in the middle with batches prefetched, goes on and evaluates."""
    config = rec.RunConfig(
        tf_random_seed=1,
        session_config=QUICK,
        save_checkpoints_steps=50,
        keep_checkpoint_max=20,
        log_step_count_steps=1000,
    )
    watch = Losses()
    for max_steps in (130, 200):
        estimator = rec.RecEstimator(model_fn, str(folder), config, {"by_spec": by_spec})
        modifier = rec.GraphModifierHook(modify_graph=modified)
        evict = rec.EvictHook(evict_enable=True, evict_step_interval=20)
        data = input_fn(True, prefetch, by_spec)
        estimator.train(data, max_steps=max_steps, hooks=[watch, modifier, evict])
    results = estimator.evaluate(input_fn(False, prefetch, by_spec), hooks=[watch, modifier])
    assert watch.modified == [modified] * 3
    return watch.losses, results, checkpoints(folder)


def test_200_steps_with_admission_and_eviction_are_the_same_in_every_mode(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(tf.logging, "info", lambda text, *values: lines.append((text, values)))
    losses, results, files = run(tmp_path / "plain", False)
    assert len(losses) == 200 + ROWS // BATCH
    assert results["global_step"] == 200
    evictions = [values for text, values in lines if text.startswith("EvictHook")]
    for table in ("user", "item"):
        assert sum(count for count, name in evictions if name == table) > 20
    names = {f"model.ckpt-{step}" for step in (0, 50, 100, 130, 180, 200)}
    assert names <= set(files)
    assert files["model.ckpt-200"]["user-keys_filtered"][1] > (20,)
    for label, arguments in {
        "prefetch 1": dict(modified=True, prefetch=1),
        "prefetch 100": dict(modified=True, prefetch=100),
        "FeatureSpec": dict(modified=False, by_spec=True),
        "FeatureSpec, modified": dict(modified=True, by_spec=True),
    }.items():
        other_losses, other_results, other_files = run(tmp_path / label, **arguments)
        assert other_losses == losses, label
        assert other_results == results, label
        assert other_files.keys() == files.keys()
        for name in files:
            assert other_files[name] == files[name], (label, name)
