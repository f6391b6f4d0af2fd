# SPDX-License-Identifier: Apache-2.0
"""RecEstimator: an Estimator whose model_fn finds its features embedded and its tables trained.

Step 5 of the data flow, and the one most users see. It is TensorFlow's V1 Estimator with the
model_fn wrapped: before it, the declared features are looked up; after it, the tables that no
optimizer covers are given to ``table_optimizer``, and a Saver that knows tables is put in place.
"""

import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import tensorflow.compat.v1 as tf
from tensorflow_estimator import estimator as _estimator

from rec_estimator import features as features_lib
from rec_estimator import sample_compression as compression_lib
from rec_estimator._argument_checks import refuse_unsupported
from rec_estimator._tensorflow import graphs
from rec_estimator.checkpoint import saver as saver_lib
from rec_estimator.checkpoint import warm_start
from rec_estimator.features import EmbeddingFeature
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.hooks import IncrementalSaverHook
from rec_estimator.sample_compression import training as compressed_training
from rec_estimator.serving import portable as portable_lib
from rec_estimator.table.table import EmbeddingTable, graph_tables
from rec_estimator.training.step_loop import StepLoopHook, check_iterations, check_steps

BestExporter = _estimator.BestExporter
EstimatorSpec = _estimator.EstimatorSpec
EvalSpec = _estimator.EvalSpec
FinalExporter = _estimator.FinalExporter
LatestExporter = _estimator.LatestExporter
ModeKeys = _estimator.ModeKeys
TrainSpec = _estimator.TrainSpec
VocabInfo = _estimator.VocabInfo
WarmStartSettings = _estimator.WarmStartSettings
train_and_evaluate = _estimator.train_and_evaluate

# Ops that take a variable's handle and leave it as it is.
_READS = ("Identity", "IsVariableInitialized", "ReadVariableOp", "VarIsInitializedOp")

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")

_INCREMENTAL = ("save_incremental_checkpoints_secs", "save_incremental_checkpoints_steps")


class RunConfig(_estimator.RunConfig):
    """``tf.estimator.RunConfig`` for incremental checkpoints, and for several steps a run.

    Full checkpoints are written when ``save_checkpoints_secs`` or ``save_checkpoints_steps`` say,
    incremental ones between them: dense variables, and of each table the keys that were touched.

    With ``iterations_per_loop=N`` a run of the session does N training steps, input included, and
    the numbers are those of N runs. Hooks are called once for the N, see tensors of the last of
    them, and the global step moves by N; so what they do every so many steps falls on multiples of
    N. It pays where a step takes less than a millisecond. When the data end within a loop, training
    ends cleanly and the steps that were done stay; the loss in the log is the last whole loop's.

    Args:
      *args: As of ``tf.estimator.RunConfig``.
      save_incremental_checkpoints_secs: Seconds between two of them, above 0. None: none.
      save_incremental_checkpoints_steps: Steps between two of them, above 0. None: none.
      iterations_per_loop: Training steps a run of the session, in [1, 1000000]. The steps to train
        must be a multiple of it.
      **kwargs: As of ``tf.estimator.RunConfig``.

    Raises:
      ValueError: Both are given, or one that is not above 0, or iterations_per_loop is out of
        range; else as of TensorFlow.

    Example:
      >>> config = rec.RunConfig(
      ...     save_checkpoints_secs=3600, save_incremental_checkpoints_secs=60)
      >>> config.save_incremental_checkpoints_secs
      60
    """

    def __init__(
        self,
        *args: Any,
        save_incremental_checkpoints_secs: Optional[float] = None,
        save_incremental_checkpoints_steps: Optional[int] = None,
        iterations_per_loop: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._iterations_per_loop = check_iterations(iterations_per_loop)
        self._set_incremental(
            save_incremental_checkpoints_secs=save_incremental_checkpoints_secs,
            save_incremental_checkpoints_steps=save_incremental_checkpoints_steps,
        )

    def _set_incremental(self, **values: Any) -> None:
        for name, value in values.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}; None switches it off")
        secs, steps = (values[name] for name in _INCREMENTAL)
        if secs is not None and steps is not None:
            raise ValueError(
                "one of save_incremental_checkpoints_secs and save_incremental_checkpoints_steps "
                f"must be None, got {secs} and {steps}; give the one that fits"
            )
        self._save_incremental_checkpoints_secs = secs
        self._save_incremental_checkpoints_steps = steps

    @property
    def save_incremental_checkpoints_secs(self) -> Optional[float]:
        """Seconds between two incremental checkpoints, None if they are not timed."""
        return self._save_incremental_checkpoints_secs

    @property
    def save_incremental_checkpoints_steps(self) -> Optional[int]:
        """Steps between two incremental checkpoints, None if they are not counted."""
        return self._save_incremental_checkpoints_steps

    @property
    def iterations_per_loop(self) -> int:
        """Training steps a run of the session."""
        return self._iterations_per_loop

    def replace(self, **kwargs: Any) -> "RunConfig":
        """A copy with other values.

        Args:
          **kwargs: Properties that ``tf.estimator.RunConfig.replace`` takes,
            ``save_incremental_checkpoints_secs`` and ``_steps``, and ``iterations_per_loop``.

        Raises:
          ValueError: As of the constructor.
        """
        incremental = {name: getattr(self, name) for name in _INCREMENTAL}
        incremental.update({name: kwargs.pop(name) for name in _INCREMENTAL if name in kwargs})
        iterations = check_iterations(kwargs.pop("iterations_per_loop", self.iterations_per_loop))
        copied = super().replace(**kwargs)
        copied._set_incremental(**incremental)
        copied._iterations_per_loop = iterations
        return copied


