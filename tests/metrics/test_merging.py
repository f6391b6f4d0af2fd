# SPDX-License-Identifier: Apache-2.0
"""Metrics of several evaluators: states are added, samples that are kept are concatenated."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec

RNG = np.random.default_rng(7)
SAMPLES = 6000  # More than a store begins with.
OF_FIRST = 1500  # Samples of the first evaluator.
LABELS = (RNG.random(SAMPLES) < 0.3).astype(np.float32)
NOISE = RNG.standard_normal(SAMPLES)
# Without ties, which calibration_by_decile may cut.
SCORES = np.clip(0.2 + 0.3 * LABELS + 0.1 * NOISE, 0.01, 0.99).astype(np.float32)
SCORES += np.arange(SAMPLES, dtype=np.float32) * np.float32(1e-6)
GROUPS = RNG.integers(0, 60, SAMPLES)
WEIGHTS = RNG.integers(0, 3, SAMPLES).astype(np.float32)

BASE = {"labels": LABELS, "predictions": SCORES}
WEIGHTED = {**BASE, "weights": WEIGHTS}
GROUPED = {**BASE, "groups": GROUPS}
TEXTS = {**BASE, "groups": GROUPS.astype(str).astype(object)}
LISTS = {name: column.reshape(-1, 10) for name, column in BASE.items()}

CASES = [
    ("auc", WEIGHTED, {}),
    ("auc_of_logits", {"labels": LABELS, "logits": np.log(SCORES / (1.1 - SCORES))}, {}),
    ("calibration", WEIGHTED, {}),
    ("calibration_by_decile", BASE, {}),
    ("grouped_auc", {**GROUPED, "weights": WEIGHTS}, {}),
    ("grouped_auc", TEXTS, {"weighted_by": "clicks"}),
    ("hit_rate", LISTS, {"k": 2}),
    ("hit_rate", GROUPED, {"k": 2}),
    ("log_loss", WEIGHTED, {}),
    ("ndcg", LISTS, {"k": 3}),
    ("ndcg", TEXTS, {"k": 30}),
    ("normalized_entropy", WEIGHTED, {}),
    ("recall", LISTS, {"k": 3}),
    ("recall", GROUPED, {"k": 30}),
]


class Evaluator:
    """A graph with a metric, and a session."""

    def __init__(self, name, columns, arguments):
        with tf.Graph().as_default():
            self.inputs = {
                key: tf.placeholder(tf.as_dtype(column.dtype), [None, *column.shape[1:]])
                for key, column in columns.items()
            }
            found = getattr(rec.metrics, name)(**self.inputs, **arguments)
            pairs = list(found.values()) if isinstance(found, dict) else [found]
            self.values, (self.update, *_) = zip(*pairs)
            self.variables = {each.op.name: each for each in tf.local_variables()}
            self.initialize = tf.local_variables_initializer()
            self.state = {name: tf.placeholder(v.dtype) for name, v in self.variables.items()}
            self.load = [
                tf.raw_ops.AssignVariableOp(resource=v.handle, value=self.state[name])
                for name, v in self.variables.items()
            ]
            self.session = tf.Session()

    def evaluate(self, columns):
        """The state and the values after all batches of columns."""
        self.session.run(self.initialize)
        for begin in range(0, len(columns["labels"]), 400):
            batch = {self.inputs[key]: part[begin : begin + 400] for key, part in columns.items()}
            self.session.run(self.update, batch)
        return self.session.run((self.variables, self.values))

    def values_of(self, state):
        self.session.run(self.load, {self.state[name]: state[name] for name in state})
        return self.session.run(self.values)


def merged(states):
    """What docs/metrics.md says of the states of several evaluators."""
    found = {}
    for name in states[0]:
        scope, _, last = name.rpartition("/")
        if last.startswith("column_"):
            kept = [each[name][: each[f"{scope}/samples"]] for each in states]
            found[name] = np.concatenate(kept)
        else:
            found[name] = sum(each[name] for each in states)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'groups' in case[1]}")
def test_merged_states_have_the_value_of_all_samples(case):
    name, columns, arguments = case
    evaluators = [Evaluator(name, columns, arguments) for _ in range(2)]
    cut = OF_FIRST * len(columns["labels"]) // SAMPLES
    states = [
        evaluator.evaluate({key: column[part] for key, column in columns.items()})[0]
        for evaluator, part in zip(evaluators, (slice(cut), slice(cut, None)))
    ]
    _, whole = evaluators[1].evaluate(columns)
    # float64 sums in another order, rounded to float32.
    assert evaluators[1].values_of(merged(states)) == pytest.approx(whole, rel=1e-6)
    assert evaluators[1].values_of(states[0]) != pytest.approx(whole, rel=1e-4)


def test_each_metric_has_a_case():
    assert {name for name, _, _ in CASES} == set(rec.metrics.__all__)
