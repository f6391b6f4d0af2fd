# SPDX-License-Identifier: Apache-2.0
"""Training on compressed batches: losses, gradients, rows and counts of the flat batches."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import LossHook, predict
from modified_graphs import QUICK
from narrow_tables import VALUE_DTYPES

import rec_estimator as rec

USERS = ("user", "user_id", "history", "recent", "words", "weights", "age")
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
        "user_id": users,
        "history": histories[users],
        "recent": histories[users, :2] % 7,
        "words": words[users],
        "weights": weights[users],
        "age": of_users.uniform(-1, 1, (6, 2)).astype(np.float32)[users],
        "item": random.randint(0, 12, ROWS),
        "item_id": random.randint(0, 5, ROWS),
        "price": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
    }
    return features, random.uniform(0, 1, ROWS).astype(np.float32)


def features_of(value_dtype):
    """The features, whose tables store values of a type."""
    feature = functools.partial(rec.EmbeddingFeature, value_dtype=value_dtype)
    return [
        feature("user", 4, filter_option=rec.CounterFilter(20)),
        feature("history", 4, table="item", combiner=None, max_length=3),
        feature("words", 3, dtype=tf.string, combiner="sum", weight="weights"),
        feature("item", 4),
    ]


# Some keys reach the threshold within a batch, some in a later batch, some never.
THRESHOLDS = {"access_threshold": 180, "faae_coefficient": 2}


def model_fn(features, labels, mode, params):
    """A model with attention over the history, own lookups, and a table without a gradient."""
    is_training = mode == rec.ModeKeys.TRAIN
    stored = {"value_dtype": params["value_dtype"]}
    cut, ones = tf.fixed_size_partitioner(3), tf.ones_initializer()
    parts = rec.get_embedding_variable("parts", 2, partitioner=cut, initializer=ones, **stored)
    ids = tf.cast(features["age"] * 3, tf.int64)
    seen = rec.get_embedding_variable("seen", 2, **stored)
    unused = tf.stop_gradient(rec.embedding_lookup(seen, ids))
    normal = tf.random_normal_initializer(seed=2)
    made = rec.create_table(tf.int64, 2, "made", normal, device_vocabulary_size=30, **stored)
    lookup = functools.partial(
        rec.sparse_lookup,
        made,
        modify_graph=True,
        is_train=is_training,
        access_and_evict_config=THRESHOLDS,
    )
    of_user = lookup(tf.strings.to_hash_bucket_fast(tf.as_string(features["user_id"]), 9))
    of_user += tf.reduce_sum(lookup(features["recent"]), axis=1)
    of_item = lookup(features["item_id"] % 5, is_grad=False)
    history, item = features["history"], features["item"]
    score = tf.reduce_sum(history * item[:, None], axis=2)
    weights = tf.nn.softmax(score) * tf.cast(features["history_mask"], tf.float32)
    interest = tf.reduce_sum(history * weights[..., None], axis=1)
    inputs = [features[name] for name in ("user", "words", "item", "age", "price")]
    inputs += [interest, tf.reduce_sum(rec.embedding_lookup(parts, ids), axis=1), of_user, of_item]
    inputs = tf.concat(inputs, axis=1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf.get_variable("kernel", [inputs.shape[1], 5])))
    scores = tf.reduce_sum(hidden, axis=1) + 0.0 * tf.reduce_sum(unused, axis=[1, 2])
    predictions = {"scores": scores, "user": features["user"]}
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(scores - labels))
    train_op = None
    if is_training:
        step = tf.train.get_global_step()
        train_op = params["optimizer"]().minimize(loss, global_step=step)
    weight = tf.reduce_sum(features["weights"], axis=1)
    metrics = {
        "mean": tf.metrics.mean(scores),
        "age": tf.metrics.mean(features["age"]),
        "user": tf.metrics.mean(tf.reduce_sum(features["user"], axis=1), weights=weight),
        "auc": tf.metrics.auc(labels > 0.5, tf.sigmoid(scores), weights=weight),
    }
    return rec.EstimatorSpec(
        mode, predictions=predictions, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def input_fn(is_grouped, start=0):
    """The batches from number `start` on; there are four."""

    def dataset():
        batches = [samples(seed) for seed in range(4)]
        columns = {name: np.concatenate([f[name] for f, _ in batches]) for name in batches[0][0]}
        labels = np.concatenate([label for _, label in batches])
        flat = tf.data.Dataset.from_tensor_slices((columns, labels)).batch(ROWS)
        return (rec.inputs.group_samples(flat, USERS) if is_grouped else flat).skip(start)

    return dataset


# Gradients are summed in other orders. In 16 bits, a number may be rounded to its other neighbour.
TOLERANCES = {tf.float32: 1e-5, tf.bfloat16: 2**-6, tf.float16: 2**-9}


def compare(flat, grouped, tolerance=1e-5):
    """Compares all tensors of two checkpoints; returns their names."""
    names = dict(tf.train.list_variables(flat))
    assert names.keys() == dict(tf.train.list_variables(grouped)).keys()
    readers = [tf.train.load_checkpoint(prefix) for prefix in (flat, grouped)]
    for name in names:
        expected, got = (reader.get_tensor(name) for reader in readers)
        if not tf.as_dtype(expected.dtype).is_floating:
            np.testing.assert_array_equal(got, expected, err_msg=name)
        else:
            got, expected = np.float32(got), np.float32(expected)
            np.testing.assert_allclose(got, expected, tolerance, tolerance, err_msg=name)
    return names


OPTIMIZERS = {
    "adagrad": lambda: rec.optimizers.AdagradOptimizer(0.1),
    "adam": lambda: rec.optimizers.AdamOptimizer(0.01),
}


def estimator_of(folder, optimizer="adagrad", value_dtype=tf.float32, **config):
    return rec.RecEstimator(
        model_fn,
        model_dir=str(folder),
        config=rec.RunConfig(tf_random_seed=3, session_config=QUICK, **config),
        params={"optimizer": OPTIMIZERS[optimizer], "value_dtype": value_dtype},
        embedding_features=features_of(value_dtype),
        sample_compression=rec.SampleCompression(user=USERS),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that trains four steps once: (estimator, losses, prefix of the checkpoint)."""

    @functools.cache
    def run(is_grouped, optimizer="adagrad", value_dtype=tf.float32):
        estimator = estimator_of(tmp_path_factory.mktemp("run"), optimizer, value_dtype)
        hook = LossHook()
        estimator.train(input_fn(is_grouped), hooks=[hook])
        return estimator, hook.losses, str(estimator.latest_checkpoint())

    return run


