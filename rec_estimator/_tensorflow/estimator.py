# SPDX-License-Identifier: Apache-2.0
"""The tensorflow_estimator package: what users take from it. Checked on TensorFlow 2.15 to 2.21.

The names are taken from the package and not from ``tf.estimator``, which TensorFlow 2.16 removed.
"""

import contextlib as _contextlib

from rec_estimator._tensorflow import releases as _releases
from rec_estimator._tensorflow.canned import checked as _checked
from rec_estimator._tensorflow.estimator_stand_ins import stand_ins as _stand_ins

with _contextlib.nullcontext() if _releases.SUPPORTS_ESTIMATOR_PACKAGE else _stand_ins():
    from tensorflow_estimator import estimator as _estimator

BestExporter = _estimator.BestExporter
Estimator = _estimator.Estimator
EstimatorSpec = _estimator.EstimatorSpec
EvalSpec = _estimator.EvalSpec
Exporter = _estimator.Exporter
FinalExporter = _estimator.FinalExporter
LatestExporter = _estimator.LatestExporter
ModeKeys = _estimator.ModeKeys
RunConfig = _estimator.RunConfig
TrainSpec = _estimator.TrainSpec
VocabInfo = _estimator.VocabInfo
WarmStartSettings = _estimator.WarmStartSettings
add_metrics = _estimator.add_metrics
classifier_parse_example_spec = _estimator.classifier_parse_example_spec
regressor_parse_example_spec = _estimator.regressor_parse_example_spec
train_and_evaluate = _estimator.train_and_evaluate

# Canned estimators without Keras.
BaselineClassifier = _estimator.BaselineClassifier
BaselineEstimator = _estimator.BaselineEstimator
BaselineRegressor = _estimator.BaselineRegressor

# Canned estimators and heads that need Keras 2.
DNNClassifier = _checked(_estimator.DNNClassifier)
DNNEstimator = _checked(_estimator.DNNEstimator)
DNNLinearCombinedClassifier = _checked(_estimator.DNNLinearCombinedClassifier)
DNNLinearCombinedEstimator = _checked(_estimator.DNNLinearCombinedEstimator)
DNNLinearCombinedRegressor = _checked(_estimator.DNNLinearCombinedRegressor)
DNNRegressor = _checked(_estimator.DNNRegressor)
LinearClassifier = _checked(_estimator.LinearClassifier)
LinearEstimator = _checked(_estimator.LinearEstimator)
LinearRegressor = _checked(_estimator.LinearRegressor)
BinaryClassHead = _checked(_estimator.BinaryClassHead)
LogisticRegressionHead = _checked(_estimator.LogisticRegressionHead)
MultiClassHead = _checked(_estimator.MultiClassHead)
MultiHead = _checked(_estimator.MultiHead)
MultiLabelHead = _checked(_estimator.MultiLabelHead)
PoissonRegressionHead = _checked(_estimator.PoissonRegressionHead)
RegressionHead = _checked(_estimator.RegressionHead)

# The base class of heads.
Head = _estimator.Head

# The classes and functions for exports.
ClassificationOutput = _estimator.export.ClassificationOutput
EvalOutput = _estimator.export.EvalOutput
ExportOutput = _estimator.export.ExportOutput
PredictOutput = _estimator.export.PredictOutput
RegressionOutput = _estimator.export.RegressionOutput
ServingInputReceiver = _estimator.export.ServingInputReceiver
TensorServingInputReceiver = _estimator.export.TensorServingInputReceiver
build_parsing_serving_input_receiver_fn = _estimator.export.build_parsing_serving_input_receiver_fn
build_raw_serving_input_receiver_fn = _estimator.export.build_raw_serving_input_receiver_fn

# Experimental names.
KMeans = _estimator.experimental.KMeans
LinearSDCA = _estimator.experimental.LinearSDCA
build_raw_supervised_input_receiver_fn = (
    _estimator.experimental.build_raw_supervised_input_receiver_fn
)
InMemoryEvaluatorHook = _estimator.experimental.InMemoryEvaluatorHook
call_logit_fn = _estimator.experimental.call_logit_fn
make_early_stopping_hook = _estimator.experimental.make_early_stopping_hook
make_stop_at_checkpoint_step_hook = _estimator.experimental.make_stop_at_checkpoint_step_hook
stop_if_higher_hook = _estimator.experimental.stop_if_higher_hook
stop_if_lower_hook = _estimator.experimental.stop_if_lower_hook
stop_if_no_decrease_hook = _estimator.experimental.stop_if_no_decrease_hook
stop_if_no_increase_hook = _estimator.experimental.stop_if_no_increase_hook
dnn_logit_fn_builder = _checked(_estimator.experimental.dnn_logit_fn_builder)
linear_logit_fn_builder = _checked(_estimator.experimental.linear_logit_fn_builder)
