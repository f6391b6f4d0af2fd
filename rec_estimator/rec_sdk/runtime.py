# SPDX-License-Identifier: Apache-2.0
"""init() and the settings of a whole run, as scripts for Rec SDK write and read them.

RecEstimator and tables work without init(). In one process only two settings change a result:
``use_dynamic_expansion`` (tables without a row limit) and ``use_dynamic=False`` (more checks of
shapes).

    rec.init(max_steps=200, train_steps=100, eval_steps=10, save_steps=100)
    ...
    rec.terminate_config_initializer()

Source: Rec SDK TensorFlow, ``mx_rec.util.initialize``.
"""

import atexit
import dataclasses
import os
from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text
from rec_estimator._init_settings import InitSettings, init_settings, keep_init_settings
from rec_estimator.graph_modifier.prepared_input import (
    get_initializer,
    get_target_batch,
    is_modified,
)
from rec_estimator.rec_sdk.constants import ASCEND_GLOBAL_HASHTABLE_COLLECTION

# Rec SDK's longest name of a collection.
_MAX_COLLECTION_NAME = 255

_STEPS = ("max_steps", "train_steps", "eval_steps")
_SAVE_TIMES = ("save_checkpoint_due_time", "save_delta_checkpoints_secs")

# Switches of the vendor's hardware and launcher.
_WITHOUT_EFFECT = ("bind_cpu", "use_lccl", "use_mpi", "use_shm_swap")


def _at_least(least: int, or_none: bool = False) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value is not None or not or_none:
            check_int(name, value, least)

    return check


# How each argument of init() is checked. InitSettings has the default values.
_CHECKS: Dict[str, Callable[[str, Any], None]] = {
    "max_steps": _at_least(-1),
    "train_steps": _at_least(-1),
    "eval_steps": _at_least(-1),
    "save_steps": _at_least(-1),
    "if_load": check_bool,
    "use_dynamic": check_bool,
    "use_dynamic_expansion": check_bool,
    "is_incremental_checkpoint": check_bool,
    "save_checkpoint_due_time": _at_least(1, or_none=True),
    "save_delta_checkpoints_secs": _at_least(1, or_none=True),
    "restore_model_version": _at_least(0, or_none=True),
    "recent_key_count_threshold": _at_least(0),
}


class TrainParamsConfig:
    """The attributes and methods of ``ConfigInitializer.train_params_config``."""

    def __init__(self) -> None:
        self._collection = ASCEND_GLOBAL_HASHTABLE_COLLECTION

    @property
    def ascend_global_hashtable_collection(self) -> str:
        """Graph collection to which create_table adds tables. May be set: 1 to 255 characters."""
        return self._collection

    @ascend_global_hashtable_collection.setter
    def ascend_global_hashtable_collection(self, name: str) -> None:
        check_text("ascend_global_hashtable_collection", name, _MAX_COLLECTION_NAME)
        self._collection = name

    def get_initializer(self, is_training: bool) -> tf.Operation:
        """Same as ``rec_estimator.get_initializer``.

        Args:
          is_training: True: data of training. False: data of evaluation.
        """
        return get_initializer(is_training)

    def get_target_batch(self, is_training: bool) -> Any:
        """Same as ``rec_estimator.get_target_batch``.

        Args:
          is_training: True: data of training. False: data of evaluation.
        """
        return get_target_batch(is_training)

    def get_training_mode_channel_id(self, is_training: bool) -> int:
        """Returns Rec SDK's number of a mode: 0 for training, 1 for evaluation.

        Args:
          is_training: The mode.

        Raises:
          ValueError: is_training is not a bool.
        """
        check_bool("is_training", is_training)
        return 0 if is_training else 1


