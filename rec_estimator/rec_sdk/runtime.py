# SPDX-License-Identifier: Apache-2.0
"""What a script for Rec SDK says about its whole run: init(), and who asks for it later.

Beside the data flow. Nothing here is needed for RecEstimator or for tables; what one process
computes is the same with and without init(), dynamic expansion aside.

    rec.init(max_steps=200, train_steps=100, eval_steps=10, save_steps=100)
    ...
    rec.terminate_config_initializer()

Source: Rec SDK TensorFlow, ``mx_rec.util.initialize``.
"""

import atexit
import os
from typing import Any, Callable, Dict, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._argument_checks import check_bool, check_int, check_text
from rec_estimator.graph_modifier.prepared_input import (
    get_initializer,
    get_target_batch,
    is_modified,
)
from rec_estimator.rec_sdk.constants import ASCEND_GLOBAL_HASHTABLE_COLLECTION

# Rec SDK's longest name of a collection.
_MAX_COLLECTION_NAME = 255


def _at_least(least: int, or_none: bool = False) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value is not None or not or_none:
            check_int(name, value, least)

    return check


class _Setting(NamedTuple):
    """A keyword of init()."""

    default: Any
    check: Callable[[str, Any], None]


_STEPS = ("max_steps", "train_steps", "eval_steps")
_SAVE_TIMES = ("save_checkpoint_due_time", "save_delta_checkpoints_secs")

_SETTINGS: Dict[str, _Setting] = {
    "max_steps": _Setting(-1, _at_least(-1)),
    "train_steps": _Setting(-1, _at_least(-1)),
    "eval_steps": _Setting(-1, _at_least(-1)),
    "save_steps": _Setting(-1, _at_least(-1)),
    "if_load": _Setting(False, check_bool),
    "use_dynamic": _Setting(True, check_bool),
    "use_dynamic_expansion": _Setting(False, check_bool),
    "is_incremental_checkpoint": _Setting(False, check_bool),
    "save_checkpoint_due_time": _Setting(None, _at_least(1, or_none=True)),
    "save_delta_checkpoints_secs": _Setting(None, _at_least(1, or_none=True)),
    "restore_model_version": _Setting(None, _at_least(0, or_none=True)),
    "recent_key_count_threshold": _Setting(0, _at_least(0)),
}

# Switches of the vendor's hardware and launcher.
_WITHOUT_EFFECT = ("bind_cpu", "use_lccl", "use_mpi", "use_shm_swap")


class TrainParamsConfig:
    """What ``ConfigInitializer.train_params_config`` offers."""

    def __init__(self) -> None:
        self._collection = ASCEND_GLOBAL_HASHTABLE_COLLECTION

    @property
    def ascend_global_hashtable_collection(self) -> str:
        """Graph collection that create_table puts tables into; may be set, 1 to 255 characters."""
        return self._collection

    @ascend_global_hashtable_collection.setter
    def ascend_global_hashtable_collection(self, name: str) -> None:
        check_text("ascend_global_hashtable_collection", name, _MAX_COLLECTION_NAME)
        self._collection = name

    def get_initializer(self, is_training: bool) -> tf.Operation:
        """As ``rec_estimator.get_initializer``.

        Args:
          is_training: Of the data of training, or of evaluation.
        """
        return get_initializer(is_training)

    def get_target_batch(self, is_training: bool) -> Any:
        """As ``rec_estimator.get_target_batch``.

        Args:
          is_training: Of the data of training, or of evaluation.
        """
        return get_target_batch(is_training)

    def get_training_mode_channel_id(self, is_training: bool) -> int:
        """Rec SDK's number of a mode: 0 for training, 1 for evaluation.

        Args:
          is_training: The mode.

        Raises:
          ValueError: is_training is no bool.
        """
        check_bool("is_training", is_training)
        return 0 if is_training else 1


