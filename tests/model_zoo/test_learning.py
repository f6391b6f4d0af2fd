# SPDX-License-Identifier: Apache-2.0
"""Models of the zoo learn which items suit which users; no column alone tells it."""

import numpy as np
import pytest

from model_zoo import data
from model_zoo.runner import config
from model_zoo.runner.build import build_estimator

CLICKS = data.generate_clicks(rows=6000, users=60, items=40, seed=3)


@pytest.mark.long
@pytest.mark.parametrize("model", ["wide_and_deep", "dcnv2", "din"])
def test_training_comes_near_the_attainable_auc(model, tmp_path):
    settings = config.Config(model=model, params={"dim": 8, "hidden_units": (16, 8)}).replace(
        train__optimizer={"name": "adam", "learning_rate": 0.01}
    )
    estimator = build_estimator(settings, CLICKS, str(tmp_path))
    estimator.train(CLICKS.input_fn("train", 128, seed=1, epochs=5))
    answers = estimator.predict(CLICKS.input_fn("test", 1000))
    scores = np.array([answer["probabilities"] for answer in answers])
    labels = CLICKS.in_memory("test").labels["like"]
    assert data.exact_auc(labels, scores) > CLICKS.attainable_auc - 0.05
