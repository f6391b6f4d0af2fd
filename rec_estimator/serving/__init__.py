# SPDX-License-Identifier: Apache-2.0
"""Serving from Python: predictors keep a model in memory, followers keep it up to date.

Publishing writes what they follow.

``python -m rec_estimator.serving`` starts a server that speaks TensorFlow Serving's protocol.
"""

from rec_estimator.serving.following import Follower, Lag, follow
from rec_estimator.serving.model_session import Refreshed
from rec_estimator.serving.predictor import (
    CheckpointPredictor,
    Predictor,
    SavedModelPredictor,
    load_predictor,
)
from rec_estimator.serving.publishing import PublishHook, publish, read_manifest

__all__ = [
    "load_predictor",
    "Predictor",
    "CheckpointPredictor",
    "SavedModelPredictor",
    "Refreshed",
    "follow",
    "Follower",
    "Lag",
    "publish",
    "read_manifest",
    "PublishHook",
]