class ConfigInitializer:
    """What init() was told. Ask ``ConfigInitializer.get_instance()``; init() makes the only one.

    Attributes:
      train_params_config: get_initializer, get_target_batch and the tables' collection.

    Example:
      >>> rec.init(max_steps=200, use_dynamic=False)
      >>> rec.ConfigInitializer.get_instance().use_static
      True
      >>> rec.terminate_config_initializer()
    """

    _instance: Optional["ConfigInitializer"] = None

    def __init__(self, settings: Dict[str, Any]) -> None:
        self._settings = settings
        self.train_params_config = TrainParamsConfig()

    @classmethod
    def get_instance(cls) -> "ConfigInitializer":
        """The settings of this process.

        Raises:
          EnvironmentError: init() was not called, or terminate_config_initializer() was since.
        """
        if cls._instance is None:
            raise OSError(
                "init() must be called before ConfigInitializer.get_instance(), got no call; call "
                "rec_estimator.init(...) at the beginning of the script"
            )
        return cls._instance

    @property
    def max_steps(self) -> int:
        """Steps of the whole training; -1: until the data end. Kept; the script's loop counts."""
        return self._settings["max_steps"]

    @property
    def train_steps(self) -> int:
        """Steps between two evaluations; -1: not said."""
        return self._settings["train_steps"]

    @property
    def eval_steps(self) -> int:
        """Steps of an evaluation; -1: until the data end."""
        return self._settings["eval_steps"]

    @property
    def save_steps(self) -> int:
        """Steps between two saves; -1: not said."""
        return self._settings["save_steps"]

    @property
    def if_load(self) -> bool:
        """Whether a checkpoint is restored before training; may be set."""
        return self._settings["if_load"]

    @if_load.setter
    def if_load(self, value: bool) -> None:
        check_bool("if_load", value)
        self._settings["if_load"] = value

    @property
    def use_static(self) -> bool:
        """Whether shapes are static: ``not use_dynamic``."""
        return not self._settings["use_dynamic"]

    @property
    def use_dynamic_expansion(self) -> bool:
        """Whether create_table tables grow without a limit."""
        return self._settings["use_dynamic_expansion"]

    @property
    def modify_graph(self) -> bool:
        """Whether the default graph was modified."""
        return is_modified()

    @property
    def is_incremental_checkpoint(self) -> bool:
        """Whether the script wants checkpoints of what changed."""
        return self._settings["is_incremental_checkpoint"]

    @property
    def save_checkpoint_due_time(self) -> Optional[int]:
        """Seconds between two full checkpoints."""
        return self._settings["save_checkpoint_due_time"]

    @property
    def save_delta_checkpoints_secs(self) -> Optional[int]:
        """Seconds between two incremental checkpoints."""
        return self._settings["save_delta_checkpoints_secs"]

    @property
    def restore_model_version(self) -> Optional[int]:
        """Step of the checkpoint to restore; None: the latest."""
        return self._settings["restore_model_version"]

    @property
    def recent_key_count_threshold(self) -> int:
        """Occurrences below which an incremental checkpoint may leave a key out."""
        return self._settings["recent_key_count_threshold"]


