# SPDX-License-Identifier: Apache-2.0
"""Parts of all metrics: checked batches, sums over batches, and samples that are kept."""

from typing import Any, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

# A metric as tf.metrics returns it: its value, and the op that adds a batch.
Metric = Tuple[tf.Tensor, tf.Operation]

# Rows that a store begins with. It doubles when it is full: a row is copied once on average.
_FIRST_ROWS = 4096


class Batch(NamedTuple):
    """A checked batch of samples.

    labels: float64 [B]; predictions: float32 [B], finite; weights: float64 [B], 0 or more.
    """

    labels: tf.Tensor
    predictions: tf.Tensor
    weights: tf.Tensor


def check_batch(
    labels: Any, predictions: Any, weights: Any = None, *, probabilities: bool = False
) -> Batch:
    """Flattens a batch, and checks it while it runs.

    Args:
      labels: Numbers or bools of any shape, each 0 or 1.
      predictions: As many finite numbers; probabilities in [0, 1] if probabilities says so.
      weights: As many finite numbers of at least 0, or None for ones.
      probabilities: Whether predictions are probabilities.

    Raises:
      tf.errors.InvalidArgumentError: A number is not as said (while running).
    """
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float64)
    predictions = tf.cast(tf.reshape(predictions, [-1]), tf.float32)
    checks = [
        tf.debugging.assert_equal(
            tf.equal(labels, 0) | tf.equal(labels, 1), True, message="labels must be 0 or 1"
        ),
        _check_length("labels", labels, predictions),
    ]
    if probabilities:
        in_range = (predictions >= 0) & (predictions <= 1)
        message = "predictions must be probabilities in [0, 1]; pass tf.sigmoid(logits)"
        checks.append(tf.debugging.assert_equal(in_range, True, message=message))
    else:
        checks.append(tf.debugging.assert_all_finite(predictions, "predictions must be finite"))
    if weights is None:
        weights = tf.ones_like(labels)
    else:
        weights = tf.cast(tf.reshape(weights, [-1]), tf.float64)
        is_weight = tf.math.is_finite(weights) & (weights >= 0)
        message = "weights must be finite and at least 0"
        checks.append(tf.debugging.assert_equal(is_weight, True, message=message))
        checks.append(_check_length("weights", weights, predictions))
    with tf.control_dependencies(checks):
        return Batch(*(tf.identity(each) for each in (labels, predictions, weights)))


def _check_length(name: str, tensor: tf.Tensor, predictions: tf.Tensor) -> tf.Operation:
    return tf.debugging.assert_equal(
        tf.size(tensor), tf.size(predictions), message=f"{name} must be as many as predictions"
    )


def sums(*terms: tf.Tensor) -> Tuple[tf.Tensor, tf.Operation]:
    """Adds tensors up over batches.

    Args:
      *terms: float64 [], what a batch adds to each sum.

    Returns:
      float64 [len(terms)], the sums so far, and the op that adds the batch.
    """
    total = _local_variable("sums", tf.zeros([len(terms)], tf.float64))
    return total.read_value(), total.assign_add(tf.stack(terms), read_value=False)


class SampleStore:
    """Columns of all samples since the local variables were initialized.

    An exact rank needs all scores at once. A sample takes the bytes of its columns; the store
    doubles, so that it holds at most twice what it needs.

    Args:
      *columns: Tensors [B], a batch of each column.
    """

    def __init__(self, *columns: tf.Tensor) -> None:
        self._size = _local_variable("samples", tf.zeros([], tf.int64))
        self._columns = [
            _local_variable(f"column_{i}", tf.zeros([_FIRST_ROWS], column.dtype))
            for i, column in enumerate(columns)
        ]
        self._batch = columns

    def read(self) -> List[tf.Tensor]:
        """Returns each column, [samples]."""
        size = self._size.read_value()
        return [column.read_value()[:size] for column in self._columns]

    def append(self) -> tf.Operation:
        """Returns the op that adds the batch."""
        begin = self._size.read_value()
        end = begin + tf.size(self._batch[0], out_type=tf.int64)
        with tf.control_dependencies([self._grow_to(end)]):
            rows = tf.range(begin, end)
            written = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=column.handle, indices=rows, updates=batch
                )
                for column, batch in zip(self._columns, self._batch)
            ]
        with tf.control_dependencies(written):
            return self._size.assign(end, read_value=False)

    def _grow_to(self, rows: tf.Tensor) -> tf.Operation:
        capacity = tf.size(self._columns[0].read_value(), out_type=tf.int64)

        def grow() -> tf.Operation:
            more = tf.maximum(capacity, rows - capacity)
            return tf.group(
                *(
                    # Variable.assign compares shapes; a store changes its own.
                    tf.raw_ops.AssignVariableOp(
                        resource=column.handle,
                        value=tf.pad(column.read_value(), [[0, more]]),
                    )
                    for column in self._columns
                )
            )

        return tf.cond(rows > capacity, grow, tf.no_op)


def _local_variable(name: str, initial: tf.Tensor) -> tf.Variable:
    """A resource in the collections of a metric's variables; a vector may change its length."""
    return tf.Variable(
        initial,
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES],
        name=name,
        shape=tf.TensorShape([None] * initial.shape.rank),
        use_resource=True,
    )


def group_ids(groups: Any, predictions: tf.Tensor) -> tf.Tensor:
    """int64 [B] of integers or strings; a string is its hash, as strings in a table are.

    Raises:
      TypeError: groups are neither integers nor strings.
      tf.errors.InvalidArgumentError: There is not one for each prediction (while running).
    """
    groups = tf.reshape(groups, [-1])
    if groups.dtype == tf.string:
        groups = tf.strings.to_hash_bucket_fast(groups, 2**63 - 1)
    elif not groups.dtype.is_integer:
        raise TypeError(f"groups must be integers or strings, got {groups.dtype.name}; cast them")
    with tf.control_dependencies([_check_length("groups", groups, predictions)]):
        return tf.identity(tf.cast(groups, tf.int64))


def runs(*sorted_columns: tf.Tensor) -> tf.Tensor:
    """int64 [n]: for each row, the number of the run of equal rows that it is in, from 0."""
    changes = [tf.not_equal(column[1:], column[:-1]) for column in sorted_columns]
    is_new = tf.cast(tf.reduce_any(tf.stack(changes), axis=0), tf.int64)
    first = tf.zeros_like(sorted_columns[0][:1], tf.int64)
    return tf.cumsum(tf.concat([first, is_new], axis=0))
