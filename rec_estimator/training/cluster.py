# SPDX-License-Identifier: Apache-2.0
"""Training on a cluster that TF_CONFIG describes: its configuration, and what a session needs.

TensorFlow trains: every task runs the whole script, the chief and the workers send their graphs to
the parameter servers (ps). This module adds checks that TensorFlow lacks. Before each session, also
one that replaces a lost session, every ps must answer, and the chief checks that each ps can run
our ops and see the model's folder. A failed check raises an error that names the task; TensorFlow
alone would wait forever.
"""

import os
import time
from typing import Any, Optional

import tensorflow.compat.v1 as tf

from rec_estimator._tensorflow import estimator as tf_estimator
from rec_estimator.training import ps_tasks
from rec_estimator.training.ps_watch import PsWatch


def check_config(config: tf_estimator.RunConfig) -> None:
    """Refuses configurations in which each task would train its own tables, or none.

    Args:
      config: The configuration of an Estimator.

    Raises:
      ValueError: Several tasks train without a ps; train_distribute is not a strategy of ps tasks;
        or iterations_per_loop is above 1 with a ps.
    """
    strategy = config.train_distribute
    if strategy is not None and not _has_ps(strategy):
        raise ValueError(
            "train_distribute must be None or, with ps tasks, a tf.compat.v1.distribute."
            f"experimental.ParameterServerStrategy with one replica, got {strategy!r}; leave it "
            "out, TF_CONFIG with ps tasks places variables and tables"
        )
    if config.num_worker_replicas > 1 and not config.num_ps_replicas:
        raise ValueError(
            f"TF_CONFIG must have a ps task for {config.num_worker_replicas} training tasks, got "
            'none; add "ps": ["host:port"] to its cluster'
        )
    iterations = getattr(config, "iterations_per_loop", 1)
    if (config.num_ps_replicas or strategy is not None) and iterations > 1:
        raise ValueError(
            f"iterations_per_loop must be 1 with ps tasks, got {iterations}; leave it out, the "
            "loop cannot call ops on other tasks"
        )


