# SPDX-License-Identifier: Apache-2.0
"""RecEstimator: TensorFlow's V1 Estimator for models with embedding tables.

It wraps the model_fn. Before the model_fn runs, the declared features are looked up. After it, the
tables that no optimizer covers are given to ``table_optimizer``, and a Saver that knows tables is
installed.
"""

import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Union

import tensorflow.compat.v1 as tf

from rec_estimator import features as features_lib
from rec_estimator import sample_compression as compression_lib
from rec_estimator._argument_checks import refuse_keras
from rec_estimator._tensorflow import estimator as tf_estimator
from rec_estimator._tensorflow import graphs
from rec_estimator._tensorflow.estimator import EstimatorSpec, ModeKeys, WarmStartSettings
from rec_estimator.checkpoint import deltas, warm_start
from rec_estimator.checkpoint import saver as saver_lib
from rec_estimator.checkpoint.format.bundle import Index
from rec_estimator.features import EmbeddingFeature
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.hooks import IncrementalSaverHook
from rec_estimator.optimizers.table_optimizer import TableUpdates
from rec_estimator.sample_compression import training as compressed_training
from rec_estimator.serving import portable as portable_lib
from rec_estimator.table import placement
from rec_estimator.table.memory_limit import share_memory
from rec_estimator.table.registration import train_tables_apart
from rec_estimator.table.table import EmbeddingTable, graph_tables
from rec_estimator.table.untrained_tables import (
    check_tables_are_trained,
    mark_not_for_training,
    record_loss,
)
from rec_estimator.training import cluster
from rec_estimator.training.run_config import RunConfig
from rec_estimator.training.step_loop import StepLoopHook, check_steps

# A training op as an EstimatorSpec holds it.
_TrainOp = Union[tf.Operation, tf.Tensor]

# Ops that take a variable's handle and do not change the variable.
_READS = ("Identity", "IsVariableInitialized", "ReadVariableOp", "VarIsInitializedOp")

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


def _step_in(model_dir: str) -> int:
    """The global step of the latest checkpoint, which is checked; 0 if there is no checkpoint."""
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None or not tf.io.gfile.exists(f"{latest}.index"):  # None of the V2 format.
        return 0
    deltas.check_chain(latest)
    return Index(latest).read_integer(tf.GraphKeys.GLOBAL_STEP) or 0


class _LoopCheckedEstimator(portable_lib.PortableExports):
    """An Estimator whose ``train`` accepts only whole multiples of ``iterations_per_loop``.

    As with PortableExports, only a base class of the user's Estimator can override ``train``.
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
            a multiple of N. Also whatever ``tf.estimator.Estimator.train`` raises.
          tf.errors.DataLossError: The latest checkpoint of the model's folder is damaged.
        """
        # Also checks the checkpoint, of which TensorFlow reads the step before it restores it.
        step = _step_in(self.model_dir)
        iterations = getattr(self.config, "iterations_per_loop", 1)
        if iterations > 1:
            check_steps(iterations, steps, max_steps, step)
        return super().train(input_fn, hooks, steps, max_steps, saving_listeners)


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
        slots ``<table>/<slot>`` that match. ``var_name_to_prev_var_name`` may name tables.
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
        config: Optional[tf_estimator.RunConfig] = None,
        params: Optional[Dict[str, Any]] = None,
        warm_start_from: Union[str, WarmStartSettings, None] = None,
        *,
        embedding_features: Optional[Sequence[EmbeddingFeature]] = None,
        table_optimizer: Optional[TableUpdates] = None,
        sample_compression: Optional[compression_lib.SampleCompression] = None,
    ) -> None:
        refuse_keras("model_fn", model_fn, "write a function that returns an EstimatorSpec")
        _check_additions(table_optimizer, sample_compression)
        arguments = _arguments_of(model_fn, params)
        declarations = embedding_features or ()
        if not isinstance(declarations, EmbeddingFeature):  # The next line refuses a single one.
            declarations = tuple(declarations)
        features_lib.check_declarations(declarations)
        embedded = [feature.name for feature in declarations]

        def wrapped_model_fn(
            features: Any, labels: Any, mode: str, params: Dict[str, Any], config: RunConfig
        ) -> EstimatorSpec:
            if labels is not None and "labels" not in arguments:
                raise ValueError(
                    "model_fn must take labels if input_fn returns them, got "
                    f"{model_fn} with {sorted(arguments)}; add the argument labels"
                )
            if sample_compression is not None:
                features = sample_compression.enable(features, labels)
            if portable_lib.is_exporting():
                compression_lib.use_stock_ops()
            features = compression_lib.with_open_rows(features)
            _check_tensors(features)
            if mode == ModeKeys.TRAIN:
                placement.use_ps_tasks(config.num_ps_replicas)
                if not config.is_chief:
                    placement.mark_not_chief()
            else:  # Where many model_fns build a train_op, too, which then updates no table.
                mark_not_for_training()
            if table_optimizer is not None:
                train_tables_apart()
            if declarations:
                features = features_lib.lookup_features(features, declarations)
                _check_labels(labels, {name: features[name] for name in embedded})
            offered = dict(labels=labels, mode=mode, params=params, config=config)
            spec = model_fn(features, **{k: v for k, v in offered.items() if k in arguments})
            if not isinstance(spec, EstimatorSpec):
                raise ValueError(
                    f"model_fn must return an EstimatorSpec, got {spec!r}; return "
                    "rec_estimator.EstimatorSpec(mode, ...)"
                )
            if mode == ModeKeys.TRAIN:
                compressed_training.check_gradients_are_compressed(spec.train_op)
                spec = _with_table_updates(spec, table_optimizer)
                _let_the_global_step_wait(spec.train_op)
            # In every mode: many model_fns build their train_op before they ask for the mode.
            compressed_training.repeat_for_ops_built_later()
            memory = getattr(config, "table_memory_bytes", None)
            if memory is not None:
                share_memory(graph_tables(), memory)
            spec = _with_table_saver(compression_lib.compress_spec(spec), config)
            return _with_cluster(_with_step_loop(spec, config), config)

        if isinstance(config, tf_estimator.RunConfig):
            config = cluster.with_device_filters(config)
        super().__init__(
            wrapped_model_fn,
            model_dir=model_dir,
            config=config,
            params=params or {},
            warm_start_from=warm_start.as_settings(warm_start_from),
        )
        cluster.check_config(self.config)