@pytest.mark.each_value
@pytest.mark.long
@VALUE_DTYPES
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_equals_flat_training(optimizer, value_dtype, runs):
    (flat, expected, prefix), (grouped, losses, of_grouped) = (
        runs(is_grouped, optimizer, value_dtype) for is_grouped in (False, True)
    )
    assert len(expected) == 4
    tolerance = TOLERANCES[value_dtype]
    np.testing.assert_allclose(losses, expected, tolerance)
    names = compare(prefix, of_grouped, tolerance)
    assert {"user-keys_filtered", "seen-freqs", "parts/part_2-freqs", "item-freqs"} < set(names)
    stored = tf.train.load_checkpoint(prefix)
    for name in ("seen-keys", "user-keys", "made-keys", "made-keys_filtered"):
        assert len(stored.get_tensor(name)), name
    metrics = [
        estimator.evaluate(input_fn(is_grouped))
        for is_grouped, estimator in ((False, flat), (True, grouped))
    ]
    assert metrics[0].keys() == metrics[1].keys() > {"auc", "user"}
    for name, value in metrics[0].items():
        np.testing.assert_allclose(metrics[1][name], value, tolerance, err_msg=name)


@pytest.mark.long
def test_predictions_have_a_row_per_sample(runs):
    rows = {}
    for is_grouped in (False, True):
        found = list(runs(is_grouped)[0].predict(input_fn(is_grouped)))
        assert len(found) == 4 * ROWS
        # Grouping changes the order.
        rows[is_grouped] = sorted((float(row["scores"]), *row["user"].tolist()) for row in found)
    np.testing.assert_allclose(rows[True], rows[False], rtol=1e-4, atol=1e-5)