def _step_in(model_dir: str) -> int:
    """The global step of the latest checkpoint, 0 if there is none."""
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None:
        return 0
    reader = tf.train.NewCheckpointReader(latest)
    has_step = reader.has_tensor(tf.GraphKeys.GLOBAL_STEP)
    return int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP)) if has_step else 0


class _WholeLoops(portable_lib.PortableExports):
    """The Estimator, which trains whole loops only.

    A class of its own, because TensorFlow refuses an Estimator that overrides public methods
    itself: they call each other. This one checks, then does what it always did.
    """

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Optional[Sequence[Any]] = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Optional[Sequence[Any]] = None,
    ) -> Any:
        """As of ``tf.estimator.Estimator``, which says what the arguments are.

        Raises:
          ValueError: With ``RunConfig(iterations_per_loop=N)``, ``steps``, or what is left to
            ``max_steps``, is no multiple of N; else as of TensorFlow.
        """
        iterations = getattr(self.config, "iterations_per_loop", 1)
        if iterations > 1:
            check_steps(iterations, steps, max_steps, _step_in(self.model_dir))
        return super().train(input_fn, hooks, steps, max_steps, saving_listeners)


class RecEstimator(_WholeLoops):
    """Trains, evaluates, predicts with and exports a model with embedding tables.

    Args:
      model_fn: As of ``tf.estimator.Estimator``: takes features, labels and, if it names them,
        mode, params and config, and returns an EstimatorSpec. Under the name of each declared
        feature it finds the looked-up vectors: float32 [batch, dim], or with ``combiner=None``
        [batch, max_length, dim] and ``<name>_mask`` bool [batch, max_length].
      model_dir: Folder of checkpoints and logs.
      config: A RunConfig.
      params: Passed to model_fn.
      warm_start_from: Prefix of a checkpoint, a folder with one, a SavedModel's folder or
        WarmStartSettings, used while model_dir has no checkpoint. As TensorFlow does with
        variables, a path or ``vars_to_warm_start`` as one expression takes the rows of trainable
        tables; as a list of expressions, which also reaches other variables, the slots
        ``<table>/<slot>`` that match as well. ``var_name_to_prev_var_name`` may name tables.
      embedding_features: EmbeddingFeature declarations. None: model_fn looks up what it wants
        itself.
      table_optimizer: One of ``rec_estimator.optimizers``: updates the tables that the optimizer of
        model_fn does not, so that a stock model_fn needs no change. None: model_fn's optimizer is
        one of ours and updates all.
      sample_compression: A SampleCompression: batches with a row per user, as
        ``inputs.group_samples`` makes them, are trained on and evaluated as what they stand for.

    Raises:
      ValueError: A bad model_fn or declaration; something of Keras; features that are no tensors;
        while training, a looked-up table that no optimizer covers, or a compressed model whose
        gradients were built too early.
      TypeError: table_optimizer is not one of ours, sample_compression no SampleCompression.

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
        config: Optional[Any] = None,
        params: Optional[Dict[str, Any]] = None,
        warm_start_from: Any = None,
        *,
        embedding_features: Optional[Sequence[EmbeddingFeature]] = None,
        table_optimizer: Optional[Any] = None,
        sample_compression: Optional[compression_lib.SampleCompression] = None,
    ) -> None:
        refuse_unsupported("model_fn", model_fn, "write a function that returns an EstimatorSpec")
        _check_additions(table_optimizer, sample_compression)
        arguments = _arguments_of(model_fn, params)
        is_one = isinstance(embedding_features, EmbeddingFeature)  # Which the check refuses.
        declarations = embedding_features if is_one else tuple(embedding_features or ())
        features_lib.check_declarations(declarations)
        embedded = [feature.name for feature in declarations]

        def wrapped_model_fn(
            features: Any, labels: Any, mode: str, params: Any, config: Any
        ) -> Any:
            if labels is not None and "labels" not in arguments:
                raise ValueError(
                    "model_fn must take labels where input_fn returns them, got "
                    f"{model_fn} with {sorted(arguments)}"
                )
            if sample_compression is not None:
                features = sample_compression.enable(features, labels)
            if portable_lib.is_exporting():
                compression_lib.use_stock_ops()
            features = compression_lib.with_open_rows(features)
            _check_tensors(features)
            if declarations:
                features = features_lib.lookup_features(features, declarations)
                _check_labels(labels, {name: features[name] for name in embedded})
            offered = dict(labels=labels, mode=mode, params=params, config=config)
            spec = model_fn(features, **{k: v for k, v in offered.items() if k in arguments})
            if not isinstance(spec, EstimatorSpec):
                raise ValueError(f"model_fn must return an EstimatorSpec, got {spec!r}")
            if mode == ModeKeys.TRAIN:
                compressed_training.check_gradients_are_compressed(spec.train_op)
                spec = _with_table_updates(spec, table_optimizer)
                _let_the_global_step_wait(spec.train_op)
                compressed_training.repeat_for_ops_built_later()
            spec = _with_table_saver(compression_lib.compress_spec(spec), config)
            return _with_step_loop(spec, config)

        super().__init__(
            wrapped_model_fn,
            model_dir=model_dir,
            config=config,
            params=params or {},
            warm_start_from=warm_start.as_settings(warm_start_from),
        )
        _check_not_distributed(self.config)


def _check_additions(table_optimizer: Any, sample_compression: Any) -> None:
    """Refuses what cannot be added to a model_fn."""
    refuse_unsupported("table_optimizer", table_optimizer, "give one of rec_estimator.optimizers")
    if table_optimizer is not None and not hasattr(table_optimizer, "updates_tables"):
        raise TypeError(
            f"table_optimizer must be one of rec_estimator.optimizers, got {table_optimizer!r}; "
            "TensorFlow's own cannot update a table"
        )
    is_declared = isinstance(sample_compression, compression_lib.SampleCompression)
    if sample_compression is not None and not is_declared:
        raise TypeError(
            f"sample_compression must be a SampleCompression, got {sample_compression!r}; for "
            'example rec_estimator.SampleCompression(user=["user"])'
        )


def _arguments_of(model_fn: Callable[..., Any], params: Optional[Dict[str, Any]]) -> Set[str]:
    """The names among features, labels, mode, params and config that model_fn takes."""
    if not callable(model_fn):
        raise ValueError(f"model_fn must be a function, got {model_fn!r}")
    parameters = inspect.signature(model_fn).parameters
    names = {
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        names |= set(_MODEL_FN_ARGUMENTS)
    required = {
        name
        for name in names
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    }
    if "features" not in names or not required <= set(_MODEL_FN_ARGUMENTS):
        raise ValueError(
            f"model_fn must take features and no more than {', '.join(_MODEL_FN_ARGUMENTS)}, got "
            f"{sorted(names)}"
        )
    if params is not None and "params" not in names:
        raise ValueError(f"model_fn must take params where params are given, got {sorted(names)}")
    return names & set(_MODEL_FN_ARGUMENTS)


def _check_not_distributed(config: Any) -> None:
    """Refuses set-ups in which every task would train tables of its own, to lose all but one."""
    if config.num_ps_replicas or config.num_worker_replicas > 1:
        raise ValueError(
            "TF_CONFIG must have one training task, got "
            f"{config.num_worker_replicas} and {config.num_ps_replicas} ps; tables are not spread "
            "over tasks yet"
        )
    if config.train_distribute is not None:
        raise ValueError(
            f"train_distribute must be None, got {config.train_distribute!r}; tables are not "
            "spread over replicas yet"
        )


def _check_tensors(features: Any) -> None:
    """Refuses features that every step would see the same of, as TensorFlow lets them pass."""
    for feature in tf.nest.flatten(features):
        if not tf.is_tensor(feature):
            raise ValueError(
                f"input_fn must return a tf.data.Dataset, or tensors of one, got {feature!r} among "
                "the features; begin with tf.data.Dataset.from_tensor_slices(features)"
            )


def _check_labels(labels: Any, vectors: Dict[str, tf.Tensor]) -> None:
    """Refuses labels that have not one row per example, where the graph knows it."""
    for label in tf.nest.flatten(labels):
        for name, vector in vectors.items():
            if label is None or not hasattr(label, "shape") or label.shape.rank is None:
                continue
            if not label.shape[:1].is_compatible_with(vector.shape[:1]) or label.shape.rank == 0:
                raise ValueError(
                    f"labels must have one row per example, got shape {label.shape} beside "
                    f"{vector.shape[0]} examples of feature {name!r}; batch features "
                    "and labels together"
                )


def _with_table_updates(spec: Any, table_optimizer: Optional[Any]) -> Any:
    """Adds the update of the tables that the model_fn's own optimizer left alone."""
    left = [
        table
        for table in graph_tables()
        if table.trainable
        and any(shard.is_looked_up and shard.updated_by is None for shard in table)
    ]
    if not left:
        return spec
    if table_optimizer is None:
        raise ValueError(
            f"table {left[0].name!r} must be covered by an optimizer in training, got none; "
            "minimize with one of rec_estimator.optimizers, or give "
            "RecEstimator(table_optimizer=...)"
        )
    return spec._replace(train_op=_update_tables(spec, left, table_optimizer))


