# SPDX-License-Identifier: Apache-2.0
"""The ids of embedded features in model_fn: predictions that name a user, metrics of one user.

One model is trained, evaluated, exported, compressed and modified. A column serves two features.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compressed_runs import predict

import rec_estimator as rec

ROWS, BATCH = 48, 16
USERS = ("user", "history", "tags")

FEATURES = [
    rec.EmbeddingFeature("user", 4, dtype=tf.string),
    rec.EmbeddingFeature("history", 4, table="item", combiner=None, max_length=2),
    rec.EmbeddingFeature("taste", 4, source="history", table="item"),
    rec.EmbeddingFeature("tags", 4, combiner="sum"),
    rec.EmbeddingFeature("item", 4),
]


# The tags of a user, and how many of them are no padding.
TAGS = np.array([[3, -1], [3, 4], [-1, -1], [8, -1]])
COUNTS = {b"ann": 1, b"bob": 2, b"eve": 0, b"zoe": 1}


def columns():
    random = np.random.default_rng(3)
    of_users = {
        "user": np.array([b"ann", b"bob", b"eve", b"zoe"], object),
        "history": np.array([[5, 2, 9], [-1, 7, -1], [-1, -1, -1], [2, 2, 5]]),
    }
    users = np.sort(random.integers(0, 4, ROWS))
    features = {name: values[users] for name, values in of_users.items()}
    features["tags"] = TAGS[users]
    features["item"] = random.integers(0, 12, ROWS)
    return features, (random.random(ROWS) < 0.5).astype(np.float32)


def model_fn(features, labels, mode):
    history = tf.reduce_sum(features["history"], axis=1) + features["taste"]
    of_user = features["user"] + features["tags"] + history
    logits = tf.reduce_sum(of_user * features["item"], axis=1)
    tags = features["tags_ids"]  # Ragged, but dense in requests.
    if isinstance(tags, tf.RaggedTensor):
        number_of_tags = tags.row_lengths()
    else:
        number_of_tags = tf.reduce_sum(tf.cast(tf.not_equal(tags, -1), tf.int64), axis=1)
    predictions = {
        "logits": logits,
        "user": features["user_ids"],
        "item": features["item_ids"],
        "seen": features["taste_ids"],
        "number_of_tags": number_of_tags,
    }
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions=predictions)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    optimizer = rec.optimizers.AdagradOptimizer(0.1)
    train_op = optimizer.minimize(tf.reduce_mean(losses), tf.train.get_global_step())
    is_bob = tf.cast(tf.equal(tf.reshape(features["user_ids"], [-1]), "bob"), tf.float32)
    metrics = {"loss_of_bob": tf.metrics.mean(losses, weights=is_bob)}
    return rec.EstimatorSpec(
        mode,
        predictions=predictions,
        loss=tf.reduce_mean(losses),
        train_op=train_op,
        eval_metric_ops=metrics,
    )


def input_fn(is_grouped=False, epochs=1):
    def build():
        features, labels = columns()
        features["tags"] = tf.RaggedTensor.from_tensor(features["tags"], padding=-1)
        flat = tf.data.Dataset.from_tensor_slices((features, labels)).repeat(epochs).batch(BATCH)
        return rec.inputs.group_samples(flat, USERS) if is_grouped else flat

    return build


def estimator_in(folder, **arguments):
    config = rec.RunConfig(tf_random_seed=1)
    return rec.RecEstimator(model_fn, str(folder), config, embedding_features=FEATURES, **arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An estimator, its predictions by name, and the mean loss of bob in them."""
    estimator = estimator_in(tmp_path_factory.mktemp("plain"))
    estimator.train(input_fn(epochs=4))
    rows = list(estimator.predict(input_fn()))
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    _, labels = columns()
    losses = np.logaddexp(0, np.where(labels > 0.5, -1, 1) * found["logits"])
    return estimator, found, losses[found["user"] == b"bob"].mean()


