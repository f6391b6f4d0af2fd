# SPDX-License-Identifier: Apache-2.0
"""Metrics against their definitions in NumPy, however the samples are cut into batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

RNG = np.random.default_rng(11)
LABELS = (RNG.random(500) < 0.3).astype(np.float32)
# Ties within a group and across groups.
PROBABILITIES = np.round(np.clip(0.2 + 0.3 * LABELS + 0.2 * RNG.standard_normal(500), 0, 1), 2)
PROBABILITIES = PROBABILITIES.astype(np.float32)
WEIGHTS = RNG.integers(0, 4, 500).astype(np.float32)
GROUPS = RNG.integers(-3, 40, 500) ** 5
GROUPS[:3] = [1000, 1000, 1001]  # Groups of few samples, and one of a single one.
COLUMNS = dict(labels=LABELS, predictions=PROBABILITIES, weights=WEIGHTS, groups=GROUPS)


def streamed(metric, columns, batches=((0, 500),), **arguments):
    """The value of a metric, or of each of a dict of metrics, of columns cut into batches."""
    inputs = {
        name: tf.placeholder(column.dtype, [None, *column.shape[1:]])
        for name, column in columns.items()
    }
    found = metric(**inputs, **arguments)
    pairs = list(found.values()) if isinstance(found, dict) else [found]
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for begin, end in batches:
            feed = {inputs[name]: column[begin:end] for name, column in columns.items()}
            session.run(pairs[0][1], feed)
        values = session.run([value for value, _ in pairs])
    return values if isinstance(found, dict) else values[0]


def some(*names):
    return {name: COLUMNS[name] for name in names}


BATCHES = {
    "one batch": [(0, 500)],
    "an empty batch": [(0, 0), (0, 500)],
    "many batches": [(begin, begin + 7) for begin in range(0, 500, 7)],
}
EVERY_CUT = pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)


# ------------------------------------------------------------------ AUC


def auc_of_pairs(labels, scores, weights):
    positive, negative = labels > 0, labels == 0
    pairs = np.outer(weights[positive], weights[negative])
    difference = scores[positive][:, None] - scores[negative]
    wins = (difference > 0) + (difference == 0) / 2
    return (pairs * wins).sum() / pairs.sum() if pairs.sum() > 0 else None


@EVERY_CUT
@pytest.mark.parametrize("is_weighted", [False, True])
def test_auc_is_that_of_all_pairs(batches, is_weighted):
    weights = WEIGHTS if is_weighted else np.ones_like(WEIGHTS)
    columns = some("labels", "predictions", *(["weights"] if is_weighted else []))
    expected = np.float32(auc_of_pairs(LABELS, PROBABILITIES, weights.astype(np.float64)))
    assert streamed(rec.metrics.auc, columns, batches) == expected


@pytest.mark.parametrize("labels", [[], [0.0], [1.0, 1.0]], ids=str)
def test_auc_of_one_class_is_one_half(labels):
    labels = np.array(labels, np.float32)
    assert streamed(rec.metrics.auc, dict(labels=labels, predictions=labels), [(0, 2)]) == 0.5


def test_auc_takes_logits_of_any_size_and_zeros_of_both_signs():
    labels = np.array([0, 1, 0, 1], np.float32)
    logits = np.array([-3e38, -0.0, 0.0, 3e38], np.float32)
    assert streamed(rec.metrics.auc, dict(labels=labels, predictions=logits)) == 0.875


def test_a_store_grows_by_more_than_it_holds():
    labels = (np.arange(20_000) % 3 == 0).astype(np.float32)
    scores = np.sin(np.arange(20_000), dtype=np.float32)
    columns = dict(labels=labels, predictions=scores)
    batches = [(0, 10), (10, 15_000), (15_000, 20_000)]
    order = scores.argsort()
    ranks = np.empty(20_000)
    ranks[order] = np.arange(20_000)
    assert len(set(scores)) == 20_000
    positives = labels.sum()
    expected = (ranks[labels > 0].sum() - positives * (positives - 1) / 2) / (
        positives * (20_000 - positives)
    )
    assert streamed(rec.metrics.auc, columns, batches) == np.float32(expected)


@pytest.mark.each_value
@EVERY_CUT
@pytest.mark.parametrize("weighted_by", ["impressions", "clicks"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_grouped_auc_is_the_mean_over_groups_of_both_classes(batches, weighted_by, is_weighted):
    weights = (WEIGHTS if is_weighted else np.ones_like(WEIGHTS)).astype(np.float64)
    areas, shares = [], []
    for group in np.unique(GROUPS):
        mine = np.equal(GROUPS, group)
        area = auc_of_pairs(LABELS[mine], PROBABILITIES[mine], weights[mine])
        if area is not None:
            areas.append(area)
            by_class = weights[mine] * (LABELS[mine] if weighted_by == "clicks" else 1)
            shares.append(by_class.sum())
    assert 20 < len(areas) < len(np.unique(GROUPS))  # Some groups have one class.
    columns = some("labels", "predictions", "groups", *(["weights"] if is_weighted else []))
    found = streamed(rec.metrics.grouped_auc, columns, batches, weighted_by=weighted_by)
    # float64 sums in another order, rounded to float32.
    assert found == pytest.approx(np.average(areas, weights=shares), abs=1e-7)


@pytest.mark.long
def test_groups_may_be_strings_or_integers_of_any_size():
    columns = some("labels", "predictions")
    texts = GROUPS.astype(str).astype(object)
    by_text = streamed(rec.metrics.grouped_auc, {**columns, "groups": texts})
    with tf.Graph().as_default():
        by_number = streamed(rec.metrics.grouped_auc, {**columns, "groups": GROUPS})
    assert by_text == pytest.approx(by_number, abs=1e-7)


def test_grouped_auc_without_a_group_of_both_classes_is_one_half():
    columns = dict(some("labels", "predictions"), groups=LABELS.astype(np.int32))
    assert streamed(rec.metrics.grouped_auc, columns) == 0.5


# ------------------------------------------------------------------ probabilities


@EVERY_CUT
def test_losses_and_calibration_are_their_formulas(batches):
    columns = some("labels", "predictions", "weights")
    inside = np.clip(PROBABILITIES.astype(np.float64), 2.0**-24, 1 - 2.0**-24)
    losses = -np.log(np.where(LABELS > 0, inside, 1 - inside))
    loss, rate = np.average(losses, weights=WEIGHTS), np.average(LABELS, weights=WEIGHTS)
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    for metric, expected in (
        (rec.metrics.log_loss, loss),
        (rec.metrics.normalized_entropy, loss / entropy),
        (
            rec.metrics.calibration,
            np.average(PROBABILITIES.astype(np.float64), weights=WEIGHTS) / rate,
        ),
    ):
        assert streamed(metric, columns, batches) == pytest.approx(expected, rel=1e-6)


def test_a_sure_and_wrong_prediction_has_a_finite_loss():
    columns = dict(labels=np.array([1, 0]), predictions=np.array([0.0, 1.0], np.float32))
    assert streamed(rec.metrics.log_loss, columns) == pytest.approx(24 * np.log(2))


@pytest.mark.long
def test_metrics_of_no_samples_are_finite():
    columns = dict(labels=np.zeros(0), predictions=np.zeros(0, np.float32))
    for metric in (
        rec.metrics.log_loss,
        rec.metrics.normalized_entropy,
        rec.metrics.calibration,
        rec.metrics.calibration_by_decile,
    ):
        assert np.all(np.array(streamed(metric, columns, [(0, 0)])) == 0)


@EVERY_CUT
def test_calibration_by_decile_cuts_the_samples_into_tenths(batches):
    order = np.argsort(PROBABILITIES, kind="stable")
    expected = [
        PROBABILITIES[tenth].astype(np.float64).sum() / LABELS[tenth].sum()
        for tenth in np.split(order, 10)
    ]
    found = streamed(rec.metrics.calibration_by_decile, some("labels", "predictions"), batches)
    assert found == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------ rankings

LISTS = 40
GAINS = RNG.integers(0, 4, (LISTS, 9)) * (RNG.random((LISTS, 9)) < 0.3)
SCORES = np.round(RNG.standard_normal((LISTS, 9)), 1).astype(np.float32)


def ranking_oracle(name, gains, scores, k):
    """Ties rank the least gain first; None without a relevant item."""
    order = sorted(range(len(gains)), key=lambda i: (-scores[i], gains[i]))[:k]
    if not (gains > 0).any():
        return None
    if name == "hit_rate":
        return float(any(gains[i] > 0 for i in order))
    if name == "recall":
        return sum(gains[i] > 0 for i in order) / (gains > 0).sum()
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = np.sort(gains)[::-1][:k]
    return (gains[order] * discounts[: len(order)]).sum() / (best * discounts[: len(best)]).sum()


@pytest.mark.each_value
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("name", ["hit_rate", "recall", "ndcg"])
@pytest.mark.parametrize("form", ["rows", "groups"])
def test_rankings_equal_their_definition(name, k, form):
    metric = getattr(rec.metrics, name)
    values = [ranking_oracle(name, gains, scores, k) for gains, scores in zip(GAINS, SCORES)]
    expected = np.mean([value for value in values if value is not None])
    assert None in values
    columns = dict(labels=GAINS, predictions=SCORES)
    batches = [(0, 1), (1, 1), (1, 25), (25, LISTS)]
    if form == "groups":
        groups = np.repeat(np.arange(LISTS) * 7 % 41, 9)
        shuffled = RNG.permutation(LISTS * 9)
        columns = {
            name: column.reshape(-1)[shuffled]
            for name, column in dict(columns, groups=groups).items()
        }
        batches = [(0, 100), (100, 100), (100, 360)]
    assert streamed(metric, columns, batches, k=k) == pytest.approx(expected, rel=1e-6)


def test_a_model_that_predicts_a_constant_hits_nothing():
    columns = dict(labels=np.array([[1, 0, 0]]), predictions=np.zeros([1, 3], np.float32))
    assert streamed(rec.metrics.hit_rate, columns, k=2) == 0


# ------------------------------------------------------------------ in an Estimator, and errors


@pytest.mark.long
def test_estimators_report_them_and_begin_each_evaluation_anew(tmp_path):
    def model_fn(features, labels, mode):
        table = rec.get_embedding_variable("t", 1, initializer=tf.zeros_initializer())
        probabilities = tf.sigmoid(features["logit"])
        loss = tf.reduce_mean(rec.embedding_lookup(table, features["user"]))
        metrics = {
            "auc": rec.metrics.auc(labels, probabilities),
            "user_auc": rec.metrics.grouped_auc(labels, probabilities, features["user"]),
            **rec.metrics.calibration_by_decile(labels, probabilities),
        }
        step = tf.train.get_global_step()
        train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        return rec.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)

    def input_fn():
        features = {"logit": np.log(PROBABILITIES + 0.1), "user": GROUPS}
        return tf.data.Dataset.from_tensor_slices((features, LABELS)).batch(64)

    estimator = rec.RecEstimator(model_fn, str(tmp_path))
    estimator.train(input_fn, steps=1)
    first, second = estimator.evaluate(input_fn), estimator.evaluate(input_fn)
    assert first == second
    expected = auc_of_pairs(LABELS, PROBABILITIES, np.ones(500))
    # sigmoid(log(p)) may tie two probabilities, or part none.
    assert first["auc"] == pytest.approx(expected, abs=1e-3)
    assert {"user_auc", "calibration_by_decile/10"} <= set(first)


@pytest.mark.parametrize(
    "metric, arguments, message",
    [
        (rec.metrics.auc, dict(labels=[0.5], predictions=[0.0]), "labels must be 0 or 1"),
        (rec.metrics.auc, dict(labels=[1], predictions=[np.nan]), "predictions must be finite"),
        (rec.metrics.auc, dict(labels=[1, 0], predictions=[1.0]), "labels must be as many"),
        (rec.metrics.log_loss, dict(labels=[1], predictions=[1.5]), "pass tf.sigmoid"),
        (rec.metrics.log_loss, dict(labels=[1], predictions=[np.nan]), "pass tf.sigmoid"),
        (
            rec.metrics.calibration,
            dict(labels=[1], predictions=[0.5], weights=[-1.0]),
            "weights must be finite and at least 0",
        ),
        (
            rec.metrics.grouped_auc,
            dict(labels=[1], predictions=[0.5], groups=[1, 2]),
            "groups must be as many",
        ),
        (rec.metrics.ndcg, dict(labels=[[-1]], predictions=[[0.5]]), "labels must be finite"),
    ],
)
def test_a_bad_batch_is_an_error_that_adds_nothing(metric, arguments, message):
    static = {"k": 1} if metric is rec.metrics.ndcg else {}
    # What TensorFlow knows before the graph runs, it refuses then.
    feed = {tf.placeholder(np.array(each).dtype): each for each in arguments.values()}
    value, update = metric(**dict(zip(arguments, feed)), **static)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        before = session.run(value)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(update, feed)
        assert session.run(value) == before


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: rec.metrics.grouped_auc([1], [0.5], [1], weighted_by="users"),
            ValueError,
            "weighted_by must be 'impressions' or 'clicks', got 'users'",
        ),
        (lambda: rec.metrics.grouped_auc([1], [0.5], [1.0]), TypeError, "groups must be integers"),
        (lambda: rec.metrics.recall([[1]], [[0.5]], 0), ValueError, "k must be an integer"),
        (lambda: rec.metrics.recall([1], [0.5], 1), ValueError, r"labels must be \[B, N\]"),
        (
            lambda: rec.metrics.recall([[1]], [[0.5]], 1, groups=[1]),
            ValueError,
            r"labels must be \[B\] with groups",
        ),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(call, error, message):
    with pytest.raises(error, match=message):
        call()
