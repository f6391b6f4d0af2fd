# SPDX-License-Identifier: Apache-2.0
"""RunConfig: TensorFlow's, with incremental checkpoints, steps per run, and tables' settings."""

from typing import Any, Optional

from rec_estimator._argument_checks import check_int
from rec_estimator._tensorflow import estimator as _estimator
from rec_estimator.checkpoint.saved_rows import check_policy
from rec_estimator.training.ps_tasks import PS_WAIT_SECS
from rec_estimator.training.step_loop import check_iterations
from rec_estimator.training.tf_config import read_tf_config

_INCREMENTAL = ("save_incremental_checkpoints_secs", "save_incremental_checkpoints_steps")


def _check_wait(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError(f"ps_wait_secs must be above 0, got {seconds}; the default is 60")
    return seconds


def _check_memory(limit: Optional[int]) -> Optional[int]:
    if limit is not None:
        check_int("table_memory_bytes", limit, 1, 2**63 - 1)
    return limit


class RunConfig(_estimator.RunConfig):
    """``tf.estimator.RunConfig`` with incremental checkpoints and several steps per run.

    ``save_checkpoints_secs`` or ``save_checkpoints_steps`` sets when full checkpoints are written.
    Incremental checkpoints are written between them: they hold the dense variables and, for each
    table, only the keys that were touched since the last checkpoint.

    With ``iterations_per_loop=N`` one run of the session does N training steps, including their
    input. The results are those of N separate runs. It pays if a step takes less than a
    millisecond. Hooks are called once per run: they see the tensors of the last of the N steps, and
    the global step advances by N. An action that a hook does every few steps therefore happens at
    multiples of N. If the data end within a run, training ends normally and keeps the steps that
    were done; the loss in the log is that of the last complete run.

    Args:
      *args: As in ``tf.estimator.RunConfig``.
      save_incremental_checkpoints_secs: Seconds between two incremental checkpoints, above 0. None:
        not timed.
      save_incremental_checkpoints_steps: Steps between two incremental checkpoints, above 0. None:
        not counted.
      iterations_per_loop: Training steps per run of the session, in [1, 1000000]. The number of
        steps to train must be a multiple of it.
      ps_wait_secs: In a cluster, the seconds that a task waits for the parameter servers when it
        starts, after one of them is lost, and while one does not answer; above 0.
      table_memory_bytes: Bytes of memory for all tables that have a tier on disk or a Capacity:
        index, rows and buffers. Rows that do not fit go to the disk (docs/storage.md), or are
        evicted (docs/filters.md). It replaces the sizes in storage options. None: those sizes.
      table_summaries: Whether the chief writes the counts of tables to TensorBoard every
        ``save_summary_steps`` steps, and logs them at each save (docs/monitoring.md).
      non_finite_rows: What a save does if a row of a table has a NaN or an infinite float:
        ``"warn"``, ``"refuse"`` or ``"stop"``, as in ``rec_estimator.Saver``. A model_fn with a
        Saver of its own sets it there.
      **kwargs: As in ``tf.estimator.RunConfig``.

    Raises:
      ValueError: An entry of TF_CONFIG is wrong, both intervals of incremental checkpoints are
        given, one is not above 0, iterations_per_loop, ps_wait_secs or table_memory_bytes is out of
        range, or non_finite_rows is another word. Also whatever ``tf.estimator.RunConfig`` raises.

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
        ps_wait_secs: float = PS_WAIT_SECS,
        table_memory_bytes: Optional[int] = None,
        table_summaries: bool = True,
        non_finite_rows: str = "warn",
        **kwargs: Any,
    ) -> None:
        read_tf_config()
        super().__init__(*args, **kwargs)
        self._ps_wait_secs = _check_wait(ps_wait_secs)
        self._table_memory_bytes = _check_memory(table_memory_bytes)
        self._iterations_per_loop = check_iterations(iterations_per_loop)
        self._table_summaries = table_summaries
        self._non_finite_rows = check_policy(non_finite_rows)
        self._set_incremental(save_incremental_checkpoints_secs, save_incremental_checkpoints_steps)

    def _set_incremental(self, secs: Optional[float], steps: Optional[int]) -> None:
        for name, value in zip(_INCREMENTAL, (secs, steps)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}; None switches it off")
        if secs is not None and steps is not None:
            raise ValueError(
                "one of save_incremental_checkpoints_secs and save_incremental_checkpoints_steps "
                f"must be None, got {secs} and {steps}; give only one of them"
            )
        self._save_incremental_checkpoints_secs = secs
        self._save_incremental_checkpoints_steps = steps

    @property
    def save_incremental_checkpoints_secs(self) -> Optional[float]:
        """Seconds between two incremental checkpoints; None if they are not timed."""
        return self._save_incremental_checkpoints_secs

    @property
    def save_incremental_checkpoints_steps(self) -> Optional[int]:
        """Steps between two incremental checkpoints; None if they are not counted."""
        return self._save_incremental_checkpoints_steps

    @property
    def ps_wait_secs(self) -> float:
        """Seconds that a task waits for the parameter servers."""
        return self._ps_wait_secs

    @property
    def table_memory_bytes(self) -> Optional[int]:
        """Bytes of memory for all tables with a tier on disk or a Capacity; None: no such limit."""
        return self._table_memory_bytes

    @property
    def table_summaries(self) -> bool:
        """Whether the chief writes and logs the counts of tables."""
        return self._table_summaries

    @property
    def non_finite_rows(self) -> str:
        """What a save does if a row of a table is not finite."""
        return self._non_finite_rows

    @property
    def iterations_per_loop(self) -> int:
        """Training steps per run of the session."""
        return self._iterations_per_loop

    def replace(self, **kwargs: Any) -> "RunConfig":
        """Returns a copy with other values.

        Args:
          **kwargs: The properties that ``tf.estimator.RunConfig.replace`` takes,
            ``save_incremental_checkpoints_secs``, ``save_incremental_checkpoints_steps``,
            ``iterations_per_loop``, ``ps_wait_secs``, ``table_memory_bytes``, ``table_summaries``
            and ``non_finite_rows``.

        Raises:
          ValueError: As in the constructor.
        """
        secs, steps = (kwargs.pop(name, getattr(self, name)) for name in _INCREMENTAL)
        iterations = check_iterations(kwargs.pop("iterations_per_loop", self.iterations_per_loop))
        wait = _check_wait(kwargs.pop("ps_wait_secs", self.ps_wait_secs))
        memory = _check_memory(kwargs.pop("table_memory_bytes", self.table_memory_bytes))
        summaries = kwargs.pop("table_summaries", self.table_summaries)
        policy = check_policy(kwargs.pop("non_finite_rows", self.non_finite_rows))
        copied = super().replace(**kwargs)
        copied._set_incremental(secs, steps)
        copied._iterations_per_loop = iterations
        copied._ps_wait_secs = wait
        copied._table_memory_bytes = memory
        copied._table_summaries = summaries
        copied._non_finite_rows = policy
        return copied
