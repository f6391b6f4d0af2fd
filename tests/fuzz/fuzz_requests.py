# SPDX-License-Identifier: Apache-2.0
"""Sends hostile requests to a served model with sample-aware compression.

A request must be refused, or answered with one score per candidate, as NumPy computes it from the
request.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from fuzz.mutations import change_array, change_bytes, change_message, choose
from google.protobuf.message import DecodeError

import rec_estimator as rec

REFUSALS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.ResourceExhaustedError,
    ValueError,
    TypeError,
)
DIM = 2
KNOWN = 50  # Keys with a row.


def model_fn(features, labels, mode):
    user = tf.reduce_sum(features["user"], axis=1) + features["age"][:, 0]
    item = tf.reduce_sum(features["item"], axis=1) + tf.reduce_sum(features["price"], axis=1)
    scores = user + item
    loss = train_op = None
    if mode == rec.ModeKeys.TRAIN:
        loss = tf.reduce_mean(tf.square(scores - labels))
        optimizer = rec.optimizers.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return rec.EstimatorSpec(mode, predictions={"scores": scores}, loss=loss, train_op=train_op)


def train_and_export(folder):
    """Returns the paths of the model for tensors and of that for SequenceExamples."""
    fresh = tf.zeros_initializer()
    embedded = [
        rec.EmbeddingFeature("user", DIM, combiner="sum", weight="weight", initializer=fresh),
        rec.EmbeddingFeature("item", DIM, combiner="sum", initializer=fresh),
    ]
    estimator = rec.RecEstimator(model_fn, str(folder / "model"), embedding_features=embedded)

    def input_fn():
        ids = np.arange(KNOWN)[:, None]
        features = {"user": ids, "item": ids, "weight": np.ones([KNOWN, 1], np.float32)}
        features["age"] = np.ones([KNOWN, 1], np.float32)
        features["price"] = np.ones([KNOWN, 2], np.float32)
        return tf.data.Dataset.from_tensors((features, np.ones([KNOWN], np.float32)))

    estimator.train(input_fn, steps=1)
    user = [embedded[0], tf.TensorSpec([None, 1], name="age")]
    item = [embedded[1], tf.TensorSpec([None, 2], name="price")]
    return [
        estimator.export_savedmodel(
            str(folder / f"export-{serialized}"),
            rec.compressed_serving_input_receiver_fn(user=user, item=item, serialized=serialized),
        )
        for serialized in (False, True)
    ]


class Served:
    """A SavedModel in a session."""

    def __init__(self, path):
        self._session = tf.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta = tf.saved_model.load(self._session, ["serve"], tf.compat.as_str(path))
        signature = next(iter(meta.signature_def.values()))
        self._inputs = {name: info.name for name, info in signature.inputs.items()}
        (self._scores,) = [info.name for info in signature.outputs.values()]

    def scores(self, request):
        feed = {self._inputs[name]: value for name, value in request.items()}
        return self._session.run(self._scores, feed)


class Target:
    """Mutants of a request of two users and five candidates, as tensors and serialized."""

    def __init__(self, folder):
        tf.disable_eager_execution()
        self._tensors, self._serialized = map(Served, train_and_export(folder))
        ids = np.arange(-1, KNOWN + 1)[:, None]
        zeros = {"age": np.zeros([1, 1], np.float32), "item_size": np.array([len(ids)], np.int32)}
        zeros.update(price=np.zeros([len(ids), 2], np.float32), weight=np.ones([1, 1], np.float32))
        user = np.array([[-1]])
        alone = self._tensors.scores({**zeros, "user": user, "item": ids})
        # Sums of the elements of each row; other keys have zeros.
        self._item = dict(zip(ids[:, 0].tolist(), alone.tolist()))
        self._user = {}
        for key in ids[:, 0].tolist():
            request = {**zeros, "item_size": np.array([1], np.int32), "user": np.array([[key]])}
            request.update(item=np.array([[-1]]), price=np.zeros([1, 2], np.float32))
            self._user[key] = float(self._tensors.scores(request)[0])
        for good in (self._tensors_request(), self._examples()):
            assert self._compare(*good) == "accepted"

    def run(self, seed):
        rng = np.random.default_rng(seed)
        if rng.random() < 0.5:
            served, request = self._tensors_request()
            for _ in range(choose(rng, [1, 1, 2])):
                name = choose(rng, sorted(request))
                request[name] = nonsense(rng, request[name])
            return self._compare(served, request)
        served, request = self._examples()
        way = choose(rng, ["bytes", "message", "message", "list"])
        examples = request["examples"]
        if way == "list":
            request["examples"] = choose(rng, [examples * 100, [], [b""], examples[0], [examples]])
            return self._compare(served, request)
        at = int(rng.integers(len(examples)))
        if way == "bytes":
            examples[at] = change_bytes(rng, examples[at])
            return self._compare(served, request)
        example = tf.train.SequenceExample.FromString(examples[at])
        for _ in range(choose(rng, [1, 1, 2])):
            change_message(rng, example)
        examples[at] = example.SerializeToString()
        return self._compare(served, request)

    def _tensors_request(self):
        request = {
            "user": np.array([[7, 9], [3, -1]]),
            "weight": np.array([[1, 2], [0.5, 0]], np.float32),
            "age": np.array([[1], [2]], np.float32),
            "item": np.arange(5)[:, None],
            "price": np.arange(10, dtype=np.float32).reshape(5, 2),
            "item_size": np.array([2, 3], np.int32),
        }
        return self._tensors, request

    def _examples(self):
        tensors = self._tensors_request()[1]
        examples = []
        for user, begin, end in ((0, 0, 2), (1, 2, 5)):
            example = tf.train.SequenceExample()
            context, lists = example.context.feature, example.feature_lists.feature_list
            present = tensors["user"][user] != -1
            context["user"].int64_list.value.extend(tensors["user"][user][present].tolist())
            context["weight"].float_list.value.extend(tensors["weight"][user][present].tolist())
            context["age"].float_list.value.extend(tensors["age"][user].tolist())
            for i in range(begin, end):
                item, price = (lists[name].feature.add() for name in ("item", "price"))
                item.int64_list.value.extend(tensors["item"][i].tolist())
                price.float_list.value.extend(tensors["price"][i].tolist())
            examples.append(example.SerializeToString())
        return self._serialized, {"examples": examples}

    def _compare(self, served, request):
        is_serialized = "examples" in request
        try:
            with np.errstate(all="ignore"):
                expected = (self._of_examples if is_serialized else self._of_tensors)(request)
        except (AssertionError, DecodeError, IndexError, TypeError, ValueError):
            expected = None
        try:
            scores = served.scores(request)
        except REFUSALS:
            return "refused"
        if expected is None:
            assert is_serialized, f"{request} was answered with {scores}"
            return "answered"
        assert scores.shape == (len(expected),), f"{request}: {scores.shape}"
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
        return "accepted"

    def _of_tensors(self, request):
        good = self._tensors_request()[1]
        # As the session's client casts them.
        request = {name: np.asarray(array, good[name].dtype) for name, array in request.items()}
        users, items, sizes = request["user"], request["item"], request["item_size"]
        for name in ("user", "item", "weight", "age", "price"):
            assert request[name].ndim == 2
        assert users.shape == request["weight"].shape
        assert request["age"].shape == (len(users), 1)
        assert request["price"].shape == (len(items), 2)
        assert sizes.ndim == 1 and (sizes >= 0).all() and sizes.sum() == len(items)
        if len(sizes) == 1:
            sizes = np.array([len(items) // max(1, len(users))] * len(users))
            assert len(users) == 1
        assert len(sizes) == len(users)
        rows = np.repeat(np.arange(len(users)), sizes)
        user = [
            sum(self._user_sum(key, weight) for key, weight in zip(keys, weights))
            for keys, weights in zip(users.tolist(), request["weight"].tolist())
        ]
        user = np.float32(user) + request["age"].astype(np.float32)[:, 0]
        item = np.float32([sum(self._item_sum(key) for key in keys) for keys in items.tolist()])
        return (user[rows] if len(users) else np.zeros([0])) + item + request["price"].sum(axis=1)

    def _user_sum(self, key, weight):
        return 0 if key == -1 else np.float32(self._user.get(key, 0)) * np.float32(weight)

    def _item_sum(self, key):
        return 0 if key == -1 else self._item.get(key, 0)

    def _of_examples(self, request):
        scores = []
        for text in request["examples"]:
            example = tf.train.SequenceExample.FromString(text)
            context, lists = example.context.feature, example.feature_lists.feature_list
            keys = context["user"].int64_list.value
            weights = context["weight"].float_list.value
            (age,) = context["age"].float_list.value
            assert len(keys) == len(weights)
            items = [list(feature.int64_list.value) for feature in lists["item"].feature]
            prices = [list(feature.float_list.value) for feature in lists["price"].feature]
            assert len(items) == len(prices) and {*map(len, prices)} <= {2}
            user = age + sum(self._user_sum(*pair) for pair in zip(keys, weights))
            scores += [
                user + sum(map(self._item_sum, ids)) + sum(price)
                for ids, price in zip(items, prices)
            ]
        return np.float32(scores)


def nonsense(rng, array):
    """Changes a tensor of a request; keeps its type most of the time, as a client must."""
    changed = change_array(rng, array)
    if changed.dtype != array.dtype and rng.random() < 0.7:
        changed = changed.astype(array.dtype)
    way = choose(rng, ["keep", "keep", "keep", "huge", "wide"])
    if way == "huge":
        return np.zeros(choose(rng, [(2**31, 0), (0, 2**31), (0,), (0, 0)]), array.dtype)
    if way == "wide" and changed.ndim == 2:
        return np.repeat(changed, choose(rng, [0, 2, 1000]), axis=1)
    return changed