def compare_bits(first, second):
    """Compares all tensors of two checkpoints bit for bit."""
    names = dict(tf.train.list_variables(first))
    assert names == dict(tf.train.list_variables(second))
    for name in names:
        values = [tf.train.load_variable(prefix, name) for prefix in (first, second)]
        assert values[0].tobytes() == values[1].tobytes(), name


@pytest.mark.long
def test_graph_modification_changes_no_bit(runs, tmp_path):
    estimator, hooks = estimator_of(tmp_path), [rec.GraphModifierHook()]
    estimator.train(input_fn(True), hooks=hooks)
    compare_bits(estimator.latest_checkpoint(), runs(True)[2])
    scores = [
        [row["scores"] for row in each.predict(input_fn(True), hooks=hooks[:number])]
        for number, each in enumerate((runs(True)[0], estimator))
    ]
    assert scores[0] == scores[1]


def receiver_fn():
    """Requests of the users and items that the model is trained on."""
    side = {True: [], False: []}
    flat, _ = input_fn(False)().element_spec
    for name, spec in flat.items():
        side[name in USERS].append(tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name))
    return rec.compressed_serving_input_receiver_fn(user=side[True], item=side[False])()


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_train_and_evaluate_exports_a_model_trained_in_loops_with_graph_modification(
    runs, tmp_path
):
    estimator, hooks = estimator_of(tmp_path, iterations_per_loop=2), [rec.GraphModifierHook()]
    exporter = rec.LatestExporter("served", receiver_fn)
    metrics, (folder,) = rec.train_and_evaluate(
        estimator,
        rec.TrainSpec(input_fn(True), max_steps=4, hooks=hooks),
        rec.EvalSpec(input_fn(True), None, exporters=exporter, throttle_secs=0, hooks=hooks),
    )
    compare_bits(estimator.latest_checkpoint(), runs(True)[2])
    assert metrics == runs(True)[0].evaluate(input_fn(True))
    with tf.Session(graph=tf.Graph()) as session:
        signature = tf.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        batch, _ = session.run(tf.data.make_one_shot_iterator(input_fn(True)()).get_next())
        feed = {signature.inputs[name].name: value for name, value in batch.items()}
        scores = session.run(signature.outputs["scores"].name, feed)
    expected = [row["scores"] for row in estimator.predict(input_fn(True))][:ROWS]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


class StopHook(tf.train.SessionRunHook):
    """Kills the training at a step."""

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run(tf.train.get_global_step()) == self.step:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("resource_variables")
def test_a_killed_training_goes_on_from_a_delta_in_loops(runs, tmp_path):
    config = dict(save_checkpoints_steps=100, save_incremental_checkpoints_steps=2)
    with pytest.raises(KeyboardInterrupt):
        estimator_of(tmp_path, **config).train(input_fn(True), hooks=[StopHook(3)])
    estimator = estimator_of(tmp_path, iterations_per_loop=2, **config)
    assert estimator.latest_checkpoint().endswith("-2")
    estimator.train(input_fn(True, start=2))
    compare_bits(estimator.latest_checkpoint(), runs(True)[2])


@pytest.mark.slow
def test_two_trainings_of_100_steps_are_one_of_200(tmp_path):
    def batches(start):
        return lambda: input_fn(True)().repeat().skip(start)

    whole = estimator_of(tmp_path / "whole", "adam")
    whole.train(batches(0), steps=200)
    for start in (0, 100):
        halves = estimator_of(tmp_path / "halves", "adam")
        halves.train(batches(start), steps=100)
    compare_bits(whole.latest_checkpoint(), halves.latest_checkpoint())


def small_batch(size=(2, 1)):
    """A compressed batch as tensors: three samples of two users."""
    return {
        "user": tf.constant([[1.0], [2.0]])[: len(size)],
        "item": tf.constant([[3.0], [4.0], [5.0]]),
        "id": tf.constant([7, 9], tf.int64)[: len(size)],
        "item_size": tf.constant(size),
    }


def small_model_fn(features, labels, mode, params):
    """A model with a dense variable and a table, trained by params["train"]."""
    table = rec.get_embedding_variable("table", 1, initializer=tf.ones_initializer())
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    initializer = tf.ones_initializer()
    made = rec.create_table(tf.int64, 1, "made", initializer, device_vocabulary_size=99)
    created = rec.sparse_lookup(made, features["id"], modify_graph=True)
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


