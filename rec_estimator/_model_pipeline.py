# SPDX-License-Identifier: Apache-2.0
"""The stages of RecEstimator before and after the user's model_fn.

TensorFlow calls them once for each graph: in training, evaluation, prediction and export.
"""

import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from rec_estimator import features as features_lib
from rec_estimator import sample_compression as compression_lib
from rec_estimator._argument_checks import refuse_keras
from rec_estimator._tensorflow.estimator import EstimatorSpec, ModeKeys, RunConfig
from rec_estimator.checkpoint import saver as saver_lib
from rec_estimator.features import EmbeddingFeature
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.hooks import IncrementalSaverHook
from rec_estimator.optimizers.table_optimizer import TableUpdates
from rec_estimator.sample_compression import training as compressed_training
from rec_estimator.serving import portable as portable_lib
from rec_estimator.serving import refreshable
from rec_estimator.table import placement
from rec_estimator.table.memory_limit import share_memory
from rec_estimator.table.row_dtype import row_dtype_of_export
from rec_estimator.table.table import graph_tables
from rec_estimator.training import cluster, train_op
from rec_estimator.training.ps_watch import PsWatch
from rec_estimator.training.step_loop import StepLoopHook
from rec_estimator.training.table_summaries import TableSummaryHook

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


class ModelPipeline:
    """A user's model_fn with everything that RecEstimator does before and after it.

    Each stage is one method, and ``build`` calls them in the order of the data flow:

        input_fn ─▶ receive ─▶ prepare graph ─▶ look up ─▶ user's model_fn ─▶ train tables
              ─▶ share memory ─▶ compress ─▶ saver, summaries, step loop, cluster ─▶ Estimator

    Arguments and errors are those of RecEstimator.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        params: Optional[Dict[str, Any]],
        embedding_features: Optional[Sequence[EmbeddingFeature]],
        table_optimizer: Optional[TableUpdates],
        sample_compression: Optional[compression_lib.SampleCompression],
    ) -> None:
        refuse_keras("model_fn", model_fn, "write a function that returns an EstimatorSpec")
        _check_table_optimizer(table_optimizer)
        _check_sample_compression(sample_compression)
        self._model_fn = model_fn
        self._arguments = _arguments_of(model_fn, params)
        declarations = embedding_features or ()
        if not isinstance(declarations, EmbeddingFeature):  # The next line refuses a single one.
            declarations = tuple(declarations)
        features_lib.check_declarations(declarations)
        self._declarations = declarations
        self._table_optimizer = table_optimizer
        self._sample_compression = sample_compression

    def build(
        self, features: Any, labels: Any, mode: str, params: Dict[str, Any], config: RunConfig
    ) -> EstimatorSpec:
        """Builds the model in the default graph; the model_fn that TensorFlow calls."""
        with refreshable.resource_variables():
            return self._build(features, labels, mode, params, config)

    def _build(
        self, features: Any, labels: Any, mode: str, params: Dict[str, Any], config: RunConfig
    ) -> EstimatorSpec:
        features = self._receive(features, labels)
        self._prepare_graph(features, mode, config)
        features = self._look_up(features, labels)
        spec = self._call_model_fn(features, labels, mode, params, config)
        spec = self._train_tables(spec, mode)
        self._share_memory(config)
        spec = compression_lib.compress_spec(spec)
        refreshable.add_refresh(has_own_saver=_saver_of_model(spec) is not None)
        _check_saver_of_export(spec)
        spec = self._add_saver(spec, config)
        spec = self._add_summaries(spec, config)
        spec = self._add_step_loop(spec, config)
        return self._wait_for_cluster(spec, config)

    def _receive(self, features: Any, labels: Any) -> Any:
        """Checks what input_fn returned, and marks features with one row per user."""
        if labels is not None and "labels" not in self._arguments:
            raise ValueError(
                "model_fn must take labels if input_fn returns them, got "
                f"{self._model_fn} with {sorted(self._arguments)}; add the argument labels"
            )
        if self._sample_compression is not None:
            features = self._sample_compression.enable(features, labels)
        if portable_lib.is_exporting():
            compression_lib.use_stock_ops()
        features = compression_lib.with_open_rows(features)
        _check_tensors(features)
        return features

    def _prepare_graph(self, features: Any, mode: str, config: RunConfig) -> None:
        """Records in the graph what tables must know when they are created."""
        if isinstance(features, Mapping):
            state_of().features.update(features)
        if mode == ModeKeys.TRAIN:
            placement.use_ps_tasks(config.num_ps_replicas)
            if not config.is_chief:
                state_of().is_chief = False
        else:
            # Many model_fns build a train_op in every mode. Here it updates no table.
            state_of().trains = False
        if self._table_optimizer is not None:
            state_of().tables_in_trainable_variables = False
        state_of().shares_table_memory = _table_memory_bytes(config) is not None

    def _look_up(self, features: Any, labels: Any) -> Any:
        """Replaces the declared features by their vectors."""
        if not self._declarations:
            return features
        features = features_lib.lookup_features(features, self._declarations)
        _check_labels(labels, {each.name: features[each.name] for each in self._declarations})
        return features

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, params: Dict[str, Any], config: RunConfig
    ) -> EstimatorSpec:
        """Calls the user's model_fn with the arguments that it takes."""
        offered = dict(labels=labels, mode=mode, params=params, config=config)
        taken = {name: value for name, value in offered.items() if name in self._arguments}
        spec = self._model_fn(features, **taken)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(
                f"model_fn must return an EstimatorSpec, got {spec!r}; return "
                "rec_estimator.EstimatorSpec(mode, ...)"
            )
        return spec

    def _train_tables(self, spec: EstimatorSpec, mode: str) -> EstimatorSpec:
        """Adds the table updates that are missing, or refuses a table that nothing updates."""
        if mode == ModeKeys.TRAIN:
            compressed_training.check_gradients_are_compressed(spec.train_op)
            spec = train_op.with_table_updates(spec, self._table_optimizer)
            train_op.stamp_before_increment(spec.train_op)
        # In every mode: many model_fns build their train_op before they ask for the mode.
        compressed_training.repeat_for_ops_built_later()
        return spec

    @staticmethod
    def _share_memory(config: RunConfig) -> None:
        """Divides ``table_memory_bytes`` among the tables, whose slots are known now."""
        memory = _table_memory_bytes(config)
        if memory is not None:
            share_memory(graph_tables(), memory)

    @staticmethod
    def _add_saver(spec: EstimatorSpec, config: RunConfig) -> EstimatorSpec:
        """Installs our Saver, unless the model_fn has one, and saves incremental checkpoints."""
        # TensorFlow's own RunConfig has neither.
        secs = getattr(config, "save_incremental_checkpoints_secs", None)
        steps = getattr(config, "save_incremental_checkpoints_steps", None)
        is_incremental = spec.mode == ModeKeys.TRAIN and bool(secs or steps)
        saver = _saver_of_model(spec)
        if saver is None:
            saver = _EstimatorSaver(
                # TensorFlow's hooks write full checkpoints with it.
                incremental_save_restore=is_incremental,
                # Only the checkpoints of a training get the folders of plain arrays.
                sparse_folders=spec.mode == ModeKeys.TRAIN,
                sharded=True,
                max_to_keep=config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
                # TensorFlow builds the Saver when the graph is complete, an export in restore().
                defer_build=True,
                save_relative_paths=True,
                allow_empty=True,
                non_finite_rows=_non_finite_rows(config),
            )
            spec = _with_saver(spec, saver)
        elif is_incremental and not getattr(saver, "is_incremental", False):
            raise ValueError(
                "the Saver of model_fn must be rec_estimator.Saver(incremental=True) for "
                f"incremental checkpoints, got {saver!r}; or set no Saver"
            )
        if is_incremental:
            hook = IncrementalSaverHook(config.model_dir, saver, save_secs=secs, save_steps=steps)
            # After TensorFlow's hook: where both are due, the full checkpoint is written first.
            hooks = [*spec.training_chief_hooks, hook]
            spec = spec._replace(training_chief_hooks=hooks)
        return spec

    @staticmethod
    def _add_summaries(spec: EstimatorSpec, config: RunConfig) -> EstimatorSpec:
        """Adds the hook that writes and logs the counts of tables."""
        is_on = getattr(config, "table_summaries", True) and bool(graph_tables())
        if spec.mode != ModeKeys.TRAIN or not is_on:
            return spec
        # save_summary_steps=None switches TensorFlow's own summaries off.
        folder = config.model_dir if config.save_summary_steps else None
        hook = TableSummaryHook(folder, every_steps=config.save_summary_steps or 100)
        return spec._replace(training_chief_hooks=[*spec.training_chief_hooks, hook])

    @staticmethod
    def _add_step_loop(spec: EstimatorSpec, config: RunConfig) -> EstimatorSpec:
        """Adds the hook that makes each run do ``iterations_per_loop`` training steps."""
        iterations = getattr(config, "iterations_per_loop", 1)
        if spec.mode != ModeKeys.TRAIN or iterations == 1:
            return spec
        # The last hook: when its begin() is called, the other hooks have added their ops.
        hook = StepLoopHook(spec.train_op, iterations)
        return spec._replace(training_hooks=[*spec.training_hooks, hook])

    @staticmethod
    def _wait_for_cluster(spec: EstimatorSpec, config: RunConfig) -> EstimatorSpec:
        """Makes the sessions of a training with ps tasks wait for these tasks."""
        if spec.mode != ModeKeys.TRAIN or not config.num_ps_replicas:
            return spec
        # The last hook: it also watches what the other hooks do.
        watch = PsWatch(config)
        hooks = [*spec.training_hooks, watch]
        if config.train_distribute is not None:
            return spec._replace(training_hooks=[cluster.ClusterHook(config), *hooks])
        scaffold = cluster.ClusterScaffold(config, spec.scaffold, watch)
        return spec._replace(training_hooks=hooks, scaffold=scaffold)


