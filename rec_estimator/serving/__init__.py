# SPDX-License-Identifier: Apache-2.0
"""Serving from Python: predictors, which keep a model in memory.

``python -m rec_estimator.serving`` starts a server that speaks TensorFlow Serving's protocol.
"""

from rec_estimator.serving.model_session import Refreshed
from rec_estimator.serving.predictor import (
    CheckpointPredictor,
    Predictor,
    SavedModelPredictor,
    load_predictor,
)

__all__ = [
    "load_predictor",
    "Predictor",
    "CheckpointPredictor",
    "SavedModelPredictor",
    "Refreshed",
]
