# SPDX-License-Identifier: Apache-2.0
"""What a model says and takes when it is exported: TensorFlow's classes, re-exported.

``RecEstimator.export_saved_model`` writes an ordinary SavedModel whose graph holds our ops: import
``rec_estimator`` before loading it.
"""

from tensorflow_estimator import estimator as _estimator

from rec_estimator.serving.receiver import compressed_serving_input_receiver_fn

ClassificationOutput = _estimator.export.ClassificationOutput
ExportOutput = _estimator.export.ExportOutput
PredictOutput = _estimator.export.PredictOutput
RegressionOutput = _estimator.export.RegressionOutput
ServingInputReceiver = _estimator.export.ServingInputReceiver
TensorServingInputReceiver = _estimator.export.TensorServingInputReceiver
build_parsing_serving_input_receiver_fn = _estimator.export.build_parsing_serving_input_receiver_fn
build_raw_serving_input_receiver_fn = _estimator.export.build_raw_serving_input_receiver_fn

__all__ = [
    "ClassificationOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "compressed_serving_input_receiver_fn",
]
