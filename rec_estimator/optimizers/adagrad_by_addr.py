# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's Adagrad for tables with dynamic expansion. Here all tables are of one kind.

Source: adagrad.py. Differs: Rec SDK adds 1e-7 to the accumulator under the root.
"""

from rec_estimator.optimizers.adagrad import AdagradOptimizer, make_hash_optimizer
from rec_estimator.optimizers.hash_optimizer import check_expansion
from rec_estimator.optimizers.table_optimizer import Hyperparameter


def create_hash_optimizer_by_address(
    learning_rate: Hyperparameter = 0.001,
    initial_accumulator_value: float = 0.9,
    name: str = "Adagrad",
) -> AdagradOptimizer:
    """Same as ``adagrad.create_hash_optimizer``, for ``init(use_dynamic_expansion=True)``.

    It may also be called without init(). It has no use_locking. The other arguments and the errors
    are the same.

    Example:
      >>> rec.optimizers.adagrad_by_addr.create_hash_optimizer_by_address(0.01).get_name()
      'Adagrad'
    """
    check_expansion("create_hash_optimizer_by_address", is_by_address=True)
    return make_hash_optimizer(learning_rate, initial_accumulator_value, False, name)
