# SPDX-License-Identifier: Apache-2.0
"""The names of the tensorflow_estimator package that are used here. Checked on TensorFlow 2.15.

They are taken from the package and not from ``tf.estimator``, which TensorFlow 2.16 removed. Later
releases of TensorFlow also lack modules that the package imports; this is the one place to adapt.
"""

from tensorflow_estimator import estimator as _estimator

BestExporter = _estimator.BestExporter
Estimator = _estimator.Estimator
EstimatorSpec = _estimator.EstimatorSpec
EvalSpec = _estimator.EvalSpec
FinalExporter = _estimator.FinalExporter
LatestExporter = _estimator.LatestExporter
ModeKeys = _estimator.ModeKeys
RunConfig = _estimator.RunConfig
TrainSpec = _estimator.TrainSpec
VocabInfo = _estimator.VocabInfo
WarmStartSettings = _estimator.WarmStartSettings
train_and_evaluate = _estimator.train_and_evaluate

# The classes and functions for exports.
ClassificationOutput = _estimator.export.ClassificationOutput
ExportOutput = _estimator.export.ExportOutput
PredictOutput = _estimator.export.PredictOutput
RegressionOutput = _estimator.export.RegressionOutput
ServingInputReceiver = _estimator.export.ServingInputReceiver
TensorServingInputReceiver = _estimator.export.TensorServingInputReceiver
build_parsing_serving_input_receiver_fn = _estimator.export.build_parsing_serving_input_receiver_fn
build_raw_serving_input_receiver_fn = _estimator.export.build_raw_serving_input_receiver_fn
