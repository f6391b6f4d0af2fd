# SPDX-License-Identifier: Apache-2.0
"""The time by which tables with TimeEvict measure the age of keys.

The time is a variable, one for each rule, which all tables with the rule and all tasks of a cluster
share and checkpoints contain. Each training step advances it by a reading of the clock or of the
data; the op AdvanceTime says what becomes of a reading that jumps. Keys that the step trains get
the time as their version.
"""

import re
from typing import Optional

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator import _ops
from rec_estimator._tensorflow import graphs
from rec_estimator.graph_passes.graph_state import state_of
from rec_estimator.options import TimeEvict
from rec_estimator.table.optional_variable import OptionalVariable

# The scope of the variables with the times of rules.
TIME_SCOPE = "rec_estimator_time/"

# An int64 and a float that AdvanceTime refuses.
_TOO_LATE = 2.0**62


def find_table_time(rule: TimeEvict) -> Optional[tf.Variable]:
    """Returns the time of a rule in the default graph, int64 []; None: the graph has none."""
    name = _variable_name(rule)
    for variable in tf.global_variables():
        if variable.op.name == name:
            return variable
    return None


def table_time(rule: TimeEvict) -> tf.Variable:
    """Returns the time of a rule in the default graph, int64 []. The first call makes it.

    It is 0 until a step has trained. A restore from a checkpoint without it leaves it at that.
    """
    found = find_table_time(rule)
    if found is not None:
        return found
    with tf.init_scope(), tf.name_scope(None), tf.device("/device:CPU:0"):
        return OptionalVariable(0, _variable_name(rule))


def present_time(rule: TimeEvict) -> tf.Tensor:
    """Returns the time of a rule, int64 []; -1: unknown."""
    return time_or_unknown(table_time(rule).read_value())


def time_or_unknown(time: tf.Tensor) -> tf.Tensor:
    """Returns a time as a version, int64 []: -1 in place of 0, which no step has advanced."""
    return tf.where(time > 0, time, -tf.ones_like(time))


def time_of_step(rule: TimeEvict, table_name: str) -> tf.Tensor:
    """Advances the time of a rule, once for all tables that an optimizer updates in a step.

    Args:
      rule: The rule.
      table_name: A table with the rule, for the error.

    Returns:
      int64 []. The time of the step; -1: unknown.

    Raises:
      ValueError: The batch has no timestamp of the rule's name.
    """
    graph = tf.get_default_graph()
    times, place = state_of(graph).times, (rule, graphs.place_of_new_ops(graph))
    if place not in times:
        time = table_time(rule)
        name = rule.timestamp
        reading = None if name is None else _median(_timestamps(name, table_name), name)
        with graphs.colocate_with(time.handle, ignore_existing=True):
            times[place] = _ops.gen.rec_estimator_advance_time(
                time.handle,
                wall_clock() if reading is None else reading,
                most_seconds=rule.most_seconds_per_step,
                tolerance=rule.tolerance,
            )
    return times[place]


def wall_clock() -> tf.Tensor:
    """Returns the seconds since 1970 of the clock where the op runs, int64 []."""
    return tf.cast(tf.timestamp(), tf.int64)


def _variable_name(rule: TimeEvict) -> str:
    source = "clock" if rule.timestamp is None else re.sub("[^A-Za-z0-9_.-]", "_", rule.timestamp)
    return f"{TIME_SCOPE}{source}_{rule.seconds}"


def _timestamps(name: str, table_name: str) -> tf.Tensor:
    """Returns the timestamps of the batch, numbers of any shape."""
    graph = tf.get_default_graph()
    found = state_of(graph).features.get(name)
    if found is None:
        try:
            found = graph.get_tensor_by_name(f"{name}:0")
        except (KeyError, ValueError):
            raise ValueError(
                f"the batch must have an entry {name!r}, by which table {table_name!r} evicts, got "
                f"{sorted(state_of(graph).features)}; let input_fn return it or, in a session, "
                "give a tensor this name"
            ) from None
    if not isinstance(found, tf.Tensor) or not (found.dtype.is_integer or found.dtype.is_floating):
        raise ValueError(
            f"timestamp {name!r} must be a dense tensor of numbers, by which table {table_name!r} "
            f"evicts, got {found!r}; convert it to seconds since 1970"
        )
    return found


def _median(timestamps: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the median, int64 []: no wrong timestamp moves it far. 0 if there is none."""
    if not timestamps.dtype.is_floating:
        return _upper_median(tf.cast(timestamps, tf.int64))
    times = tf.cast(timestamps, tf.float64)
    # A NaN has no place in an order, so it becomes the least timestamp.
    median = _upper_median(tf.where(tf.math.is_nan(times), -np.inf * tf.ones_like(times), times))
    message = (
        f"timestamp {name!r} must be finite in more than half of a batch, got NaN or an infinity; "
        "give examples without a time the timestamp 0"
    )
    median = tf.debugging.check_numerics(median, message)
    return tf.cast(tf.clip_by_value(median, -_TOO_LATE, _TOO_LATE), tf.int64)


def _upper_median(numbers: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(numbers, [-1])
    middle = tf.size(flat) // 2
    return tf.reduce_sum(tf.sort(flat, direction="DESCENDING")[middle : middle + 1])