class ConfigInitializer:
    """The settings that init() was called with.

    init() makes the only instance. ``ConfigInitializer.get_instance()`` returns it.

    Attributes:
      train_params_config: get_initializer, get_target_batch and the collection of tables.

    Example:
      >>> rec.init(max_steps=200, use_dynamic=False)
      >>> rec.ConfigInitializer.get_instance().use_static
      True
      >>> rec.terminate_config_initializer()
    """

    _instance: Optional["ConfigInitializer"] = None

    def __init__(self, settings: InitSettings) -> None:
        self._settings = settings
        self.train_params_config = TrainParamsConfig()

    @classmethod
    def get_instance(cls) -> "ConfigInitializer":
        """Returns the settings of this process.

        Raises:
          EnvironmentError: Before init(), or after terminate_config_initializer().
        """
        if cls._instance is None:
            raise OSError(
                "init() must be called before ConfigInitializer.get_instance(), got no call; call "
                "rec_estimator.init(...) at the beginning of the script"
            )
        return cls._instance

    @property
    def max_steps(self) -> int:
        """Steps of the whole training; -1: until the data end. The script must count them."""
        return self._settings.max_steps

    @property
    def train_steps(self) -> int:
        """Steps between two evaluations; -1: not set."""
        return self._settings.train_steps

    @property
    def eval_steps(self) -> int:
        """Steps of one evaluation; -1: until the data end."""
        return self._settings.eval_steps

    @property
    def save_steps(self) -> int:
        """Steps between two saves; -1: not set."""
        return self._settings.save_steps

    @property
    def if_load(self) -> bool:
        """Whether a checkpoint is restored before training. May be set."""
        return self._settings.if_load

    @if_load.setter
    def if_load(self, value: bool) -> None:
        check_bool("if_load", value)
        self._settings = dataclasses.replace(self._settings, if_load=value)

    @property
    def use_static(self) -> bool:
        """Whether shapes are static: ``not use_dynamic``."""
        return not self._settings.use_dynamic

    @property
    def use_dynamic_expansion(self) -> bool:
        """Whether create_table tables grow without a limit."""
        return self._settings.use_dynamic_expansion

    @property
    def modify_graph(self) -> bool:
        """Whether the default graph was modified."""
        return is_modified()

    @property
    def is_incremental_checkpoint(self) -> bool:
        """Whether the script wants incremental checkpoints."""
        return self._settings.is_incremental_checkpoint

    @property
    def save_checkpoint_due_time(self) -> Optional[int]:
        """Seconds between two full checkpoints."""
        return self._settings.save_checkpoint_due_time

    @property
    def save_delta_checkpoints_secs(self) -> Optional[int]:
        """Seconds between two incremental checkpoints."""
        return self._settings.save_delta_checkpoints_secs

    @property
    def restore_model_version(self) -> Optional[int]:
        """Step of the checkpoint to restore; None: the latest."""
        return self._settings.restore_model_version

    @property
    def recent_key_count_threshold(self) -> int:
        """An incremental checkpoint may omit keys with fewer occurrences than this."""
        return self._settings.recent_key_count_threshold


def init(**kwargs: Any) -> None:
    """Checks and keeps the settings of a run, for scripts written for Rec SDK.

    RecEstimator and tables work without it. Unlike in Rec SDK the numbers of steps do not end the
    data: use ``dataset.take()``, ``max_steps`` of the Estimator, or the script's loop.

    Args:
      **kwargs: ``max_steps``, ``train_steps``, ``eval_steps``, ``save_steps``: integers from -1,
        the default, which means "not set"; the first three must not all be 0. ``if_load=False``.
        ``use_dynamic=True``: shapes may differ from batch to batch.
        ``use_dynamic_expansion=False``: True: create_table tables grow without a limit.
        ``is_incremental_checkpoint=False``; True requires ``save_checkpoint_due_time`` and
        ``save_delta_checkpoints_secs``, seconds from 1. ``restore_model_version`` from 0.
        ``recent_key_count_threshold=0``. Without effect on a CPU: ``bind_cpu``, ``use_lccl``,
        ``use_mpi``, ``use_shm_swap``. Other names are ignored with a warning.

    Raises:
      ValueError: A value has a wrong type or is out of range.
      EnvironmentError: A second call before terminate_config_initializer().

    Example:
      >>> rec.init(max_steps=200, train_steps=100, eval_steps=10, save_steps=100)
      >>> rec.ConfigInitializer.get_instance().save_steps
      100
      >>> rec.terminate_config_initializer()
    """
    if ConfigInitializer._instance is not None:
        raise OSError(
            "init() must be called once, got a second call; call terminate_config_initializer() "
            "before another one"
        )
    settings = _checked(kwargs)
    _log_unused(kwargs)
    keep_init_settings(settings)
    ConfigInitializer._instance = ConfigInitializer(settings)
    atexit.register(_forget)