def _update_tables(spec: Any, tables: List[EmbeddingTable], optimizer: Any) -> tf.Operation:
    """The model_fn's train_op and the update of `tables`, as one step."""
    table_op = optimizer.apply_gradients(optimizer.compute_gradients(spec.loss, var_list=tables))
    train_op = spec.train_op.op if isinstance(spec.train_op, tf.Tensor) else spec.train_op
    # The tables' gradients and their version belong to the beginning of the step: what the
    # model_fn's train_op changes, the global step among it, waits until they are used.
    needed_before = ancestors([table_op])
    for op in ancestors([train_op]) - needed_before:
        if _changes_variable(op) and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, [table_op])
    return tf.group(train_op, table_op)


def _let_the_global_step_wait(train_op: Any) -> None:
    """Orders a step: tables are stamped with the global step before anything increments it.

    An optimizer of ours that increments the step itself does so; here are steps in which another
    optimizer, or the model_fn, does.
    """
    step = tf.train.get_global_step()
    if step is None or train_op is None:
        return
    members = ancestors([train_op.op if isinstance(train_op, tf.Tensor) else train_op])
    applies = [op for op in members if op.type in op_registry.UPDATES]
    if not applies:
        return
    handle = step.op.outputs[0]
    for op in members - ancestors(applies):
        takes_step = any(tensor is handle for tensor in op.inputs)
        # A v1 loop takes no control edge from outside of its frame.
        if takes_step and op.type not in _READS and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, applies)


