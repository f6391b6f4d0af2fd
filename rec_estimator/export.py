# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's classes and functions for exporting an Estimator, re-exported.

``RecEstimator.export_saved_model`` writes a SavedModel whose graph contains ops of this package:
import ``rec_estimator`` before you load it, or export with ``portable=True``.
"""

from rec_estimator._tensorflow.estimator import (
    ClassificationOutput,
    EvalOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
    ServingInputReceiver,
    TensorServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from rec_estimator.serving.receiver import compressed_serving_input_receiver_fn
from rec_estimator.serving.row_exports import RowSample

__all__ = [
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "RowSample",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "compressed_serving_input_receiver_fn",
]
