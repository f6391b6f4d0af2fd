"""Training on compressed batches: losses, gradients, rows and counts of the flat batches."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import data, run

USERS = ("user", "history", "words", "weights", "age")
ROWS = 48


def samples(seed):
    """Flat features of a few users, and labels."""
    random = np.random.RandomState(seed)
    users = random.randint(0, 6, ROWS)
    of_users = np.random.RandomState(5)
    histories = of_users.randint(-1, 12, (6, 4))
    words = of_users.choice(["", "a", "b", "c"], (6, 3))
    weights = of_users.uniform(0.5, 1, (6, 3)).astype(np.float32)
    features = {
        "user": users,
        "history": histories[users],
        "words": words[users],
        "weights": weights[users],
        "age": of_users.uniform(-1, 1, (6, 2)).astype(np.float32)[users],
        "item": random.randint(0, 12, ROWS),
        "price": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
    }
    return features, random.uniform(0, 1, ROWS).astype(np.float32)


FEATURES = [
    rec.EmbeddingFeature("user", 4, filter_option=rec.CounterFilter(20)),
    rec.EmbeddingFeature("history", 4, table="item", combiner=None, max_length=3),
    rec.EmbeddingFeature("words", 3, dtype=tf.string, combiner="sum", weight="weights"),
    rec.EmbeddingFeature("item", 4),
]


def model_fn(features, labels, mode, params):
    """Attention over the history, lookups of its own, and a table without a gradient."""
    parts = rec.get_embedding_variable(
        "parts", 2, partitioner=tf.fixed_size_partitioner(3), initializer=tf.ones_initializer()
    )
    ids = tf.cast(features["age"] * 3, tf.int64)
    seen = rec.get_embedding_variable("seen", 2)
    unused = tf.stop_gradient(rec.embedding_lookup(seen, ids))
    score = tf.reduce_sum(features["history"] * features["item"][:, None], axis=2)
    weights = tf.nn.softmax(score) * tf.cast(features["history_mask"], tf.float32)
    interest = tf.reduce_sum(features["history"] * weights[..., None], axis=1)
    inputs = [features[name] for name in ("user", "words", "item", "age", "price")]
    inputs += [interest, tf.reduce_sum(rec.embedding_lookup(parts, ids), axis=1)]
    inputs = tf.concat(inputs, axis=1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf.get_variable("kernel", [inputs.shape[1], 5])))
    scores = tf.reduce_sum(hidden, axis=1) + 0.0 * tf.reduce_sum(unused, axis=[1, 2])
    loss = tf.reduce_mean(tf.square(scores - labels))
    predictions = {"scores": scores, "user": features["user"]}
    metrics = {"mean": tf.metrics.mean(scores), "age": tf.metrics.mean(features["age"])}
    train_op = None
    if mode == rec.ModeKeys.TRAIN:
        step = tf.train.get_global_step()
        train_op = params["optimizer"]().minimize(loss, global_step=step)
    return rec.EstimatorSpec(
        mode, predictions=predictions, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


class LossHook(tf.train.SessionRunHook):
    """Keeps the losses of all steps."""

    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        # Where Estimator puts what the model_fn gives as its loss.
        return tf.train.SessionRunArgs(tf.get_collection(tf.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results)


def input_fn(is_grouped, kinds=None):
    def dataset():
        batches = [samples(seed) for seed in range(4)]
        columns = {name: np.concatenate([f[name] for f, _ in batches]) for name in batches[0][0]}
        labels = np.concatenate([label for _, label in batches])
        flat = tf.data.Dataset.from_tensor_slices((columns, labels)).batch(ROWS)
        return rec.inputs.group_samples(flat, USERS) if is_grouped else flat

    return dataset


def compare(flat, grouped):
    """All tensors of two checkpoints: rows, slots, counts, versions, filtered keys, variables."""
    names = dict(tf.train.list_variables(flat))
    assert names.keys() == dict(tf.train.list_variables(grouped)).keys()
    readers = [tf.train.load_checkpoint(prefix) for prefix in (flat, grouped)]
    for name in names:
        expected, got = (reader.get_tensor(name) for reader in readers)
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    return names


def compare_slots(flat, grouped):
    """Of two checkpoints all whole numbers, and Adam's slots, to 1e-5 of the largest of each."""
    slots = []
    for name, _ in tf.train.list_variables(flat):
        expected, got = (tf.train.load_variable(prefix, name) for prefix in (flat, grouped))
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
        elif re.search(r"/Adam(_1)?(-values)?$", name):
            slots.append(name)
            largest = max(np.abs(expected).max(initial=0), 1e-4 if name[-2:] != "_1" else 1e-8)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * largest, err_msg=name)
    return slots