def init(**kwargs: Any) -> None:
    """Keeps what a script for Rec SDK says about its run, for those who ask for it later.

    Not needed for RecEstimator, nor for tables. The numbers of steps are checked and kept; unlike
    Rec SDK's they do not end the data.

    Args:
      **kwargs: ``max_steps``, ``train_steps``, ``eval_steps``, ``save_steps``: integers from -1,
        which is the default and says nothing; the first three not all 0. ``if_load=False``.
        ``use_dynamic=True``: shapes may differ from batch to batch.
        ``use_dynamic_expansion=False``: create_table tables grow without a limit.
        ``is_incremental_checkpoint=False``, with it ``save_checkpoint_due_time`` and
        ``save_delta_checkpoints_secs``, seconds from 1; ``restore_model_version`` from 0;
        ``recent_key_count_threshold=0``. Without effect on a CPU: ``bind_cpu``, ``use_lccl``,
        ``use_mpi``, ``use_shm_swap``. Other names are ignored with a warning.

    Raises:
      ValueError: A value of another type or out of its range.
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
    _say_what_has_no_effect(kwargs)
    ConfigInitializer._instance = ConfigInitializer(settings)
    atexit.register(_forget)


def _checked(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    settings = {name: setting.default for name, setting in _SETTINGS.items()}
    for name, setting in _SETTINGS.items():
        if name in kwargs:
            setting.check(name, kwargs[name])
            settings[name] = kwargs[name]
    for name in _WITHOUT_EFFECT:
        if name in kwargs:
            check_bool(name, kwargs[name])
    if all(settings[name] == 0 for name in _STEPS):
        raise ValueError(
            f"at least one of {', '.join(_STEPS)} must not be 0, got 0 for all; -1 says nothing"
        )
    if settings["is_incremental_checkpoint"] and None in (settings[name] for name in _SAVE_TIMES):
        raise ValueError(
            f"{' and '.join(_SAVE_TIMES)} must be given with is_incremental_checkpoint=True, got "
            f"{' and '.join(str(settings[name]) for name in _SAVE_TIMES)}; give both in seconds"
        )
    return settings


def _say_what_has_no_effect(kwargs: Dict[str, Any]) -> None:
    switches = sorted(set(_WITHOUT_EFFECT) & set(kwargs))
    if switches:
        tf.logging.info("init: without effect on a CPU: %s", ", ".join(switches))
    unknown = sorted(set(kwargs) - set(_SETTINGS) - set(_WITHOUT_EFFECT))
    if unknown:
        tf.logging.warning(
            "init: unknown and ignored: %s; known are %s",
            ", ".join(unknown),
            ", ".join([*_SETTINGS, *_WITHOUT_EFFECT]),
        )
    if get_rank_size() > 1:
        tf.logging.warning(
            "init: %d processes were launched; each trains tables of its own", get_rank_size()
        )


def terminate_config_initializer() -> None:
    """Ends what init() began; further calls, and calls without init(), only warn.

    A script that leaves it out ends as cleanly: what init() keeps goes with the process.

    Example:
      >>> rec.init()
      >>> rec.terminate_config_initializer()
    """
    if ConfigInitializer._instance is None:
        tf.logging.warning("terminate_config_initializer: init() was not called, or was ended.")
    _forget()


def _forget() -> None:
    ConfigInitializer._instance = None
    atexit.unregister(_forget)


def get_use_dynamic_expansion() -> bool:
    """Whether create_table tables grow without a limit: as init() was told, False without init().

    Example:
      >>> rec.get_use_dynamic_expansion()
      False
    """
    instance = ConfigInitializer._instance
    return instance is not None and instance.use_dynamic_expansion


def is_static() -> bool:
    """Whether init() was told that shapes are static, ``use_dynamic=False``."""
    instance = ConfigInitializer._instance
    return instance is not None and instance.use_static


def hashtable_collection() -> str:
    """The graph collection that create_table puts tables into."""
    instance = ConfigInitializer._instance
    if instance is None:
        return ASCEND_GLOBAL_HASHTABLE_COLLECTION
    return instance.train_params_config.ascend_global_hashtable_collection


def get_rank_id() -> int:
    """The number of this process among those an MPI launcher started; 0 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_RANK`` is no number.

    Example:
      >>> rec.get_rank_id(), rec.get_rank_size(), rec.get_local_rank_size()
      (0, 1, 1)
    """
    return _number("OMPI_COMM_WORLD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"), 0)


def get_rank_size() -> int:
    """How many processes an MPI launcher started; 1 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_SIZE`` is no number from 1.
    """
    return _number("OMPI_COMM_WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"), 1)


def get_local_rank_size() -> int:
    """How many of them run on this machine; 1 without a launcher.

    Raises:
      ValueError: ``OMPI_COMM_WORLD_LOCAL_SIZE`` is no number from 1.
    """
    size = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    return _number("OMPI_COMM_WORLD_LOCAL_SIZE", size, 1)


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(
            f"{name} must be an integer from {least}, got {text!r}; the launcher sets it, or unset "
            "it"
        )
    return int(text)
