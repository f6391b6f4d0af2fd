# SPDX-License-Identifier: Apache-2.0
"""Adam with decoupled weight decay.

Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2
with a schedule multiplier of 1, on top of Adam as in adam.py. Note that weight_decay is not
multiplied by the learning rate; some other libraries do that.
"""

import contextlib
from typing import Any, Iterable, Iterator, Optional, Sequence, Set, Type

import tensorflow.compat.v1 as tf

from rec_estimator.optimizers.adam import AdamOptimizer
from rec_estimator.optimizers.dense_optimizer import DenseRows, DenseSteps, adam_step
from rec_estimator.optimizers.table_optimizer import (
    GradientAndVariable,
    Hyperparameter,
    RuleVariable,
    Scalar,
    ShardVariable,
    Variable,
    check_hyperparameter,
)
from rec_estimator.table.table import EmbeddingTable


class AdamWOptimizer(DenseSteps, AdamOptimizer):
    """DeepRec's ``tf.train.AdamWOptimizer``, for tables and dense variables.

    For each key of the batch: ``value -= weight_decay * value + d``, where d is the step of
    AdamOptimizer. Rows that are not in the batch keep value, m and v, also in dense variables.

    ``minimize`` and ``apply_gradients`` take ``decay_var_list``, the variables and tables that
    decay. Without it all decay; with an empty list, none.

    Args:
      weight_decay: The fraction of a value that a step removes; at least 0. If the learning rate
        has a schedule, use the same schedule here.
      learning_rate: At least 0.
      beta1: In [0, 1).
      beta2: In [0, 1).
      epsilon: At least 0.
      use_locking: For dense variables; updates of tables always lock.
      name: Name of the ops and of the slots.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> optimizer = rec.optimizers.AdamWOptimizer(1e-4, learning_rate=0.001)
      >>> train_op = optimizer.minimize(loss, decay_var_list=[table])
    """

    table_rule = "AdamW"

    # References to what decays, while gradients are applied; None: all variables.
    _decaying: Optional[Set[Any]] = None

    def __init__(
        self,
        weight_decay: Hyperparameter,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        check_hyperparameter("weight_decay", weight_decay, at_least=0)
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._weight_decay = weight_decay
        self._weight_decay_t: Optional[tf.Tensor] = None  # The tensor, set in _prepare().

    def table_hyperparameters(self, variable: RuleVariable) -> Sequence[Scalar]:
        """The hyperparameters of Adam, and weight decay."""
        return (*super().table_hyperparameters(variable), self._decay_of(variable))

    def _decay_of(self, variable: RuleVariable) -> Scalar:
        decayed = variable.shard if isinstance(variable, ShardVariable) else variable
        if self._decaying is None or decayed.ref() in self._decaying:
            return self._weight_decay_t
        return 0.0

    def minimize(
        self, *args: Any, decay_var_list: Optional[Iterable[Variable]] = None, **kwargs: Any
    ) -> tf.Operation:
        """Builds the step that minimizes a loss.

        Args:
          *args: As in ``tf.compat.v1.train.Optimizer.minimize``.
          decay_var_list: The variables and tables that decay. None: all.
          **kwargs: As in ``tf.compat.v1.train.Optimizer.minimize``.

        Returns:
          The op that runs the step.

        Raises:
          ValueError: No variable gets a gradient. Also whatever compute_gradients and
            apply_gradients raise.
          TypeError: decay_var_list has something that is neither a variable nor a table.
        """
        with self._decaying_only(decay_var_list):
            return super().minimize(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
        skip_gradients_aggregation: bool = False,
        decay_var_list: Optional[Iterable[Variable]] = None,
    ) -> tf.Operation:
        """Applies gradients to variables and tables, and decays those in decay_var_list.

        The other arguments are those of AdamOptimizer.

        Args:
          decay_var_list: The variables and tables that decay. None: all.

        Returns:
          The op that runs the step.

        Raises:
          TypeError: decay_var_list has something that is neither a variable nor a table. Also
            whatever apply_gradients of AdamOptimizer raises.
        """
        with self._decaying_only(decay_var_list):
            return super().apply_gradients(
                grads_and_vars, global_step, name, skip_gradients_aggregation
            )

    @contextlib.contextmanager
    def _decaying_only(self, variables: Optional[Iterable[Variable]]) -> Iterator[None]:
        """Keeps decay_var_list for the block. None: that of the block around it, else all."""
        before = self._decaying
        if variables is not None:
            self._decaying = {part.ref() for variable in variables for part in _parts(variable)}
        try:
            yield
        finally:
            self._decaying = before

    def _prepare(self) -> None:
        super()._prepare()
        weight_decay = self._call_if_callable(self._weight_decay)
        self._weight_decay_t = tf.convert_to_tensor(weight_decay, name="weight_decay")

    def dense_step(self, gradient: tf.Tensor, variable: tf.Variable, rows: DenseRows) -> None:
        """The same step for rows of a dense variable."""
        *adam, weight_decay = self.table_hyperparameters(variable)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        step = adam_step(gradient, m, v, rows, adam)
        decay = rows.read(variable) * tf.cast(weight_decay, gradient.dtype)
        rows.subtract(variable, decay + step)


def _parts(variable: Any) -> Iterable[Any]:
    """The shards of a table, the parts of a partitioned variable, or the variable itself."""
    if isinstance(variable, EmbeddingTable) or hasattr(variable, "as_tensor"):
        return list(variable)
    if hasattr(variable, "ref") and not isinstance(variable, tf.Tensor):
        return [variable]
    raise TypeError(
        f"decay_var_list must have variables and tables, got {variable!r}; take them from "
        "tf.trainable_variables()"
    )


def extend_with_decoupled_weight_decay(
    base_optimizer: Type[tf.train.Optimizer],
) -> Type[AdamWOptimizer]:
    """Returns the class of optimizers that do the step of another class, and decay weights.

    The same function as in DeepRec, where it takes any optimizer. Here only Adam has a rule for
    tables whose decay is decoupled from the step, which is AdamWOptimizer.

    Args:
      base_optimizer: ``AdamOptimizer``, this package's or TensorFlow's.

    Returns:
      A class derived from AdamWOptimizer. Its first argument is the weight decay. Its slots are
      named Adam, as those of base_optimizer.

    Raises:
      ValueError: base_optimizer is another class.

    Example:
      >>> MyAdamW = rec.optimizers.extend_with_decoupled_weight_decay(tf.train.AdamOptimizer)
      >>> MyAdamW(weight_decay=1e-4, learning_rate=0.001).get_name()
      'Adam'
    """
    if base_optimizer not in (AdamOptimizer, tf.train.AdamOptimizer):
        raise ValueError(
            f"base_optimizer must be AdamOptimizer, got {base_optimizer!r}; no other rule for "
            "tables has a decoupled decay, GradientDescentOptimizer(weight_decay=) has one that "
            "is multiplied by the learning rate"
        )
    return _DecayingAdam


class _DecayingAdam(AdamWOptimizer):
    """AdamWOptimizer with the default name of AdamOptimizer."""

    def __init__(
        self,
        weight_decay: Hyperparameter,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(weight_decay, learning_rate, beta1, beta2, epsilon, use_locking, name)
