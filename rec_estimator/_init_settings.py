# SPDX-License-Identifier: Apache-2.0
"""The settings that a script passed to ``rec_estimator.init()``: one set a process.

init() checks them. They are kept here, below the optimizers, so that optimizers can read them
without importing init().
"""

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class InitSettings:
    """The checked arguments of one call of init().

    Attributes:
      max_steps: Steps of the whole training; -1: until the data end.
      train_steps: Steps between two evaluations; -1: not set.
      eval_steps: Steps of one evaluation; -1: until the data end.
      save_steps: Steps between two saves; -1: not set.
      if_load: Whether the script wants a checkpoint restored before training.
      use_dynamic: Whether the shape of a batch may change from step to step.
      use_dynamic_expansion: Whether create_table tables grow without a limit.
      is_incremental_checkpoint: Whether the script wants incremental checkpoints.
      save_checkpoint_due_time: Seconds between two full checkpoints.
      save_delta_checkpoints_secs: Seconds between two incremental checkpoints.
      restore_model_version: Step of the checkpoint to restore; None: the latest.
      recent_key_count_threshold: An incremental checkpoint may omit keys with fewer occurrences.
    """

    max_steps: int = -1
    train_steps: int = -1
    eval_steps: int = -1
    save_steps: int = -1
    if_load: bool = False
    use_dynamic: bool = True
    use_dynamic_expansion: bool = False
    is_incremental_checkpoint: bool = False
    save_checkpoint_due_time: Optional[int] = None
    save_delta_checkpoints_secs: Optional[int] = None
    restore_model_version: Optional[int] = None
    recent_key_count_threshold: int = 0


_settings: Optional[InitSettings] = None


def init_settings() -> Optional[InitSettings]:
    """Returns the settings of this process; None before init() and after its end."""
    return _settings


def keep_init_settings(settings: Optional[InitSettings]) -> None:
    """Sets the settings of this process.

    Args:
      settings: None: as before init().
    """
    global _settings
    _settings = settings
