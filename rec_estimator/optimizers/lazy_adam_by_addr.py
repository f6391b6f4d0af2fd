# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's lazy Adam for tables with dynamic expansion. Here all tables are of one kind.

Source: lazy_adam.py.
"""

from rec_estimator.optimizers.hash_optimizer import check_expansion
from rec_estimator.optimizers.lazy_adam import LazyAdamOptimizer, make_hash_optimizer
from rec_estimator.optimizers.table_optimizer import Hyperparameter


def create_hash_optimizer_by_address(
    learning_rate: Hyperparameter = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "LazyAdamByAddress",
    use_fusion_optim: bool = False,
) -> LazyAdamOptimizer:
    """Same as ``lazy_adam.create_hash_optimizer``, for ``init(use_dynamic_expansion=True)``.

    It may also be called without init(). Arguments and errors are the same.

    Example:
      >>> rec.optimizers.lazy_adam_by_addr.create_hash_optimizer_by_address(0.01).get_name()
      'LazyAdamByAddress'
    """
    check_expansion("create_hash_optimizer_by_address", is_by_address=True)
    return make_hash_optimizer(learning_rate, beta1, beta2, epsilon, name, use_fusion_optim)
