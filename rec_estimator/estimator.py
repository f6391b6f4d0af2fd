# SPDX-License-Identifier: Apache-2.0
"""RecEstimator: TensorFlow's V1 Estimator for models with embedding tables.

It wraps the model_fn: _model_pipeline.py has the stages. Before the model_fn runs, the declared
features are looked up. After it, ``table_optimizer`` gets the tables that no optimizer covers, and
a Saver that knows tables is installed.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from rec_estimator._model_pipeline import ModelPipeline
from rec_estimator._tensorflow.estimator import InMemoryEvaluatorHook, RunConfig
from rec_estimator.checkpoint import deltas
from rec_estimator.checkpoint.checkpoint_table import CheckpointTable
from rec_estimator.checkpoint.format.bundle import Bundle, Index
from rec_estimator.checkpoint.format.stored_tables import find_tables
from rec_estimator.checkpoint.warm_start import WarmStartSettings
from rec_estimator.features import EmbeddingFeature
from rec_estimator.optimizers.table_optimizer import TableUpdates
from rec_estimator.sample_compression import SampleCompression
from rec_estimator.serving.portable import PortableExports
from rec_estimator.serving.predictor import CheckpointPredictor
from rec_estimator.training import cluster
from rec_estimator.training.step_loop import check_steps
from rec_estimator.training.tf_config import read_tf_config


class _LoopCheckedEstimator(PortableExports):
    """An Estimator that knows loops and deltas.

    ``train`` accepts only whole multiples of ``iterations_per_loop``; ``get_variable_value`` reads
    no parts of tables.

    A base class, as PortableExports: TensorFlow refuses overrides in the user's own class.
    """

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Optional[Sequence[tf.train.SessionRunHook]] = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Optional[Sequence[tf.train.CheckpointSaverListener]] = None,
    ) -> "_LoopCheckedEstimator":
        """Trains the model; the arguments are those of ``tf.estimator.Estimator.train``.

        Raises:
          ValueError: With ``RunConfig(iterations_per_loop=N)``, the number of steps to train is not
            a multiple of N; or hooks has TensorFlow's InMemoryEvaluatorHook. Also whatever
            ``tf.estimator.Estimator.train`` raises.
          tf.errors.DataLossError: The latest checkpoint of the model's folder is damaged.
        """
        if any(isinstance(hook, InMemoryEvaluatorHook) for hook in hooks or ()):
            raise ValueError(
                "hooks must have no tf.estimator.experimental.InMemoryEvaluatorHook, which cannot "
                "copy tables or a custom Saver's variables; use "
                "rec_estimator.experimental.InMemoryEvaluatorHook, with the same arguments"
            )
        # Checks the checkpoint first: TensorFlow reads its step before it restores it.
        step = _latest_step(self.model_dir)
        iterations = getattr(self.config, "iterations_per_loop", 1)
        if iterations > 1:
            check_steps(iterations, steps, max_steps, step)
        return super().train(input_fn, hooks, steps, max_steps, saving_listeners)

    def get_variable_value(self, name: str) -> Any:
        """The value of a tensor in the latest checkpoint, as TensorFlow's method returns it.

        Args:
          name: The name of a variable, or of a tensor of a table, such as ``user-keys``.

        Raises:
          ValueError: There is no checkpoint; or the name is that of a table; or the latest
            checkpoint is a delta, and the tensor is one of a table's, of which it has the changed
            rows only.
        """
        latest = tf.train.latest_checkpoint(self.model_dir)
        if latest is not None and tf.io.gfile.exists(f"{latest}.index"):
            deltas.check_is_whole(latest, name)
        try:
            return super().get_variable_value(name)
        except tf.errors.NotFoundError as error:
            if latest is None or name not in find_tables(Bundle(latest)):
                raise
            raise ValueError(
                f"name must be that of one tensor, got {name!r}, a table; call "
                f"estimator.table({name!r}) for its rows, or name a tensor such as "
                f"{name + '-keys'!r}"
            ) from error

    def table(self, name: str, checkpoint_path: Optional[str] = None) -> CheckpointTable:
        """The rows of a table in the latest checkpoint.

        Args:
          name: Name of the table, such as ``user``.
          checkpoint_path: Prefix of another checkpoint.

        Returns:
          The rows in memory, as arrays.

        Raises:
          ValueError: There is no checkpoint, or it has no table of this name.
          tf.errors.NotFoundError: The checkpoint is a delta, and a parent is missing.
          tf.errors.DataLossError: The checkpoint is damaged.

        Example:
          >>> estimator = rec.RecEstimator(lambda features: None, "model")
          >>> # estimator.table("user").nearest(7)
        """
        prefix = checkpoint_path or tf.train.latest_checkpoint(self.model_dir)
        if prefix is None:
            raise ValueError(
                f"model_dir {self.model_dir!r} has no checkpoint; train first, or pass "
                "checkpoint_path"
            )
        return CheckpointTable(prefix, name)

    def predictor(self, receiver_fn: Callable[[], Any]) -> CheckpointPredictor:
        """Keeps the model of the latest checkpoint in memory, for request after request.

        ``predict`` builds the graph and loads the checkpoint in each call; a predictor does so
        once. Its predictions are those of ``predict``, bit for bit where input_fn leaves the size
        of a batch open: TensorFlow reorders additions of known shapes. It runs no prediction_hooks.

        Args:
          receiver_fn: A function without arguments that returns a ServingInputReceiver, as for
            ``export_saved_model``. A request has its receiver_tensors.

        Returns:
          A predictor: ``predict(features)`` returns {name: array}, and ``predict.refresh()`` loads
          a newer checkpoint. Any number of threads may use it. Close it, or use it as a context
          manager.

        Raises:
          ValueError: model_dir has no checkpoint, or the Estimator runs on a cluster.

        Example:
          >>> def receiver_fn():
          ...     user = tf.placeholder(tf.int64, [None])
          ...     return rec.ServingInputReceiver({"user": user}, {"user": user})
          >>> estimator = rec.RecEstimator(lambda features: None, "model")
          >>> # with estimator.predictor(receiver_fn) as predict:
          >>> #     predict({"user": [7]})
        """
        return CheckpointPredictor(self, receiver_fn)


class RecEstimator(_LoopCheckedEstimator):
    """Trains, evaluates and exports a model with embedding tables, and predicts with it.

    Args:
      model_fn: As in ``tf.estimator.Estimator``: a function of features, labels and optionally
        mode, params and config that returns an EstimatorSpec. For each declared feature, features
        holds the looked-up vectors under the feature's name: float32 [batch, dim]. With
        ``combiner=None`` they are [batch, max_length, dim], and ``<name>_mask`` is bool [batch,
        max_length]. ``<name>_ids`` has the ids as input_fn returned them, for predictions that name
        a user and for metrics by user.
      model_dir: Folder of checkpoints and logs.
      config: A RunConfig.
      params: Passed to model_fn.
      warm_start_from: Prefix of a checkpoint, a folder with one, a SavedModel's folder or
        WarmStartSettings. It is used while model_dir has no checkpoint. As for variables in
        TensorFlow, a path, or a ``vars_to_warm_start`` that is one expression, takes the rows of
        trainable tables. A ``vars_to_warm_start`` that is a list of expressions also takes the
        slots ``<table>/<slot>`` that match. ``var_name_to_prev_var_name`` may name tables. A list
        or tuple of these is taken in order: of two sources that select a table, the later counts.
      embedding_features: EmbeddingFeature declarations. None: model_fn does all lookups itself.
      table_optimizer: One of ``rec_estimator.optimizers``. It updates the tables that the optimizer
        of model_fn does not update, so that a model_fn with a stock optimizer needs no change.
        None: the optimizer of model_fn must be one of ours and update all tables.
      sample_compression: A SampleCompression, for batches with one row per user, as
        ``inputs.group_samples`` makes them. Training and evaluation on them give the results of the
        uncompressed batches.

    Raises:
      ValueError: model_fn or a declaration is wrong; an argument comes from Keras; features are not
        tensors. In training also if no optimizer covers a looked-up table, or if the gradients of a
        compressed model were built too early.
      TypeError: table_optimizer is not one of ours, or sample_compression is not a
        SampleCompression.

    Example:
      >>> def model_fn(features, labels, mode):
      ...     logits = tf.reduce_sum(features["user"], axis=1)
      ...     loss = tf.losses.sigmoid_cross_entropy(labels, logits)
      ...     train_op = rec.optimizers.AdagradOptimizer(0.1).minimize(
      ...         loss, global_step=tf.train.get_global_step())
      ...     return rec.EstimatorSpec(mode, loss=loss, train_op=train_op)
      >>> estimator = rec.RecEstimator(
      ...     model_fn, embedding_features=[rec.EmbeddingFeature("user", dim=4)])
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Optional[str] = None,
        config: Optional[RunConfig] = None,
        params: Optional[Dict[str, Any]] = None,
        warm_start_from: Union[
            str, WarmStartSettings, Sequence[Union[str, WarmStartSettings]], None
        ] = None,
        *,
        embedding_features: Optional[Sequence[EmbeddingFeature]] = None,
        table_optimizer: Optional[TableUpdates] = None,
        sample_compression: Optional[SampleCompression] = None,
    ) -> None:
        read_tf_config()
        pipeline = ModelPipeline(
            model_fn, params, embedding_features, table_optimizer, sample_compression
        )
        if isinstance(config, RunConfig):
            config = cluster.with_device_filters(config)
        super().__init__(
            pipeline.build,
            model_dir=model_dir,
            config=config,
            params=params or {},
            warm_start_from=warm_start_from,
        )
        cluster.check_config(self.config)


def _latest_step(model_dir: str) -> int:
    """The global step of the latest checkpoint, which is checked; 0 if there is no checkpoint."""
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None or not tf.io.gfile.exists(f"{latest}.index"):  # Not a V2 checkpoint.
        return 0
    deltas.check_chain(latest)
    return Index(latest).read_integer(tf.GraphKeys.GLOBAL_STEP) or 0
