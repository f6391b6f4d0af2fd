# SPDX-License-Identifier: Apache-2.0
"""Lazy Adam: the factory for tables with dynamic expansion."""

from rec_estimator.optimizers.hash_optimizer import factory_of
from rec_estimator.optimizers.lazy_adam import LazyAdamOptimizer

create_hash_optimizer_by_address = factory_of(
    "lazy_adam_by_addr.create_hash_optimizer_by_address", LazyAdamOptimizer
)