OPTIMIZERS = {
    "adagrad": lambda: rec.optimizers.AdagradOptimizer(0.1),
    "adam": lambda: rec.optimizers.AdamOptimizer(0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_flat_training(optimizer, tmp_path):
    estimators, losses = {}, {}
    for kind in ("flat", "grouped"):
        estimators[kind] = rec.RecEstimator(
            model_fn,
            model_dir=str(tmp_path / kind),
            config=rec.RunConfig(tf_random_seed=3),
            params={"optimizer": OPTIMIZERS[optimizer]},
            embedding_features=FEATURES,
            sample_compression=rec.SampleCompression(user=USERS),
        )
        hook = LossHook()
        estimators[kind].train(input_fn(kind == "grouped"), hooks=[hook])
        losses[kind] = hook.losses
    assert len(losses["flat"]) == 4
    np.testing.assert_allclose(losses["grouped"], losses["flat"], rtol=1e-5)
    names = compare(*(str(estimators[kind].latest_checkpoint()) for kind in estimators))
    assert {"user-keys_filtered", "seen-freqs", "parts/part_2-freqs", "item-freqs"} < set(names)
    stored = tf.train.load_checkpoint(estimators["flat"].latest_checkpoint())
    assert len(stored.get_tensor("seen-keys")) and len(stored.get_tensor("user-keys"))
    metrics = [
        estimator.evaluate(input_fn(kind == "grouped")) for kind, estimator in estimators.items()
    ]
    assert metrics[0].keys() == metrics[1].keys()
    for name, value in metrics[0].items():
        np.testing.assert_allclose(metrics[1][name], value, rtol=1e-5, err_msg=name)


def small_batch(size=(2, 1)):
    """A compressed batch as tensors: three samples of two users."""
    return {
        "user": tf.constant([[1.0], [2.0]])[: len(size)],
        "item": tf.constant([[3.0], [4.0], [5.0]]),
        "id": tf.constant([7, 9], tf.int64)[: len(size)],
        "item_size": tf.constant(size),
    }


def small_model_fn(features, labels, mode, params):
    """A dense variable and a table, trained by what params say."""
    table = rec.get_embedding_variable("table", 1, initializer=tf.ones_initializer())
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    initializer = tf.ones_initializer()
    made = rec.create_table(tf.int64, 1, "made", initializer, device_vocabulary_size=99)
    created = rec.sparse_lookup(
        made,
        features["id"],
        modify_graph=True,
        access_and_evict_config=params.get("thresholds"),
    )
    user = weight * features["user"] + rec.embedding_lookup(table, features["id"]) + created
    scores = tf.nn.sigmoid(user * features["item"])
    loss = tf.reduce_mean(tf.square(scores - labels))
    return rec.EstimatorSpec(mode, loss=loss, train_op=params["train"](loss, user))


def ours(loss, user):
    step = tf.train.get_global_step()
    return rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)


def stock(loss, user):
    step = tf.train.get_global_step()
    return tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)


def stock_after_compress(loss, user):
    return stock(rec.graph_optimizer.compress(loss), user)


def only_the_step(loss, user):
    return tf.train.get_global_step().assign_add(1).op


def ours_then_more(loss, user):
    train_op = ours(loss, user)
    return tf.group(train_op, tf.reduce_mean(user))


LABELS = [[1.0], [0.0], [1.0]]


def trained(train, folder, input_fn=None, is_flat=False, thresholds=None, **arguments):
    """Trains two steps; the prefix of the checkpoint and the losses."""

    def batches():
        batch = {**small_batch()}
        if is_flat:
            sizes = batch.pop("item_size")
            batch = {k: v if k == "item" else tf.repeat(v, sizes, axis=0) for k, v in batch.items()}
        return tf.data.Dataset.from_tensors((batch, tf.constant(LABELS))).repeat(2)

    if not is_flat and input_fn is None:
        arguments["sample_compression"] = rec.SampleCompression(user=("user", "id"))
    params = {"train": train, "thresholds": thresholds}
    estimator = rec.RecEstimator(small_model_fn, model_dir=str(folder), params=params, **arguments)
    hook = LossHook()
    estimator.train(input_fn or batches, hooks=[hook], steps=2)
    return str(estimator.latest_checkpoint()), hook.losses


