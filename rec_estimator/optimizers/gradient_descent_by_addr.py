# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's gradient descent for tables with dynamic expansion. Here all tables are of one kind.

Source: gradient_descent.py.
"""

from rec_estimator._argument_checks import check_bool, check_text
from rec_estimator.optimizers.gradient_descent import GradientDescentOptimizer
from rec_estimator.optimizers.hash_optimizer import (
    MAX_NAME,
    check_expansion,
    check_float,
    check_learning_rate,
)
from rec_estimator.optimizers.table_optimizer import Hyperparameter


def create_hash_optimizer_by_addr(
    learning_rate: Hyperparameter,
    weight_decay: float = 0.0001,
    use_locking: bool = False,
    name: str = "GradientDescentByAddr",
) -> GradientDescentOptimizer:
    """Makes a gradient descent optimizer; unlike elsewhere the default weight decay is not 0.

    Args:
      learning_rate: In [0, 10], or a tensor.
      weight_decay: In [0, 1].
      use_locking: Whether updates of dense variables take a lock.
      name: 1 to 200 characters.

    Returns:
      The optimizer.

    Raises:
      ValueError: An argument has a wrong type or is out of range; or init() was called with
        ``use_dynamic_expansion=False``.

    Example:
      >>> factory = rec.optimizers.gradient_descent_by_addr.create_hash_optimizer_by_addr
      >>> factory(0.1).get_name()
      'GradientDescentByAddr'
    """
    check_expansion("create_hash_optimizer_by_addr", is_by_address=True)
    check_learning_rate(learning_rate)
    check_float("weight_decay", weight_decay, at_least=0, at_most=1)
    check_bool("use_locking", use_locking)
    check_text("name", name, MAX_NAME)
    return GradientDescentOptimizer(learning_rate, use_locking, name, weight_decay)
