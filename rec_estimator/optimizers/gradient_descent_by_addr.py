# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with weight decay: the factory for tables with dynamic expansion."""

from rec_estimator.optimizers.gradient_descent import GradientDescentOptimizer
from rec_estimator.optimizers.hash_optimizer import factory_of

create_hash_optimizer_by_addr = factory_of(
    "gradient_descent_by_addr.create_hash_optimizer_by_addr", GradientDescentOptimizer
)