def test_enabled_by_the_input_fn(tmp_path):
    def input_fn():
        batch = small_batch()
        size, labels = batch.pop("item_size"), tf.constant(LABELS)
        # Shapes that say nothing, as those of a dataset.
        batch = {k: tf.placeholder_with_default(v, [None, *v.shape[1:]]) for k, v in batch.items()}
        users = [batch["user"], batch["id"]]
        rec.enable_sample_awared_graph_compression(users, [batch["item"], labels], size)
        return batch, labels

    flat, expected = trained(ours, tmp_path / "flat", is_flat=True)
    grouped, got = trained(ours, tmp_path / "grouped", input_fn)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    compare(flat, grouped)


@pytest.mark.parametrize("train", [stock_after_compress, only_the_step])
def test_tables_are_trained_beside_another_optimizer(train, tmp_path):
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    flat, expected = trained(train, tmp_path / "flat", is_flat=True, table_optimizer=optimizer)
    grouped, got = trained(train, tmp_path / "grouped", table_optimizer=optimizer)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    names = compare(flat, grouped)
    assert ("weight/Adagrad" in names) == (train is stock_after_compress)
    for table in ("table", "made"):
        assert tf.train.load_variable(grouped, f"{table}-freqs").tolist() == [4, 2]


def test_gradients_built_before_the_pass_are_refused(tmp_path):
    optimizer = rec.optimizers.AdamOptimizer(0.1)
    with pytest.raises(ValueError, match=r"minimize rec_estimator.graph_optimizer.compress\(loss"):
        trained(stock, tmp_path, table_optimizer=optimizer)


def test_what_is_built_on_users_rows_after_the_optimizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be used before the optimizer .* 'Mean_1'.* on 'add"):
        trained(ours_then_more, tmp_path)


def test_a_table_that_judges_users_keys_before_the_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'made', which admits keys by a threshold .* users' keys"):
        trained(ours, tmp_path, thresholds={"access_threshold": 2})


def test_a_user_without_samples_is_an_error(tmp_path):
    def batches():
        batch = small_batch((3, 0))
        return tf.data.Dataset.from_tensors((batch, tf.constant(LABELS)))

    estimator = rec.RecEstimator(
        small_model_fn,
        model_dir=str(tmp_path),
        params={"train": ours},
        sample_compression=rec.SampleCompression(user=("user", "id")),
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="a sample or more in training"):
        estimator.train(batches)


def test_bad_declarations_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be names of features, got"):
        rec.SampleCompression(user=[])
    with pytest.raises(TypeError, match="must be a SampleCompression, got 'user'"):
        rec.RecEstimator(small_model_fn, params={}, sample_compression="user")
    with pytest.raises(ValueError, match="user feature 'who' of sample_compression"):
        rec.SampleCompression(user="who").enable(small_batch(), None)
    flat = tf.data.Dataset.from_tensors(small_batch())

    def enable(batch):
        rec.SampleCompression(user="user").enable(batch, None)
        return batch

    with pytest.raises(ValueError, match="in the graph of the model, got a function's"):
        flat.map(enable)


@pytest.mark.parametrize("model", ["din", pytest.param("wide_and_deep", marks=pytest.mark.slow)])
def test_models_of_the_zoo_train_the_same(model, tmp_path):
    task = data.load("generated")
    users = [column.name for column in task.columns if column.side != "item"]
    kept = {name: rows[-512:] for name, rows in task.train.items()}
    for name in users:  # Few users, as where candidates are logged.
        kept[name] = kept[name][np.arange(512) % 37]
    prefixes, losses = {}, {}
    for is_grouped in (False, True):

        def input_fn(is_grouped=is_grouped):
            flat = rec.inputs.numpy_input_fn(kept, task.train_labels[:512], batch_size=128)()
            return rec.inputs.group_samples(flat, users) if is_grouped else flat

        estimator = rec.RecEstimator(
            run.MODELS[model].model_fn,
            model_dir=str(tmp_path / str(is_grouped)),
            config=rec.RunConfig(tf_random_seed=1),
            params={"columns": task.columns, "hidden_units": (8, 4), "learning_rate": 1e-3},
            embedding_features=run.MODELS[model].embedding_features(task.columns, 4),
            sample_compression=rec.SampleCompression(user=users),
        )
        hook = LossHook()
        estimator.train(input_fn, hooks=[hook], steps=1)
        prefixes[is_grouped] = str(estimator.latest_checkpoint())
        estimator.train(input_fn, hooks=[hook])
        losses[is_grouped] = hook.losses
    # After one step Adam's slots are the gradients and their squares. The weights say less: Adam
    # makes whole steps of gradients that are rounding only, as a bias below a softmax has.
    slots = compare_slots(*prefixes.values())
    assert "deep/hidden_0/kernel/Adam" in slots and "item/Adam-values" in slots
    assert tf.train.load_variable(prefixes[True], "item-freqs").sum() > 128
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
    assert len(losses[True]) == 5