def _check_additions(table_optimizer: object, sample_compression: object) -> None:
    """Raises a TypeError unless each argument is None or of the right class."""
    refuse_keras("table_optimizer", table_optimizer, "pass one of rec_estimator.optimizers")
    if table_optimizer is not None and not isinstance(table_optimizer, TableUpdates):
        raise TypeError(
            f"table_optimizer must be one of rec_estimator.optimizers, got {table_optimizer!r}; "
            "TensorFlow's optimizers cannot update a table"
        )
    is_declared = isinstance(sample_compression, compression_lib.SampleCompression)
    if sample_compression is not None and not is_declared:
        raise TypeError(
            f"sample_compression must be a SampleCompression, got {sample_compression!r}; for "
            'example rec_estimator.SampleCompression(user=["user"])'
        )


def _arguments_of(model_fn: Callable[..., Any], params: Optional[Dict[str, Any]]) -> Set[str]:
    """The names of the arguments that model_fn takes, checked."""
    if not callable(model_fn):
        raise ValueError(
            f"model_fn must be a function, got {model_fn!r}; it takes features and returns an "
            "EstimatorSpec"
        )
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
            f"{sorted(names)}; pass other values in params"
        )
    if params is not None and "params" not in names:
        raise ValueError(
            f"model_fn must take params if params are given, got {sorted(names)}; add the argument "
            "params"
        )
    return names & set(_MODEL_FN_ARGUMENTS)


def _check_tensors(features: Any) -> None:
    """Refuses features that are not tensors. TensorFlow accepts them as constants of each step."""
    for feature in tf.nest.flatten(features):
        if not tf.is_tensor(feature):
            raise ValueError(
                f"input_fn must return a tf.data.Dataset or tensors, got {feature!r} among the "
                "features; make a dataset with tf.data.Dataset.from_tensor_slices(features)"
            )


def _check_labels(labels: Any, vectors: Dict[str, tf.Tensor]) -> None:
    """Refuses labels without one row per example, as far as static shapes are known."""
    for label in tf.nest.flatten(labels):
        for name, vector in vectors.items():
            if label is None or not hasattr(label, "shape") or label.shape.rank is None:
                continue
            if not label.shape[:1].is_compatible_with(vector.shape[:1]) or label.shape.rank == 0:
                examples = tf.dimension_value(vector.shape[0])
                raise ValueError(
                    f"labels must have one row per example, got shape {label.shape} with "
                    f"{examples} examples of feature {name!r}; batch features and labels together"
                )


def _with_table_updates(
    spec: EstimatorSpec, table_optimizer: Optional[TableUpdates]
) -> EstimatorSpec:
    """Adds the update of the tables that the optimizer of the model_fn does not update."""
    if table_optimizer is None:
        if isinstance(spec.loss, tf.Tensor):
            record_loss(spec.loss)
        check_tables_are_trained()
        return spec
    left = [
        table
        for table in graph_tables()
        if table.trainable
        and any(shard.is_looked_up and shard.updated_by is None for shard in table)
    ]
    if not left:
        return spec
    return spec._replace(train_op=_update_tables(spec, left, table_optimizer))