LABELS = [[1.0], [0.0], [1.0]]


def trained(train, folder, input_fn=None, is_flat=False, hooks=(), **arguments):
    """Trains two steps; returns the prefix of the checkpoint and the losses."""

    def batches():
        batch = {**small_batch()}
        if is_flat:
            sizes = batch.pop("item_size")
            batch = {k: v if k == "item" else tf.repeat(v, sizes, axis=0) for k, v in batch.items()}
        return tf.data.Dataset.from_tensors((batch, tf.constant(LABELS))).repeat(2)

    if not is_flat and input_fn is None:
        arguments["sample_compression"] = rec.SampleCompression(user=("user", "id"))
    params = {"train": train}
    estimator = rec.RecEstimator(small_model_fn, model_dir=str(folder), params=params, **arguments)
    hook = LossHook()
    estimator.train(input_fn or batches, hooks=[hook, *hooks], steps=2)
    return str(estimator.latest_checkpoint()), hook.losses


@pytest.mark.long
def test_an_input_fn_may_enable_compression(tmp_path):
    def input_fn():
        batch = small_batch()
        size, labels = batch.pop("item_size"), tf.constant(LABELS)
        # Unknown batch sizes, as in the shapes of a dataset.
        batch = {k: tf.placeholder_with_default(v, [None, *v.shape[1:]]) for k, v in batch.items()}
        users = [batch["user"], batch["id"]]
        rec.enable_sample_awared_graph_compression(users, [batch["item"], labels], size)
        return batch, labels

    flat, expected = trained(ours, tmp_path / "flat", is_flat=True)
    grouped, got = trained(ours, tmp_path / "grouped", input_fn)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    compare(flat, grouped)


@pytest.mark.long
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


def ours_and_more_gradients(loss, user):
    train_op = ours(loss, user)
    return tf.group(train_op, tf.gradients(loss, user))


def test_gradients_built_beside_those_of_our_optimizers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be built by optimizers of ours, got 'gradients"):
        trained(ours_and_more_gradients, tmp_path)


# Scopes that TensorFlow's gradients and the pass use for their own ops.
SCOPES = ["my_grad", "gradients/my_grad", "gradient_tape", "head/sample_compression"]


def scores_of(user, item, scope):
    """A head in a scope that the model chose, built on a tensor that depends on users alone."""
    with tf.name_scope(f"{scope}/"):  # Not my_grad_1 the second time.
        return tf.nn.sigmoid(user * item)


@pytest.mark.long
@pytest.mark.parametrize("scope", SCOPES)
def test_scopes_of_ops_built_after_the_gradients_do_not_matter(scope, tmp_path):
    def train(loss, user):
        train_op = ours(loss, user)
        scores = scores_of(user, tf.constant([[3.0], [4.0], [5.0]]), scope)
        # An assertion, because TensorFlow does not compute results that nothing uses.
        return tf.group(train_op, tf.debugging.assert_non_negative(scores))

    flat, expected = trained(train, tmp_path / "flat", is_flat=True)
    grouped, got = trained(train, tmp_path / "grouped")
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    compare(flat, grouped)


@pytest.mark.long
@pytest.mark.parametrize("scope", SCOPES)
def test_scopes_of_a_model_do_not_matter_in_training_and_in_exports(scope, tmp_path):
    """The head is built before the gradients, and once more after them."""

    def model_fn(features, labels, mode):
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        user = weight * features["user"]
        scores = scores_of(user, features["item"], scope)
        if mode == rec.ModeKeys.PREDICT:
            return rec.EstimatorSpec(mode, predictions={"scores": scores, "user": user})
        loss, train_op = tf.reduce_mean(tf.square(scores - labels)), None
        if mode == rec.ModeKeys.TRAIN:
            train_op = ours(loss, user)
        again = scores_of(user, features["item"], scope)
        metrics = {"scores": tf.metrics.mean(again)}
        with tf.control_dependencies([tf.debugging.assert_non_negative(again)]):
            loss = tf.identity(loss)
        return rec.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    def batches():
        batch = {name: small_batch()[name] for name in ("user", "item", "item_size")}
        return tf.data.Dataset.from_tensors((batch, tf.constant(LABELS))).repeat(2)

    estimator = rec.RecEstimator(
        model_fn,
        model_dir=str(tmp_path / "model"),
        sample_compression=rec.SampleCompression(user=["user"]),
    )
    estimator.train(batches)
    metrics = estimator.evaluate(batches)
    tensors = [tf.TensorSpec([None, 1], tf.float32, name) for name in ("user", "item")]
    receiver_fn = rec.compressed_serving_input_receiver_fn(user=tensors[:1], item=tensors[1:])
    folder = estimator.export_savedmodel(str(tmp_path / "served"), receiver_fn)
    request = {"user": [[1.0], [2.0]], "item": [[3.0], [4.0], [5.0]], "item_size": [2, 1]}
    served = predict(folder, request, key="serving_default")
    np.testing.assert_allclose(served["scores"].mean(), metrics["scores"], rtol=1e-6)
    np.testing.assert_allclose(served["user"][:, 0], np.ravel(served["user"])[[0, 0, 2]])


