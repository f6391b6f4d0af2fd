# SPDX-License-Identifier: Apache-2.0
"""Builds the Estimator that a configuration describes."""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo import models
from model_zoo.data import DataSet
from model_zoo.minimize import Training
from model_zoo.names import check_names
from model_zoo.runner.choices import choose
from model_zoo.runner.config import DEFAULT_TABLE, Config, Table

_SAVE_SECONDS = 600


def build_estimator(
    config: Config,
    data: DataSet,
    model_dir: Optional[str] = None,
    learning_rate_factor: Union[float, Callable[[], tf.Tensor]] = 1.0,
) -> rec.RecEstimator:
    """Returns the Estimator of a run.

    Args:
      config: The configuration.
      data: Its data, as view_of returns them.
      model_dir: Folder of checkpoints. None: that of the configuration, else a temporary one.
      learning_rate_factor: Of the learning rates of both optimizers; or what makes its tensor.

    Raises:
      ValueError: The model, a param, a table or an optimizer is not known, or the model does not
        fit the data.
    """
    training = _training(config, learning_rate_factor)
    params = models.params_of(config.model, data, config.params, training)
    module = models.MODELS[config.model]
    compression = None
    if config.hooks.sample_compression:
        compression = rec.SampleCompression(user=user_columns(data))
    return rec.RecEstimator(
        module.model_fn,
        config=run_config(config, model_dir or config.model_dir),
        params=params,
        embedding_features=with_tables(module.features(data, params), config.tables),
        sample_compression=compression,
    )


def view_of(config: Config, data: DataSet) -> DataSet:
    """Returns a data set in the form that the model of a configuration reads.

    Raises:
      ValueError: The model or a param is not known, or the model needs columns that the data do
        not have.
    """
    return models.view_of(config.model, data, config.params)


def training_rows(config: Config, data: DataSet, **reading: Any) -> Callable[[], tf.data.Dataset]:
    """Returns the input_fn of training.

    Args:
      config: The configuration. With sample compression, samples with equal user columns are
        grouped within each batch.
      data: Its data.
      **reading: seed, epochs and skip of DataSet.input_fn.
    """
    input_fn = data.input_fn("train", config.train.batch_size, **reading)
    if not config.hooks.sample_compression:
        return input_fn
    return lambda: rec.inputs.group_samples(input_fn(), user_columns(data))


def user_columns(data: DataSet) -> List[str]:
    """Returns the names of the columns that are equal for all candidates of a request."""
    return [column.name for column in data.columns if column.role != "item"]


def run_config(config: Config, model_dir: Optional[str]) -> rec.RunConfig:
    """Returns the RunConfig of a run, or of a task of a cluster that TF_CONFIG names.

    Args:
      config: The configuration.
      model_dir: Folder of checkpoints. None: a temporary one.
    """
    train = config.train
    steps = train.save_steps
    found = rec.RunConfig(
        model_dir=model_dir,
        tf_random_seed=train.seed,
        save_checkpoints_steps=steps,
        save_checkpoints_secs=None if steps else _SAVE_SECONDS,
        save_incremental_checkpoints_steps=train.incremental_steps,
        save_summary_steps=1000,
        experimental_max_worker_delay_secs=0,
    )
    if not train.deterministic or found.cluster_spec.jobs:
        return found
    # With more threads, the order in which TensorFlow's AddN adds three or more tensors depends on
    # which memory is free at that moment.
    session = tf.ConfigProto()
    session.CopyFrom(found.session_config or tf.ConfigProto())
    session.use_per_session_threads = True
    session.inter_op_parallelism_threads = 1
    return found.replace(session_config=session)


def _training(config: Config, factor: Union[float, Callable[[], tf.Tensor]]) -> Training:
    train = config.train
    constant = 1.0 if callable(factor) else factor

    def scaled(optimizer: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
        if optimizer is None:
            return None
        rate = optimizer.get("learning_rate")
        return {**optimizer, **({} if rate is None else {"learning_rate": rate * constant})}

    return Training(
        optimizer=scaled(train.optimizer) or {},
        table_optimizer=scaled(train.table_optimizer),
        schedule=train.schedule,
        clip_norm=train.clip_norm,
        factor=factor if callable(factor) else None,
    )


def with_tables(
    features: Sequence[rec.EmbeddingFeature], tables: Mapping[str, Table]
) -> List[rec.EmbeddingFeature]:
    """Returns the features of a model with the settings of their tables.

    Args:
      features: The features that the model declares.
      tables: Settings by the name of a table; those of "default" are for all tables.

    Raises:
      ValueError: No feature has a table of that name, or a setting does not fit.

    Example:
      >>> features = with_tables([rec.EmbeddingFeature("user", 16)], {"user": Table(dim=8)})
      >>> features[0].dim
      8
    """
    names = [DEFAULT_TABLE, *dict.fromkeys(feature.table for feature in features)]
    check_names("names in tables", tables, names)
    default = tables.get(DEFAULT_TABLE, Table())
    return [_with_table(each, tables.get(each.table, Table()), default) for each in features]


def _with_table(feature: rec.EmbeddingFeature, own: Table, default: Table) -> rec.EmbeddingFeature:
    """A feature with the settings of its table, else the default ones, else those it has."""
    option: Dict[str, Any] = {}
    fields: Dict[str, Any] = {"dim": own.dim or default.dim or feature.dim}
    for kind, changed, argument in (
        ("filter", option, "filter_option"),
        ("eviction", option, "evict_option"),
        ("regularizer", option, "regularizer"),
        ("initializer", fields, "initializer"),
    ):
        name = DEFAULT_TABLE if getattr(own, kind) is None else feature.table
        choice = getattr(default if name == DEFAULT_TABLE else own, kind)
        if choice is not None:
            changed[argument] = choose(kind, choice, f"tables.{name}.{kind}")
    ev_option = dataclasses.replace(feature.ev_option or rec.EmbeddingVariableOption(), **option)
    return dataclasses.replace(feature, ev_option=ev_option, **fields)