def _table_memory_bytes(config: RunConfig) -> Optional[int]:
    """Bytes of memory that tables share. TensorFlow's own RunConfig has none."""
    return getattr(config, "table_memory_bytes", None)


def _check_table_optimizer(table_optimizer: object) -> None:
    refuse_keras("table_optimizer", table_optimizer, "pass one of rec_estimator.optimizers")
    if table_optimizer is not None and not isinstance(table_optimizer, TableUpdates):
        raise TypeError(
            f"table_optimizer must be one of rec_estimator.optimizers, got {table_optimizer!r}; "
            "TensorFlow's optimizers cannot update a table"
        )


def _check_sample_compression(sample_compression: object) -> None:
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
    """Refuses labels whose static shape does not have one row per example.

    A model of two towers has examples of users and of items, and labels of one of them.
    """
    for label in tf.nest.flatten(labels):
        if label is None or not hasattr(label, "shape") or label.shape.rank is None:
            continue
        sizes = [vector.shape[:1] for vector in vectors.values()]
        if label.shape.rank == 0 or not any(map(label.shape[:1].is_compatible_with, sizes)):
            name, vector = next(iter(vectors.items()))
            examples = tf.dimension_value(vector.shape[0])
            raise ValueError(
                f"labels must have one row per example, got shape {label.shape} with "
                f"{examples} examples of feature {name!r}; batch features and labels together"
            )