def gradients_of_a_tape(loss, user):
    train_op = ours(loss, user)
    with tf.GradientTape() as tape:
        tape.watch(user)
        square = tf.reduce_sum(tf.square(user))
    return tf.group(train_op, tape.gradient(square, user))


def gradients_in_a_scope_of_the_pass(loss, user):
    train_op = ours(loss, user)
    with tf.name_scope("sample_compression"):
        return tf.group(train_op, tf.gradients(loss, user))


def gradients_of_ones(loss, user):
    """Here tf.gradients only builds ones, outside of any scope of an op's gradient."""
    train_op = ours(loss, user)
    return tf.group(train_op, tf.gradients(user, user))


@pytest.mark.parametrize(
    "train", [gradients_of_a_tape, gradients_in_a_scope_of_the_pass, gradients_of_ones]
)
def test_all_gradients_built_beside_those_of_our_optimizers_are_refused(train, tmp_path):
    with pytest.raises(ValueError, match="gradients of a compressed model must be built by opt"):
        trained(train, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("resource_variables")
def test_batches_of_static_shapes_are_read_anew_in_every_step(tmp_path):
    """Placeholders with defaults hide the static shapes. A loop must not freeze their values."""

    def input_fn():
        other = {
            **small_batch(),
            "user": tf.constant([[3.0], [-1.0]]),
            "id": tf.constant([9, 4], tf.int64),
        }
        batches = [tf.data.Dataset.from_tensors(each) for each in (small_batch(), other)]
        return batches[0].concatenate(batches[1]).map(lambda batch: (batch, tf.constant(LABELS)))

    compression = rec.SampleCompression(user=("user", "id"))
    plain, _ = trained(ours, tmp_path / "plain", input_fn, sample_compression=compression)
    looped, _ = trained(
        ours,
        tmp_path / "looped",
        input_fn,
        hooks=[rec.GraphModifierHook()],
        config=rec.RunConfig(iterations_per_loop=2),
        sample_compression=compression,
    )
    compare_bits(plain, looped)
    assert tf.train.load_variable(plain, "table-keys").tolist() == [4, 7, 9]


@pytest.mark.long
def test_warm_started_training_equals_flat_training(tmp_path):
    source, _ = trained(ours, tmp_path / "source")
    flat, _ = trained(ours, tmp_path / "flat", is_flat=True, warm_start_from=source)
    grouped, _ = trained(ours, tmp_path / "grouped", warm_start_from=source)
    compare(flat, grouped)
    assert tf.train.load_variable(grouped, "table-freqs").tolist() == [8, 4]


@pytest.mark.long
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


@pytest.mark.long
def test_bad_declarations_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be feature names, got"):
        rec.SampleCompression(user=[])
    with pytest.raises(TypeError, match="must be a SampleCompression, got 'user'"):
        rec.RecEstimator(small_model_fn, params={}, sample_compression="user")
    with pytest.raises(ValueError, match="user feature 'who' of sample_compression"):
        rec.SampleCompression(user="who").enable(small_batch(), None)
    flat = tf.data.Dataset.from_tensors(small_batch())

    def enable(batch):
        rec.SampleCompression(user="user").enable(batch, None)
        return batch

    with pytest.raises(ValueError, match="in the graph of the model, got the graph of a function"):
        flat.map(enable)
