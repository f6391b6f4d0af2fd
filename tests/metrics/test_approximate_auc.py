# SPDX-License-Identifier: Apache-2.0
"""The zoo's AUC against the AUC of all pairs, also of models that are sure."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from model_zoo import data
from rec_estimator.metrics import auc_of_logits

RNG = np.random.default_rng(5)
CLICKS = (RNG.random(20_000) < 0.2).astype(np.float32)
NOISE = RNG.standard_normal(20_000).astype(np.float32)
LOGITS = {
    "confident": -12 + 6 * NOISE + 15 * CLICKS,
    "all near 0": (NOISE + CLICKS) * np.float32(1e-6),
    "both signs": NOISE + CLICKS,
    "beside a great bias": np.float32(100) + (NOISE + CLICKS),
    "three values": np.round(NOISE / 2 + CLICKS / 2),
    "denormal": (NOISE + CLICKS) * np.float32(1e-40),
}


def streamed(labels, logits, batch=512):
    """(auc, auc_error) of float32 arrays, batch by batch."""
    label, logit = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    metrics = auc_of_logits(label, logit)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for begin in range(0, len(labels), batch):
            part = slice(begin, begin + batch)
            session.run(metrics["auc"][1], {label: labels[part], logit: logits[part]})
        return session.run([metrics["auc"][0], metrics["auc_error"][0]])


@pytest.mark.parametrize("kind", LOGITS)
def test_the_auc_is_within_its_stated_error_of_the_exact_one(kind):
    auc, error = streamed(CLICKS, LOGITS[kind].astype(np.float32))
    exact = data.exact_auc(CLICKS, LOGITS[kind].astype(np.float32))
    # float32 results: 2**-24 of rounding.
    assert abs(auc - exact) <= error + 6e-8


@pytest.mark.parametrize("kind", ["confident", "all near 0", "both signs"])
def test_the_stated_error_is_small_where_logits_differ(kind):
    # Buckets of 2**-12 relative width hold less than 1 pair in 2,000 of such logits.
    assert streamed(CLICKS, LOGITS[kind].astype(np.float32))[1] < 5e-4


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_alone_has_an_auc_of_one_half(label):
    labels = np.full(9, label, np.float32)
    assert streamed(labels, np.arange(9, dtype=np.float32)) == [0.5, 0.0]


def test_zeros_of_both_signs_are_a_tie():
    labels, zeros = np.array([0, 1], np.float32), np.array([-0.0, 0.0], np.float32)
    assert streamed(labels, zeros) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("label", "logit", "message"),
    [(0.5, 1.0, "labels must be 0 or 1"), (1.0, np.nan, "finite"), (1.0, np.inf, "finite")],
)
def test_labels_and_logits_that_have_no_rank_are_refused(label, logit, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        streamed(np.array([label], np.float32), np.array([logit], np.float32))
