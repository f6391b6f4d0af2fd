# SPDX-License-Identifier: Apache-2.0
"""Predictors keep a model in memory, and replace it while requests run."""

import concurrent.futures
import contextlib
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

FEATURES = [
    rec.EmbeddingFeature("user", dim=3),
    rec.EmbeddingFeature("words", dim=2, dtype=tf.string, combiner="mean"),
]


def model_fn(features, labels, mode):
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    bias = tf.Variable(0.5, name="bias")
    score = tf.reduce_sum(features["user"], 1) + tf.reduce_sum(features["words"], 1) + bias
    # Adds the same number to the one row and to the one variable: they differ in a mixture.
    table = rec.get_embedding_variable("count", 1, initializer=tf.zeros_initializer())
    row = rec.embedding_lookup(table, tf.zeros_like(features["user_ids"]))[:, 0]
    predictions = {"score": score, "row": row, "weight": weight + tf.zeros_like(row)}
    if mode == rec.ModeKeys.PREDICT:
        return rec.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(score)) + tf.reduce_sum(row + weight)
    optimizer = rec.optimizers.GradientDescentOptimizer(0.25)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)


def receiver_fn():
    user = tf.placeholder(tf.int64, [None], name="user")
    words = tf.sparse_placeholder(tf.string, [None, None], name="words")
    return rec.ServingInputReceiver({"user": user, "words": words}, {"user": user, "words": words})


def words_of(texts):
    indices = [[row, 0] for row in range(len(texts))]
    return tf.SparseTensorValue(np.array(indices, np.int64), np.array(texts), [len(texts), 1])


USERS, WORDS = np.arange(6), words_of(["a", "b", "c", "a", "new", ""])
REQUEST = {"user": USERS, "words": WORDS}


def input_fn():
    columns = {"user": USERS, "words": tf.SparseTensor(*WORDS)}
    return tf.data.Dataset.from_tensors(columns).repeat()


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model"))
    made = rec.RecEstimator(model_fn, folder, embedding_features=FEATURES)
    return made.train(input_fn, steps=2)