def _has_ps(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is the one of ps tasks, with one replica, made in a cluster with ps."""
    if not isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        return False
    # With a strategy, TensorFlow fills the cluster into the configuration when training begins.
    devices = map(tf.DeviceSpec.from_string, strategy.extended.parameter_devices)
    return strategy.num_replicas_in_sync == 1 and all(device.job == "ps" for device in devices)


def with_device_filters(config: tf_estimator.RunConfig) -> tf_estimator.RunConfig:
    """Restricts a task with a session_config of its own to the ps tasks and itself.

    TensorFlow does so if the user gives no session_config. Without filters, a session waits for
    all workers, and is lost when any of them dies.

    Args:
      config: The configuration of an Estimator.

    Returns:
      The configuration; a copy if filters were added. Filters of the user are kept.
    """
    session_config = config.session_config
    if not config.num_ps_replicas or session_config is None or session_config.device_filters:
        return config
    copied = tf.ConfigProto()
    copied.CopyFrom(session_config)
    copied.device_filters.extend(["/job:ps", f"/job:{config.task_type}/task:{config.task_id}"])
    return config.replace(session_config=copied)


def train_and_evaluate(
    estimator: tf_estimator.Estimator,
    train_spec: tf_estimator.TrainSpec,
    eval_spec: tf_estimator.EvalSpec,
) -> Any:
    """``tf.estimator.train_and_evaluate`` that names the address if a server cannot start.

    Without TF_CONFIG it trains and evaluates in this process. With it, it does the work of the task
    that TF_CONFIG selects: chief, worker, ps or evaluator. A ps serves until it is killed.

    Args:
      estimator: The estimator.
      train_spec: As in TensorFlow.
      eval_spec: As in TensorFlow.

    Returns:
      As TensorFlow: metrics and exports of a training in one process, otherwise None.

    Raises:
      OSError: Another process uses the port of this task.
      ValueError: As in TensorFlow.

    Example:
      >>> # rec.train_and_evaluate(
      >>> #     estimator, rec.TrainSpec(input_fn, max_steps=1000), rec.EvalSpec(test_input_fn))
    """
    try:
        return tf_estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    except tf.errors.UnknownError as error:
        config = estimator.config
        if "Could not start gRPC server" not in str(error):
            raise
        raise port_error(config.cluster_spec, config.task_type, config.task_id) from error


def port_error(cluster: tf.train.ClusterSpec, job: str, task: int) -> OSError:
    """The error for a server that cannot start because its port is taken.

    Args:
      cluster: The cluster.
      job: The job of this task.
      task: Its number in the job.
    """
    return OSError(
        f"the port of {job} {task} must be free on this machine, got "
        f"{cluster.task_address(job, task)}, where no server can start; end the other process, or "
        "correct TF_CONFIG"
    )


class ClusterScaffold(tf.train.Scaffold):
    """A Scaffold whose sessions begin when the tasks that they need answer.

    TensorFlow calls finalize() before it creates a session, and again before each session that
    replaces a lost session.

    Args:
      config: The configuration of a chief or worker in a cluster with ps tasks.
      scaffold: The Scaffold to copy.
      watch: A hook of the training; ends what waits for a ps that does not answer.
    """

    def __init__(
        self, config: tf_estimator.RunConfig, scaffold: tf.train.Scaffold, watch: PsWatch
    ) -> None:
        super().__init__(copy_from_scaffold=scaffold)
        self._config = config
        self._watch = watch
        _end_sessions_without_lost_tasks()

    def finalize(self) -> "ClusterScaffold":
        """Completes the graph, then waits for the tasks.

        Raises:
          TimeoutError: A ps does not answer, or the chief does not initialize the model.
          RuntimeError: A ps cannot run our ops, or is not the task that TF_CONFIG names.
          OSError: A ps does not see the model's folder.
        """
        super().finalize()
        self._watch.check()
        ps_tasks.wait_for_ps(self._config)
        if self._config.is_chief:
            self._log_what_is_restored()
        else:
            self._wait_for_chief()
        return self

    def _log_what_is_restored(self) -> None:
        """Logs whether live ps tasks hold a model, and from where the chief restores."""
        step = self._live_step()
        latest = tf.train.latest_checkpoint(self._config.model_dir)
        source = f"restores {latest}" if latest else "has no checkpoint and initializes the model"
        if step is None:
            tf.logging.info("The ps tasks hold no whole model; the chief %s.", source)
        else:
            tf.logging.warning(
                "The ps tasks hold a model at step %d. The chief does not go on with it, because "
                "no one knows whether its tables and variables belong together; it %s. Later "
                "steps are lost.",
                step,
                source,
            )

    def _live_step(self) -> Optional[int]:
        step = tf.train.get_global_step(tf.get_default_graph())
        try:
            with self._session(seconds=60) as session:
                return int(session.run(step))
        except (tf.errors.FailedPreconditionError, *ps_tasks.LOST_TASK_ERRORS):
            return None

    def _wait_for_chief(self) -> None:
        """Waits until the model is ready. TensorFlow would look only every 30 seconds."""
        seconds = self._config.session_creation_timeout_secs
        deadline = time.monotonic() + seconds
        while self._missing():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the chief must initialize the model within {seconds} seconds, got variables "
                    "that are not initialized; start it, or make session_creation_timeout_secs of "
                    "RunConfig longer"
                )
            time.sleep(ps_tasks.POLL_SECONDS)

    def _missing(self) -> bool:
        try:
            with self._session(seconds=300) as session:
                return bool(session.run(self.ready_for_local_init_op).size)
        except (tf.errors.FailedPreconditionError, *ps_tasks.LOST_TASK_ERRORS):
            self._watch.check()
            ps_tasks.wait_for_ports(
                self._config.cluster_spec.job_tasks("ps"), ps_tasks.seconds_to_wait(self._config)
            )
            return True

    def _session(self, seconds: float) -> tf.Session:
        """A session on the graph, each call of which has a deadline."""
        config = tf.ConfigProto()
        config.CopyFrom(self._config.session_config)
        config.operation_timeout_in_ms = round(1000 * seconds)
        return tf.Session(self._config.master, config=config)


class ClusterHook(tf.train.SessionRunHook):
    """Waits for the ps tasks before a training with train_distribute begins.

    TensorFlow replaces the Scaffold of such a training. So nothing is called before a session that
    replaces a lost session.

    Args:
      config: The configuration of a chief or worker in a cluster with ps tasks.
    """

    def __init__(self, config: tf_estimator.RunConfig) -> None:
        self._config = config
        _end_sessions_without_lost_tasks()

    def begin(self) -> None:
        """Waits for the ps tasks; the chief checks them. TensorFlow calls this once.

        Raises:
          TimeoutError, RuntimeError, OSError: As ClusterScaffold.finalize().
        """
        ps_tasks.wait_for_ps(self._config)


def _end_sessions_without_lost_tasks() -> None:
    """Keeps the end of a session from waiting forever for a lost ps."""
    # TensorFlow reads it at each call to a task.
    os.environ.setdefault("GRPC_FAIL_FAST", "true")
