# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's Estimators, with a warm_start_from that initializes tables, too.

They are TensorFlow's classes in all else. RecEstimator derives from the first of them.
"""

import os
from typing import Any, Callable, Dict, Optional, Union

from rec_estimator._tensorflow import estimator as _estimator
from rec_estimator.checkpoint import warm_start


class Estimator(_estimator.Estimator):
    """``tf.estimator.Estimator`` whose ``warm_start_from`` initializes tables, too.

    Args:
      model_fn: As in ``tf.estimator.Estimator``.
      model_dir: Folder of checkpoints and logs.
      config: A RunConfig.
      params: Passed to model_fn.
      warm_start_from: As in RecEstimator.

    Raises:
      ValueError: As in ``tf.estimator.Estimator``.

    Example:
      >>> def model_fn(features, labels, mode):
      ...     table = rec.get_embedding_variable("user", embedding_dim=4)
      ...     loss = tf.reduce_sum(rec.embedding_lookup(table, features["user"]))
      ...     optimizer = rec.optimizers.AdagradOptimizer(0.1)
      ...     train_op = optimizer.minimize(loss, tf.train.get_global_step())
      ...     return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)
      >>> estimator = rec.Estimator(model_fn, warm_start_from=rec.WarmStartSettings("old_model"))
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Union[str, "os.PathLike[str]", None] = None,
        config: Any = None,
        params: Optional[Dict[str, Any]] = None,
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(
            model_fn,
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start.as_settings(warm_start_from),
        )


def _as_ours(canned: Any) -> Any:
    """A canned estimator whose __init__ ends in that of our Estimator, the next of its bases."""
    members = {"__doc__": canned.__doc__, "__module__": canned.__module__}
    return type(canned.__name__, (canned, Estimator), members)


BaselineClassifier = _as_ours(_estimator.BaselineClassifier)
BaselineEstimator = _as_ours(_estimator.BaselineEstimator)
BaselineRegressor = _as_ours(_estimator.BaselineRegressor)
DNNClassifier = _as_ours(_estimator.DNNClassifier)
DNNEstimator = _as_ours(_estimator.DNNEstimator)
DNNLinearCombinedClassifier = _as_ours(_estimator.DNNLinearCombinedClassifier)
DNNLinearCombinedEstimator = _as_ours(_estimator.DNNLinearCombinedEstimator)
DNNLinearCombinedRegressor = _as_ours(_estimator.DNNLinearCombinedRegressor)
DNNRegressor = _as_ours(_estimator.DNNRegressor)
LinearClassifier = _as_ours(_estimator.LinearClassifier)
LinearEstimator = _as_ours(_estimator.LinearEstimator)
LinearRegressor = _as_ours(_estimator.LinearRegressor)