def _checked(kwargs: Dict[str, Any]) -> InitSettings:
    given = {name: kwargs[name] for name in _CHECKS if name in kwargs}
    for name, value in given.items():
        _CHECKS[name](name, value)
    for name in _WITHOUT_EFFECT:
        if name in kwargs:
            check_bool(name, kwargs[name])
    settings = InitSettings(**given)
    if all(getattr(settings, name) == 0 for name in _STEPS):
        raise ValueError(
            f"at least one of {', '.join(_STEPS)} must not be 0, got 0 for all; -1 means not set"
        )
    save_times = [getattr(settings, name) for name in _SAVE_TIMES]
    if settings.is_incremental_checkpoint and None in save_times:
        raise ValueError(
            f"{' and '.join(_SAVE_TIMES)} must be given with is_incremental_checkpoint=True, got "
            f"{' and '.join(map(str, save_times))}; give both in seconds"
        )
    return settings


def _log_unused(kwargs: Dict[str, Any]) -> None:
    switches = sorted(set(_WITHOUT_EFFECT) & set(kwargs))
    if switches:
        tf.logging.info("init: without effect on a CPU: %s", ", ".join(switches))
    unknown = sorted(set(kwargs) - set(_CHECKS) - set(_WITHOUT_EFFECT))
    if unknown:
        tf.logging.warning(
            "init: unknown and ignored: %s; known are %s",
            ", ".join(unknown),
            ", ".join([*_CHECKS, *_WITHOUT_EFFECT]),
        )
    if get_rank_size() > 1:
        tf.logging.warning(
            "init: %d processes were launched; each trains its own tables", get_rank_size()
        )


def terminate_config_initializer() -> None:
    """Drops the settings of init(). A second call, or a call without init(), only warns.

    A script may omit it: the settings end with the process.

    Example:
      >>> rec.init()
      >>> rec.terminate_config_initializer()
    """
    if ConfigInitializer._instance is None:
        tf.logging.warning(
            "terminate_config_initializer: init() was not called, or was terminated before."
        )
    _forget()


def _forget() -> None:
    keep_init_settings(None)
    ConfigInitializer._instance = None
    atexit.unregister(_forget)


def get_use_dynamic_expansion() -> bool:
    """Returns whether create_table tables grow without a limit; False without init().

    Example:
      >>> rec.get_use_dynamic_expansion()
      False
    """
    settings = init_settings()
    return settings is not None and settings.use_dynamic_expansion


def is_static() -> bool:
    """Returns whether init() was called with ``use_dynamic=False``: shapes are static."""
    settings = init_settings()
    return settings is not None and not settings.use_dynamic


def hashtable_collection() -> str:
    """Returns the graph collection to which create_table adds tables."""
    instance = ConfigInitializer._instance
    if instance is None:
        return ASCEND_GLOBAL_HASHTABLE_COLLECTION
    return instance.train_params_config.ascend_global_hashtable_collection


def get_rank_id() -> int:
    """Returns the number of this process in an MPI launch; 0 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_RANK`` is not an integer from 0.

    Example:
      >>> rec.get_rank_id(), rec.get_rank_size(), rec.get_local_rank_size()
      (0, 1, 1)
    """
    return _number("OMPI_COMM_WORLD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"), 0)


def get_rank_size() -> int:
    """Returns how many processes an MPI launcher started; 1 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_SIZE`` is not an integer from 1.
    """
    return _number("OMPI_COMM_WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"), 1)


def get_local_rank_size() -> int:
    """Returns how many of these processes run on this machine; 1 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_LOCAL_SIZE`` is not an integer from 1.
    """
    size = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    return _number("OMPI_COMM_WORLD_LOCAL_SIZE", size, 1)


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(
            f"{name} must be an integer from {least}, got {text!r}; start the processes with an "
            "MPI launcher, which sets it, or unset it"
        )
    return int(text)