def expect_ids(found):
    features, _ = columns()
    assert found["user"].tolist() == features["user"].tolist()
    assert found["item"].tolist() == features["item"].tolist()
    assert found["seen"].tolist() == features["history"].tolist()
    assert found["number_of_tags"].tolist() == [COUNTS[user] for user in features["user"]]


@pytest.mark.long
def test_predictions_name_the_user_and_the_item(trained):
    expect_ids(trained[1])


@pytest.mark.long
def test_a_metric_of_one_user(trained):
    estimator, _, expected = trained
    # Sums of float32 losses.
    assert estimator.evaluate(input_fn())["loss_of_bob"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
def test_a_saved_model_names_the_user(trained, portable, tmp_path):
    estimator, expected, _ = trained
    inputs = {
        "user": tf.TensorSpec([None], tf.string),
        "history": tf.TensorSpec([None, 3], tf.int64),
        "tags": tf.TensorSpec([None, 2], tf.int64),
        "item": tf.TensorSpec([None], tf.int64),
    }

    def receiver():
        tensors = {name: tf.placeholder(spec.dtype, spec.shape) for name, spec in inputs.items()}
        return rec.ServingInputReceiver(tensors, tensors)

    exported = estimator.export_saved_model(str(tmp_path), receiver, portable=portable)
    found = predict(exported, columns()[0])
    expect_ids(found)
    # Float32 sums in batches of another size.
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
def test_a_compressed_saved_model_names_the_user_of_each_candidate(trained, portable, tmp_path):
    estimator, expected, _ = trained
    receiver = rec.compressed_serving_input_receiver_fn(user=FEATURES[:4], item=FEATURES[4:])
    exported = estimator.export_saved_model(str(tmp_path), receiver, portable=portable)
    features, _ = columns()
    _, first, sizes = np.unique(features["user"], return_index=True, return_counts=True)
    found = predict(
        exported,
        {
            "user": features["user"][first][:, None],
            "history": features["history"][first],
            "tags": features["tags"][first],
            "item": features["item"][:, None],
            "item_size": sizes.astype(np.int32),
        },
    )
    expect_ids({**found, "user": found["user"][:, 0], "item": found["item"][:, 0]})
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


def test_a_serialized_request_has_the_shared_column_once(tmp_path):
    receiver = rec.compressed_serving_input_receiver_fn(
        user=FEATURES[:4], item=FEATURES[4:], serialized=True
    )()
    assert sorted(receiver.features) == ["history", "item", "tags", "user"]


@pytest.mark.long
def test_training_on_compressed_batches_knows_the_users(trained, tmp_path):
    _, expected, loss_of_bob = trained
    compression = rec.SampleCompression(user=USERS)
    estimator = estimator_in(tmp_path, sample_compression=compression)
    estimator.train(input_fn(True, epochs=4))
    # Float32 sums in another order, over several steps.
    assert estimator.evaluate(input_fn(True))["loss_of_bob"] == pytest.approx(loss_of_bob, rel=1e-4)
    rows = list(estimator.predict(input_fn(True)))
    expect_ids({name: np.array([row[name] for row in rows]) for name in rows[0]})
    np.testing.assert_allclose([row["logits"] for row in rows], expected["logits"], rtol=1e-4)


@pytest.mark.long
def test_a_modified_graph_knows_the_users(trained, tmp_path):
    _, expected, _ = trained
    estimator = estimator_in(tmp_path)
    estimator.train(input_fn(epochs=4), hooks=[rec.GraphModifierHook()])
    rows = list(estimator.predict(input_fn(), hooks=[rec.GraphModifierHook()]))
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    expect_ids(found)
    assert found["logits"].tolist() == expected["logits"].tolist()
    plain = trained[0].evaluate(input_fn())
    assert estimator.evaluate(input_fn(), hooks=[rec.GraphModifierHook()]) == plain