def one_batch():
    """The request as a batch of unknown size: TensorFlow reorders additions of known shapes."""
    columns = {"user": USERS, "words": tf.SparseTensor(*WORDS)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(len(USERS))


def predicted(estimator):
    return next(iter(estimator.predict(one_batch, yield_single_examples=False)))


@contextlib.contextmanager
def latest(estimator, prefix):
    """Makes a checkpoint the latest one for a while."""
    state = tf.train.get_checkpoint_state(estimator.model_dir)
    tf.train.update_checkpoint_state(estimator.model_dir, prefix)
    try:
        yield
    finally:
        paths = list(state.all_model_checkpoint_paths)
        tf.train.update_checkpoint_state(estimator.model_dir, state.model_checkpoint_path, paths)


def assert_same_bits(one, other):
    assert sorted(one) == sorted(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype and array.tobytes() == other[name].tobytes(), name


@pytest.mark.long
def test_predictions_are_those_of_predict_bit_for_bit_also_of_a_newer_checkpoint(estimator):
    with estimator.predictor(receiver_fn) as predict:
        assert_same_bits(predict(REQUEST), predicted(estimator))
        assert predict.refresh() is False
        estimator.train(input_fn, steps=1)
        before = predict(REQUEST)
        assert predict.refresh() is True
        after = predict(REQUEST)
        assert_same_bits(after, predicted(estimator))
        assert not np.array_equal(before["score"], after["score"])
    with pytest.raises(RuntimeError, match="the predictor is closed"):
        predict(REQUEST)
    with pytest.raises(RuntimeError, match="the predictor is closed"):
        predict.refresh()
    predict.close()


@pytest.mark.long
def test_requests_of_threads_see_the_old_or_the_new_model_never_a_mixture(estimator):
    stop, seen = threading.Event(), set()

    def ask():
        while not stop.is_set():
            result = predict(REQUEST)
            (pair,) = set(zip(result["row"].tolist(), result["weight"].tolist()))
            seen.add(pair)
        return True

    estimator.train(input_fn, steps=1)  # The checkpoint before the last one has rows, too.
    state = tf.train.get_checkpoint_state(estimator.model_dir)
    prefixes = list(state.all_model_checkpoint_paths)[-2:]
    with estimator.predictor(receiver_fn) as predict:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            try:
                for prefix in prefixes * 2:
                    with latest(estimator, prefix):
                        predict.refresh()
                        now = predict(REQUEST)["row"][0]
                        assert now == estimator.table("count", prefix).rows([0])[0, 0]
            finally:
                stop.set()
            assert all(each.result() for each in asking)
    # A step takes the same from the row and from the variable, exactly.
    assert len(seen) == 2 and all(row == weight for row, weight in seen)


def test_a_checkpoint_that_cannot_be_read_leaves_the_model_as_it_was(estimator, tmp_path):
    with estimator.predictor(receiver_fn) as predict:
        before = predict(REQUEST)
        (tmp_path / "model.ckpt-9.index").write_bytes(b"damaged")
        with latest(estimator, str(tmp_path / "model.ckpt-9")):
            with pytest.raises((tf.errors.OpError, ValueError)):
                predict.refresh()
        assert_same_bits(before, predict(REQUEST))
        assert predict.refresh() is False


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel with inputs of several dtypes."""
    folder = str(tmp_path_factory.mktemp("saved") / "model")
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = {
            "ids": tf.placeholder(tf.int32, [None], name="ids"),
            "price": tf.placeholder(tf.float32, [None, 2], name="price"),
            "text": tf.placeholder(tf.string, [None], name="text"),
        }
        total = tf.reduce_sum(inputs["price"], 1) + tf.cast(inputs["ids"], tf.float32)
        outputs = {"total": total, "text": tf.identity(inputs["text"])}
        tf.saved_model.simple_save(session, folder, inputs, outputs)
    return folder


def test_a_saved_model_answers_with_python_values_and_arrays(saved):
    with rec.serving.load_predictor(saved) as predict:
        result = predict({"ids": [1, 2], "price": [[1, 2], [3.5, 4]], "text": ["a", b"\xff\x00"]})
        assert result["total"].tolist() == [4.0, 9.5]
        assert result["text"].tolist() == [b"a", b"\xff\x00"]
        nothing = predict({"ids": [], "price": np.zeros([0, 2], np.float32), "text": []})
        assert nothing["total"].shape == (0,)


WRONG = {
    "missing": ({"ids": None}, ValueError, "'ids' is missing"),
    "unknown": ({"idz": [1]}, ValueError, "'idz' is unknown"),
    "float for int": ({"ids": [1.5, 2]}, TypeError, "'ids' must have dtype int32, got float64"),
    "too large": ({"ids": [2**40, 1]}, TypeError, "'ids' must have dtype int32, got int64"),
    "wide array": ({"price": np.ones([2, 2])}, TypeError, "must have dtype float32, got float64"),
    "shape": (
        {"price": [[1.0], [2.0]]},
        ValueError,
        r"'price' must have shape \(.+, 2\), got \(2, 1\)",
    ),
    "ragged": ({"price": [[1.0], [2.0, 3.0]]}, ValueError, "'price' must be an array"),
    "number for text": ({"text": [1, 2]}, TypeError, "'text' must have strings, got int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_features_that_do_not_fit_are_named(saved, case):
    changes, error, message = WRONG[case]
    request = {"ids": [1, 2], "price": [[1, 2], [3, 4]], "text": ["a", "b"], **changes}
    request = {name: value for name, value in request.items() if value is not None}
    with rec.serving.load_predictor(saved) as predict:
        with pytest.raises(error, match=message):
            predict(request)


def test_models_that_cannot_answer_are_refused_with_the_remedy(saved, tmp_path):
    with pytest.raises(ValueError, match=r"signature must be one of \['serving_default'\]"):
        rec.serving.load_predictor(saved, "score")
    with pytest.raises(OSError, match="SavedModel"):
        rec.serving.load_predictor(str(tmp_path))
    with rec.serving.load_predictor(saved) as predict:
        with pytest.raises(ValueError, match="refreshable=True"):
            predict.refresh("delta-1")
    untrained = rec.RecEstimator(model_fn, str(tmp_path), embedding_features=FEATURES)
    with pytest.raises(ValueError, match="model_dir .* has no checkpoint"):
        untrained.predictor(receiver_fn)
