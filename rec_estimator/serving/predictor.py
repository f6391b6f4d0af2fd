# SPDX-License-Identifier: Apache-2.0
"""Predictors: models that stay in memory and answer request after request."""

import threading
from typing import Any, Callable, Dict, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow.estimator import Estimator, ModeKeys
from rec_estimator.serving.model_session import ModelSession, Refreshed, load_saved_model
from rec_estimator.serving.replaceable import Replaceable
from rec_estimator.serving.signature import Signature

_DEFAULT_SIGNATURE = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Predictor:
    """A model that answers requests of any number of threads.

    Graph, session and threads stay between requests. ``RecEstimator.predictor`` and
    ``serving.load_predictor`` make predictors. Use one as a context manager, or call ``close``.
    """

    def __init__(self, model: ModelSession, signature: str) -> None:
        self._models = Replaceable(model, "the predictor")
        self._signature = signature
        self._refreshing = threading.Lock()

    def __call__(self, features: Mapping[str, Any]) -> Dict[str, np.ndarray]:
        """Answers a request, of one example or a batch.

        Args:
          features: {name: value} for each input of the model. A value is an array of the input's
            dtype, or Python numbers or strings that fit into it. A sparse input takes a
            SparseTensorValue, a ragged one a RaggedTensorValue.

        Returns:
          {name: array} of the predictions.

        Raises:
          ValueError: A feature is missing or unknown, or its shape does not fit.
          TypeError: A feature has another dtype than the input.
          RuntimeError: The predictor is closed.
        """
        with self._models.use() as model:
            return model.run(model.signatures[self._signature], features)

    def close(self) -> None:
        """Waits for requests that have begun, and frees the model. May be called again."""
        self._models.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class CheckpointPredictor(Predictor):
    """A predictor of an Estimator, with the model of its latest checkpoint.

    Args:
      estimator: The Estimator.
      receiver_fn: A function without arguments that returns a ServingInputReceiver, as for exports.

    Raises:
      ValueError: model_dir has no checkpoint, or the model runs on a cluster.
    """

    def __init__(self, estimator: Estimator, receiver_fn: Callable[[], Any]) -> None:
        self._checkpoints = _Checkpoints(estimator, receiver_fn)
        self._loaded = self._checkpoints.latest()
        super().__init__(self._checkpoints.load(self._loaded), _DEFAULT_SIGNATURE)

    def __enter__(self) -> "CheckpointPredictor":
        return self

    def refresh(self) -> bool:
        """Loads the latest checkpoint, if it is another one than the loaded one.

        Requests go on meanwhile. Each sees the whole old model or the whole new one; one that
        begins after ``refresh`` has returned sees the new one. Both are in memory until the last
        request of the old one has ended.

        Returns:
          Whether another checkpoint was loaded.

        Raises:
          RuntimeError: The predictor is closed.
          tf.errors.OpError: The checkpoint cannot be read; the predictor keeps the old model.
        """
        with self._refreshing, self._models.use():
            latest = self._checkpoints.latest()
            if latest == self._loaded:
                return False
            self._models.replace(self._checkpoints.load(latest))
            self._loaded = latest
            return True


class SavedModelPredictor(Predictor):
    """A predictor of a SavedModel. See ``load_predictor``."""

    def __enter__(self) -> "SavedModelPredictor":
        return self

    def refresh(self, delta: str) -> Refreshed:
        """Brings the model up to date in place, with a delta.

        Requests go on meanwhile. One that begins after ``refresh`` has returned sees the rows and
        variables of the delta.

        Args:
          delta: The name of the delta in the folder that was chosen when the model was exported.
            "" changes nothing; the result says what the model has.

        Returns:
          The step of the model, and what the delta changed.

        Raises:
          ValueError: The model was not exported with refreshable=True.
          tf.errors.OpError: The delta was refused; the model is as it was.
          RuntimeError: The predictor is closed.
        """
        with self._refreshing, self._models.use() as model:
            return model.refresh(delta)


def load_predictor(folder: str, signature: str = _DEFAULT_SIGNATURE) -> SavedModelPredictor:
    """Loads a SavedModel and keeps it in memory for requests.

    Args:
      folder: The folder of the SavedModel, with ``saved_model.pb``.
      signature: The name of the signature that requests run.

    Returns:
      A predictor: call it with {name: array} of the signature's inputs.

    Raises:
      OSError: The folder has no SavedModel.
      ValueError: The model has no such signature.

    Example:
      >>> x = tf.placeholder(tf.float32, [None])
      >>> with tf.Session() as session:
      ...     tf.saved_model.simple_save(session, "saved", {"x": x}, {"y": 2 * x})
      >>> with rec.serving.load_predictor("saved") as predict:
      ...     predict({"x": [1.0, 3.0]})
      {'y': array([2., 6.], dtype=float32)}
    """
    model = load_saved_model(folder)
    if signature not in model.signatures:
        model.close()
        raise ValueError(
            f"signature must be one of {sorted(model.signatures)}, got {signature!r}, which "
            f"{folder!r} does not have"
        )
    return SavedModelPredictor(model, signature)


class _Checkpoints:
    """The prediction graph of an Estimator, and sessions with its checkpoints."""

    def __init__(self, estimator: Estimator, receiver_fn: Callable[[], Any]) -> None:
        config = estimator.config
        if config.master:
            raise ValueError(
                f"a predictor must run in one process, got the cluster of {config.master!r}; "
                "export the model, and call rec_estimator.serving.load_predictor"
            )
        self._folder = estimator.model_dir
        self._session_config = config.session_config
        self._graph = tf.Graph()
        self.latest()  # Fails before it builds a model.
        with self._graph.as_default():
            # As estimator.predict builds it.
            tf.set_random_seed(config.tf_random_seed)
            tf.train.create_global_step()
            receiver = receiver_fn()
            spec = estimator.model_fn(receiver.features, None, ModeKeys.PREDICT, config)
            self._scaffold = spec.scaffold
        predictions = spec.predictions
        outputs = predictions if isinstance(predictions, dict) else {"output": predictions}
        self._signatures = {_DEFAULT_SIGNATURE: Signature(receiver.receiver_tensors, outputs)}

    def latest(self) -> str:
        """The prefix of the latest checkpoint."""
        latest = tf.train.latest_checkpoint(self._folder)
        if latest is None:
            raise ValueError(f"model_dir {self._folder!r} has no checkpoint; train first")
        return latest

    def load(self, prefix: str) -> ModelSession:
        """Opens a session with a checkpoint. Each has variables and tables of its own."""
        creator = tf.train.ChiefSessionCreator(
            self._scaffold, config=self._session_config, checkpoint_filename_with_path=prefix
        )
        with self._graph.as_default():
            session = creator.create_session()
        self._graph.finalize()
        return ModelSession(session, self._signatures)