def _changes_variable(op: tf.Operation) -> bool:
    return (
        bool(op.inputs)
        and op.type.startswith(("Assign", "Apply", "Resource", "Scatter", "SparseApply"))
        and op.type not in ("ResourceGather", "ResourceGatherNd")
    )


def _with_table_saver(spec: Any, config: Any) -> Any:
    """Puts our Saver, which knows tables and crashes, where the model_fn chose none."""
    scaffold = spec.scaffold or tf.train.Scaffold()
    incremental = {name: getattr(config, name, None) for name in _INCREMENTAL}
    is_incremental = spec.mode == ModeKeys.TRAIN and any(incremental.values())
    savers = [scaffold.saver] if scaffold.saver else tf.get_collection(tf.GraphKeys.SAVERS)
    if savers:
        saver = savers[0]
        if is_incremental and not getattr(saver, "is_incremental", False):
            raise ValueError(
                "the model_fn's Saver must be rec_estimator.Saver(incremental=True) for "
                f"incremental checkpoints, got {saver!r}; or leave it to RecEstimator"
            )
    else:
        saver = _EstimatorSaver(
            incremental=is_incremental,
            # What evaluation or an export saves is no checkpoint of a training.
            sparse_folders=spec.mode == ModeKeys.TRAIN,
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            # TensorFlow builds it when the graph is whole, and an export when it restores.
            defer_build=True,
            save_relative_paths=True,
            allow_empty=True,
        )
        scaffold = tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
        spec = spec._replace(scaffold=scaffold)
        if spec.mode == ModeKeys.TRAIN:
            # Where hooks that are given no Saver look for one.
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    if is_incremental:
        secs, steps = incremental.values()
        hook = IncrementalSaverHook(config.model_dir, saver, save_secs=secs, save_steps=steps)
        # Behind TensorFlow's hook: at a step of both there is a full checkpoint already.
        hooks = [*spec.training_chief_hooks, hook]
        spec = spec._replace(training_chief_hooks=hooks)
    return spec


def _with_step_loop(spec: Any, config: Any) -> Any:
    """Lets each run of a training loop do as many steps as the RunConfig says."""
    iterations = getattr(config, "iterations_per_loop", 1)
    if spec.mode != ModeKeys.TRAIN or iterations == 1:
        return spec
    # The last of the hooks: the graph is complete when it begins.
    hook = StepLoopHook(spec.train_op, iterations)
    return spec._replace(training_hooks=[*spec.training_hooks, hook])


class _EstimatorSaver(saver_lib.Saver):
    """A Saver whose saves are full unless a delta is asked for: TensorFlow's hooks do not ask."""

    def save(self, *args: Any, full: Optional[bool] = None, **kwargs: Any) -> Optional[str]:
        """As of Saver."""
        return super().save(*args, full=full is not False, **kwargs)

    def restore(self, sess: Any, save_path: str) -> None:
        """As of Saver; adds the ops to the graph first where nobody did."""
        self.build()
        super().restore(sess, save_path)