def _update_tables(
    spec: EstimatorSpec, tables: List[EmbeddingTable], optimizer: TableUpdates
) -> tf.Operation:
    """Joins the train_op of the model_fn and the update of `tables` in one op."""
    table_op = optimizer.apply_gradients(optimizer.compute_gradients(spec.loss, var_list=tables))
    train_op = spec.train_op.op if isinstance(spec.train_op, tf.Tensor) else spec.train_op
    # The tables' gradients and their version are those at the beginning of the step. So all that
    # train_op changes, including the global step, waits until they are used.
    needed_before = ancestors([table_op])
    for op in ancestors([train_op]) - needed_before:
        if _changes_variable(op) and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, [table_op])
    return tf.group(train_op, table_op)


def _let_the_global_step_wait(train_op: Optional[_TrainOp]) -> None:
    """Makes the increment of the global step wait until the tables are stamped with it.

    Our optimizers do so when they increment the step themselves. This function covers steps in
    which a stock optimizer or the model_fn increments it.
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
        # An op inside a control flow v1 loop cannot have a control input from outside the loop.
        if takes_step and op.type not in _READS and not graphs.in_control_flow(op):
            graphs.add_control_inputs(op, applies)


def _changes_variable(op: tf.Operation) -> bool:
    return (
        bool(op.inputs)
        and op.type.startswith(("Assign", "Apply", "Resource", "Scatter", "SparseApply"))
        and op.type not in ("ResourceGather", "ResourceGatherNd")
    )


def _with_table_saver(spec: EstimatorSpec, config: tf_estimator.RunConfig) -> EstimatorSpec:
    """Installs our Saver, unless the model_fn has chosen one."""
    scaffold = spec.scaffold or tf.train.Scaffold()
    # TensorFlow's own RunConfig has neither.
    secs = getattr(config, "save_incremental_checkpoints_secs", None)
    steps = getattr(config, "save_incremental_checkpoints_steps", None)
    is_incremental = spec.mode == ModeKeys.TRAIN and bool(secs or steps)
    savers = [scaffold.saver] if scaffold.saver else tf.get_collection(tf.GraphKeys.SAVERS)
    if savers:
        saver = savers[0]
        if is_incremental and not getattr(saver, "is_incremental", False):
            raise ValueError(
                "the Saver of model_fn must be rec_estimator.Saver(incremental=True) for "
                f"incremental checkpoints, got {saver!r}; or set no Saver"
            )
    else:
        saver = _EstimatorSaver(
            # TensorFlow's hooks write full checkpoints with it.
            incremental_save_restore=is_incremental,
            # Only training writes checkpoints that Rec SDK's scripts look for.
            sparse_folders=spec.mode == ModeKeys.TRAIN,
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            # TensorFlow builds the Saver when the graph is complete, an export in restore().
            defer_build=True,
            save_relative_paths=True,
            allow_empty=True,
        )
        scaffold = tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
        spec = spec._replace(scaffold=scaffold)
        if spec.mode == ModeKeys.TRAIN:
            # Hooks without a Saver take the one in this collection.
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    if is_incremental:
        hook = IncrementalSaverHook(config.model_dir, saver, save_secs=secs, save_steps=steps)
        # After TensorFlow's hook: where both are due, the full checkpoint is written first.
        hooks = [*spec.training_chief_hooks, hook]
        spec = spec._replace(training_chief_hooks=hooks)
    return spec


def _with_step_loop(spec: EstimatorSpec, config: tf_estimator.RunConfig) -> EstimatorSpec:
    """Adds the hook that makes each run do ``iterations_per_loop`` training steps."""
    iterations = getattr(config, "iterations_per_loop", 1)
    if spec.mode != ModeKeys.TRAIN or iterations == 1:
        return spec
    # The last hook: when its begin() is called, the other hooks have added their ops.
    hook = StepLoopHook(spec.train_op, iterations)
    return spec._replace(training_hooks=[*spec.training_hooks, hook])


def _with_cluster(spec: EstimatorSpec, config: tf_estimator.RunConfig) -> EstimatorSpec:
    """Makes the sessions of a training with ps tasks wait for them."""
    if spec.mode != ModeKeys.TRAIN or not config.num_ps_replicas:
        return spec
    if config.train_distribute is not None:
        return spec._replace(training_hooks=[cluster.ClusterHook(config), *spec.training_hooks])
    return spec._replace(scaffold=cluster.ClusterScaffold(config, spec.scaffold))


class _EstimatorSaver(saver_lib.Saver):
    """A Saver that adds its ops to the graph when it restores, as exports need it."""

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """As in Saver, but first adds the Saver's ops to the graph if they are missing."""
        self.build()
        super().restore(sess, save_path)
