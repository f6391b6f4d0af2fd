# SPDX-License-Identifier: Apache-2.0
"""The names of ``tf.estimator.experimental``, which TensorFlow 2.16 removed.

``LinearSDCA``, ``dnn_logit_fn_builder`` and ``linear_logit_fn_builder`` need Keras 2 as
``tf.keras``; see docs/migrating.md.

Example:
  >>> estimator = rec.RecEstimator(lambda features: None, "model")
  >>> hook = rec.experimental.stop_if_no_decrease_hook(
  ...     estimator, "loss", max_steps_without_decrease=1000)
"""

from typing import NoReturn

from rec_estimator._tensorflow.estimator import (
    KMeans,
    LinearSDCA,
    build_raw_supervised_input_receiver_fn,
    call_logit_fn,
    dnn_logit_fn_builder,
    linear_logit_fn_builder,
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from rec_estimator.training.evaluator_hook import InMemoryEvaluatorHook

__all__ = [
    "InMemoryEvaluatorHook",
    "KMeans",
    "LinearSDCA",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

_RNN = (
    "it needs Keras layers; use RecEstimator with tf.compat.v1.nn.dynamic_rnn in its model_fn, on "
    "features of EmbeddingFeature(combiner=None)"
)


def __getattr__(name: str) -> NoReturn:
    """Adds the remedy to the error for names of ``tf.estimator.experimental`` that are not here."""
    remedy = f"; {_RNN}" if name in ("RNNClassifier", "RNNEstimator") else ""
    raise AttributeError(f"module 'rec_estimator.experimental' has no attribute {name!r}{remedy}")