def _saver_of_model(spec: EstimatorSpec) -> Optional[Any]:
    """The Saver that the model_fn has chosen, or None."""
    if spec.scaffold and spec.scaffold.saver:
        return spec.scaffold.saver
    return next(iter(tf.get_collection(tf.GraphKeys.SAVERS)), None)


def _check_saver_of_export(spec: EstimatorSpec) -> None:
    if row_dtype_of_export() is not None and _saver_of_model(spec) is not None:
        raise ValueError(
            "model_fn must leave the Saver to RecEstimator with row_dtype, got a Saver, which may "
            "not know rows of fewer bits; set none in the Scaffold in ModeKeys.PREDICT"
        )


def _non_finite_rows(config: RunConfig) -> str:
    """What a save does about rows that are not finite. An export with row_dtype refuses them."""
    if row_dtype_of_export() is not None:
        return "stop"
    return str(getattr(config, "non_finite_rows", "warn"))


def _with_saver(spec: EstimatorSpec, saver: saver_lib.Saver) -> EstimatorSpec:
    """Adds a Saver to the Scaffold of a spec."""
    if spec.mode == ModeKeys.TRAIN:
        # Hooks without a Saver take the one in this collection.
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    scaffold = spec.scaffold or tf.train.Scaffold()
    return spec._replace(scaffold=tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver))


class _EstimatorSaver(saver_lib.Saver):
    """A Saver that adds its ops to the graph when it restores, as exports need it."""

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """As in Saver, but first adds the Saver's ops to the graph if they are missing."""
        self.build()
        super().restore(sess, save_path)
